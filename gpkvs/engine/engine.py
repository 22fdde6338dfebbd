"""The engine: one batch, one durable transaction. It chooses a planner, commits what that planned, and maintains.

    batch -> planner -> write set -> committer -> result

Planners only read PM; the committer alone stores to it. Decisions are in Python, loops over keys are in the kernels.
"""

from __future__ import annotations

from collections import deque

import numpy as np

from gpkvs import failpoint
from gpkvs.backends.base import Backend
from gpkvs.batch import Batch, BatchResult
from gpkvs.engine.committer import Committer
from gpkvs.engine.heap import Heap
from gpkvs.engine.meter import Meter
from gpkvs.engine.native_planner import NativePlanner
from gpkvs.engine.phase_planner import PhasePlanner
from gpkvs.engine.planner import Planned
from gpkvs.engine.recount import DroppedTable
from gpkvs.engine.table import Table
from gpkvs.engine.undo_committer import UndoCommitter
from gpkvs.errors import memory_refused
from gpkvs.media.files import StoreFiles
from gpkvs.media.index import Index
from gpkvs.media.transaction import Transaction


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
    heap, transaction
        As recovery left them.
    result_bytes_max, batch_result_bytes_max
        Values that one request, and one transaction, may read; the second is not below the first.
    meter
        Told what each phase took, and what was written.
    logged
        Whether batches are transactions. Without the undo log they are not: a crash may tear them.
    """

    def __init__(
        self,
        backend: Backend,
        files: StoreFiles,
        tables: dict[int, Table],
        heap: Heap,
        transaction: Transaction,
        result_bytes_max: int,
        batch_result_bytes_max: int,
        meter: Meter,
        *,
        logged: bool = True,
    ) -> None:
        self._backend = backend
        self._files = files
        self.tables = tables
        self.heap = heap
        self.transaction = transaction
        self.meter = meter
        limits = (result_bytes_max, batch_result_bytes_max)
        self._native = NativePlanner(backend, files, tables, heap, *limits)
        self._phases = PhasePlanner(backend, backend, files, tables, heap, *limits, meter)
        self._phases_on_host = PhasePlanner(backend, backend.host, files, tables, heap, *limits, meter)
        self._committer: Committer = UndoCommitter(backend, files, tables, heap, transaction, meter, logged=logged)
        self._dropped: deque[DroppedTable] = deque()

    @property
    def kept_bytes(self) -> int:
        """The host's memory that is kept between batches, to be used again."""
        return self._backend.kept_bytes + self._native.kept_bytes

    @property
    def next_sequence(self) -> int:
        """The version that the next SET may get."""
        return self.transaction.current.next_sequence

    def execute(self, batch: Batch) -> BatchResult:
        """Run the longest run of requests from the first on that fits one transaction.

        Parameters
        ----------
        batch
            Valid columns (`Batch.validate`), of tables that exist.

        Returns
        -------
        BatchResult
            Durable. Its `requests` says how many requests it covers; at least one.
        """
        self.meter.begin()
        planned = self._plan_natively(batch) or self._plan_by_phases(batch)
        if planned.write_set:
            self._committer.commit(planned.write_set)
        # Results leave here, after the commit: an acknowledged write must survive, and no reader may see what a crash
        # could take back (I4).
        if planned.result.parts:
            failpoint.hit("before_reply")
        return planned.result

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
            self.heap.release(self._dropped[0].step(budget_bytes))
        except BaseException:
            self._dropped.popleft()
            raise
        if self._dropped[0].is_counted:
            self._dropped.popleft()
        return bool(self._dropped)
