"""The parts of a growth step: what moves when the blocks `first` to `last - 1` of an index become twice as many.

Committers put them in order. Block k becomes 2k and 2k + 1 (``kernels/cu/grow.cu``).
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from gpkvs.backends.base import Backend
from gpkvs.batch import U8, U64
from gpkvs.media.image import Image
from gpkvs.media.index import Index
from gpkvs.media.layout import BLOCK_BYTES, PAGE_BYTES, Growth
from gpkvs.native import number

_UPPER = number("SIDE_UPPER")
_SLOTS_OF_AN_OPERATION = 8  # the host moves so many slots while it does one operation


class Slots(NamedTuple):
    """Slots, and what they are to hold."""

    number: U64
    contents: U64  # (slots, words of a slot)

    def __len__(self) -> int:
        return len(self.number)


def growth_after(index: Index, first: int) -> Growth:
    """Return the growth of an index when the blocks from `first` on have moved."""
    return Growth(index.entry.id, index.blocks, first)


def split(backend: Backend, index: Index, first: int, last: int) -> None:
    """Store all slots of the targets; no source may be a target. Not durable before `Region.persist`."""
    assert 2 * first >= last
    if (last - first) * index.layout.block_slots > _SLOTS_OF_AN_OPERATION * backend.host_ops_max:
        _split_on_device(backend, index, first, last)
        return
    _split(backend, index, first, last, upper_only=False)
    backend.host_stored_blocks(index, 2 * first, 2 * last)


def _split_on_device(backend: Backend, index: Index, first: int, last: int) -> None:
    assert 2 * last * BLOCK_BYTES <= index.region.bytes
    key0, key1 = index.hash_keys
    in_block = index.layout.block_slots
    backend.meet()
    backend.launch(
        f"split_slots_{index.layout.name}",
        (last - first) * BLOCK_BYTES // 16,
        source=index,
        index=index,
        blocks=index.blocks,
        first=first * in_block,
        hash_key0=key0,
        hash_key1=key1,
    )


def split_upper_half_of_block_0(backend: Backend, index: Index) -> None:
    """Store all slots of block 1: those that leave block 0. Not durable before `Region.persist`."""
    _split(backend, index, 0, 1, upper_only=True)
    backend.host_stored_blocks(index, 1, 2)


def _split(backend: Backend, index: Index, first: int, last: int, *, upper_only: bool) -> None:
    assert 2 * last * BLOCK_BYTES <= index.region.bytes
    key0, key1 = index.hash_keys
    backend.host.launch(
        f"split_{index.layout.name}",
        (last - first) * index.layout.block_buckets,
        keys_per_item=8,
        index=index,
        blocks=index.blocks,
        first=first,
        upper_only=int(upper_only),
        hash_key0=key0,
        hash_key1=key1,
    )


def leaving_block_0(backend: Backend, index: Index) -> Slots:
    """Return the slots of block 0 whose keys are in block 1 from now on, as they are without them."""
    number = np.flatnonzero(_sides(backend, index, 0, 1) == _UPPER).astype(np.uint64)
    contents = _contents(index, len(number))
    key0, key1 = index.hash_keys
    backend.host.launch(
        f"empty_slots_{index.layout.name}",
        len(number),
        changed_slot=number,
        hash_key0=key0,
        hash_key1=key1,
        contents=contents,
    )
    return Slots(number, contents)


class Moves(NamedTuple):
    """What a step of growth has a journal store: the slots that hold a key, in the order of their sources.

    Attributes
    ----------
    first
        The first block.
    side : (slots,) uint8
        Where each slot of the blocks goes.
    entry : (blocks,) uint64
        The number of each block's first entry.
    digest : (blocks,) uint64
        Gets the sum of the digests of each block's entries.
    entries
        How many there are.
    """

    first: int
    side: U8
    entry: U64
    digest: U64
    entries: int


def find_moves(backend: Backend, index: Index, first: int, last: int) -> Moves:
    """Return where each slot of some blocks goes."""
    side = _sides(backend, index, first, last)
    counts = np.count_nonzero(side.reshape(last - first, -1), axis=1).astype(np.uint64)
    ends = np.cumsum(counts, dtype=np.uint64)
    return Moves(first, side, ends - counts, np.empty(last - first, np.uint64), int(ends[-1]))


def log_moves(backend: Backend, index: Index, moves: Moves, epoch: int, address: int) -> int:
    """Store an entry of a journal for each slot that moves; return the sum of their digests."""
    backend.host.launch(
        f"log_moved_{index.layout.name}",
        len(moves.entry),
        keys_per_item=index.layout.block_slots,
        index=index,
        first=moves.first,
        side=moves.side,
        entry=moves.entry,
        epoch=epoch,
        log=address,
        digest=moves.digest,
    )
    return int(moves.digest.sum(dtype=np.uint64))


def split_image(backend: Backend, index: Index, first: int, last: int, epoch: int) -> None:
    """Store all slots of the targets to an image, then raise the marks of their pages; block 0 is its own target."""
    assert 2 * first >= last or last == 1
    _split(backend, index, first, last, upper_only=False)
    _mark_blocks(index, 2 * first, 2 * last, epoch)


def _contents(index: Index, slots: int) -> U64:
    return np.empty((slots, index.layout.slot_bytes // 8), np.uint64)


def _sides(backend: Backend, index: Index, first: int, last: int) -> U8:
    side = np.empty((last - first) * index.layout.block_slots, np.uint8)
    key0, key1 = index.hash_keys
    backend.host.launch(
        f"sides_{index.layout.name}",
        (last - first) * index.layout.block_buckets,
        keys_per_item=8,
        index=index,
        blocks=index.blocks,
        first=first * index.layout.block_buckets,
        hash_key0=key0,
        hash_key1=key1,
        side=side,
    )
    return side


def fill_blocks(backend: Backend, index: Index, first: int, count: int, epoch: int) -> None:
    """Empty blocks of an image, then raise the marks of their pages."""
    assert (first + count) * BLOCK_BYTES <= index.region.bytes
    key0, key1 = index.hash_keys
    backend.host.launch(
        f"fill_{index.layout.name}",
        count * index.layout.block_buckets,
        keys_per_item=8,
        index=index,
        first=first,
        hash_key0=key0,
        hash_key1=key1,
    )
    _mark_blocks(index, first, first + count, epoch)


def _mark_blocks(index: Index, first: int, last: int, epoch: int) -> None:
    image, pages = index.region, BLOCK_BYTES // PAGE_BYTES
    assert isinstance(image, Image)
    image.marks[first * pages : last * pages] = epoch
