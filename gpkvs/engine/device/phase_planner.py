"""The phase planner, for a GPU: its kernels plan a batch, and the host decides between them.

Operations are plain: GET, SET, DELETE and EXISTS. A batch is planned whole. What does not fit is the host's, and so is
what needs more than a plan, as a key that has expired: `PhasePlanner.plan` says so, and nothing has happened.
"""

from __future__ import annotations

import numpy as np

from gpkvs.backends.base import Backend
from gpkvs.batch import U64, Batch, BatchPart, BatchResult
from gpkvs.engine.device.allocation import allocate
from gpkvs.engine.device.phases import Phases
from gpkvs.engine.device.phases_bytes import BytesPhases
from gpkvs.engine.device.phases_u64 import U64Phases
from gpkvs.engine.device.plan import NO_RECORDS, Plan
from gpkvs.engine.device.planned import ForHostError, Planned
from gpkvs.engine.device.sharded_phases import ShardedPhases
from gpkvs.engine.seam.meter import Meter
from gpkvs.engine.seam.write_set import FILLED_WORDS, DeviceColumns, TableWrites, WriteSet, log_runs
from gpkvs.engine.state.heap import Heap, SegmentCounts, Tail
from gpkvs.engine.state.table import Table
from gpkvs.errors import memory_refused
from gpkvs.media.files import StoreFiles
from gpkvs.media.layout import NO_RECORD, RunKind


class PhasePlanner:
    """Plans batches of plain operations on a GPU.

    Parameters
    ----------
    backend
        Of the store; it plans.
    files, tables, heap
        Of the store.
    result_bytes_max
        Values that a batch may read here: what one request may.
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
        meter: Meter,
    ) -> None:
        self._backend = backend
        self._files = files
        self._tables = tables
        self._heap = heap
        self._result_bytes_max = result_bytes_max
        self._meter = meter
        self._made: dict[tuple[int, bool], Phases] = {}  # by table id, and whether several processors plan
        self._may_share = len(backend.processors) > 1

    def plan(self, batch: Batch, first_sequence: int, now: int = 0) -> Planned | None:
        """Plan a batch. Planning only reads PM: nothing has happened if it fails.

        Parameters
        ----------
        batch
            Valid columns (`Batch.validate`), of operations that do not look first.
        first_sequence
            The version of the first operation.
        now
            The time, in milliseconds since 1970; 0: no key is looked at for its expiry.

        Returns
        -------
        Planned
            The plan, of all requests.
        None
            The batch is for the host.

        Raises
        ------
        NoMemoryError
            If there is no memory for it.
        """
        table = self._tables.get(batch.table)
        if table is None or (batch.has_writes and len(batch) > self._files.log_entries_max):
            return None
        try:
            with memory_refused():
                self._backend.begin()
                if self._may_share:
                    self._backend.meet()
                phases = self._phases(table, len(batch))
                plan = phases.begin(batch, first_sequence, now)
                write_set = self._plan_transaction(phases, plan)
                requests = len(batch.request_ops)
                done = BatchPart(np.arange(requests), batch, plan.result)
        except ForHostError:
            return None
        return Planned(BatchResult(done, {}, requests), write_set)

    def _phases(self, table: Table, operations: int) -> Phases:
        shares = self._may_share and operations >= self._backend.shared_ops_min
        key = table.entry.id, shares and not table.index.has_records
        phases = self._made.get(key)
        if phases is None or phases.table is not table:
            phases = self._make_phases(table, shares=key[1])
            # Dropped tables are forgotten here.
            self._made = {made: phases for made, phases in self._made.items() if made[0] in self._tables}
            self._made[key] = phases
        return phases

    def _make_phases(self, table: Table, *, shares: bool) -> Phases:
        rest = self._files, table, self._meter
        if shares:
            return ShardedPhases(self._backend, *rest)
        return (BytesPhases if table.index.has_records else U64Phases)(self._backend, *rest)

    def _plan_transaction(self, phases: Phases, plan: Plan) -> WriteSet | None:
        """Run all phases; the plan gets its results, and what changes becomes a write set."""
        phases.read(plan)
        # Records are checked when they are read: the host would check again what is too much.
        if plan.batch.has_reads and isinstance(phases, BytesPhases):
            self._require_small(self._backend.total(phases.bounds(plan)))
        phases.measure(plan)
        self._require_small(plan.result_bytes)
        tail = None
        # A batch that only reads places, stores and numbers nothing.
        if plan.batch.has_writes:
            phases.place(plan)
            # A version that a result carries must never be given again: a SET counts even if its key is deleted after.
            if plan.changed_chains or plan.has_sets:
                tail = self._allocate(phases, plan)
                phases.stage(plan)  # a GPU does it while the host makes the results
                self._meter.lap("place")
        # All that may fail for want of memory comes before the commit, the values of the results too.
        plan.result = phases.result(plan)
        self._meter.lap("reply")
        return self._write_set(phases, plan, tail) if tail else None

    def _require_small(self, result_bytes: int) -> None:
        """Leave a batch to the host that reads more than one request may: it cuts or refuses it."""
        if result_bytes > self._result_bytes_max:
            raise ForHostError

    def _allocate(self, phases: Phases, plan: Plan) -> Tail:
        """Return the tail behind the records of a plan; a table of numbers has none."""
        if isinstance(phases, BytesPhases):
            return allocate(self._backend, self._heap, phases, plan)
        plan.records = NO_RECORDS
        return self._heap.start

    def _write_set(self, phases: Phases, plan: Plan, tail: Tail) -> WriteSet:
        writes = [self._table_writes(phases, plan)]
        runs = log_runs(writes, self._run_kind(writes[0]))
        if sum(run.words for run in runs) > self._files.log_words_max:  # displaced occupants have entries, too
            raise ForHostError
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
                references = self._backend.download(freed)
                references = references[references != NO_RECORD]
                writes.keep(freed_reference=references)
                writes.set(freed=len(references))
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
