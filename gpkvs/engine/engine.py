"""One batch, one durable transaction: the phases of docs/design.md, section 4, in order.

    route -> order -> find -> fold -> place -> record -> log -> ACTIVE -> apply -> IDLE -> reply

A batch that only reads goes route -> look -> reply. In a small batch, one native call takes the place of all phases
before `record` (`gpkvs.engine.native_planner`).

Decisions are here and in `gpkvs.engine.table`, loops over keys are in the kernels. The transactional shape (undo log
first, flag, in-place update, flag) is that of gpKVS (GPM, ASPLOS '22, section 5.2 and figure 6).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from functools import partial

import numpy as np

from gpkvs import failpoint
from gpkvs.backends.base import Backend
from gpkvs.batch import U32, U64, Batch, BatchPart, BatchResult, constant
from gpkvs.engine.capacity import (
    CutError,
    DoesNotFitError,
    cut_to,
    cut_to_tables,
    request_of_op,
    sets_of_chains,
)
from gpkvs.engine.heap import Heap, HeapFullError, Tail, record_units
from gpkvs.engine.meter import Meter
from gpkvs.engine.native_planner import OPS_MAX, NativePlanner
from gpkvs.engine.plan import Plan
from gpkvs.engine.table import Table
from gpkvs.engine.writes import PlannedWrites, Writes
from gpkvs.errors import GpkvsError, NoSpaceError, UnknownTableError, memory_refused
from gpkvs.fatal import stop_process
from gpkvs.media.files import StoreFiles
from gpkvs.media.layout import (
    LAYOUTS,
    RUNS_MAX,
    STRUCTURE_BYTES,
    UNIT_BYTES,
    ChangeKind,
    Descriptor,
    LogRun,
    RunKind,
)
from gpkvs.media.transaction import Transaction

TablePlan = tuple[Table, Plan]

_FIRST = constant(np.int64(0), 1)  # the number of a batch's only request


class Engine:
    """Runs batches against a store, one at a time.

    Parameters
    ----------
    backend
        Runs the kernels.
    files
        The mapped store.
    tables
        By id.
    heap, transaction
        As recovery left them.
    batch_result_bytes_max
        Values that one transaction may read; at least what one request may.
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
        self._batch_result_bytes_max = batch_result_bytes_max
        self._small = {
            name: NativePlanner(files, layout, backend, batch_result_bytes_max) for name, layout in LAYOUTS.items()
        }
        self._logged = logged
        self.meter = meter
        self._prefetched = -1  # the heap's segment that was read from the disk last
        self._prefetch([heap.tail.segment])

    def _prefetch(self, segments: Iterable[int]) -> None:
        """Begin to read segments of the heap in which records are going to be stored: they are used again."""
        for segment in segments:
            if segment != self._prefetched:
                self._files.heap.prefetch(segment * self._files.root.segment_bytes, self._files.root.segment_bytes)
                self._prefetched = segment

    @property
    def kept_bytes(self) -> int:
        """The host's memory that is kept between batches, to be used again."""
        return self._backend.kept_bytes + sum(small.kept_bytes for small in self._small.values())

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
        return self._execute_small(batch) or self._execute_phases(batch)

    def _execute_small(self, batch: Batch) -> BatchResult | None:
        """Run a small batch on one table, if all of it fits; `None` leaves it to the phases one by one."""
        with memory_refused():
            table = self.tables.get(int(batch.request_tables[0]))
            if table is None or not self._is_small(batch):
                return None
            small = self._small[table.entry.layout]
            if not small.plan(batch, table.entry, table.index, self.next_sequence, self.heap):
                return None
            runs = self._runs([small])
            if small.result_bytes > min(table.result_bytes_max, self._batch_result_bytes_max) or (
                runs[0].words > self._files.log_words_max
            ):
                return None
            requests = len(batch.request_ops)
            numbers = _FIRST if requests == 1 else np.arange(requests)
            result = BatchResult((BatchPart(numbers, batch, small.result()),), {}, requests)
        self.meter.lap("plan")
        if small.slots or small.sets:
            self._prefetch([small.tail.segment])
            self._commit([small], runs, small.tail, partial(self._count_live, small))
        failpoint.hit("before_reply")
        return result

    def _is_small(self, batch: Batch) -> bool:
        """Whether a batch may be planned in one call: on the host, few operations, one table."""
        tables = batch.request_tables
        return (
            len(batch) <= min(OPS_MAX, self._backend.host_ops_max, self._files.log_entries_max)
            and isinstance(batch.keys, np.ndarray)
            and isinstance(batch.values, np.ndarray)
            and (len(tables) == 1 or bool((tables == tables[0]).all()))
            and not failpoint.armed_among(failpoint.PLANNING)
        )

    def _count_live(self, small: NativePlanner) -> None:
        small.count_live()
        self.heap.tail = small.tail

    def _execute_phases(self, batch: Batch) -> BatchResult:
        """Run the phases one by one, as often as it takes to know which requests fit."""
        with memory_refused():
            requests = min(cut_to(batch.request_ops, self._files.log_entries_max), cut_to_tables(batch, RUNS_MAX))
            rejected = self._dropped_tables(batch, requests)
            admitted = np.arange(len(batch.request_ops)) < requests
            admitted[list(rejected)] = False
        while admitted.any():
            try:
                with memory_refused():
                    numbers = np.flatnonzero(admitted)
                    part = batch if len(numbers) == len(admitted) else batch.take(admitted)
                    self._backend.begin(part)
                    plans = self._transact(part)
            except DoesNotFitError as unfit:
                for number, reason in unfit.rejected.items():
                    rejected[int(numbers[number])] = reason
                    admitted[numbers[number]] = False
            except CutError as cut:
                requests = int(numbers[cut.requests])
                admitted[requests:] = False
                rejected = {number: reason for number, reason in rejected.items() if number < requests}
            else:
                # Results leave here, after the commit: an acknowledged write must survive, and no reader may see what
                # a crash could take back (I4).
                failpoint.hit("before_reply")
                parts = tuple(BatchPart(numbers[plan.numbers], plan.batch, plan.result) for _, plan in plans)
                self.meter.lap("reply")
                return BatchResult(parts, rejected, requests)
        return BatchResult((), rejected, requests)

    def _dropped_tables(self, batch: Batch, requests: int) -> dict[int, GpkvsError]:
        """Reject requests whose table was dropped after they were checked."""
        tables = batch.request_tables[:requests]
        if requests == 1 and int(tables[0]) in self.tables:
            return {}
        gone = np.flatnonzero(~np.isin(tables, list(self.tables)))
        return dict.fromkeys(gone.tolist(), UnknownTableError("the table was dropped meanwhile", field="table"))

    def _transact(self, batch: Batch) -> list[TablePlan]:
        plans = self._plan(batch)
        for_each_table(plans, Table.read)
        self._cut_unread(batch, plans)
        for_each_table(plans, Table.measure)
        room = None
        # A table that is only read has nothing to place, to store or to number, whatever others of the batch write.
        writers = [(table, plan) for table, plan in plans if plan.batch.has_writes]
        if writers:
            for_each_table(writers, Table.place)
            # A version that a reply carries must never be given again: a SET counts even if its key is deleted after.
            if any(len(plan.placed.chain) or plan.has_sets for _, plan in writers):
                room = self._allocate(batch, writers)
                for table, plan in writers:
                    table.stage(plan)  # a GPU does it while the host makes the results
                self.meter.lap("place")
        for_each_table(plans, Table.check_results)
        self._cut_results(batch, plans)
        # All that may fail for want of memory comes before the commit, the values of the reply too.
        for table, plan in plans:
            plan.result = table.result(plan)
        self.meter.lap("reply")
        if room is not None:
            self._write(batch, writers, *room)
        return plans

    def _plan(self, batch: Batch) -> list[TablePlan]:
        """Divide a batch by table; the operations of one table keep their order."""
        if len(batch.request_tables) == 1:
            table = self.tables[int(batch.request_tables[0])]
            return [(table, Plan(self._backend, batch, _FIRST, self.next_sequence))]
        plans, first_sequence = [], self.next_sequence
        for table_id in np.unique(batch.request_tables).tolist():
            mask = batch.request_tables == table_id
            part = batch if mask.all() else batch.take(mask)
            plans.append((self.tables[table_id], Plan(self._backend, part, np.flatnonzero(mask), first_sequence)))
            first_sequence += len(part) if part.has_writes else 0
        return plans

    def _cut_results(self, batch: Batch, plans: list[TablePlan]) -> None:
        """Put off what is too much to hold in memory at once."""
        if sum(plan.result_bytes for _, plan in plans) > self._batch_result_bytes_max:
            self._cut(batch, plans, lambda table, plan: table.lengths(plan))

    def _cut_unread(self, batch: Batch, plans: list[TablePlan]) -> None:
        """Refuse or put off what is too much by the lengths in the references, before a record is read.

        Records are checked when they are read: a batch whose rest is put off would check them again with each part.
        """
        readers = [(table, plan) for table, plan in plans if plan.batch.has_reads and table.has_records]
        total = sum(self._backend.total(table.bounds(plan)) for table, plan in readers)
        if not readers or total <= min(table.result_bytes_max for table, _ in readers):
            return
        for_each_table(readers, Table.check_bounds)
        if total > self._batch_result_bytes_max:
            self._cut(batch, readers, lambda table, plan: table.bounds(plan))

    def _cut(self, batch: Batch, plans: list[TablePlan], lengths: Callable[[Table, Plan], U32]) -> None:
        """Put off the requests after those whose GETs read as much as a transaction may; one always stays."""
        result_bytes = np.zeros(len(batch.request_ops), np.int64)
        for table, plan in plans:
            if plan.batch.has_reads:
                result_bytes[plan.numbers] = table.by_request(plan, lengths(table, plan))
        requests = max(1, cut_to(result_bytes, self._batch_result_bytes_max))
        if requests < len(result_bytes):
            raise CutError(requests)

    def _write(self, batch: Batch, plans: list[TablePlan], tail: Tail, added: U64) -> None:
        writes = [PlannedWrites(self._backend, self._files, table, plan) for table, plan in plans]
        runs = self._runs(writes)
        self._check_log(batch, runs)
        live_units = self.heap.live_units + added
        for table, plan in plans:
            live_units -= self._freed_units(table.freed(plan))
        self.meter.lap("stage")
        self._prefetch(np.flatnonzero(added).tolist())
        self._commit(writes, runs, tail, partial(self.heap.commit, tail, live_units))

    def _freed_units(self, reference: U64) -> U64:
        """Return the units of each segment that references name, which no slot will hold any more."""
        if isinstance(reference, np.ndarray):
            return self.heap.units_by_segment(reference)
        units = np.zeros(len(self.heap.live_units), np.uint64)
        self._backend.launch(
            "count_units",
            len(reference),
            reference=reference,
            segment_units=self.heap.segment_units,
            segments=len(units),
            units=units,
        )
        return units

    def _commit(
        self, writes: Sequence[Writes], runs: tuple[LogRun, ...], tail: Tail, count_live: Callable[[], None]
    ) -> None:
        """Make writes durable, then count what they changed; `count_live` does that for the heap, and cannot fail."""
        try:
            self._store(writes, runs, tail)
            # Nothing but assignments from here on: the batch is durable, and the next one must know of it.
            count_live()
            user_bytes = heap_units = index_bytes = 0
            for write in writes:
                self.tables[write.entry.id].records += write.gained
                user_bytes += write.user_bytes
                heap_units += write.heap_units
                index_bytes += write.slots * write.entry.slot_layout.slot_bytes
            log_bytes = STRUCTURE_BYTES
            for run in runs:
                log_bytes += run.count * run.entry_bytes
            flag_bytes = 2 * 8  # ACTIVE and IDLE
            self.meter.committed(user_bytes, heap_units * UNIT_BYTES, log_bytes, index_bytes, flag_bytes)
        except BaseException as error:  # noqa: BLE001 - nothing may go on from here but recovery
            stop_process("a transaction could not be completed", error)

    def _allocate(self, batch: Batch, plans: list[TablePlan]) -> tuple[Tail, U64]:
        """Find room in the heap for the records that are kept; return the tail after them, and each segment's units."""
        for table, plan in plans:
            plan.put_op = table.kept_records(plan)
        units = [self._units(plan, plan.put_op) for _, plan in plans]
        try:
            references, tail, added = self.heap.allocate(_joined(units))
        except HeapFullError as full:
            download = self._backend.download
            owner = np.concatenate(
                [plan.numbers[request_of_op(plan.batch)[download(plan.put_op)]] for _, plan in plans]
            )
            # If all bytes would fit, it is the end of a segment that a record cannot cross.
            refused = self._admit_records(batch, plans) or [int(owner[full.record])]
            raise DoesNotFitError(dict.fromkeys(refused, self._heap_full())) from None
        first = 0
        for (_, plan), sizes in zip(plans, units, strict=True):
            last = first + len(plan.put_op)
            plan.put_reference, plan.put_units = references[first:last], self._backend.total(sizes)
            first = last
        return tail, added

    def _units(self, plan: Plan, sets: U32) -> U64:
        """Return the size of the records of some SETs."""
        if len(sets) == 0:
            return np.empty(0, np.uint64)
        if len(sets) == len(plan.batch):
            return record_units(plan.key_lengths, plan.value_lengths)
        return record_units(plan.key_lengths[sets], plan.value_lengths[sets])

    def _admit_records(self, batch: Batch, plans: list[TablePlan]) -> list[int]:
        """Return the requests whose records do not fit the heap, taken in arrival order."""
        download = self._backend.download
        chain, request, units = [], [], []
        chains = 0
        for _, plan in plans:
            if len(plan.put_op) == 0:
                continue
            sets, set_chain = sets_of_chains(plan)
            stays = plan.folded.change[set_chain] == ChangeKind.PUT.value
            sets = sets[stays]
            chain.append(download(set_chain[stays]) + np.uint32(chains))
            request.append(plan.numbers[request_of_op(plan.batch)[download(sets)]].astype(np.uint32))
            units.append(download(self._units(plan, sets)))
            chains += len(plan.chains)
        arrival = np.argsort(np.concatenate(request), kind="stable")
        refused = np.zeros(len(batch.request_ops), np.uint8)
        self._backend.launch(
            "admit_records",
            1,
            sets=len(arrival),
            set_chain=np.concatenate(chain)[arrival],
            set_request=np.concatenate(request)[arrival],
            set_units=np.concatenate(units)[arrival],
            budget=self.heap.free_units,
            held=np.zeros(chains, np.uint64),
            before=np.empty(len(arrival), np.uint64),
            refused=refused,
        )
        return list(np.flatnonzero(refused).tolist())

    def _heap_full(self) -> NoSpaceError:
        return NoSpaceError(
            "heap",
            f"no free segment left for new records ({self.heap.live_bytes:,} of {self._files.heap.bytes:,} bytes are "
            "live; a segment is free again when nothing in it is live): delete keys, or create a store with a larger "
            "--heap-bytes and copy the data",
        )

    @staticmethod
    def _runs(writes: Sequence[Writes]) -> tuple[LogRun, ...]:
        """Give each table its run of the log."""
        runs: list[LogRun] = []
        first_word = 0
        for write in writes:
            entry = write.entry
            entry_bytes = entry.slot_layout.entry_bytes
            runs.append(LogRun(RunKind.UNDO, entry.id, entry.generation, entry_bytes, first_word, write.slots))
            first_word += runs[-1].words
        return tuple(runs)

    def _check_log(self, batch: Batch, runs: tuple[LogRun, ...]) -> None:
        """Put off requests if displaced occupants make the batch larger than the log."""
        needed, capacity = sum(run.words for run in runs), self._files.log_words_max
        if needed <= capacity:
            return
        requests = len(batch.request_ops)
        if requests > 1:
            raise CutError(requests // 2)
        reason = NoSpaceError(
            "log",
            f"one transaction would log {8 * needed:,} bytes, the log holds {8 * capacity:,}: "
            "send smaller requests, or create a store with a larger --log-bytes",
        )
        raise DoesNotFitError({0: reason})

    def _store(self, writes: Sequence[Writes], runs: tuple[LogRun, ...], tail: Tail) -> None:
        """Store a batch and make it durable, in the order of I1 to I4."""
        transaction, lap = self.transaction, self.meter.lap
        epoch = transaction.next_epoch()
        failpoint.hit("before_record")
        for write in writes:
            if write.records:
                split("mid_record", write.records, write.store_records)
        lap("record")
        digest = 0
        failpoint.hit("before_log")
        if self._logged:
            for write, run in zip(writes, runs, strict=True):
                split("mid_log", write.slots, partial(write.store_log, epoch, self._files.run_address(run)))
                digest += write.log_digest()
        else:
            runs = ()
        lap("log")
        failpoint.hit("before_descriptor")
        self._files.heap.persist()
        lap("persist_heap")
        operations = sum(write.operations for write in writes)
        descriptor = self._describe(operations, runs, epoch, digest % (1 << 64), tail)
        transaction.describe(descriptor)
        lap("persist_log")
        if self._logged:
            transaction.activate(epoch)
        lap("active")
        failpoint.hit("before_apply")
        for write in writes:
            split("mid_apply", write.slots, write.apply)
        lap("apply")
        failpoint.hit("before_apply_persist")
        for write in writes:
            write.index.persist()
        lap("persist_index")
        transaction.commit(descriptor)
        lap("idle")

    def _describe(self, operations: int, runs: tuple[LogRun, ...], epoch: int, digest: int, tail: Tail) -> Descriptor:
        current = self.transaction.current
        return Descriptor(
            epoch=epoch,
            runs=runs,
            tail_segment=tail.segment,
            tail_bytes=tail.units * UNIT_BYTES,
            first_sequence=current.next_sequence,
            next_sequence=current.next_sequence + operations,
            time_horizon_ms=current.time_horizon_ms,
            applied_sequence=current.applied_sequence,
            log_digest=digest,
        )


def _joined(columns: list[U64]) -> U64:
    """Join columns that are all on the host or all where kernels run, but for empty ones."""
    filled = [column for column in columns if len(column)]
    return np.concatenate(filled) if len(filled) > 1 else (filled or columns)[0]


def for_each_table(plans: list[TablePlan], phase: Callable[[Table, Plan], None]) -> None:
    """Run a phase for every table.

    Raises
    ------
    DoesNotFitError
        With all requests that some table refuses, by their numbers in the whole batch.
    """
    rejected: dict[int, GpkvsError] = {}
    for table, plan in plans:
        try:
            phase(table, plan)
        except DoesNotFitError as unfit:
            rejected.update({int(plan.numbers[number]): reason for number, reason in unfit.rejected.items()})
    if rejected:
        raise DoesNotFitError(rejected)


def split(point: str, items: int, run: Callable[[int, int], None]) -> None:
    """Run over all items at once; in two parts if a test is going to die between them."""
    if failpoint.armed(point):
        run(0, items // 2)
        failpoint.hit(point)
        run(items // 2, items)
    else:
        failpoint.hit(point)
        run(0, items)
