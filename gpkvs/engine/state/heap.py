"""The heap: where the next record goes, how much of each segment is live, and what its records are charged.

A segment is free when nothing in it is live. The heap may end inside its last segment: it grows in smaller steps. A
long record is longer than a segment, and has neighbouring segments of its own. What is counted of segments is volatile.
An opening recounts it from the index; each committed batch keeps it up.
``kernels/plan/allocate.hpp`` allocates for users, ``kernels/plan/compact.hpp`` for compaction.
"""

from __future__ import annotations

import ctypes
from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from gpkvs.batch import U32, U64
from gpkvs.engine.state.blobs import Blobs
from gpkvs.engine.state.waiting_space import WaitingSpace
from gpkvs.media.layout import (
    BLOB_WORDS_BYTES,
    FORMAT_3,
    FORMAT_4,
    HEAP_RECORD_BYTES,
    HEAP_UNITS_MAX,
    LONGEST_RECORD_UNITS,
    RECORD_HEADER_BYTES,
    SHORT_RECORD_HEADER_BYTES,
    UNIT_BYTES,
)
from gpkvs.native import number

# Words of the state that native code shares (`HeapState` in kernels/space/heap_state.hpp).
_RESERVE, _SURVIVORS, _CHARGED, _CHARGED_MAX, _CLOCK, _UNITS, _RUN, _TAIL_SEGMENT, _TAIL_UNITS = range(9)
_NO_SEGMENT: Final = (1 << 64) - 1

COMPACTED_SEGMENTS_MIN: Final = 8  # of fewer, reserve and tails would be most of the heap: it is not compacted
SMALL_HEAP_BYTES: Final = 64 << 20  # space is cheaper than compaction in a heap that is smaller
SMALL_HEAP_SHARE: Final = 0.40  # of it may be charged, without reserve and tails, before it grows
_RESERVE_MAX: Final = 8
_RESERVE_SHARE: Final = 8
# A record may take a sixteenth of the heap. Of a heap with fewer than two segments in that, none needs neighbours.
_RUN_SHARE: Final = 16
TAILS: Final = 2
_UNLIMITED: Final = 1 << 62
# With a larger share charged, compaction would move more than it frees, and in the end not find room.
_PROMISED_SHARE: Final = 0.85
_CHARGED_AS_IT_IS: Final = number("CHARGED_AS_IT_IS")
# What the live units of an absent segment have in addition, so that no allocator takes it: no segment has so many.
_ABSENT_UNITS: Final = 1 << 40


class Tail(NamedTuple):
    """Where the next record goes."""

    segment: int
    units: int


class Run(NamedTuple):
    """Neighbouring segments, `first` to `end - 1`."""

    first: int
    end: int

    def segments(self) -> int:
        """Return how many they are."""
        return self.end - self.first


class SegmentCounts(NamedTuple):
    """What is counted of each segment, one column each; native code changes them in place.

    Attributes
    ----------
    live : (segments,) uint64
        Units of live records, and of those that a journal may not store over yet (W6). Never 0 where the segment is
        absent (`Heap.leave`).
    charged : (segments,) uint64
        Units that live records are charged.
    ends : (segments,) uint64
        The end of the last record; means nothing where nothing is live. With the part i of a long record it is i + 1
        units behind the end of a whole segment.
    """

    live: U64
    charged: U64
    ends: U64

    @classmethod
    def of(cls, segments: int) -> SegmentCounts:
        """Return columns of zeros."""
        live, charged, ends = np.zeros((3, segments), np.uint64)
        return cls(live, charged, ends)


def record_units(record_format: int, key_lengths: U32, value_lengths: U32, expiries: U64 | None) -> U64:
    """Return what records take whose keys and values have these lengths (`record_units` in kernels/base/layout.cuh)."""
    keys, values = key_lengths.astype(np.uint64), value_lengths.astype(np.uint64)
    longest = short = np.uint64(RECORD_HEADER_BYTES)
    if record_format != FORMAT_3:
        short = np.uint64(SHORT_RECORD_HEADER_BYTES)
        is_long = longest + keys + values > np.uint64(HEAP_RECORD_BYTES)
        is_in_blob = is_long & (values > np.uint64(BLOB_WORDS_BYTES))
        values = np.where(is_in_blob, np.uint64(BLOB_WORDS_BYTES), values)
    lengths = keys + values + (short if expiries is None else np.where(expiries, longest, short))
    units: U64 = (lengths + np.uint64(UNIT_BYTES - 1)) // np.uint64(UNIT_BYTES)
    return units


def charge_of(units: U64, segment_units: int) -> U64:
    """Return what records of so many units are charged (`record_charge` in kernels/base/live_units.cuh)."""
    fitting = np.uint64(segment_units) // np.maximum(units, np.uint64(1))
    share = np.uint64(segment_units) // np.maximum(fitting, np.uint64(1))
    share = np.where(units > segment_units, segments_of(units, segment_units) * np.uint64(segment_units), share)
    return np.where(units * np.uint64(_CHARGED_AS_IT_IS) <= segment_units, units, share)


def segments_of(units: U64, segment_units: int) -> U64:
    """Return how many segments records of so many units take, if they have them for themselves."""
    return (units + np.uint64(segment_units - 1)) // np.uint64(segment_units)


def longest_units(record_format: int) -> int:
    """Return how long a record of a format may be; a value that makes it longer lies in a blob."""
    return LONGEST_RECORD_UNITS if record_format == FORMAT_3 else HEAP_RECORD_BYTES // UNIT_BYTES


def run_of(segments: int, segment_units: int, longest: int = LONGEST_RECORD_UNITS) -> int:
    """Return how many free segments that are neighbours are kept for compaction, which makes room for long records."""
    run = min(segments // _RUN_SHARE, longest // segment_units)
    return run if run > 1 and segments >= COMPACTED_SEGMENTS_MIN else 0


def reserve_of(segments: int, segment_units: int, longest: int = LONGEST_RECORD_UNITS) -> int:
    """Return how many free segments are kept for compaction."""
    if segments < COMPACTED_SEGMENTS_MIN:
        return 0
    return min(_RESERVE_MAX, max(1, segments // _RESERVE_SHARE)) + run_of(segments, segment_units, longest)


def charged_units_max(units: int, segment_units: int, longest: int = LONGEST_RECORD_UNITS) -> int:
    """Return up to which charge any write is accepted, in a heap of so many units.

    Without compaction the charge says nothing, and there is no limit.
    """
    segments = -(-units // segment_units)
    if segments < COMPACTED_SEGMENTS_MIN:
        return _UNLIMITED
    return int(_PROMISED_SHARE * (units - (reserve_of(segments, segment_units, longest) + TAILS) * segment_units))


class Heap:
    """The heap of a store.

    Parameters
    ----------
    segment_bytes
        From the root.
    tail
        From the current descriptor.
    counts
        Counted from the index. Native code keeps their addresses: they change in place.
    size
        Bytes that the heap has; by default, all segments are whole.

    record_format
        How its records lie in it (`Root.store_format`).
    blobs
        Where the values are that its records name, in a store of format 4.

    Attributes
    ----------
    longest
        Units of the longest record that may come.
    bytes
        The size that it has.
    bytes_max
        The size that it may have.
    growth_waits
        Why it cannot grow now, where it should; else nothing.
    stamps : (segments,) uint64
        How old the records of a segment are: the clock when they were appended.
    state : uint64
        What native code must know of the heap.
    absent
        How many segments are not the heap's now.
    moved_units
        That compaction has moved.
    """

    def __init__(
        self,
        segment_bytes: int,
        tail: Tail,
        counts: SegmentCounts,
        *,
        size: int | None = None,
        record_format: int = FORMAT_4,
        blobs: Blobs | None = None,
    ) -> None:
        self.record_format = record_format
        self.longest = longest_units(record_format)
        self.blobs = blobs
        self.segment_units = segment_bytes // UNIT_BYTES
        assert self.segment_units <= LONGEST_RECORD_UNITS
        self.state = np.zeros(number("HEAP_STATE_WORDS"), np.uint64)
        self._state = (ctypes.c_uint64 * len(self.state)).from_buffer(self.state.data)  # a batch reads it often
        self.tail = tail
        self.bytes = self.bytes_max = len(counts.live) * segment_bytes if size is None else size
        self.growth_waits = ""
        self._columns: tuple[U64, ...] = (*counts, np.zeros(len(counts.live), np.uint64))
        self.absent = 0
        self._take(self.bytes)
        # Above the tail nothing was appended, whatever of it is live.
        self.ends[tail.segment] = max(int(self.ends[tail.segment]), tail.units)
        self.state[_SURVIVORS] = _NO_SEGMENT
        self.state[_CHARGED] = self.charged_units.sum()
        self.moved_units = 0
        self._freed = WaitingSpace()

    def allow(self, size_max: int, others_max: int = 0) -> None:
        """Have a place for the segments of a larger heap; before native code knows the addresses of the columns.

        Parameters
        ----------
        size_max
            Bytes that the heap may have.
        others_max
            Bytes of its space that may be others', beside that.
        """
        self.bytes_max = max(size_max, self.present_bytes)
        segments = self._segments_of(min(self.bytes_max + others_max, HEAP_UNITS_MAX * UNIT_BYTES))
        if segments > len(self._columns[0]):
            # What nobody touches takes no memory.
            columns = tuple(np.zeros(segments, np.uint64) for _ in self._columns)
            for column, old in zip(columns, self._columns, strict=True):
                column[: len(old)] = old
            self._columns = columns
        self._take(self.bytes)

    @property
    def space_bytes(self) -> int:
        """The size that heap and others have a place for."""
        return len(self._columns[0]) * self.segment_units * UNIT_BYTES

    def _segments_of(self, size: int) -> int:
        return -(-size // (self.segment_units * UNIT_BYTES))

    def grow(self, size: int) -> None:
        """Take more space into use, which the file has; cannot fail. The addresses of the columns stay."""
        assert size >= self.bytes
        self._take(size)

    def _take(self, size: int) -> None:
        segments = self._segments_of(size)
        self.bytes = size
        self.live_units, self.charged_units, self.ends, self.stamps = (column[:segments] for column in self._columns)
        self.state[_UNITS] = size // UNIT_BYTES
        self._limit()

    def _limit(self) -> None:
        """Say what of the segments that are the heap's now must stay free."""
        segments = self.present_segments
        self.state[_RESERVE] = reserve_of(segments, self.segment_units, self.longest)
        self.state[_RUN] = run_of(segments, self.segment_units, self.longest)
        # Of a heap that may not grow enough, compaction must be able to keep the rest free in the end.
        sizes = (self.present_bytes // UNIT_BYTES, self.bytes_max // UNIT_BYTES)
        self.state[_CHARGED_MAX] = min(charged_units_max(units, self.segment_units, self.longest) for units in sizes)

    @property
    def present_segments(self) -> int:
        """How many segments are the heap's now."""
        return self.segments - self.absent

    @property
    def present_bytes(self) -> int:
        """The size that it has, without the segments that are absent."""
        return self.bytes - self.absent * self.segment_units * UNIT_BYTES

    def leave(self, segments: NDArray[np.int64], *, is_opening: bool = False) -> None:
        """Take whole segments, in which nothing is live, out of use: their space is not the heap's now.

        At an opening, slots that rotted may refer to them. What these count is taken back when their keys change.
        """
        assert is_opening or not self.live_units[segments].any()
        assert not len(segments) or self.end_of(int(segments.max())) == self.segment_units
        self.live_units[segments] += np.uint64(_ABSENT_UNITS)
        self.ends[segments] = self.segment_units  # compaction finds no room in them
        self.absent += len(segments)
        self._limit()

    def take_back(self, segments: NDArray[np.int64]) -> None:
        """Take absent segments, whose space is there again, into use."""
        assert (self.live_units[segments] == _ABSENT_UNITS).all()
        self.live_units[segments] = 0
        self.absent -= len(segments)
        self._limit()

    @property
    def is_absent(self) -> NDArray[np.bool_]:
        """Of each segment, whether it is not the heap's now."""
        return self.live_units >= np.uint64(_ABSENT_UNITS)

    def end_of(self, segment: int) -> int:
        """Return the units of a segment that there are."""
        return min(self.segment_units, self.bytes // UNIT_BYTES - segment * self.segment_units)

    @property
    def segments(self) -> int:
        """How many there are."""
        return len(self.live_units)

    @property
    def is_compacted(self) -> bool:
        """Whether it has enough segments to be compacted."""
        return self.present_segments >= COMPACTED_SEGMENTS_MIN

    @property
    def reserve(self) -> int:
        """Free segments that only compaction takes."""
        return int(self.state[_RESERVE])

    @property
    def run(self) -> int:
        """So many of the reserve are to be neighbours."""
        return int(self.state[_RUN])

    @property
    def charged(self) -> int:
        """Units that all records are charged."""
        return int(self.state[_CHARGED])

    @property
    def charged_max(self) -> int:
        """With more units charged, only writes are accepted that do not raise it."""
        return int(self.state[_CHARGED_MAX])

    @property
    def clock(self) -> int:
        """Units that users' records have taken so far."""
        return int(self.state[_CLOCK])

    @property
    def survivors(self) -> int | None:
        """The segment that compaction appends to, if there is one."""
        segment = int(self.state[_SURVIVORS])
        return None if segment == _NO_SEGMENT else segment

    @survivors.setter
    def survivors(self, segment: int | None) -> None:
        self.state[_SURVIVORS] = _NO_SEGMENT if segment is None else segment

    @property
    def live_bytes(self) -> int:
        """Bytes of all live records."""
        return (int(self.live_units.sum()) - self.absent * _ABSENT_UNITS - self._freed.units) * UNIT_BYTES

    @property
    def free_segments(self) -> int:
        """Segments in which nothing is live, but for the tails."""
        return self._count_free(self.live_units)

    @property
    def emptied_segments(self) -> int:
        """The same, and those that wait until a journal may store over them (W6)."""
        return self._count_free(self.charged_units) - self.absent

    def _count_free(self, units: U64) -> int:
        tails = {self.tail.segment, self.survivors} - {None}
        return len(units) - int(np.count_nonzero(units)) - sum(not units[segment] for segment in tails)

    @property
    def is_free(self) -> NDArray[np.bool_]:
        """Of each segment, whether nothing in it is live, and it is no tail."""
        free: NDArray[np.bool_] = self.live_units == 0
        free[[segment for segment in (self.tail.segment, self.survivors) if segment is not None]] = False
        return free

    @property
    def kept_run(self) -> Run:
        """The last `run` segments of the longest free run; empty where no run is so long."""
        if not self.run:
            return Run(0, 0)
        longest = max(self.free_runs(), key=Run.segments, default=Run(0, 0))
        return Run(longest.end - self.run, longest.end) if longest.segments() >= self.run else Run(0, 0)

    def has_run(self, segments: int) -> bool:
        """Whether users' records may take so many neighbours (`Appender::find_run` in kernels/plan/allocate.hpp)."""
        *others, longest = sorted([0, 0, *(run.segments() for run in self.free_runs())])
        return longest >= self.run + segments or others[-1] >= segments

    @property
    def is_whole_and_free(self) -> NDArray[np.bool_]:
        """The same, but that the heap may end inside the last segment, which then does not count."""
        free = self.is_free
        free[-1] &= self.end_of(self.segments - 1) == self.segment_units
        return free

    def free_runs(self) -> list[Run]:
        """Return all runs of whole free segments."""
        free = self.is_whole_and_free
        edges = np.flatnonzero(np.diff(np.concatenate(([False], free, [False])).astype(np.int8)))
        return [Run(*edge) for edge in edges.reshape(-1, 2).tolist()]

    @property
    def free_units(self) -> int:
        """Units that users' records could still be appended to."""
        return self._units_in(self.free_segments, self.live_units)

    @property
    def emptied_units(self) -> int:
        """The same, and those that wait."""
        return self._units_in(self.emptied_segments, self.charged_units)

    def _units_in(self, free_segments: int, units: U64) -> int:
        last, start = self.segments - 1, self.start
        free = max(free_segments - self.reserve, 0) * self.segment_units
        if free and not units[last] and last not in (start.segment, self.survivors):
            free -= self.segment_units - self.end_of(last)
        return free + self.end_of(start.segment) - start.units

    @property
    def tail(self) -> Tail:
        """Where the last record ends."""
        return Tail(self._state[_TAIL_SEGMENT], self._state[_TAIL_UNITS])

    @tail.setter
    def tail(self, tail: Tail) -> None:
        self._state[_TAIL_SEGMENT], self._state[_TAIL_UNITS] = tail

    @property
    def start(self) -> Tail:
        """Where the next record goes: a tail segment in which nothing is live begins again."""
        tail = self.tail
        return tail if self.live_units[tail.segment] else Tail(tail.segment, 0)

    def release(self, counts: SegmentCounts) -> None:
        """Count records of each segment as no longer live; cannot fail."""
        self._release_units(counts.live)
        self.discharge(counts.charged)

    def discharge(self, units: U64) -> None:
        """Take back what records of each segment are charged."""
        charged_units = self.charged_units[: len(units)]  # the heap may have grown since they were counted
        np.subtract(charged_units, units, out=charged_units)
        self.state[_CHARGED] -= units.sum(dtype=np.uint64)

    def _release_units(self, units: U64) -> None:
        live_units = self.live_units[: len(units)]
        np.subtract(live_units, units, out=live_units)

    def release_later(self, epoch: int, units: U64) -> None:
        """Note units of each segment that are free once a durable frame covers an epoch (W6)."""
        self._freed.add(epoch, units)

    def release_covered(self, epoch: int) -> bool:
        """Free what was noted of the epochs up to one; return whether there was something."""
        if self.blobs:
            self.blobs.release_covered(epoch)
        return self._freed.release(epoch, self.live_units)

    @property
    def waiting_space(self) -> int:
        """Where native code finds these notes."""
        return self._freed.address

    @property
    def freed_epoch(self) -> int:
        """The newest epoch that space waits for; 0 if none does."""
        return self._freed.newest
