"""Blocks of arrays and their digests, which tell whether one changed, or was damaged (``kernels/gpm/gpm_save.cu``)."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from itertools import accumulate, pairwise
from typing import Any, ClassVar, Final

import numpy as np

from gpkvs.backends.fields import fields_of
from gpkvs.batch import U64
from gpkvs.gpm.place import Place
from gpkvs.native import library

BLOCK_BYTES: Final = 256 << 10
DIGEST_BYTES: Final = 16
_TABLES_MAX: Final = 64


class _Call(ctypes.Structure):
    """A `GpmSave` (``kernels/gpm/gpm_save.hpp``)."""

    _fields_: ClassVar = [(field.name, ctypes.c_uint64) for field in fields_of(library.gpkvs_gpm_save_fields())]


def blocks_of(count: int) -> int:
    """Return how many blocks so many bytes have."""
    return -(-count // BLOCK_BYTES)


class Held:
    """What a copy holds, as this process knows it.

    Attributes
    ----------
    digests : (blocks, 2) uint64 of the place
        Of its blocks.
    are_known
        Whether they are: of a copy that is being written, nobody knows them.
    differs : (blocks,) uint8 of the host
        Which blocks the last save found changed.
    """

    def __init__(self, blocks: int, place: Place) -> None:
        self.digests = place.words(np.zeros((blocks, 2), np.uint64))
        self.differs = place.marks(blocks)
        self.are_known = False
        self.addresses = place.address(self.digests), self.differs.ctypes.data


class Blocks:
    """The blocks of some arrays, one array after the other, wherever those are.

    Parameters
    ----------
    sizes
        Of each array: its bytes.
    begins
        Where each begins in a copy.

    Attributes
    ----------
    count
        How many blocks there are.
    bytes
        And bytes.
    of_arrays
        Which blocks each array has.
    """

    def __init__(self, sizes: Sequence[int], begins: Sequence[int]) -> None:
        ends = list(accumulate(map(blocks_of, sizes), initial=0))
        self.of_arrays = [slice(*pair) for pair in pairwise(ends)]
        self.count, self.bytes = ends[-1], sum(sizes)
        self._forms = np.array([(0, *form) for form in zip(sizes, ends[:-1], begins, strict=True)], np.uint64)
        self._tables: dict[tuple[int, ...], _Table] = {}  # a loop saves the same arrays again and again

    def table(self, addresses: tuple[int, ...], place: Place) -> _Table:
        """Return the arrays, by where they are, as `GpmPart`s."""
        found = self._tables.get(addresses)
        if found is None:
            if len(self._tables) == _TABLES_MAX:
                self._tables.clear()
            parts = self._forms.copy()
            parts[:, 0] = addresses
            found = self._tables[addresses] = _Table(parts, place.words(parts), place)
        return found


class _Table:
    """Arrays as `GpmPart`s, for the host and near to kernels, and the addresses of both."""

    def __init__(self, parts: U64, near: Any, place: Place) -> None:
        self._parts, self._near = parts, near
        self.on_host, self.near = parts.ctypes.data, place.address(near)
        self.count = len(parts)


class Digests:
    """The hash of blocks, keyed by a file's seed, computed at a place."""

    def __init__(self, seed: int, place: Place) -> None:
        self._place = place
        # NumPy promises this stream; that of a Generator, not.
        self._keys = place.words(np.random.Philox(seed).random_raw(BLOCK_BYTES // 8))
        self._keys_at = place.address(self._keys)

    def of(self, blocks: Blocks, addresses: tuple[int, ...]) -> U64:
        """Return the digests of all blocks of arrays, as (blocks, 2) uint64 of the host."""
        digests = self._place.xp.empty((blocks.count, 2), np.uint64)
        self._run(blocks, addresses, (self._place.address(digests), 0), are_known=False, to=0)
        return self._place.to_host(digests)

    def save(self, blocks: Blocks, addresses: tuple[int, ...], held: Held, to: int) -> int:
        """Find the blocks of arrays that differ from what a copy holds, and store them.

        Parameters
        ----------
        blocks, addresses
            The arrays, and where they are.
        held
            What the copy holds. It has the new digests then, and who knows that all is stored says that they are known.
        to
            Where it begins in memory that the place reaches: what differs is stored there, and the digests, durably
            as far as no call of the system is needed. 0: nowhere; `held` says what to write.

        Returns
        -------
        int
            How many bytes differ.
        """
        are_known, held.are_known = held.are_known, False
        return self._run(blocks, addresses, held.addresses, are_known=are_known, to=to)

    def _run(
        self, blocks: Blocks, addresses: tuple[int, ...], found: tuple[int, int], *, are_known: bool, to: int
    ) -> int:
        if not blocks.count:
            return 0
        table = blocks.table(addresses, self._place)
        digest, differs = found
        # One for each call: what another thread restores meanwhile must not meet what is stored.
        call = _Call(
            parts=table.near,
            host_parts=table.on_host,
            count=table.count,
            blocks=blocks.count,
            block_bytes=BLOCK_BYTES,
            keys=self._keys_at,
            digest=digest,
            differs=differs,
            are_known=are_known,
            to=to,
        )
        return self._place.save(ctypes.addressof(call), blocks.bytes)
