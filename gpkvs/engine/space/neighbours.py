"""Which segment compaction empties next, so that free segments become neighbours: a long record takes several.

There are two ways. One is a window: neighbouring segments without a long record, whose records move elsewhere. The
other begins with a free run. It becomes longer, segment by segment, in one direction. The records in its way move
elsewhere. A long record moves to the other end of the run, so the run passes it. A run as long as the longest record
passes any record, and the second way always ends with room. So such a run is kept (`Heap.kept_run`).
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from gpkvs.engine.state.heap import Heap, Run


class Step(NamedTuple):
    """What compaction does next.

    Attributes
    ----------
    cost
        Units that move until the segments are neighbours.
    barred
        Segments that no record goes to meanwhile, but a long one.
    victim
        The segment to empty.
    long_to
        Where its long record goes; `None` if it has none.
    segments
        That the long record takes.
    """

    cost: int
    barred: Run
    victim: int
    long_to: int | None
    segments: int = 0


def next_step(heap: Heap, segments: int, stuck: set[int]) -> Step | None:
    """Return the first step of the cheapest way to so many free neighbours, beside those that are kept.

    Parameters
    ----------
    heap
        No space of it waits for a journal.
    segments
        How many are to be neighbours; they are not yet.
    stuck
        Segments that cannot be emptied.
    """
    return min((step for step in _Map(heap, stuck).steps(segments)), default=None, key=lambda step: step.cost)


class _Map:
    """What each segment is: free, fixed, part of a long record, or else with records that can move."""

    def __init__(self, heap: Heap, stuck: set[int]) -> None:
        self._heap = heap
        self._units = heap.segment_units
        self._free = heap.is_free
        self._charged = np.where(self._free, 0, heap.charged_units.astype(np.int64))
        is_long = ~self._free & (heap.ends > self._units)
        self._part = np.where(is_long, heap.ends.astype(np.int64) - self._units - 1, -1)
        self._fixed = ~self._free & (heap.charged_units == 0)  # absent, or waiting
        self._fixed[[heap.tail.segment, *stuck]] = True
        self._fixed[heap.segments - 1] |= heap.end_of(heap.segments - 1) < self._units
        self._longest = max(heap.free_runs(), key=Run.segments, default=Run(0, 0))
        kept = min(heap.run, self._longest.segments())
        self._kept = Run(self._longest.end - kept, self._longest.end)

    def steps(self, segments: int) -> Iterator[Step]:
        """Yield the first step of each way."""
        yield from self._windows(segments)
        for run in self._heap.free_runs():
            is_kept = run == self._longest
            for upwards in (False, True):
                step = self._longer(run, segments + (self._heap.run if is_kept else 0), upwards, is_kept)
                if step:
                    yield step

    def _windows(self, count: int) -> Iterator[Step]:
        """Yield the first step to the cheapest window."""
        if count > self._heap.segments:
            return
        barred = self._fixed | (self._part >= 0)
        barred[self._kept.first : self._kept.end] = True
        moved, free = _sums(self._charged, count), _sums(self._free, count)
        is_possible = (_sums(barred, count) == 0) & (moved > 0) & (moved <= self._room(free))
        if not is_possible.any():
            return
        first = int(np.where(is_possible, moved, np.iinfo(np.int64).max).argmin())
        full = np.flatnonzero(~self._free[first : first + count])
        yield Step(int(moved[first]), Run(first, first + count), first + int(full[0]), None)

    def _room(self, barred: Any) -> Any:
        """Return how many units find room elsewhere, if so many of the free segments are barred."""
        return (int(self._free.sum()) - self._kept.segments() - barred - 1) * self._units

    def _longer(self, run: Run, count: int, upwards: bool, is_kept: bool) -> Step | None:
        """Return the first step to make a run so long in one direction; it passes the long records that it meets."""
        low, high = run
        cost = moved = 0
        first: tuple[int, int | None, int] | None = None
        while high - low < count:
            segment = high if upwards else low - 1
            if not 0 <= segment < self._heap.segments or self._fixed[segment]:
                return None
            if not is_kept and self._kept.first <= segment < self._kept.end:
                return None
            if self._part[segment] >= 0:
                begin = segment - int(self._part[segment])
                length = self._length(begin)
                # A long record may have a segment that cannot move.
                if length > high - low or self._fixed[begin : begin + length].any():
                    return None
                first = first or (begin, low if upwards else high - length, length)
                cost += length * self._units
                low, high = (low + length, high + length) if upwards else (low - length, high - length)
            else:
                if not self._free[segment]:
                    first = first or (segment, None, 0)
                    moved += int(self._charged[segment])
                low, high = (low, high + 1) if upwards else (low - 1, high)
        barred = Run(min(low, run.first), max(high, run.end))
        free = int(self._free[barred.first : barred.end].sum()) - (self._kept.segments() if is_kept else 0)
        if first is None or (moved and moved > self._room(free)):
            return None
        return Step(cost + moved, barred, *first)

    def _length(self, begin: int) -> int:
        """Return how many segments the long record takes that begins with one."""
        count = 1
        while begin + count < self._heap.segments and self._part[begin + count] == count:
            count += 1
        return count


def _sums(column: NDArray[np.generic], count: int) -> NDArray[np.int64]:
    """Return the sums of so many neighbours, from each on."""
    sums = np.concatenate(([0], np.cumsum(column, dtype=np.int64)))
    totals: NDArray[np.int64] = sums[count:] - sums[:-count]
    return totals
