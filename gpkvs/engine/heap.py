"""The heap: where the next record goes, and how much of each segment is live.

A segment is free when nothing in it is live. The heap may end inside its last segment: it grows in smaller steps. Live
counts are volatile. An opening recounts them from the index; each committed batch keeps them up.
``kernels/allocate.hpp`` allocates.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass

import numpy as np

from gpkvs.batch import U64
from gpkvs.media.layout import RECORD_UNITS_MAX, UNIT_BYTES


@dataclass(frozen=True)
class Tail:
    """Where the next record goes."""

    segment: int
    units: int


class Heap:
    """The heap of a store.

    Parameters
    ----------
    segment_bytes
        From the root.
    tail
        From the current descriptor.
    live_units : (segments,) uint64
        Counted from the index. Native code keeps their address: they change in place.
    size
        Bytes that the heap has; by default, all segments are whole.

    Attributes
    ----------
    bytes
        The size that it has.
    growth_waits
        Why it cannot grow now, where it should; else nothing.
    """

    def __init__(self, segment_bytes: int, tail: Tail, live_units: U64, *, size: int | None = None) -> None:
        self.segment_units = segment_bytes // UNIT_BYTES
        assert self.segment_units <= RECORD_UNITS_MAX  # a record fits a segment, so a reference holds its length
        self.tail = tail
        self.bytes = len(live_units) * segment_bytes if size is None else size
        self.growth_waits = ""
        self._live_units = self.live_units = live_units
        self._freed: deque[tuple[int, U64]] = deque()

    def allow(self, size_max: int) -> None:
        """Have a place for the segments of a larger heap; before native code knows the address of `live_units`."""
        segments = len(self.live_units)
        if self._segments_of(size_max) > len(self._live_units):
            # What nobody touches takes no memory.
            self._live_units = np.zeros(self._segments_of(size_max), np.uint64)
            self._live_units[:segments] = self.live_units
            self.live_units = self._live_units[:segments]

    def _segments_of(self, size: int) -> int:
        return -(-size // (self.segment_units * UNIT_BYTES))

    def grow(self, size: int) -> None:
        """Take more space into use, which the file has; cannot fail. The address of `live_units` stays."""
        assert size >= self.bytes
        self.bytes = size
        self.live_units = self._live_units[: self._segments_of(size)]

    def end_of(self, segment: int) -> int:
        """Return the units of a segment that there are."""
        return min(self.segment_units, self.bytes // UNIT_BYTES - segment * self.segment_units)

    @property
    def live_bytes(self) -> int:
        """Bytes of all live records."""
        freed = sum(int(units.sum()) for _, units in list(self._freed))
        return (int(self.live_units.sum()) - freed) * UNIT_BYTES

    @property
    def free_units(self) -> int:
        """Units that records could still be appended to."""
        last = len(self.live_units) - 1
        free = int((self.live_units == 0).sum()) * self.segment_units
        if self.live_units[last] == 0:
            free -= self.segment_units - self.end_of(last)
        start = self.start
        return free + (self.end_of(start.segment) - start.units if start.units else 0)

    @property
    def start(self) -> Tail:
        """Where the next record goes: a tail segment in which nothing is live begins again."""
        return self.tail if self.live_units[self.tail.segment] else Tail(self.tail.segment, 0)

    def release(self, units: U64) -> None:
        """Count units of each segment as no longer live; cannot fail."""
        live_units = self.live_units[: len(units)]  # the heap may have grown since they were counted
        np.subtract(live_units, units, out=live_units)

    def release_later(self, epoch: int, units: U64) -> None:
        """Note units of each segment that are free once a durable frame covers an epoch (W6)."""
        if self._freed and self._freed[-1][0] == epoch:
            noted = self._freed[-1][1]
            if len(noted) < len(units):  # the heap has grown
                noted = np.concatenate((noted, np.zeros(len(units) - len(noted), np.uint64)))
                self._freed[-1] = epoch, noted
            np.add(noted[: len(units)], units, out=noted[: len(units)])
        else:
            self._freed.append((epoch, units))

    def release_covered(self, epoch: int) -> bool:
        """Free what was noted of the epochs up to one; return whether there was something."""
        before = len(self._freed)
        while self._freed and self._freed[0][0] <= epoch:
            self.release(self._freed.popleft()[1])
        return len(self._freed) < before

    @property
    def freed_epoch(self) -> int:
        """The newest epoch that space waits for; 0 if none does."""
        return self._freed[-1][0] if self._freed else 0
