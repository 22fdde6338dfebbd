"""Space of the heap that is given back to the file system, and reserved again before it is used.

    nothing live for a minute -> no allocator takes the segment -> the newest batch is durable -> punched
    reserved, synced -> allocators may take the segment

The newest batch says where the tail is: no opening appends to a segment that was punched after it. Nothing live also
means that nothing may be needed again: with an undo log no batch is in progress when the segment leaves the heap, and
with a journal a durable frame covers the batch that freed it (W6). Nothing durable says which segments were punched:
an opening asks the file system.

A thread of the heap's growth punches and reserves (``heap_growth.py``).
"""

from __future__ import annotations

import logging
import math
import threading
import time
from collections.abc import Callable, Sequence

import numpy as np
from numpy.typing import NDArray

from gpkvs.engine.state.heap import (
    COMPACTED_SEGMENTS_MIN,
    SMALL_HEAP_BYTES,
    SMALL_HEAP_SHARE,
    TAILS,
    Heap,
    reserve_of,
)
from gpkvs.errors import NoSpaceError
from gpkvs.media.directory import NO_SPACE, disk_free_bytes, sync_path
from gpkvs.media.file_space import CANNOT_PUNCH, PUNCHED_AT_ONCE, holes, punch, reserve
from gpkvs.media.files import StoreFiles
from gpkvs.media.layout import UNIT_BYTES
from gpkvs.process import failpoint

_log = logging.getLogger("gpkvs")

Segments = NDArray[np.int64]
NO_SEGMENTS: Segments = np.empty(0, np.int64)

FREE_SECONDS = 60.0
LOOK_SECONDS = 1.0  # a look costs as much as a small batch
now = time.monotonic  # tests move it

# A heap keeps so much that what is charged is 0.75 of it, without reserve and tails. It takes space back from 0.80 on:
# not at once.
_KEPT_SHARE, _TAKEN_SHARE = 0.75, 0.80
_SMALL_KEPT_SHARE = 0.9 * SMALL_HEAP_SHARE  # else it would grow again at once
TAKES_BACK_SHARE = _TAKEN_SHARE / 0.85  # of what may be charged
_AHEAD_SHARE, _AHEAD_UNITS_MAX = 8, (64 << 20) // UNIT_BYTES


def spare_segments(heap: Heap, kept_bytes: int = 0) -> int:
    """Return how many free segments a heap will not miss.

    Parameters
    ----------
    heap
        As it is between two batches.
    kept_bytes
        What it is to keep in any case.
    """
    present, free, spare = heap.present_segments, heap.free_segments, 0
    charged = math.ceil(heap.charged / (_KEPT_SHARE * heap.segment_units))
    small = math.ceil(heap.charged / (_SMALL_KEPT_SHARE * heap.segment_units))
    small_max = SMALL_HEAP_BYTES // (heap.segment_units * UNIT_BYTES)
    kept = -(-kept_bytes // (heap.segment_units * UNIT_BYTES))
    ahead = -(-min(heap.charged // _AHEAD_SHARE, _AHEAD_UNITS_MAX) // heap.segment_units)
    while True:
        pool = reserve_of(present - spare, heap.segment_units, heap.longest) + TAILS  # smaller in a smaller heap
        needed = max(charged + pool, min(small + pool, small_max), kept, COMPACTED_SEGMENTS_MIN)
        more = min(present - needed, free - pool - ahead) - spare
        if more <= 0:
            return spare
        spare += more


class SpareSegments:
    """Finds segments that have been free for a minute and will not be missed.

    Parameters
    ----------
    heap
        Of the store.
    kept_bytes
        What it is to keep in any case.
    """

    def __init__(self, heap: Heap, kept_bytes: int) -> None:
        self._heap = heap
        self._kept_bytes = kept_bytes
        self._free_since: NDArray[np.float64] = np.empty(0)

    def find(self) -> Segments:
        """Return these segments: the last ones of the heap."""
        heap, time_now = self._heap, now()
        is_free = heap.is_whole_and_free
        is_free[slice(*heap.kept_run)] = False
        since = np.full(heap.segments, np.inf)
        since[: len(self._free_since)] = self._free_since
        self._free_since = np.where(is_free, np.minimum(since, time_now), np.inf)
        spare = spare_segments(heap, self._kept_bytes)
        return np.flatnonzero(self._free_since <= time_now - FREE_SECONDS)[-spare:] if spare else NO_SEGMENTS


class GivenSpace:
    """The segments whose space the file system has, or whose space may not be there.

    Parameters
    ----------
    files, heap
        Of the store.

    Attributes
    ----------
    segments
        These segments, ascending; none of them is the heap's now.
    can_punch
        Whether the file system takes space back.
    changing
        Held while space is reserved or given back.
    is_ending
        Whether the store is being closed: then nothing more is given back.

    Raises
    ------
    NoSpaceError
        If space is missing where records are or will be, and cannot be had: of a sparse copy, on a full disk.
    """

    def __init__(self, files: StoreFiles, heap: Heap) -> None:
        self._files = files
        self._path = files.heap.path
        self._offset = files.root.journal_bytes
        self._segment_bytes = files.root.segment_bytes
        self.can_punch = True
        self.changing = threading.Lock()
        self.is_ending = False
        self.segments = self._find_holes(heap)
        heap.leave(self.segments)

    @property
    def bytes(self) -> int:
        """Their size."""
        return len(self.segments) * self._segment_bytes

    def _find_holes(self, heap: Heap) -> Segments:
        """Return free segments that have holes; reserve what the others lack."""
        has_hole = np.zeros(heap.segments, np.bool_)
        for hole in holes(self._path, self._offset, heap.bytes):
            has_hole[self._segments_of(*hole)] = True
        holed = np.flatnonzero(has_hole)
        may_leave = (heap.live_units[holed] == 0) & (holed != heap.tail.segment)
        last = heap.segments - 1
        may_leave &= (holed != last) | (heap.end_of(last) == heap.segment_units)
        for segment in holed[~may_leave].tolist():  # those of the journal, too
            self._fill(segment, heap.end_of(segment) * UNIT_BYTES)
        found_free: Segments = holed[may_leave]
        return found_free

    def _segments_of(self, first: int, last: int) -> slice:
        """Return the segments that a part of the file touches."""
        begin, end = first - self._offset, last - self._offset
        return slice(begin // self._segment_bytes, -(-end // self._segment_bytes))

    def _fill(self, segment: int, count: int) -> None:
        """Reserve the space of a segment that has records, or gets them next, or is the journal's."""
        try:
            reserve(self._path, self._place(segment), count)
            sync_path(self._path)
        except OSError as error:
            if error.errno not in NO_SPACE:
                raise
            raise NoSpaceError(
                "disk",
                f"{self._path} has holes where records or the journal are, as a sparse copy has, and the disk has "
                f"{disk_free_bytes(self._path):,} bytes free, too few to fill them: make room, or copy the backup "
                "with --sparse=never",
            ) from error

    def _place(self, segment: int) -> int:
        return self._offset + segment * self._segment_bytes

    def add(self, segments: Segments) -> None:
        """Note segments that leave the heap: there may be holes from now on. The caller holds `changing`."""
        self.segments = np.union1d(self.segments, segments)

    def give(self, segments: Segments) -> None:
        """Give the space of added segments back, but for those that were taken back; batches run meanwhile."""
        most = max(1, PUNCHED_AT_ONCE // self._segment_bytes)
        for piece in _runs(segments, most):
            if self.is_ending:
                return
            with self.changing:
                for run in _runs(np.intersect1d(piece, self.segments), most):
                    if self.can_punch:
                        self._punch(run)

    def _punch(self, run: Segments) -> None:
        failpoint.hit("before_heap_punch")
        try:
            self._files.require_in_place()
            punch(self._path, self._place(int(run[0])), len(run) * self._segment_bytes)
        except OSError as error:
            self.can_punch = error.errno not in CANNOT_PUNCH
            _log.warning(
                "space of the heap is not given back: %s: %s", self._path, error.strerror, extra={"event": "no_punch"}
            )
        failpoint.hit("after_heap_punch")

    @property
    def longest_run_bytes(self) -> int:
        """The size of the longest run of neighbours."""
        return max(map(len, _runs(self.segments, len(self.segments))), default=0) * self._segment_bytes

    def next(self, count: int) -> Segments:
        """Return which so many are taken back first: the longest runs of neighbours, for long records."""
        runs = sorted(_runs(self.segments, len(self.segments)), key=len, reverse=True)
        return np.concatenate([NO_SEGMENTS, *runs])[:count]

    def reserve(self, segments: Segments, pause: Callable[[float, int], bool]) -> int:
        """Reserve the space of segments again; not durable before a sync. The caller holds `changing`.

        Parameters
        ----------
        segments
            Whose space it is.
        pause
            As `extend_file` has it: called with the seconds that a segment took and the bytes that are there, if there
            is more to do; returns whether that is enough.

        Returns
        -------
        int
            Of how many segments the space is there, from the first on.

        Raises
        ------
        OSError
            If the operating system refuses; what was reserved by then went back.
        """
        try:
            for number, segment in enumerate(segments.tolist(), start=1):
                began = time.perf_counter()
                reserve(self._path, self._place(segment), self._segment_bytes)
                seconds = time.perf_counter() - began
                if number < len(segments) and pause(seconds, number * self._segment_bytes):
                    return number
        except OSError:
            for segment in segments[:number]:
                self._punch(segment[np.newaxis])
            raise
        return len(segments)

    def forget(self, segments: Segments) -> None:
        """Note that segments have their space, durably."""
        self.segments = np.setdiff1d(self.segments, segments)


def _runs(segments: Segments, most: int) -> Sequence[Segments]:
    """Split ascending segments into runs of neighbours, each of no more than so many."""
    if not len(segments):
        return []
    ends = np.flatnonzero(np.diff(segments) != 1) + 1
    return [run[at : at + most] for run in np.split(segments, ends) for at in range(0, len(run), most)]
