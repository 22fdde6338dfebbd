"""Counting what an index holds: its records, and how much of each heap segment they take."""

from __future__ import annotations

import numpy as np

from gpkvs.backends.base import Backend
from gpkvs.batch import U64
from gpkvs.engine.state.blobs import blobs_of
from gpkvs.engine.state.heap import SegmentCounts
from gpkvs.engine.state.table import Held
from gpkvs.media.files import StoreFiles
from gpkvs.media.index import Index
from gpkvs.media.layout import BLOCK_BYTES


def recount(
    files: StoreFiles, backend: Backend, index: Index, counts: SegmentCounts, blobs: list[U64] | None = None
) -> Held:
    """Stream a whole index; add what it has in each heap segment, and return what it holds.

    The references of its blobs are appended to `blobs`, where that is given.
    """
    index.region.prefetch(0, index.region.bytes)
    if index.has_records:
        parts = [recount_blocks(files, backend, index, counts, *blocks, blobs) for blocks in index.live_ranges]
        return Held(*map(sum, zip(*parts, strict=True)))
    return Held(sum(_count_numbers(backend, index, *blocks) for blocks in index.live_ranges))


def _count_numbers(backend: Backend, index: Index, first: int, last: int) -> int:
    """Return the number of records in the blocks `first` to `last - 1` of an index of the layout u64."""
    records = np.zeros(last - first, np.uint32)
    key0, key1 = index.hash_keys
    backend.launch(
        "recount_u64",
        last - first,
        keys_per_item=index.layout.block_slots,
        index=index,
        first_block=first,
        hash_key0=key0,
        hash_key1=key1,
        records=records,
    )
    return int(records.sum(dtype=np.uint64))


def recount_blocks(
    files: StoreFiles,
    backend: Backend,
    index: Index,
    counts: SegmentCounts,
    first: int,
    last: int,
    blobs: list[U64] | None,
) -> Held:
    """Do the same for the blocks `first` to `last - 1` of an index of the layout bytes."""
    records, with_blobs, expiring = np.zeros((3, last - first), np.uint32)
    units = np.zeros(last - first, np.uint64)
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
        blobs=with_blobs,
        expiring=expiring,
        units=units,
    )
    if blobs is not None:
        blobs.extend(blobs_of(files, backend, index, first + int(block)) for block in np.flatnonzero(with_blobs))
    return Held(*(int(column.sum(dtype=np.uint64)) for column in (records, units, expiring)))


class DroppedTable:
    """A table that was dropped: its records are counted step by step, and freed as they are counted.

    Parameters
    ----------
    files, backend
        Of the store; the host's threads count.
    index
        Of the table; nobody else uses it any more.

    Attributes
    ----------
    blobs
        References of those that the last step counted.
    """

    def __init__(self, files: StoreFiles, backend: Backend, index: Index) -> None:
        self._files = files
        self._backend = backend
        self.index = index
        self._uncounted = list(index.live_ranges)
        self.blobs: U64 = np.empty(0, np.uint64)

    @property
    def is_counted(self) -> bool:
        """Whether all of its index is counted."""
        return not self._uncounted

    def step(self, budget_bytes: int) -> SegmentCounts:
        """Count the next blocks, as many as a budget of bytes covers, at least one; return what they have by segment.

        Raises
        ------
        MemoryError
            If there is no memory for it; nothing was counted.
        """
        counts = SegmentCounts.of(self._files.segments)
        first, end = self._uncounted[0]
        last = min(first + max(1, budget_bytes // BLOCK_BYTES), end)
        self.index.region.prefetch(first * BLOCK_BYTES, (last - first) * BLOCK_BYTES)
        blobs = [np.empty(0, np.uint64)]
        recount_blocks(self._files, self._backend, self.index, counts, first, last, blobs)
        self.blobs = np.concatenate(blobs)
        self._uncounted[:1] = [(last, end)] if last < end else []
        return counts
