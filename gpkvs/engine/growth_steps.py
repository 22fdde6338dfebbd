"""The parts of a growth step: what moves when the blocks `first` to `last - 1` of an index become twice as many.

Committers put them in order. Block k becomes 2k and 2k + 1 (``kernels/grow.cu``).
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from gpkvs.backends.base import Backend
from gpkvs.batch import U64
from gpkvs.media.image import Image
from gpkvs.media.index import Index
from gpkvs.media.layout import BLOCK_BYTES, PAGE_BYTES, Growth

_UPPER = 2  # `SIDE_UPPER` in kernels/grow.cu
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


def moved(backend: Backend, index: Index, first: int, last: int) -> Slots:
    """Return the slots of the targets that hold a key; all others are empty."""
    side = _sides(backend, index, first, last)
    place = np.flatnonzero(side)
    source = place.astype(np.uint64) + np.uint64(first * index.layout.block_slots)
    contents = _contents(index, len(source))
    backend.host.launch(f"load_slots_{index.layout.name}", len(source), slot=source, index=index, contents=contents)
    in_block = np.uint64(index.layout.block_slots)
    is_upper = (side[place] == _UPPER).astype(np.uint64)
    return Slots((source // in_block * np.uint64(2) + is_upper) * in_block + source % in_block, contents)


def _contents(index: Index, slots: int) -> U64:
    return np.empty((slots, index.layout.slot_bytes // 8), np.uint64)


def _sides(backend: Backend, index: Index, first: int, last: int) -> np.ndarray[tuple[int], np.dtype[np.uint8]]:
    side = np.empty((last - first) * index.layout.block_slots, np.uint8)
    key0, key1 = index.hash_keys
    backend.host.launch(
        f"sides_{index.layout.name}",
        len(side),
        index=index,
        blocks=index.blocks,
        first=first * index.layout.block_slots,
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
    image, pages = index.region, BLOCK_BYTES // PAGE_BYTES
    assert isinstance(image, Image)
    image.marks[first * pages : (first + count) * pages] = epoch
