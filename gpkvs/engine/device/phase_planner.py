"""The phase planner: every phase of a batch is a kernel of its own, for a GPU.

    route -> order -> find -> fold -> measure -> place -> allocate -> stage

A batch that only reads goes route -> look -> measure. Operations are plain: GET, SET, DELETE and EXISTS. The planner
takes requests in arrival order, each whole or not at all. It refuses a request that does not fit, and plans the rest
again without it.
"""

from __future__ import annotations

import numpy as np

from gpkvs.backends.base import Backend
from gpkvs.batch import U32, U64, Batch, BatchPart, BatchResult
from gpkvs.engine.capacity import (
    CutError,
    DoesNotFitError,
    NoRoomError,
    cut_to,
    heap_too_small,
    log_full,
    table_gone,
)
from gpkvs.engine.device.allocation import allocate
from gpkvs.engine.device.phases import Phases
from gpkvs.engine.device.phases_bytes import BytesPhases
from gpkvs.engine.device.phases_launched import numbers_phases
from gpkvs.engine.device.plan import NO_RECORDS, Plan
from gpkvs.engine.device.planned import Planned
from gpkvs.engine.device.sharded_phases import NotTogetherError, ShardedPhases
from gpkvs.engine.heap import Heap, SegmentCounts, Tail
from gpkvs.engine.meter import Meter
from gpkvs.engine.table import Table
from gpkvs.engine.write_set import FILLED_WORDS, DeviceColumns, TableWrites, WriteSet, log_runs
from gpkvs.errors import GpkvsError, memory_refused
from gpkvs.media.files import StoreFiles
from gpkvs.media.layout import LogRun, RunKind


class PhasePlanner:
    """Plans batches of plain operations on a GPU.

    Parameters
    ----------
    backend
        Of the store; it plans.
    files, tables, heap
        Of the store.
    result_bytes_max, batch_result_bytes_max
        Values that one request, and one transaction, may read.
    meter
        Told what each phase took.
    """

    def __init__(
        self,
        backend: Backend,
        files: StoreFiles,
        tables: dict[int, Table],
        heap: Heap,
        result_bytes_max: int,
        batch_result_bytes_max: int,
        meter: Meter,
    ) -> None:
        self._backend = backend
        self._files = files
        self._tables = tables
        self._heap = heap
        self._result_bytes_max = result_bytes_max
        self._batch_result_bytes_max = batch_result_bytes_max
        self._meter = meter
        self._made: dict[tuple[int, bool], Phases] = {}  # by table id, and whether several processors plan
        self._may_share = self._shares = len(backend.processors) > 1

    def plan(self, batch: Batch, first_sequence: int, now: int = 0, *, makes_do: bool = False) -> Planned:
        """Plan the longest run of requests from the first on that fits one transaction.

        Planning only reads PM: nothing has happened if it fails. The phases run as often as it takes to know which
        requests fit.

        Parameters
        ----------
        batch
            Valid columns (`Batch.validate`), of operations that do not look first.
        first_sequence
            The version of the first operation.
        now
            The time, in milliseconds since 1970; 0: no key is looked at for its expiry.
        makes_do
            Whether to cut the batch, or to refuse its first request, where the heap has no room now.

        Raises
        ------
        NoRoomError
            If the heap has no room now, and this may not make do.
        ExpiredKeysError
            If a key that the batch names has a record that looks expired.
        """
        self._shares = self._may_share
        table = self._tables.get(batch.table)
        with memory_refused():
            requests = len(batch.request_ops)
            if table is None:  # dropped after the requests were checked
                return Planned(BatchResult(None, dict.fromkeys(range(requests), table_gone()), requests), None)
            if batch.has_writes and len(batch) > self._files.log_entries_max:
                requests = cut_to(batch.request_ops, self._files.log_entries_max)
            if not requests:  # the log should have grown, and could not
                return Planned(BatchResult(None, {0: log_full(self._files)}, 1), None)
            rejected: dict[int, GpkvsError] = {}
            admitted = np.arange(len(batch.request_ops)) < requests
        while admitted.any():
            try:
                with memory_refused():
                    numbers = np.flatnonzero(admitted)
                    part = batch if len(numbers) == len(admitted) else batch.take(admitted)
                    self._backend.begin()
                    if self._may_share:
                        self._backend.meet()
                    phases = self._phases(table, len(part))
                    plan = phases.begin(part, first_sequence, now)
                    write_set = self._plan_transaction(phases, plan)
                    done = BatchPart(numbers, part, plan.result)
                    return Planned(BatchResult(done, rejected, requests), write_set)
            except NotTogetherError:
                self._shares = False
            except DoesNotFitError as unfit:
                for number, reason in unfit.rejected.items():
                    rejected[int(numbers[number])] = reason
                    admitted[numbers[number]] = False
            except (CutError, NoRoomError) as cut:
                fitting = cut.requests
                if isinstance(cut, NoRoomError):
                    if not makes_do:
                        raise
                    if fitting == 0:
                        rejected[int(numbers[0])] = heap_too_small(self._heap)
                        admitted[numbers[0]] = False
                        continue
                requests = int(numbers[fitting])
                admitted[requests:] = False
                rejected = {number: reason for number, reason in rejected.items() if number < requests}
        return Planned(BatchResult(None, rejected, requests), None)

    def _phases(self, table: Table, operations: int) -> Phases:
        shares = self._shares and operations >= self._backend.shared_ops_min
        key = table.entry.id, shares and not table.index.has_records
        phases = self._made.get(key)
        if phases is None or phases.table is not table:
            phases = self._make_phases(table, shares=key[1])
            # Dropped tables are forgotten here.
            self._made = {made: phases for made, phases in self._made.items() if made[0] in self._tables}
            self._made[key] = phases
        return phases

    def _make_phases(self, table: Table, *, shares: bool) -> Phases:
        rest = self._files, table, self._result_bytes_max, self._meter
        if shares:
            return ShardedPhases(self._backend, *rest)
        if table.index.has_records:
            return BytesPhases(self._backend, *rest)
        return numbers_phases(self._backend)(self._backend, *rest)

    def _plan_transaction(self, phases: Phases, plan: Plan) -> WriteSet | None:
        """Run all phases; the plan gets its results, and what changes becomes a write set."""
        phases.read(plan)
        self._cut_unread(phases, plan)
        phases.measure(plan)
        tail = None
        # A batch that only reads places, stores and numbers nothing.
        if plan.batch.has_writes:
            phases.place(plan)
            # A version that a result carries must never be given again: a SET counts even if its key is deleted after.
            if plan.changed_chains or plan.has_sets:
                tail = self._allocate(phases, plan)
                phases.stage(plan)  # a GPU does it while the host makes the results
                self._meter.lap("place")
        phases.check_results(plan)
        if plan.result_bytes > self._batch_result_bytes_max:  # too much to hold in memory at once
            self._cut(phases, plan, phases.lengths(plan))
        # All that may fail for want of memory comes before the commit, the values of the results too.
        plan.result = phases.result(plan)
        self._meter.lap("reply")
        return self._write_set(phases, plan, tail) if tail else None

    def _allocate(self, phases: Phases, plan: Plan) -> Tail:
        """Return the tail behind the records of a plan; a table of numbers has none."""
        if isinstance(phases, BytesPhases):
            return allocate(self._backend, self._heap, phases, plan)
        plan.records = NO_RECORDS
        return self._heap.start

    def _cut_unread(self, phases: Phases, plan: Plan) -> None:
        """Refuse or put off what is too much by the lengths in the references, before a record is read.

        Records are checked when they are read: a batch whose rest is put off would check them again with each part.
        """
        if not plan.batch.has_reads or not phases.table.index.has_records:
            return
        total = self._backend.total(phases.bounds(plan))
        if total > self._result_bytes_max:
            phases.check_bounds(plan)
        if total > self._batch_result_bytes_max:
            self._cut(phases, plan, phases.bounds(plan))

    def _cut(self, phases: Phases, plan: Plan, lengths: U32) -> None:
        """Put off the requests after those whose GETs read as much as a transaction may; one always stays."""
        result_bytes = phases.by_request(plan, lengths)
        requests = max(1, cut_to(result_bytes, self._batch_result_bytes_max))
        if requests < len(result_bytes):
            raise CutError(requests)

    def _write_set(self, phases: Phases, plan: Plan, tail: Tail) -> WriteSet:
        writes = [self._table_writes(phases, plan)]
        runs = log_runs(writes, self._run_kind(writes[0]))
        self._check_log(plan.batch, runs)
        self._meter.lap("stage")
        return WriteSet(writes, len(plan.batch), runs, tail, tuple(plan.records.segments), plan.batch)

    def _run_kind(self, writes: TableWrites) -> RunKind:
        """Return what the entries of a batch hold, and how they are stored."""
        run_kind = self._files.run_kind
        return RunKind.CHUNKS if writes.device and run_kind == RunKind.UNDO else run_kind

    def _table_writes(self, phases: Phases, plan: Plan) -> TableWrites:
        """Return what the table stores, as columns that native code can read."""
        writes = TableWrites(self._files, self._backend, self._heap)
        writes.index = phases.table.index
        writes.operations = len(plan.batch)
        expiries = plan.batch.expiries
        writes.set(
            slots=plan.slots,
            records=len(plan.records),
            new_keys=plan.new_keys,
            removed_keys=phases.removed(plan),
            user_bytes=plan.batch.write_bytes,
            heap_units=plan.records.units,
            new_expiring=0 if expiries is None else int(np.count_nonzero(expiries[plan.records.op])),
            old_expiring=phases.old_expiring(plan),
            index=writes.index.address,
            table_id=writes.index.entry.id,
        )
        writes.read_counters()
        if writes.index.has_records:
            self._keep_records(writes, plan)
        self._keep_slots(writes, plan, phases)
        return writes

    def _keep_records(self, writes: TableWrites, plan: Plan) -> None:
        download = self._backend.download
        writes.set(first_sequence=plan.first_sequence, filled=len(plan.records.filled_segment) // FILLED_WORDS)
        writes.keep(
            put_op=plan.records.op,
            put_reference=plan.records.reference,
            filled_segment=plan.records.filled_segment,
            keys=download(plan.batch.keys),
            key_offsets=download(plan.key_offsets),
            key_lengths=plan.host_key_lengths,
            values=download(plan.batch.values),
            value_offsets=download(plan.value_offsets),
            value_lengths=plan.host_value_lengths,
        )
        if plan.batch.expiries is not None:
            writes.keep(expiries=plan.batch.expiries)

    def _keep_slots(self, writes: TableWrites, plan: Plan, phases: Phases) -> None:
        freed = phases.freed(plan) if isinstance(phases, BytesPhases) else None
        if self._is_stored_by_host(writes):
            self._bring_slots(writes, plan)
            if freed is not None:
                writes.keep(freed_reference=self._backend.download(freed))
                writes.set(freed=len(freed))
        else:
            writes.freed = None if freed is None else self._count_freed(freed)
            writes.device = self._device_columns(plan)

    def _is_stored_by_host(self, writes: TableWrites) -> bool:
        """Whether the host's threads alone store the slots: nothing else can, or not durably."""
        if self._backend is self._backend.host:  # threads stand for a GPU
            return True
        return not (self._files.root.has_journal or self._backend.stores_durably(writes.index.region))

    def _bring_slots(self, writes: TableWrites, plan: Plan) -> None:
        download = self._backend.download
        slots, contents = (
            [download(column) for column in columns]
            for columns in zip(*[(part.changes.slot, part.changes.contents) for part in plan.parts], strict=True)
        )
        if len(slots) > 1:
            slots, contents = [np.concatenate(slots)], [np.concatenate(contents)]
        writes.changed_slot = slots[0]
        writes.keep(changed_slot=slots[0], contents=contents[0], digest=np.empty(len(slots[0]), np.uint64))
        if self._backend is not self._backend.host:
            writes.brought = self._device_columns(plan)

    @staticmethod
    def _device_columns(plan: Plan) -> tuple[DeviceColumns, ...]:
        changes = [part.changes for part in plan.parts]
        return tuple(DeviceColumns(of_part.slot, of_part.contents, of_part.digest) for of_part in changes)

    def _count_freed(self, reference: U64) -> SegmentCounts:
        """Return what of each segment references on a GPU name; on the host."""
        counts = SegmentCounts.of(self._files.segments)
        self._backend.launch(
            "count_units",
            len(reference),
            reference=reference,
            segment_units=self._files.segment_units,
            segments=len(counts.live),
            live_units=counts.live,
            charged_units=counts.charged,
        )
        return counts

    def _check_log(self, batch: Batch, runs: tuple[LogRun, ...]) -> None:
        """Put off requests if displaced occupants make the batch larger than the log."""
        needed, capacity = sum(run.words for run in runs), self._files.log_words_max
        if needed <= capacity:
            return
        requests = len(batch.request_ops)
        if requests > 1:
            raise CutError(requests // 2)
        raise DoesNotFitError({0: log_full(self._files)})
