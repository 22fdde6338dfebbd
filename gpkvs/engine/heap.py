"""The heap: where the next record goes, and how much of each segment is live.

A segment is free when nothing in it is live. Live counts are volatile. An opening recounts them from the index; each
committed batch keeps them up. ``kernels/allocate.hpp`` allocates.
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
    """

    def __init__(self, segment_bytes: int, tail: Tail, live_units: U64) -> None:
        self.segment_units = segment_bytes // UNIT_BYTES
        assert self.segment_units <= RECORD_UNITS_MAX  # a record fits a segment, so a reference holds its length
        self.tail = tail
        self.live_units = live_units
        self._freed: deque[tuple[int, U64]] = deque()

    @property
    def live_bytes(self) -> int:
        """Bytes of all live records."""
        freed = sum(int(units.sum()) for _, units in list(self._freed))
        return (int(self.live_units.sum()) - freed) * UNIT_BYTES

    @property
    def free_units(self) -> int:
        """Units that records could still be appended to."""
        free = int((self.live_units == 0).sum()) * self.segment_units
        units = self.start.units
        return free + (self.segment_units - units if units else 0)

    @property
    def start(self) -> Tail:
        """Where the next record goes: a tail segment in which nothing is live begins again."""
        return self.tail if self.live_units[self.tail.segment] else Tail(self.tail.segment, 0)

    def release(self, units: U64) -> None:
        """Count units of each segment as no longer live; cannot fail."""
        np.subtract(self.live_units, units, out=self.live_units)

    def release_later(self, epoch: int, units: U64) -> None:
        """Note units of each segment that are free once a durable block covers an epoch (W6)."""
        if self._freed and self._freed[-1][0] == epoch:
            noted = self._freed[-1][1]
            np.add(noted, units, out=noted)
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
