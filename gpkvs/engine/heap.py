"""The heap: records appended to segments, and how much of each segment is live.

A segment is free when nothing in it is live. Live counts are volatile: they are recounted from the index at start-up
and kept up by each committed batch.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from gpkvs.batch import U32, U64
from gpkvs.media.layout import RECORD_HEADER_BYTES, RECORD_UNITS_MAX, UNIT_BYTES

_PART = 1 << 17  # references that are counted at a time: what is made of them fits a cache


@dataclass(frozen=True)
class Tail:
    """Where the next record goes."""

    segment: int
    units: int


class HeapFullError(Exception):
    """Not all records fit; `record` is the first that does not."""

    def __init__(self, record: int) -> None:
        super().__init__(f"record {record} does not fit")
        self.record = record


def record_units(key_bytes: U32, value_bytes: U32) -> U64:
    """Return the size of records, in units of 16 bytes."""
    payload: U64 = key_bytes.astype(np.uint64) + value_bytes.astype(np.uint64)
    return (payload + np.uint64(RECORD_HEADER_BYTES + UNIT_BYTES - 1)) // np.uint64(UNIT_BYTES)


class Heap:
    """The heap of a store.

    Parameters
    ----------
    segment_bytes
        From the root.
    tail
        From the current descriptor.
    live_units : (segments,) uint64
        Counted from the index.
    """

    def __init__(self, segment_bytes: int, tail: Tail, live_units: U64) -> None:
        self.segment_units = segment_bytes // UNIT_BYTES
        assert self.segment_units <= RECORD_UNITS_MAX  # a record fits a segment, so a reference holds its length
        self.tail = tail
        self.live_units = live_units

    @property
    def live_bytes(self) -> int:
        """Bytes of all live records."""
        return int(self.live_units.sum()) * UNIT_BYTES

    @property
    def free_units(self) -> int:
        """Units that records could still be appended to."""
        free = int((self.live_units == 0).sum()) * self.segment_units
        start = self._start
        return free + (self.segment_units - start.units if start.units else 0)

    @property
    def _start(self) -> Tail:
        """Where the next record goes: a tail segment in which nothing is live begins again."""
        return self.tail if self.live_units[self.tail.segment] else Tail(self.tail.segment, 0)

    def allocate(self, units: U64) -> tuple[U64, Tail, U64]:
        """Find room for records, in order; nothing changes before `commit`.

        Parameters
        ----------
        units : (n,) uint64
            Size of each record, on the host or wherever kernels run.

        Returns
        -------
        reference : (n,) uint64
            Offset and length, as slots hold them; where the sizes are.
        Tail
            The tail after them.
        added : (segments,) uint64
            The units they take of each segment.

        Raises
        ------
        HeapFullError
            With the first record that does not fit.
        """
        added = np.zeros(len(self.live_units), np.uint64)
        if len(units) == 0:
            return units, self._start, added
        ends = np.cumsum(units, dtype=np.uint64)
        # One column for all steps: fresh memory for each would cost more than what is done in it.
        reference = ends - units
        segment, used = self._start.segment, self._start.units
        used_segments: set[int] = set()
        first, before = 0, 0  # the first record without a place, and the units of all records before it
        while first < len(units):
            room = self.segment_units - used
            last = int(np.searchsorted(ends, np.full_like(ends[:1], before + room), side="right")[0])
            if last > first:
                # Modulo 2^64, as the kernels count: the difference may be negative.
                start = (segment * self.segment_units + used - before) % (1 << 64)
                reference[first:last] += np.uint64(start)
                taken = int(ends[last - 1]) - before
                added[segment] += np.uint64(taken)
                used += taken
                before += taken
                used_segments.add(segment)
                first = last
            if first < len(units):
                following = self._free_segment_after(segment, used_segments)
                if following is None:
                    raise HeapFullError(first)
                segment, used = following, 0
        np.left_shift(reference, np.uint64(24), out=reference)
        np.bitwise_or(reference, units, out=reference)
        return reference, Tail(segment, used), added

    def _free_segment_after(self, segment: int, used_segments: set[int]) -> int | None:
        """Return the next segment in which nothing is live and nothing was just placed."""
        free = np.flatnonzero(self.live_units == 0)
        for candidate in np.concatenate([free[free > segment], free[free <= segment]]).tolist():
            if candidate not in used_segments:
                return int(candidate)
        return None

    def units_by_segment(self, reference: U64) -> U64:
        """Return the units of each segment that references of the host name.

        As the recount does: a damaged reference that leaves the heap counts nowhere.
        """
        segments, span = len(self.live_units), np.uint64(self.segment_units << 24)
        if len(reference) == 0:
            return np.zeros(segments, np.uint64)
        counted = []
        for first in range(0, len(reference), _PART):
            part = reference[first : first + _PART]
            segment = np.minimum(part // span, np.uint64(segments))
            # Sums of lengths inside one segment stay far below 2^53, so float64 weights are exact.
            length = (part & np.uint64(RECORD_UNITS_MAX)).astype(np.float64)
            counted.append(np.bincount(segment.view(np.int64), weights=length, minlength=segments + 1)[:segments])
        units: U64 = sum(counted[1:], counted[0]).astype(np.uint64)
        return units

    def commit(self, tail: Tail, live_units: U64) -> None:
        """Take a committed batch into account; cannot fail."""
        self.tail = tail
        self.live_units = live_units
