"""The engine: one batch, one durable transaction. It chooses a planner, commits what that planned, and maintains.

    batch -> planner -> write set -> committer -> result, and the gate before which nobody may see it

Planners only read PM; the committer alone stores to it. Decisions are in Python, loops over keys are in the kernels.
"""

from __future__ import annotations

import logging
from collections import deque
from contextlib import suppress

import numpy as np

from gpkvs import failpoint
from gpkvs.backends.base import Backend
from gpkvs.batch import Batch, BatchResult
from gpkvs.engine.capacity import IndexFullError, NoRoomError, record_bytes_max
from gpkvs.engine.committer import Committer
from gpkvs.engine.compaction import Compactor
from gpkvs.engine.growth import NO_LIMITS, Growing, GrowthLimits
from gpkvs.engine.heap import Heap
from gpkvs.engine.heap_growth import HeapGrowth
from gpkvs.engine.log_growth import LogGrowth
from gpkvs.engine.meter import Meter
from gpkvs.engine.native_planner import NativePlanner
from gpkvs.engine.phase_planner import PhasePlanner
from gpkvs.engine.planner import Planned
from gpkvs.engine.recount import DroppedTable
from gpkvs.engine.resolve import Resolver
from gpkvs.engine.table import Table
from gpkvs.errors import NoSpaceError, memory_refused
from gpkvs.media.files import StoreFiles
from gpkvs.media.index import Index
from gpkvs.media.layout import BLOCK_BYTES

_log = logging.getLogger("gpkvs")

_ROOM_SEGMENTS = 2  # that are freed at once for a batch of many requests: the rest of it comes after
# What compaction may move for what it frees, before it is given up: with the fullest victims it is 19 times as much.
_MOVED_TO_FREE_MAX = 40
_STALLED_SEGMENTS = 4
_DROPPED_STEP_BYTES = 1 << 20


class Engine:
    """Runs batches against a store, one at a time.

    Parameters
    ----------
    backend
        Runs the kernels.
    files
        The mapped store.
    tables
        By id; whoever makes or drops a table changes them between two batches.
    heap
        As recovery left it.
    committer
        Makes write sets durable.
    result_bytes_max, batch_result_bytes_max
        Values that one request, and one transaction, may read; the second is not below the first. A transaction makes
        no more of appends.
    value_bytes_max
        Of the longest value that may be stored.
    meter
        Told what each phase took, and what was written.
    growth_limits
        How large indexes may become.
    log_bytes_max
        How large the undo log may become, if there is one.
    """

    def __init__(
        self,
        backend: Backend,
        files: StoreFiles,
        tables: dict[int, Table],
        heap: Heap,
        committer: Committer,
        result_bytes_max: int,
        batch_result_bytes_max: int,
        value_bytes_max: int,
        meter: Meter,
        growth_limits: GrowthLimits = NO_LIMITS,
        log_bytes_max: int = 0,
    ) -> None:
        self._backend = backend
        self._files = files
        self.tables = tables
        self.heap = heap
        self.committer = committer
        self.meter = meter
        limits = (result_bytes_max, batch_result_bytes_max)
        self._native = NativePlanner(backend, files, tables, heap, *limits)
        self._phases = PhasePlanner(backend, backend, files, tables, heap, *limits, meter)
        self._phases_on_host = PhasePlanner(backend, backend.host, files, tables, heap, *limits, meter)
        self._resolver = Resolver(backend, files, tables, value_bytes_max, batch_result_bytes_max, meter)
        self._log_entries_max = files.log_entries_max
        self._log_growth = LogGrowth(files, backend, log_bytes_max) if files.undo_log else None
        self._heap_growth = HeapGrowth(files, heap, self._native.take_over_heap)
        self._dropped: deque[DroppedTable] = deque()
        self.compactor = Compactor(files, backend, tables, heap, committer)
        self._paid_segment = -1  # the tail's, when free segments were last counted
        self._is_paying = False  # whether free segments are few
        self._debt = 0  # units that batches appended and compaction has not freed yet
        self._idle_state = (-1, -1)  # of the heap, when idle compaction began
        self._idle_from = 0
        self.growth = Growing(backend, files, tables, committer, growth_limits)

    @property
    def kept_bytes(self) -> int:
        """The host's memory that is kept between batches, to be used again, as far as an allocator gave it."""
        return self._backend.kept_bytes + self._native.kept_bytes

    @property
    def next_sequence(self) -> int:
        """The version that the next SET may get."""
        return self.committer.next_sequence

    def execute(self, batch: Batch) -> tuple[BatchResult, int]:
        """Run the longest run of requests from the first on that fits one transaction.

        The next batch may run before this one is durable. Nobody may see the result before its gate (`wait`).

        Parameters
        ----------
        batch
            Valid columns (`Batch.validate`), of tables that exist.

        Returns
        -------
        BatchResult
            Its `requests` says how many requests it covers; at least one.
        int
            Its gate.
        """
        self.meter.begin()
        self._heap_growth.step()
        if len(batch) > self._log_entries_max and batch.has_writes:
            self._grow_log(len(batch))
        planned = self._plan(batch)
        if planned.result.rejected:
            planned = self._make_fit(batch, planned)
        if not planned.write_set:
            return planned.result, self._read_gate(batch)
        gate = self.committer.commit(planned.write_set)
        self.growth.after(planned.write_set)
        # The search for free segments costs as much as a small batch: only where one was taken, or few are left.
        if self._is_paying or self.heap.tail.segment != self._paid_segment:
            self._pay(sum(writes.heap_units for writes in planned.write_set.tables))
        return planned.result, gate

    def _make_fit(self, batch: Batch, planned: Planned) -> Planned:
        """Have grown what requests were refused for want of, and plan anew: a plan made before a step is worthless."""
        if self._lacks(planned, "log") and self._grow_log(2 * len(batch)):  # it displaces keys: two entries each
            planned = self._plan(batch)
        while True:
            full = _full_tables(planned)
            if not (full and self.growth.make_room(full)) and not (
                self._lacks(planned, "heap") and self._heap_growth.make_room(record_bytes_max(batch))
            ):
                break
            planned = self._plan(batch)
        for number, refusal in planned.result.rejected.items():
            if isinstance(refusal, IndexFullError):
                planned.result.rejected[number] = self.growth.refusal(refusal)
        return planned

    def is_durable(self, gate: int) -> bool:
        """Whether everything up to a gate is durable."""
        return self.committer.is_durable(gate)

    def _read_gate(self, batch: Batch) -> int:
        """Return the gate of a batch that was planned just now and changed nothing."""
        newest = self.committer.read_gate()
        stable_sequence = self.committer.stable_sequence(newest)
        if stable_sequence is None or not self._was_planned_natively:
            return newest
        table = self.tables[int(batch.request_tables[0])]
        return min(newest, self._native.read_gate(table, stable_sequence))

    def wait(self, result: BatchResult, gate: int) -> None:
        """Return when the result of a batch may be seen, from any thread.

        An acknowledged write must survive, and no reader may see what a crash could take back (I4, W1).
        """
        self.committer.wait(gate)
        if result.parts:
            failpoint.hit("before_reply")

    def _plan(self, batch: Batch) -> Planned:
        if batch.looks_first:
            return self._resolver.plan(batch, self.next_sequence, self._plan_plain)
        return self._plan_plain(batch)

    def _plan_plain(self, batch: Batch) -> Planned:
        planned = self._plan_natively(batch)
        self._was_planned_natively = planned is not None
        if planned:
            return planned
        try:
            return self._plan_by_phases(batch)
        except NoRoomError as lacking:
            return self._plan_with_room(batch, lacking)

    def _plan_with_room(self, batch: Batch, lacking: NoRoomError) -> Planned:
        """Plan a batch again, in a heap that has grown or was compacted for it."""
        growth, needed_bytes = self._heap_growth, record_bytes_max(batch)
        if not (growth.is_preferred and growth.make_room(needed_bytes)):
            self._make_room(lacking)
            if growth.can_grow:
                with suppress(NoRoomError):
                    return self._plan_by_phases(batch)
                growth.make_room(needed_bytes)
        return self._plan_by_phases(batch, makes_do=True)

    def _make_room(self, lacking: NoRoomError) -> None:
        """Compact the heap until there is room for a batch, or for its first request and a bit more if it is large."""
        request = np.flatnonzero(lacking.units)[0]
        heap, first, in_a_row = self.heap, int(lacking.units[request]), int(lacking.long_segments[request])
        wanted = max(first, min(int(lacking.units.sum()), _ROOM_SEGMENTS * heap.segment_units)) + heap.segment_units
        try:
            while self._dropped:
                self._count_dropped(_DROPPED_STEP_BYTES)
            self._free(wanted)
            if in_a_row and heap.is_compacted:
                self.compactor.make_run(in_a_row)
        except (MemoryError, OSError) as error:
            _log.warning("the heap could not be compacted: %r", error)
        self.committer.release_waiting()

    def _free(self, wanted_units: int) -> None:
        """Run steps until so many units are free, or will be when a journal allows it; end if they gain too little."""
        heap, compactor = self.heap, self.compactor
        moved, freed = heap.moved_units, compactor.freed_units
        while heap.emptied_units < wanted_units and compactor.step():
            gained = compactor.freed_units - freed
            if heap.moved_units - moved > _MOVED_TO_FREE_MAX * max(gained, 0) + _STALLED_SEGMENTS * heap.segment_units:
                return

    def _pay(self, units: int) -> None:
        """Free as much as a batch appended, if free segments are few: as late as is safe, which moves least."""
        self._debt += units
        if self._is_paying and self._debt <= 0:
            return
        self._paid_segment = self.heap.tail.segment
        self._is_paying = self.compactor.is_due and not self._dropped and not self._heap_growth.is_preferred
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
            _log.warning("the heap could not be compacted: %r", error)

    def _lacks(self, planned: Planned, resource: str) -> bool:
        """Whether a request was refused for want of room."""
        rejected = planned.result.rejected
        return bool(rejected) and any(
            isinstance(refusal, NoSpaceError) and refusal.resource == resource for refusal in rejected.values()
        )

    def _grow_log(self, entries: int) -> bool:
        """Have room for so many entries in the undo log, if it may grow; return whether it is larger now."""
        if self._log_growth is None or not self._log_growth.make_room(entries):
            return False
        self._log_entries_max = self._files.log_entries_max
        self._native.take_over_log()
        return True

    def _plan_natively(self, batch: Batch) -> Planned | None:
        with memory_refused():
            planned = self._native.plan(batch, self.next_sequence)
        if planned:
            self.meter.lap("plan")
        return planned

    def _plan_by_phases(self, batch: Batch, *, makes_do: bool = False) -> Planned:
        is_small = len(batch) <= self._backend.host_ops_max
        on_host = is_small and isinstance(batch.keys, np.ndarray) and isinstance(batch.values, np.ndarray)
        planner = self._phases_on_host if on_host else self._phases
        return planner.plan(batch, self.next_sequence, makes_do=makes_do)

    def settle(self) -> None:
        """Return when all batches are durable."""
        self.committer.wait(self.committer.read_gate())

    def close(self) -> None:
        """End what runs beside the batches; all of them are durable then."""
        self._heap_growth.close()
        self.growth.close()
        self.settle()
        self.committer.close()

    def release(self, index: Index) -> None:
        """Have `maintain` count what a dropped table had in the heap, and free it; nobody else uses its index."""
        if index.has_records:
            self._dropped.append(DroppedTable(self._files, self._backend.host, index))

    def forget(self, index: Index) -> None:
        """Count no further what a dropped table had in the heap: its index is about to be unmapped."""
        self._dropped = deque(dropped for dropped in self._dropped if dropped.index is not index)

    def maintain(self, budget_bytes: int) -> bool:
        """Do a bounded step of the work that batches leave behind.

        Parameters
        ----------
        budget_bytes
            Bytes of media that the step may look at.

        Returns
        -------
        bool
            Whether there is more to do.

        Raises
        ------
        MemoryError, OSError
            If the step failed; the task that it belonged to is given up.
        """
        if self._dropped:
            self._count_dropped(budget_bytes)
            return True
        return self.growth.idle_step(budget_bytes // BLOCK_BYTES) or self._compact_idle()

    @property
    def is_counting(self) -> bool:
        """Whether `maintain` still counts what dropped tables had in the heap."""
        return bool(self._dropped)

    def _compact_idle(self) -> bool:
        """Run a step of compaction where two segments become one; it ends if nobody writes."""
        state = (self.heap.clock, self.heap.charged)
        if state != self._idle_state:
            self._idle_state, self._idle_from = state, self.heap.moved_units
        if self.heap.moved_units - self._idle_from > self.heap.segments * self.heap.segment_units:
            return False
        return self.compactor.idle_step()

    def _count_dropped(self, budget_bytes: int) -> None:
        try:
            self.committer.release(self._dropped[0].step(budget_bytes))
        except BaseException:
            self._dropped.popleft()
            raise
        if self._dropped[0].is_counted:
            self._dropped.popleft()


def _full_tables(planned: Planned) -> dict[int, IndexFullError]:
    """Return why new keys were refused for want of a way, by table id."""
    refusals = planned.result.rejected.values()
    return {refusal.table.entry.id: refusal for refusal in refusals if isinstance(refusal, IndexFullError)}
