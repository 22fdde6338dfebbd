"""Space of the heap that becomes free: batches pay for compaction, dropped tables are counted, spare space goes back.

Batches pay as late as is safe, since victims lose more records the longer they wait. Idle time does what remains.
"""

from __future__ import annotations

import logging
import time
from collections import deque

import numpy as np

from gpkvs.backends.base import Backend
from gpkvs.engine.seam.capacity import LackedRoom
from gpkvs.engine.seam.committer import Committer
from gpkvs.engine.space import given_space
from gpkvs.engine.space.compaction import Compactor
from gpkvs.engine.space.heap_growth import HeapGrowth
from gpkvs.engine.space.recount import DroppedTable
from gpkvs.engine.state.heap import Heap
from gpkvs.engine.state.table import Table
from gpkvs.media.files import StoreFiles
from gpkvs.media.index import Index
from gpkvs.media.layout import LONGEST_RECORD_UNITS

_log = logging.getLogger("gpkvs")

_ROOM_SEGMENTS = 2  # that are freed at once for a batch of many requests: the rest of it comes after
# What compaction may move for what it frees, before it is given up: with the fullest victims it is 19 times as much.
_MOVED_TO_FREE_MAX = 40
_STALLED_SEGMENTS = 4
_PAID_AT_ONCE = 8  # parts of a segment, if batches need not wait for each other
_DROPPED_STEP_BYTES = 1 << 20
_TELL_SECONDS = 10.0


class FreeSpace:
    """Keeps space of a heap free. The engine calls it between two batches.

    Parameters
    ----------
    files, backend, tables, heap
        Of the store; the host's threads compact and count.
    committer
        Stores what compaction moves.
    growth
        Of the heap, which may be better than compaction.

    Attributes
    ----------
    compactor
        Empties segments.
    """

    def __init__(
        self,
        files: StoreFiles,
        backend: Backend,
        tables: dict[int, Table],
        heap: Heap,
        committer: Committer,
        growth: HeapGrowth,
    ) -> None:
        self._files = files
        self._backend = backend.host
        self._heap = heap
        self._committer = committer
        self._growth = growth
        self._dropped: deque[DroppedTable] = deque()
        self.compactor = Compactor(files, backend, tables, heap, committer)
        self._paid_segment = -1  # the tail's, when free segments were last counted
        self._is_paying = False  # whether free segments are few
        self._debt = 0  # units that batches appended and compaction has not freed yet
        self._idle_state = (-1, -1)  # of the heap, when idle compaction began
        self._idle_from = 0
        self._tell_at = 0.0
        self._look_at = given_space.now()  # when it is time to look for space that nobody needs

    def before_batch(self) -> None:
        """Give space back that was not needed for a minute, and wait for none in vain, if it is time to look."""
        if given_space.now() >= self._look_at:
            self._committer.land()
            self._look_at = given_space.now() + given_space.LOOK_SECONDS
            self._committer.release_covered()
            self._growth.end_wait()
            self._growth.give_back(self._committer.read_gate())
            if self._heap.blobs:
                self._heap.blobs.tidy(self._committer.read_gate(), self._committer.is_durable)

    @property
    def units_until_due(self) -> int:
        """So many units may be appended to one segment before the next `pay`."""
        return self._heap.segment_units // _PAID_AT_ONCE if self._is_paying else LONGEST_RECORD_UNITS

    @property
    def is_due(self) -> bool:
        """Whether to `pay` after a batch.

        The search for free segments costs as much as a small batch: only where one was taken, or few are left.
        """
        return self._is_paying or self._heap.tail.segment != self._paid_segment

    def pay_for_turn(self, units: int) -> None:
        """Do the same after a turn of the native engine, which ends when another segment begins.

        What its batches appended while there was enough is not owed, as with batches that pay one by one: to free as
        much at once would keep the next batch waiting.
        """
        self.pay(units if self._is_paying else min(units, self._heap.tail.units))

    def pay(self, units: int) -> None:
        """Free as much as a batch appended, if free segments are few: as late as is safe, which moves least."""
        self._debt += units
        if self._is_paying and self._debt <= 0:
            return
        self._paid_segment = self._heap.tail.segment
        self._is_paying = self.compactor.is_due and not self._dropped and not self._growth.is_preferred
        if not self._is_paying:
            self._debt = 0
            return
        try:
            while self._debt > 0:
                freed = self.compactor.freed_units
                if not self.compactor.step(wanted_units=self._debt):
                    self._debt = 0
                    return
                self._debt -= self.compactor.freed_units - freed
        except MemoryError as error:  # the batch is committed: its result must not be lost
            self._tell(error)

    def make_room(self, lacking: LackedRoom, needed_bytes: int) -> None:
        """Have the heap grow for a batch, or compact it, whichever is better.

        Parameters
        ----------
        lacking
            What finds no room.
        needed_bytes
            What the batch takes at most.
        """
        present = self._heap.present_bytes
        if self._growth.is_preferred:
            self._growth.make_room(needed_bytes)
        if self._heap.present_bytes == present:
            self._compact_for(lacking)

    def _compact_for(self, lacking: LackedRoom) -> None:
        """Compact the heap until there is room for a batch, or for its first request and a bit more if it is large."""
        request = np.flatnonzero(lacking.units)[0]
        heap, first, in_a_row = self._heap, int(lacking.units[request]), int(lacking.long_segments[request])
        wanted = max(first, min(int(lacking.units.sum()), _ROOM_SEGMENTS * heap.segment_units)) + heap.segment_units
        try:
            while self._dropped:
                self._count_dropped(_DROPPED_STEP_BYTES)
            self._free(wanted)
            if in_a_row and heap.is_compacted:
                self.compactor.make_run(in_a_row)
        except (MemoryError, OSError) as error:
            self._tell(error)
        self._committer.release_waiting()

    def _tell(self, error: Exception) -> None:
        """Log why the heap could not be compacted, once in a while: each batch tries it again."""
        if time.monotonic() >= self._tell_at:
            self._tell_at = time.monotonic() + _TELL_SECONDS
            _log.warning("the heap could not be compacted: %r", error)

    def _free(self, wanted_units: int) -> None:
        """Run steps until so many units are free, or will be when a journal allows it; end if they gain too little."""
        heap, compactor = self._heap, self.compactor
        moved, freed = heap.moved_units, compactor.freed_units
        while (lacking := wanted_units - heap.emptied_units) > 0 and compactor.step(wanted_units=lacking):
            gained = compactor.freed_units - freed
            if heap.moved_units - moved > _MOVED_TO_FREE_MAX * max(gained, 0) + _STALLED_SEGMENTS * heap.segment_units:
                return

    def release(self, index: Index) -> None:
        """Have steps count what a dropped table had in the heap, and free it; nobody else uses its index."""
        if index.has_records:
            self._dropped.append(DroppedTable(self._files, self._backend, index))

    def forget(self, index: Index) -> None:
        """Count no further what a dropped table had in the heap: its index is about to be unmapped."""
        self._dropped = deque(dropped for dropped in self._dropped if dropped.index is not index)

    @property
    def is_counting(self) -> bool:
        """Whether there is a dropped table to count."""
        return bool(self._dropped)

    def count_step(self, budget_bytes: int) -> bool:
        """Count the next part of a dropped table; return whether there was one.

        Raises
        ------
        MemoryError, OSError
            If it failed; the table is given up.
        """
        if self._dropped:
            self._count_dropped(budget_bytes)
            return True
        return False

    def _count_dropped(self, budget_bytes: int) -> None:
        try:
            counts = self._dropped[0].step(budget_bytes)
            self._committer.release(counts, self._dropped[0].blobs)
        except BaseException:
            self._dropped.popleft()
            raise
        if self._dropped[0].is_counted:
            self._dropped.popleft()

    def idle_step(self) -> bool:
        """Run a step of compaction where two segments become one; it ends if nobody writes."""
        heap = self._heap
        state = (heap.clock, heap.charged)
        if state != self._idle_state:
            self._idle_state, self._idle_from = state, heap.moved_units
        if heap.moved_units - self._idle_from > heap.segments * heap.segment_units:
            return False
        return self.compactor.idle_step()
