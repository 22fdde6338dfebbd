"""Counting what an index holds: its records, and how much of each heap segment they take."""

from __future__ import annotations

import numpy as np

from gpkvs.backends.base import Backend
from gpkvs.engine.heap import SegmentCounts
from gpkvs.media.files import StoreFiles
from gpkvs.media.index import Index
from gpkvs.media.layout import BLOCK_BYTES


def recount(files: StoreFiles, backend: Backend, index: Index, counts: SegmentCounts) -> int:
    """Stream a whole index; add what it has in each heap segment, and return its number of records."""
    index.region.prefetch(0, index.region.bytes)
    if index.layout.has_records:
        return recount_blocks(files, backend, index, counts, 0, index.entry.blocks)
    records = np.zeros(index.entry.blocks, np.uint32)
    key0, key1 = index.hash_keys
    backend.launch(
        "recount_u64",
        index.entry.blocks,
        keys_per_item=index.layout.block_slots,
        index=index,
        buckets=index.buckets,
        hash_key0=key0,
        hash_key1=key1,
        records=records,
    )
    return int(records.sum(dtype=np.uint64))


def recount_blocks(
    files: StoreFiles, backend: Backend, index: Index, counts: SegmentCounts, first: int, last: int
) -> int:
    """Do the same for the blocks `first` to `last - 1` of an index of the layout bytes."""
    records = np.zeros(last - first, np.uint32)
    backend.launch(
        "recount_bytes",
        last - first,
        keys_per_item=index.layout.block_slots,
        index=index,
        first_block=first,
        segment_units=files.segment_units,
        segments=len(counts.live),
        live_units=counts.live,
        charged_units=counts.charged,
        ends=counts.ends,
        records=records,
    )
    return int(records.sum(dtype=np.uint64))


class DroppedTable:
    """A table that was dropped: its records are counted step by step, and freed as they are counted.

    Parameters
    ----------
    files, backend
        Of the store; the host's threads count.
    index
        Of the table; nobody else uses it any more.
    """

    def __init__(self, files: StoreFiles, backend: Backend, index: Index) -> None:
        self._files = files
        self._backend = backend
        self.index = index
        self._counted_blocks = 0

    @property
    def is_counted(self) -> bool:
        """Whether all of its index is counted."""
        return self._counted_blocks == self.index.entry.blocks

    def step(self, budget_bytes: int) -> SegmentCounts:
        """Count the next blocks, as many as a budget of bytes covers, at least one; return what they have by segment.

        Raises
        ------
        MemoryError
            If there is no memory for it; nothing was counted.
        """
        counts = SegmentCounts.of(self._files.segments)
        first = self._counted_blocks
        last = min(first + max(1, budget_bytes // BLOCK_BYTES), self.index.entry.blocks)
        self.index.region.prefetch(first * BLOCK_BYTES, (last - first) * BLOCK_BYTES)
        recount_blocks(self._files, self._backend, self.index, counts, first, last)
        self._counted_blocks = last
        return counts
