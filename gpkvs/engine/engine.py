"""The engine: one batch, one durable transaction. It chooses a planner, commits what that planned, and maintains.

    batch -> planner -> write set -> committer -> result, and the gate before which nobody may see it

Planners only read PM; the committer alone stores to it. Decisions are in Python, loops over keys are in the kernels.
"""

from __future__ import annotations

from collections import deque

import numpy as np

from gpkvs import failpoint
from gpkvs.backends.base import Backend
from gpkvs.batch import Batch, BatchResult
from gpkvs.engine.capacity import IndexFullError
from gpkvs.engine.committer import Committer
from gpkvs.engine.growth import NO_LIMITS, Growing, GrowthLimits
from gpkvs.engine.heap import Heap
from gpkvs.engine.meter import Meter
from gpkvs.engine.native_planner import NativePlanner
from gpkvs.engine.phase_planner import PhasePlanner
from gpkvs.engine.planner import Planned
from gpkvs.engine.recount import DroppedTable
from gpkvs.engine.table import Table
from gpkvs.errors import NoSpaceError, memory_refused
from gpkvs.media.files import StoreFiles
from gpkvs.media.index import Index


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
        Values that one request, and one transaction, may read; the second is not below the first.
    meter
        Told what each phase took, and what was written.
    growth_limits
        How large indexes may become.
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
        meter: Meter,
        growth_limits: GrowthLimits = NO_LIMITS,
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
        self._dropped: deque[DroppedTable] = deque()
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
        planned = self._plan(batch)
        if planned.result.rejected:
            planned = self._grow_and_plan(batch, planned)
        if self._lacks_heap(planned) and self.committer.release_waiting():
            planned = self._plan(batch)
        gate = self.committer.commit(planned.write_set) if planned.write_set else self._read_gate(batch)
        if planned.write_set:
            self.growth.after(planned.write_set)
        return planned.result, gate

    def _grow_and_plan(self, batch: Batch, planned: Planned) -> Planned:
        """Have tables grow whose new keys find no way, then plan anew: a plan made before a step is worthless."""
        while full := _full_tables(planned):
            if self.growth.make_room(full):
                planned = self._plan(batch)
                continue
            for number, refusal in planned.result.rejected.items():
                if isinstance(refusal, IndexFullError):
                    planned.result.rejected[number] = self.growth.refusal(refusal)
            break
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
        planned = self._plan_natively(batch)
        self._was_planned_natively = planned is not None
        return planned or self._plan_by_phases(batch)

    def _lacks_heap(self, planned: Planned) -> bool:
        """Whether a request was refused for want of room in the heap."""
        refusals = planned.result.rejected.values()
        return any(isinstance(refusal, NoSpaceError) and refusal.resource == "heap" for refusal in refusals)

    def _plan_natively(self, batch: Batch) -> Planned | None:
        with memory_refused():
            planned = self._native.plan(batch, self.next_sequence)
        if planned:
            self.meter.lap("plan")
        return planned

    def _plan_by_phases(self, batch: Batch) -> Planned:
        is_small = len(batch) <= self._backend.host_ops_max
        on_host = is_small and isinstance(batch.keys, np.ndarray) and isinstance(batch.values, np.ndarray)
        planner = self._phases_on_host if on_host else self._phases
        return planner.plan(batch, self.next_sequence)

    def settle(self) -> None:
        """Return when all batches are durable."""
        self.committer.wait(self.committer.read_gate())

    def close(self) -> None:
        """End what runs beside the batches; all of them are durable then."""
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
        if not self._dropped:
            return False
        try:
            self.committer.release(self._dropped[0].step(budget_bytes))
        except BaseException:
            self._dropped.popleft()
            raise
        if self._dropped[0].is_counted:
            self._dropped.popleft()
        return bool(self._dropped)


def _full_tables(planned: Planned) -> dict[int, IndexFullError]:
    """Return why new keys were refused for want of a way, by table id."""
    refusals = planned.result.rejected.values()
    return {refusal.table.entry.id: refusal for refusal in refusals if isinstance(refusal, IndexFullError)}
