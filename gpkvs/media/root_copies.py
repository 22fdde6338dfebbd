"""The two copies of the root: read with checks, written one after the other.

Invariants: root-copy, roots-equal (`gpkvs.media.layout`). A root changes only while the flag is IDLE; the current
copy is whole and durable while the other one is stored over, and no batch starts until both are equal.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

from gpkvs.errors import CorruptStoreError, FormatError
from gpkvs.media.layout import ROOT_OFFSETS, STRUCTURE_BYTES, BadBytesError, BadFormatError, Root
from gpkvs.pm.region import Region
from gpkvs.process import failpoint

COPY_NAMES = ("A", "B")

UnpackRoot = Callable[[bytes], Root]  # of one copy; raises `BadBytesError` if it is damaged


@dataclass(frozen=True)
class RootCopies:
    """The two copies as found: a `Root`, or why it cannot be read."""

    copies: tuple[Root | BadBytesError, Root | BadBytesError]

    @staticmethod
    def read(region: Region, unpack: UnpackRoot = Root.unpack) -> RootCopies:
        """Read both copies; damage is kept, not raised."""

        def one(offset: int) -> Root | BadBytesError:
            try:
                return unpack(region.read(offset, STRUCTURE_BYTES))
            except BadBytesError as error:
                return error

        return RootCopies((one(ROOT_OFFSETS[0]), one(ROOT_OFFSETS[1])))

    def current(self, region: Region) -> Root:
        """Return the newer whole copy.

        Raises
        ------
        FormatError
            If the store is of another format.
        CorruptStoreError
            If both copies are damaged.
        """
        whole = [copy for copy in self.copies if isinstance(copy, Root)]
        if whole:
            return max(whole, key=lambda root: root.sequence)
        for copy in self.copies:
            if isinstance(copy, BadFormatError):
                raise FormatError(f"{region.path}: {copy}; the files were not touched") from copy
        raise CorruptStoreError(
            "root-copy",
            f"both copies are damaged: copy A: {self.copies[0]}, copy B: {self.copies[1]}. "
            "Nothing was changed; restore the directory from a backup",
            path=region.path,
        )

    @property
    def repaired(self) -> str:
        """Which copy must be written again: "", "A" or "B"."""
        first, second = self.copies
        if first == second:
            return ""
        if not isinstance(first, Root):
            return COPY_NAMES[0]
        if not isinstance(second, Root):
            return COPY_NAMES[1]
        return COPY_NAMES[0] if first.sequence < second.sequence else COPY_NAMES[1]


class Roots:
    """The root of an open store, and the one place that changes it.

    Parameters
    ----------
    region
        The file of the root copies.
    unpack
        Reads a copy; an older format has its own.

    Attributes
    ----------
    found
        The two copies as they were when the store was opened.
    current
        The root as it is now.

    Raises
    ------
    FormatError, CorruptStoreError
        As `RootCopies.current` does.
    """

    def __init__(self, region: Region, unpack: UnpackRoot = Root.unpack) -> None:
        self._region = region
        self.found = RootCopies.read(region, unpack)
        self.current = self.found.current(region)

    def change(self, **fields: Any) -> None:
        """Write the next root, with other values in some fields; both copies are durable before this returns.

        The older or damaged copy goes first. Until it is durable, the other one alone says what the store is; that one
        is durable already (`StoreFiles.fsync`). The domain says how copies become durable (`Region.persist_unlogged`).

        Raises
        ------
        OSError
            If the operating system could not write; either root may be durable then.
        """
        self.write(replace(self.current, sequence=self.current.sequence + 1, **fields))

    def write(self, root: Root) -> None:
        """Write both copies of a root, as `change` does."""
        stale = COPY_NAMES.index(RootCopies.read(self._region).repaired or "A")
        first, second = ROOT_OFFSETS[stale], ROOT_OFFSETS[1 - stale]
        self._region.store(first, root.pack())
        self._region.persist_unlogged()
        failpoint.hit("between_roots")
        self._region.store(second, root.pack())
        self._region.persist_unlogged()
        self.current = root
