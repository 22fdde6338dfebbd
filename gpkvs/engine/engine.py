"""The engine: one batch, one durable transaction. It chooses who runs it, and maintains.

    batch -> planner -> write set -> committer -> result, and the gate before which nobody may see it

Planners only read PM; the committer alone stores to it. On the host native code does all of that in one call
(`gpkvs.engine.host.native_engine`). Here is how a batch runs on a GPU: decisions are in Python, loops over keys are in
the kernels.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from time import monotonic, perf_counter
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gpkvs.backends.base import Backend
from gpkvs.backends.path_costs import ALL_OPS, Kind, Mix, Path, PathCosts, mix_of
from gpkvs.backends.row_cache import KnownRows
from gpkvs.batch import U8, U64, Batch, BatchResult, RequestResult, is_constant
from gpkvs.engine.commit.journal_committer import JournalCommitter
from gpkvs.engine.commit.journal_growth import JournalGrowth
from gpkvs.engine.commit.log_growth import LogGrowth
from gpkvs.engine.commit.undo_committer import UndoCommitter
from gpkvs.engine.device.phase_planner import PhasePlanner
from gpkvs.engine.device.planned import Planned
from gpkvs.engine.device.row_reads import LeftRows, key_bytes, reading_of
from gpkvs.engine.host.change_log import ChangeLog
from gpkvs.engine.host.crew import Crew
from gpkvs.engine.host.kinds import count_kinds
from gpkvs.engine.host.native_engine import DEVICE_LAYOUTS, NativeEngine, TurnLimits, TurnSums
from gpkvs.engine.host.native_planner import OPS_MAX, NativePlanner
from gpkvs.engine.host.own_turn import OwnTurn
from gpkvs.engine.seam import counted_time
from gpkvs.engine.seam.committer import Committer
from gpkvs.engine.seam.counted_time import Clocks
from gpkvs.engine.seam.left import GROWS, Left
from gpkvs.engine.seam.meter import Meter
from gpkvs.engine.seam.traffic import Traffic
from gpkvs.engine.seam.write_set import WriteSet
from gpkvs.engine.space.free_space import FreeSpace
from gpkvs.engine.space.heap_growth import HeapGrowth
from gpkvs.engine.state.heap import Heap
from gpkvs.engine.state.table import Table
from gpkvs.engine.tables.expiry import Expiry
from gpkvs.engine.tables.growth import NO_LIMITS, Growing, GrowthLimits
from gpkvs.engine.tables.scan import Scanner, Wanted
from gpkvs.errors import InvalidArgumentError, memory_refused
from gpkvs.media.files import StoreFiles
from gpkvs.media.layout import BLOCK_BYTES, HEAP_RECORD_BYTES, RECORD_HEADER_BYTES, U64_LAYOUT
from gpkvs.process import failpoint
from gpkvs.process.fatal import stop_process
from gpkvs.scan import ScanPiece

_log = logging.getLogger("gpkvs")

# How long native code may run batches; less where something goes on beside them.
_TURN_SECONDS = 1.0
_SHORT_TURN_SECONDS = 0.05
_DEVICE_OPS_SECONDS = 0.05  # so long it is believed which batches may be for a GPU: to ask takes as long as a batch


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
        How large the undo log, or the journal, may become for one batch.
    heap_bytes_kept
        What the heap does not give back to the file system, whether it is needed or not.
    changes_bytes
        What is held of the newest changes, for followers.
    clocks
        Say when keys expire.
    follows_index
        Whether a journal may also become half of all indexes.
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
        heap_bytes_kept: int = 0,
        changes_bytes: int = 0,
        clocks: Clocks = counted_time.MACHINE,
        *,
        follows_index: bool = False,
    ) -> None:
        self._backend = backend
        self._files = files
        self.tables = tables
        self.heap = heap
        self.committer = committer
        if heap.blobs:
            heap.blobs.settle = committer.release_waiting
        self.meter = meter
        self._native = NativePlanner(backend, files, tables, heap, result_bytes_max, batch_result_bytes_max)
        self._phases = PhasePlanner(backend, files, tables, heap, result_bytes_max, meter)
        self.traffic = Traffic(meter)
        self._scanner = Scanner(backend, files, self.traffic)
        self._heap_growth = HeapGrowth(
            files, backend, heap, self._native.take_over_heap, committer.wait, heap_bytes_kept
        )
        self._log_growth = LogGrowth(files, backend, log_bytes_max) if files.undo_log else None
        self._journal_growth = (
            JournalGrowth(
                files,
                committer,
                self._heap_growth,
                log_bytes_max,
                follows_index=follows_index,
            )
            if isinstance(committer, JournalCommitter)
            else None
        )
        self.free_space = FreeSpace(files, backend, tables, heap, committer, self._heap_growth)
        self.growth = Growing(backend, files, tables, committer, growth_limits)
        self.expiry = Expiry(backend, files, tables, meter, self._remove, committer, clocks)
        self._last_device_ops: U64 | None = None
        self._device_ops_of: tuple[object, ...] = ()
        self._device_ops_until = 0.0
        self.changes = ChangeLog(committer, changes_bytes, files.root.opened)
        # Of the batch that runs, where what it takes is measured: when it began, and the gate of the one before.
        self._began, self._gate_before = 0.0, 0
        self.native = NativeEngine(
            backend,
            files,
            tables,
            heap,
            committer,
            meter,
            self.expiry,
            self._native,
            self.changes,
            self._before_turn,
            self._after_turn,
            value_bytes_max,
            batch_result_bytes_max,
        )
        self.own_turn = OwnTurn(self.native, self.crew(), meter)

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
            Valid columns (`Batch.validate`).

        Returns
        -------
        BatchResult
            Its `requests` says how many requests it covers; at least one.
        int
            Its gate.

        Raises
        ------
        NoMemoryError
            If there is no memory for it; nothing of it was done.
        RuntimeError
            If it lacks what nobody can do, which is a mistake of ours; nothing of it was done.
        """
        costs = self._backend.path_costs
        if costs is None and len(batch) <= self._backend.host_ops_max and _is_on_host(batch):
            return self.own_turn.run_batch(batch)
        count_kinds(batch)
        table = self.tables.get(batch.table)
        if table is None or self._is_of_host(batch, table) or self._may_have_blobs(batch, table):
            return self._run_on_host(batch)
        if costs is None:
            return self._run_on_device(batch) or self._run_on_host(batch)
        kind, path = self._choose(batch, table, costs)
        return self._run_measured(batch, kind, path, costs)

    def find_numbers(self, number: int, keys: U64) -> tuple[U64, NDArray[np.bool_]] | None:
        """Look numbers up on a GPU at once: a batch of GETs alone needs no plan.

        Parameters
        ----------
        number
            Of a table of numbers.
        keys : (n,) uint64
            No more than one request may have. The values are no more than one may return.

        Returns
        -------
        values : (n,) uint64
            Of the keys; 0 where there is none. Where they are.
        found : (n,) bool
            Whether each is there.
        None
            Another way may be better: nothing has happened (`execute`).
        """
        table, backend = self.tables.get(number), self._backend
        if table is None or not self._is_for_gpu_at_once(table, keys):
            return None
        self.own_turn.end()
        self.meter.left(Left.DEVICE)
        is_on_host = isinstance(keys, np.ndarray)
        with self._on_device(), memory_refused():
            self.meter.begin()
            self._before_device_batch(table)
            backend.begin()
            backend.meet()
            began = perf_counter()
            column = backend.result_column if is_on_host else backend.xp.empty
            found, values = column(len(keys), np.uint8), column(len(keys), np.uint64)
            backend.find_numbers(keys.view(np.uint8), table.index, found, values)
            self.meter.lap("find")
        if costs := backend.path_costs:
            costs.measured(_kind_of_gets(keys), len(keys), Path.GPU, perf_counter() - began)
        return values, found.view(np.bool_)

    def read_rows(
        self,
        number: int,
        keys: NDArray[np.integer[Any]],
        row_bytes: int,
        rows: U8 | None = None,
        absent: U8 | None = None,
    ) -> tuple[U8, NDArray[np.bool_]] | None:
        """Read rows on a GPU, which has them in its memory, or gets them from the host; all as of one moment.

        Parameters
        ----------
        number
            Of a table of rows.
        keys : (n,) uint64, int64, uint32 or int32
            On the host, or on a GPU.
        row_bytes
            Of each row.
        rows : (n * row_bytes,) uint8
            On the first GPU, where they are left; None: new ones, which are zeros where there is no row.
        absent : (row_bytes,) uint8
            What a row is that is not there, on the host; None: it stays as it is, or is zeros.

        Returns
        -------
        rows : (n * row_bytes,) uint8
            On the GPU; the same, if there were some.
        found : (n,) bool
            Which are there; on the GPU.
        None
            There is no GPU, or the table is gone: nothing has happened.

        Raises
        ------
        InvalidArgumentError
            If a key is negative. As with any error, some rows may have been left already.
        CorruptRecordError
            If a row is damaged.
        """
        table, backend = self.tables.get(number), self._backend
        if table is None or backend.row_caches is None:
            return None
        with self._for_rows(table):
            reading = reading_of(backend, keys, row_bytes, rows, absent)
            cache = backend.row_caches.of(table.index, table.records, row_bytes)
            left_to_host, wrong = cache.read(table.index, reading)
            self.meter.lap("find")
            if wrong:
                raise InvalidArgumentError(f"{wrong:,} negative ones: keys are whole numbers from 0 on", field="keys")
            left = LeftRows(backend, number, reading) if left_to_host else None
        if left:
            try:
                for numbers, read in left.read(self._run_gets):
                    with self._on_device(), memory_refused():
                        cache.take_left(table.index, reading, numbers, _uploaded(backend, read))
            finally:
                self.own_turn.end()
        return reading.rows, reading.seen.view(np.bool_)

    def keep_rows(self, number: int, keys: NDArray[np.integer[Any]], row_bytes: int, rows: KnownRows) -> None:
        """Have a GPU keep rows that were stored just now, so that they need not be read.

        Parameters
        ----------
        number
            Of a table of rows.
        keys : (n,) uint64, int64, uint32 or int32
            On the host, or on a GPU.
        row_bytes
            Of each row.
        rows
            `given` on the first GPU, the rest on the host.
        """
        table, backend = self.tables.get(number), self._backend
        if table is None or backend.row_caches is None:
            return
        with self._for_rows(table):
            cache = backend.row_caches.of(table.index, table.records, row_bytes)
            cache.keep(table.index, key_bytes(backend, keys), _uploaded(backend, rows))

    @contextmanager
    def _for_rows(self, table: Table) -> Iterator[None]:
        """Use the backend for rows of a table, after what is due before."""
        self.own_turn.end()
        self.meter.left(Left.DEVICE)
        with self._on_device(), memory_refused():
            self.meter.begin()
            self._before_device_batch(table)
            self._backend.begin()
            self._backend.meet()
            yield

    def to_host(self, column: NDArray[Any]) -> NDArray[Any]:
        """Return a column of a GPU as one of the host."""
        with self._on_device(), memory_refused():
            return self._backend.download(column)

    def copied(self, column: U8) -> tuple[U8, U8]:
        """Return a copy of a column of a GPU on the first one, and as one of the host."""
        with self._on_device(), memory_refused():
            copy = self._backend.upload(column.copy())
            return copy, self._backend.download(copy)

    def to_gpu(self, column: NDArray[Any]) -> NDArray[Any]:
        """Return a column of the host as one of the first GPU."""
        with self._on_device(), memory_refused():
            return self._backend.upload(column)

    def _run_gets(self, batch: Batch) -> RequestResult:
        return self.own_turn.run_batch(batch)[0].request(0)

    def _is_for_gpu_at_once(self, table: Table, keys: U64) -> bool:
        """Whether a GPU is the better one for GETs, and has not to follow what the host has stored before."""
        backend, costs = self._backend, self._backend.path_costs
        if backend is backend.host or (len(backend.processors) > 1 and len(keys) >= backend.shared_ops_min):
            return False
        if backend.catch_up_seconds(table.index):
            return False
        if costs is None:
            return len(keys) > backend.host_ops_max
        return costs.prefers_gpu(_kind_of_gets(keys), len(keys))

    def begin_turn(self) -> None:
        """Begin a turn of the native engine for a door; a batch that may be for a GPU is left (`Left.DEVICE`)."""
        if costs := self._backend.path_costs:
            for layout, mix, operations, seconds, batches in self.native.taken_by_host():
                costs.measured(Kind(layout, mix, is_on_gpu=False), operations, Path.HOST, seconds, batches)
        self.native.begin_turn(device_ops=None if self.is_on_host else self._device_ops(), is_of_door=True)

    def _device_ops(self) -> U64 | None:
        """Return from how many operations on a batch may be for a GPU; None: none is."""
        costs, has_blobs = self._backend.path_costs, bool(self.heap.blobs and self.heap.blobs.is_any)
        state = costs, costs and costs.forced, self._backend.host_ops_max, has_blobs, self.changes.is_on
        if state == self._device_ops_of and monotonic() < self._device_ops_until:
            return self._last_device_ops
        least = [
            [self._backend.host_ops_max + 1 if costs is None else costs.least_for_gpu(layout, mix) for mix in Mix]
            for layout in DEVICE_LAYOUTS
        ]
        if has_blobs:
            least[0] = [ALL_OPS] * len(Mix)
        if self.changes.is_on:
            least = [[ops if mix is Mix.READS else ALL_OPS for ops, mix in zip(row, Mix, strict=True)] for row in least]
        is_any = any(number < ALL_OPS for row in least for number in row)
        self._last_device_ops = np.array(least, np.uint64) if is_any else None
        self._device_ops_of, self._device_ops_until = state, monotonic() + _DEVICE_OPS_SECONDS
        return self._last_device_ops

    def run_left(self, batch: Batch) -> tuple[BatchResult, int] | None:
        """Run a batch on a GPU that the native engine has left for it: all of it, or nothing.

        Parameters
        ----------
        batch
            Valid columns of the host, of plain operations.

        Returns
        -------
        BatchResult
            Of all its requests; none is rejected.
        int
            Its gate.
        None
            The batch is for the host, perhaps because not all of it fits.
        """
        count_kinds(batch)
        table, costs = self.tables[batch.table], self._backend.path_costs
        if self._is_of_host(batch, table) or self._may_have_blobs(batch, table):
            return None
        self.own_turn.end()
        if costs is None:
            return self._run_whole_on_device(batch)
        kind, path = self._choose(batch, table, costs)
        if path is Path.HOST:
            return None
        self._gate_before = self.committer.read_gate()
        self._catch_up(table)
        ran = self._run_whole_on_device(batch)
        if ran:
            self._measured(costs, kind, len(batch), ran[1])
        return ran

    def run_left_on_host(self, run: Callable[[], bool]) -> bool:
        """Have the native engine run such a batch after all, in a turn of its own; `run` says whether it ran."""
        self.native.begin_turn(is_of_door=True)
        self.meter.helped(Left.DEVICE)
        return run()

    def _choose(self, batch: Batch, table: Table, costs: PathCosts) -> tuple[Kind, Path]:
        """Choose who is to plan a batch."""
        kind = _kind_of(batch, table)
        return kind, costs.choose(kind, len(batch), self._backend.catch_up_seconds(table.index))

    def _catch_up(self, table: Table) -> None:
        """Have GPUs follow what the host has stored in a table, before the clock of a batch starts."""
        with self._on_device():
            self._backend.catch_up(table.index)

    def _is_of_host(self, batch: Batch, table: Table) -> bool:
        """Whether a batch is not for a GPU.

        Its operations look first, or must be refused since they would expire, or its effects are to be told: the native
        engine alone does that.
        """
        if batch.looks_first or (batch.expiries is not None and not table.index.has_records):
            return True
        return (self.changes.is_on and batch.has_writes) or batch.versions is not None

    def _may_have_blobs(self, batch: Batch, table: Table) -> bool:
        """Whether a batch may meet blobs, or make some: then it is for the host."""
        blobs = self.heap.blobs
        if not blobs or not table.index.has_records:
            return False
        if blobs.is_any or not len(batch.value_lengths):
            return blobs.is_any
        longest = int(np.max(batch.key_lengths)) + int(np.max(batch.value_lengths))
        return RECORD_HEADER_BYTES + longest > HEAP_RECORD_BYTES

    def _run_measured(self, batch: Batch, kind: Kind, path: Path, costs: PathCosts) -> tuple[BatchResult, int]:
        """Run a batch on the host's threads or on GPUs, and take note of what it took."""
        self._began, self._gate_before = perf_counter(), self.committer.read_gate()
        waited: int | None = None
        if path is Path.GPU:
            self._catch_up(self.tables[batch.table])
            if ran := self._run_on_device(batch):
                self._measured(costs, kind, len(batch), ran[1])
                return ran
            waited = self._waited_for_room()
        else:
            self.own_turn.have_turn()
            self._began = perf_counter()  # what others leave to do is not the time of this batch
        result, gate = self._run_on_host(batch)
        if waited is None or waited == self._waited_for_room():  # what waited, after a plan in vain, tells nothing
            # Of a batch that is cut, only a part has run.
            operations = len(result.part.batch) if result.part else 0
            costs.measured(kind, operations, path, perf_counter() - self._began)
        return result, gate

    def _waited_for_room(self) -> int:
        """Return how often a batch had to wait until something had grown, or was compacted."""
        left = self.meter.left_batches
        return sum(left[reason] for reason in (*GROWS, Left.FREE_HEAP))

    def _measured(self, costs: PathCosts, kind: Kind, operations: int, gate: int) -> None:
        """Take note of what a batch took a GPU; of one that is still being stored, when it is known."""
        seconds, committer = perf_counter() - self._began, self.committer
        if not isinstance(committer, UndoCommitter) or gate == self._gate_before:
            costs.measured(kind, operations, Path.GPU, seconds)
            return
        seconds -= committer.waited_seconds  # that was the batch before
        committer.when_landed(lambda more: costs.measured(kind, operations, Path.GPU, seconds + more))

    def _run_on_host(self, batch: Batch) -> tuple[BatchResult, int]:
        """Run a batch natively; columns that are on a GPU are moved."""
        if _is_on_host(batch):
            return self.own_turn.run_batch(batch)
        with self._on_device(), memory_refused():
            moved = _moved(batch, self._backend.download)
        result, gate = self.own_turn.run_batch(moved)
        if not batch.has_only_sets and not isinstance(batch.keys, np.ndarray):
            with self._on_device():
                result = _moved_back(result, self._backend.upload)
        return result, gate

    def _run_on_device(self, batch: Batch) -> tuple[BatchResult, int] | None:
        """Run a batch of plain operations on a GPU; None: it is for the host, and nothing has happened."""
        self.own_turn.end()
        self.meter.left(Left.DEVICE)
        ran = self._run_whole_on_device(batch)
        if ran is None:
            self.meter.helped(Left.DEVICE)
        return ran

    def _run_whole_on_device(self, batch: Batch) -> tuple[BatchResult, int] | None:
        """Run all requests of a batch on a GPU; None: the batch is for the host, and nothing has happened."""
        with self._for_device_batch(batch):
            planned = self._plan(batch)
            if planned is None:
                self.meter.gave_up()
                return None
            return self._commit(batch, planned)

    @contextmanager
    def _for_device_batch(self, batch: Batch) -> Iterator[None]:
        """Use the backend for a batch, after what is due before it."""
        with self._on_device():
            self.meter.begin()
            self._before_device_batch(self.tables.get(batch.table))
            self._began = perf_counter()  # what others leave to do is not the time of this batch
            yield

    @contextmanager
    def _on_device(self) -> Iterator[None]:
        """Use the backend, whatever the program does with GPUs in this thread."""
        entered = self._backend.enter()
        try:
            yield
        finally:
            self._backend.leave(entered)

    def _plan(self, batch: Batch) -> Planned | None:
        """Plan a batch on a GPU; None: it is for the host."""
        if batch.expiries is not None:
            self.expiry.expect(batch)
        if len(batch) > self._files.log_entries_max and batch.has_writes:
            self._grow_log(batch)
        now = 0
        if self.expiry.is_used:
            now = self.expiry.time.now_ms()
            self.committer.take_time(now)
        return self._phases.plan(batch, self.next_sequence, now)

    def _commit(self, batch: Batch, planned: Planned) -> tuple[BatchResult, int]:
        """Store what a batch changes."""
        if not planned.write_set:
            self._backend.delivered()
            return planned.result, self.committer.read_gate()
        assert not self.changes.is_on, "the native engine alone tells what a transaction changes"
        gate = self.committer.commit(planned.write_set)
        try:
            self._backend.delivered()  # a transaction that is still being stored waits for its own
        except Exception as error:  # noqa: BLE001 - it is done, and must not run again, but nobody has its results
            stop_process("the results of a transaction could not be read", error)
        try:
            self._after_commit(batch, planned.write_set)
        except Exception as error:  # noqa: BLE001 - the batch is done, and must not run again
            _log.warning("what a batch leaves behind could not be done: %r", error)
        return planned.result, gate

    def _after_commit(self, batch: Batch, write_set: WriteSet) -> None:
        """Do what a batch that is committed asks for."""
        if self.expiry.is_used and batch.expiries is not None:
            self.expiry.committed(write_set)
        self.growth.after(write_set)
        if self.free_space.is_due:
            self.free_space.pay(sum(writes.heap_units for writes in write_set.tables))

    def _before_device_batch(self, table: Table | None) -> None:
        """Do what is due before a batch on a table; the one before is still being stored, if it can be.

        A plan reads the mirror of an index, which is ahead of it, but records where they are stored.
        """
        if table is None or table.index.has_records:
            self.committer.land()
        self._before_batch()

    def _before_batch(self) -> None:
        """Do what is due beside batches."""
        if self._is_disturbed:
            self.committer.land()
        self.changes.turn_off_if_over()
        self._heap_growth.step()
        if self._journal_growth:
            self._journal_growth.step()
        self.free_space.before_batch()
        if self.expiry.is_used:
            self.expiry.beside_batches()

    @property
    def _is_disturbed(self) -> bool:
        """Whether something beside the batches is to be looked at soon."""
        helpers = (self._heap_growth, self._journal_growth, self.growth)
        return self.expiry.is_used or any(helper and helper.wants_batches for helper in helpers)

    @property
    def is_on_host(self) -> bool:
        """Whether no batch runs on a GPU, or on what stands for one in tests."""
        backend = self._backend
        return backend is backend.host and backend.host_ops_max >= ALL_OPS

    @property
    def few_ops_max(self) -> int:
        """Operations of the largest request that may run on the host whoever else could run it."""
        costs = self._backend.path_costs
        if costs is None:
            return self._backend.host_ops_max
        return 0 if costs.forced is Path.GPU else OPS_MAX

    def crew(self) -> Crew:
        """Return what serves the native engine, to somebody who has turns."""
        return Crew(
            self._files,
            self.native,
            self._native,
            self.expiry,
            self.growth,
            self.free_space,
            self.heap,
            self._heap_growth,
            self.meter,
            self._grow_log,
            self._on_device,
        )

    def _before_turn(self) -> TurnLimits:
        with self._on_device():
            self._before_batch()
        heap_units = min(self._heap_growth.units_until_step, self.free_space.units_until_due)
        return TurnLimits(_SHORT_TURN_SECONDS if self._is_disturbed else _TURN_SECONDS, heap_units)

    def _after_turn(self, sums: TurnSums) -> None:
        with self._on_device():
            self.growth.gained(sums.gained)
            self.growth.look_again()
            if self.free_space.is_due:
                self.free_space.pay_for_turn(sums.heap_units)

    def is_durable(self, gate: int) -> bool:
        """Whether everything up to a gate is durable."""
        return self.committer.is_durable(gate)

    def wait(self, result: BatchResult, gate: int) -> None:
        """Return when the result of a batch may be seen, from any thread.

        An acknowledged write must survive, and no reader may see what a crash could take back (I4, W1).
        """
        if result.part:
            self.wait_for(gate)
        else:
            self.committer.wait(gate)

    def wait_for(self, gate: int) -> None:
        """Return when what the native engine returned with a gate may be seen, from any thread."""
        self.committer.wait(gate)
        failpoint.hit("before_reply")

    def _remove(self, deletes: Batch) -> None:
        self.own_turn.run_within(deletes)

    def _grow_log(self, batch: Batch, entries_each: int = 1) -> bool:
        """Have room for a batch in undo log or journal, if it may grow; return whether it is larger now.

        A journal has room for the largest request of it: the rest can wait for the next frame, and costs no space.
        """
        if self._journal_growth:
            return self._journal_growth.make_room(entries_each * int(batch.request_ops.max()))
        self.committer.land()
        return self._log_growth is not None and self._log_growth.make_room(entries_each * len(batch))

    @property
    def heap_bytes_given(self) -> int:
        """What the file system has of the heap's space."""
        return self._heap_growth.given_bytes

    def scan(self, table: Table, cursor: bytes, wanted: Wanted) -> tuple[ScanPiece, int]:
        """Read the part of a table that begins at a cursor; nobody may see it before its gate.

        Keys of it that have expired are removed before, as for a batch that meets them.
        """
        now = self.expiry.time.now_ms() if self.expiry.is_used else 0
        while True:
            piece = self._scanner.step(table, cursor, wanted, now)
            if isinstance(piece, ScanPiece):
                return piece, self.committer.read_gate()
            if not self.expiry.remove_keys(table, piece, now):
                now = 0  # damaged records only look expired: they are read as what they are

    def settle(self) -> None:
        """Return when all batches are durable."""
        self.committer.wait(self.committer.read_gate())

    def close(self) -> None:
        """End what runs beside the batches; all of them are durable then."""
        if self._journal_growth:
            self._journal_growth.close()
        self._heap_growth.close()
        self.growth.close()
        self.settle()
        self.changes.close()
        self.committer.close()

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
        with self._on_device():
            self.changes.turn_off_if_over()
            self.free_space.before_batch()
            self.growth.look_again()
            is_due = self.expiry.idle_step()
            if self.free_space.count_step(budget_bytes):
                return True
            return self.growth.idle_step(budget_bytes // BLOCK_BYTES) or self.free_space.idle_step() or is_due


def _uploaded(backend: Backend, rows: KnownRows) -> KnownRows:
    return KnownRows(backend.upload(rows.given), backend.upload(rows.there), backend.upload(rows.versions))


def _kind_of(batch: Batch, table: Table) -> Kind:
    return Kind(table.index.layout.name, mix_of(len(batch), batch.gets), not _is_on_host(batch))


def _kind_of_gets(keys: U64) -> Kind:
    return Kind(U64_LAYOUT.name, Mix.READS, is_on_gpu=not isinstance(keys, np.ndarray))


def _is_on_host(batch: Batch) -> bool:
    return isinstance(batch.keys, np.ndarray) and isinstance(batch.values, np.ndarray)


def _moved(batch: Batch, download: Callable[[U8], U8]) -> Batch:
    """Return a batch whose columns are on a GPU as one of the host."""
    return replace(batch, keys=download(batch.keys), values=download(batch.values))


def _moved_back(result: BatchResult, upload: Callable[[Any], Any]) -> BatchResult:
    """Return results as they are where the keys are on a GPU."""

    def moved(found: RequestResult) -> RequestResult:
        lengths = found.value_lengths if is_constant(found.value_lengths) else upload(found.value_lengths)
        return replace(found, status=upload(found.status), value_lengths=lengths, values=upload(found.values))

    return replace(result, part=replace(result.part, result=moved(result.part.result)) if result.part else None)
