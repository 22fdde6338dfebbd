"""The two copies of the root: read with checks, written one after the other.

Invariants: root-copy, roots-equal (`gpkvs.media.layout`). A root changes only while the flag is IDLE; the current
copy is whole and durable while the other one is stored over, and no batch starts until both are equal.
"""

from __future__ import annotations

from dataclasses import dataclass

from gpkvs import failpoint
from gpkvs.errors import CorruptStoreError, FormatError
from gpkvs.media.layout import ROOT_OFFSETS, STRUCTURE_BYTES, BadBytesError, BadFormatError, Root
from gpkvs.pm.region import Region

COPY_NAMES = ("A", "B")


@dataclass(frozen=True)
class RootCopies:
    """The two copies as found: a `Root`, or why it cannot be read."""

    copies: tuple[Root | BadBytesError, Root | BadBytesError]

    @staticmethod
    def read(region: Region) -> RootCopies:
        """Read both copies; damage is kept, not raised."""

        def one(offset: int) -> Root | BadBytesError:
            try:
                return Root.unpack(region.read(offset, STRUCTURE_BYTES))
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


def write_roots(region: Region, root: Root) -> None:
    """Write both copies, each durable before the next step, as the domain asks (`Region.persist_unlogged`).

    The older or damaged copy goes first: until it is durable, the other one, which is durable already
    (`StoreFiles.fsync`), alone says what the store is.
    """
    stale = COPY_NAMES.index(RootCopies.read(region).repaired or "A")
    first, second = ROOT_OFFSETS[stale], ROOT_OFFSETS[1 - stale]
    region.store(first, root.pack())
    region.persist_unlogged()
    failpoint.hit("between_roots")
    region.store(second, root.pack())
    region.persist_unlogged()
