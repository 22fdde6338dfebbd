"""Makes a write set durable, with an undo log and a transaction flag.

A write set of the host's threads is stored by one native call (``kernels/commit/commit_undo.hpp``):

    records, undo log -> (records durable) -> descriptor -> (log and descriptor durable) -> ACTIVE -> (durable)
    -> slots -> (durable) -> IDLE -> (durable)

Where a GPU planned, its log comes in chunks after the flag, and beside the slots (`gpkvs.engine.commit.chunked_slots`):

    records -> (durable) -> descriptor -> (durable) -> ACTIVE -> (durable)
    -> of each chunk: entries -> (durable) -> marker -> (durable) -> slots
    -> (all durable) -> IDLE -> (durable)

From the last chunk on it ends beside the plan of the next batch (`gpkvs.engine.commit.flight`), which sees it as
committed. Nobody hears of either before it is durable, and only the end of the process can keep it from that.

The transactional shape (undo log first, flag, in-place update, flag) is that of gpKVS (GPM, ASPLOS '22, section 5.2 and
figure 6). docs/design.md names the invariants I1 to I7.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from time import perf_counter

import numpy as np

from gpkvs.backends.base import Backend
from gpkvs.batch import U64
from gpkvs.engine.commit.chunked_slots import ChunkedSlots, Part
from gpkvs.engine.commit.flight import Flight, Landing
from gpkvs.engine.commit.growth_steps import growth_after, leaving_block_0, split, split_upper_half_of_block_0
from gpkvs.engine.commit.stores import COUNT_LIVE, STORE_RECORDS, run_in_halves
from gpkvs.engine.seam.meter import Meter
from gpkvs.engine.seam.native_commit import NativeCommit
from gpkvs.engine.seam.write_set import TableWrites, WriteSet, log_runs
from gpkvs.engine.state.heap import Heap, SegmentCounts
from gpkvs.engine.state.table import Table
from gpkvs.errors import memory_refused
from gpkvs.media.files import StoreFiles
from gpkvs.media.index import Index
from gpkvs.media.layout import FLAG_OFFSET, STRUCTURE_BYTES, UNIT_BYTES, Descriptor, RunKind
from gpkvs.media.transaction import Transaction
from gpkvs.pm.region import Region
from gpkvs.process import failpoint
from gpkvs.process.fatal import stop_process

_BLOCKS_AT_ONCE = 256  # of an index, that one step of growth moves
_BLOCKS_AT_ONCE_ON_GPU = 2048  # where a step costs 0.3 ms besides
_FLAG_BYTES = 2 * 8  # ACTIVE and IDLE
_INCOMPLETE = "a transaction could not be completed"


class UndoCommitter:
    """Stores write sets.

    Parameters
    ----------
    backend, files, heap
        Of the store.
    tables
        By id; their records are counted.
    transaction
        The flag, epochs and descriptors.
    meter
        Told what each phase took, and what was written.
    logged
        Whether batches are transactions. Without the undo log they are not: a crash may tear them.

    Attributes
    ----------
    waited_seconds
        How long the last transaction waited for the one before.
    """

    def __init__(
        self,
        backend: Backend,
        files: StoreFiles,
        tables: dict[int, Table],
        heap: Heap,
        transaction: Transaction,
        meter: Meter,
        *,
        logged: bool,
    ) -> None:
        self._files = files
        self._tables = tables
        self._heap = heap
        self.transaction = transaction
        self._meter = meter
        self._logged = logged
        self._chunked = ChunkedSlots(backend, files)
        self._backend = backend
        log, root = files.log, files.root_region
        self._flight = Flight(root.address + FLAG_OFFSET)
        self._flown: tuple[TableWrites, list[Part]] | None = None  # what is on its way
        self._tell: Callable[[float], None] | None = None
        self._landed_seconds = self.waited_seconds = 0.0
        self._native = NativeCommit(
            "commit_undo",
            "gpkvs_undo_committer",
            heap,
            meter,
            transaction=ctypes.addressof(transaction),
            time_ms=transaction.time_horizon_ms,
            flag=root.address + FLAG_OFFSET,
            is_logged=logged,
            syncs=root.syncs,
            reads_ahead=files.heap.is_paged,
            heap_file=files.heap.file,
            log_file=log.file,
            root_file=root.file,
            flight=self._flight.address,
        )
        self._read_ahead(heap.tail.segment)

    @property
    def next_sequence(self) -> int:
        """See `Committer.next_sequence`."""
        return self.transaction.next_sequence

    @property
    def kept_ms(self) -> int:
        """See `Committer.kept_ms`."""
        return self.transaction.time_horizon_ms

    def take_time(self, now_ms: int) -> None:
        """See `Committer.take_time`."""
        self._native.time_ms = max(self._native.time_ms, now_ms)

    def read_gate(self) -> int:
        """See `Committer.read_gate`."""
        return self._flight.begun

    def is_durable(self, gate: int) -> bool:
        """See `Committer.is_durable`."""
        return self._flight.is_landed(gate)

    @property
    def durable_gate(self) -> int:
        """See `Committer.durable_gate`."""
        return self._flight.landed

    def wait(self, gate: int) -> None:
        """See `Committer.wait`."""
        self._flight.wait(gate)

    def go_on(self) -> None:
        """See `Committer.go_on`."""
        self._flight.go_on()

    def land(self) -> None:
        """See `Committer.land`."""
        self.wait(self._flight.begun)
        if not (landing := self._flight.take_landed()):
            return
        assert self._flown
        self._chunked.landed(*self._flown)
        self._flown = None
        seconds = {phase: landing.seconds(phase) for phase in ("apply", "idle")}
        for phase, took in seconds.items():
            self._meter.add(phase, took)
        self._landed_seconds, tell, self._tell = sum(seconds.values()), self._tell, None
        if tell:
            tell(self._landed_seconds)

    def when_landed(self, tell: Callable[[float], None]) -> None:
        """Have somebody told how long the last transaction of GPUs took to end, in seconds; at once if it has."""
        if self._flown:
            self._tell = tell
        else:
            tell(self._landed_seconds)

    def release(self, counts: SegmentCounts, blobs: U64) -> None:
        """See `Committer.release`."""
        self._heap.release(counts)
        if self._heap.blobs:
            self._heap.blobs.free_later(0, blobs)

    def release_waiting(self) -> bool:
        """See `Committer.release_waiting`: no space waits."""
        return False

    def release_covered(self) -> None:
        """See `Committer.release_covered`: no space waits."""

    def journal_info(self) -> None:
        """See `Committer.journal_info`."""

    def close(self) -> None:
        """See `Committer.close`."""
        self.land()
        self._flight.close()

    def commit(self, write_set: WriteSet) -> int:
        """Make a write set durable, then count what it changed. A failure ends the process: only recovery may go on.

        Raises
        ------
        NoMemoryError
            If there is no memory for it; nothing has happened.
        """
        (writes, *_) = write_set.tables
        parts: list[Part] = []
        with memory_refused():
            if writes.device:
                parts = self._chunked.prepare(writes)
                self._chunked.leave(parts)
        began = perf_counter()
        self.land()
        self.waited_seconds = perf_counter() - began
        try:
            if parts:
                self._store_by_gpus(write_set, parts)
            else:
                self._store_natively(write_set)
        except BaseException as error:  # noqa: BLE001 - nothing may go on from here but recovery
            stop_process(_INCOMPLETE, error)
        return self._flight.begun

    def begin_turn(self) -> NativeCommit:
        """See `Committer.begin_turn`; what is still being stored lands before the first batch of the host's."""
        if not self.transaction.has_epoch:
            self.land()
        self._begin_native()
        return self._native

    def blocks_at_once(self, index: Index) -> int:
        """See `Committer.blocks_at_once`: the targets need no log."""
        return _BLOCKS_AT_ONCE if self._backend is self._backend.host else _BLOCKS_AT_ONCE_ON_GPU

    def move_blocks(self, index: Index, first: int, last: int) -> None:
        """See `Committer.move_blocks`.

        The targets are dead until the descriptor says that their sources have moved. They are durable before it is
        current (I8), so they need no log. Block 0 is its own target: what leaves it is durable in block 1 first, and
        then removed by a transaction.
        """
        assert 0 <= first < last == index.unmoved
        self.land()
        leaving = None
        with memory_refused():
            if last == 1:
                leaving = self._leaving(index)
        try:
            failpoint.hit("before_growth_targets")
            self._store_targets(index, first, last)
            failpoint.hit("before_growth_persist")
            index.region.persist_unlogged()
            self._files.growth = growth_after(index, first)
            if leaving and leaving.tables[0].slots:
                self._store_natively(leaving)
            else:
                failpoint.hit("before_growth_descriptor")
                self._store_nothing()
            if not self._logged:  # nothing else makes it durable before the catalogue of twice the blocks
                self._files.persist_unlogged()
            index.set_unmoved(first)
        except BaseException as error:  # noqa: BLE001 - nothing may go on from here but recovery
            stop_process("a growing table could not be stored", error)

    def _store_targets(self, index: Index, first: int, last: int) -> None:
        if last == 1:
            split_upper_half_of_block_0(self._backend, index)
            return
        halves: tuple[tuple[int, int], ...] = ((first, last),)
        if failpoint.armed("mid_growth_targets") and last - first > 1:
            middle = (first + last) // 2
            halves = ((middle, last), (first, middle))
        for number, (begin, end) in enumerate(halves):
            split(self._backend, index, begin, end)
            if number == 0:
                failpoint.hit("mid_growth_targets")

    def keep_time(self, now_ms: int) -> None:
        """See `Committer.keep_time`."""
        self._native.time_ms = now_ms
        self._commit_nothing()

    def take_number(self) -> None:
        """See `Committer.take_number`."""
        self._commit_nothing(numbers=1)

    def _commit_nothing(self, numbers: int = 0) -> None:
        self.land()
        try:
            self._store_nothing(numbers)
        except BaseException as error:  # noqa: BLE001 - nothing may go on from here but recovery
            stop_process(_INCOMPLETE, error)

    def _store_nothing(self, numbers: int = 0) -> None:
        """Make a descriptor current that differs from the last one in what it says of growth, the time and numbers."""
        current = self.transaction.current
        descriptor = current._replace(
            epoch=self.transaction.next_epoch(),
            runs=(),
            first_sequence=current.next_sequence,
            next_sequence=current.next_sequence + numbers,
            time_horizon_ms=self._native.time_ms,
            log_digest=0,
            growth=self._files.growth,
        )
        self.transaction.describe(descriptor)
        self.transaction.commit(descriptor)

    def _leaving(self, index: Index) -> WriteSet:
        """Return what removes from block 0 what leaves it."""
        slots = leaving_block_0(self._backend, index)
        writes = TableWrites(self._files, self._backend, self._heap)
        writes.index, writes.operations, writes.changed_slot = index, 0, slots.number
        writes.set(slots=len(slots), index=index.address, table_id=index.entry.id)
        writes.keep(changed_slot=slots.number, contents=slots.contents, digest=np.empty(len(slots), np.uint64))
        writes.read_counters()
        runs = log_runs([writes], RunKind.UNDO)
        assert runs[0].words <= self._files.log_words_max
        return WriteSet([writes], 0, runs, self._heap.tail, ())

    def _read_ahead(self, segment: int) -> None:
        """Begin to read a segment of a disk's heap that gets records (`read_ahead` in commit/commit_undo.hpp)."""
        segment_bytes = self._files.root.segment_bytes
        self._files.heap.prefetch(segment * segment_bytes, segment_bytes)

    def _store_natively(self, write_set: WriteSet) -> None:
        """Store a write set of the host's threads, by one call."""
        for writes in write_set.tables:
            index = writes.index
            assert isinstance(index.region, Region)
            writes.begin_commit(self._tables[index.entry.id], index.region.file)
        self._begin_native()
        self._native.run(write_set)
        for writes in write_set.tables:
            if writes.brought:
                for columns in writes.brought:
                    self._backend.follow(writes.index, columns.slot, columns.contents)
            else:
                self._backend.host_stored(writes.index, writes.changed_slot[: writes.slots])

    def _begin_native(self) -> None:
        """Tell the native committer what Python may have changed since the last batch."""
        self.transaction.have_epoch()
        self._native.begin(self._files.growth, self._files.log.address, self._files.log_words_max)

    def _store_by_gpus(self, write_set: WriteSet, parts: list[Part]) -> None:
        """Store a write set that GPUs planned, of one table; it becomes durable beside what comes next (I1 to I4)."""
        transaction, lap = self.transaction, self._meter.lap
        (writes,), epoch = write_set.tables, transaction.next_epoch()
        for segment in write_set.segments:
            if segment != self._heap.tail.segment:
                self._read_ahead(segment)
        failpoint.hit("before_record")
        if writes.records:
            run_in_halves("mid_record", writes.records, lambda first, last: STORE_RECORDS(writes.address, first, last))
        lap("record")
        failpoint.hit("before_descriptor")
        self._files.heap.persist()
        lap("persist_heap")
        descriptor = self._describe(write_set, epoch)
        transaction.describe(descriptor)
        lap("persist_log")
        if self._logged:
            transaction.activate(epoch)
        lap("active")
        steps = self._chunked.launch(parts, write_set.runs[0] if self._logged else None, epoch)
        results = self._backend.leaving()
        lap("apply")
        # From here on only the end of the process can stop it: the next batch is planned on what it leaves.
        self._flown, self._tell = (writes, parts), None
        self._flight.begin(Landing(parts, steps, epoch, results.event, (write_set, *results.kept)))
        transaction.begun(descriptor)
        self._count(writes, write_set)

    def _describe(self, write_set: WriteSet, epoch: int) -> Descriptor:
        current = self.transaction.current
        return Descriptor(
            epoch=epoch,
            runs=write_set.runs if self._logged else (),
            tail_segment=write_set.tail.segment,
            tail_bytes=write_set.tail.units * UNIT_BYTES,
            first_sequence=current.next_sequence,
            next_sequence=current.next_sequence + write_set.operations,
            time_horizon_ms=self._native.time_ms,
            applied_sequence=current.applied_sequence,
            log_digest=0,  # the markers have that of each chunk
            growth=self._files.growth,
        )

    def _count(self, writes: TableWrites, write_set: WriteSet) -> None:
        """Take a batch into account; cannot fail."""
        self._heap.tail = write_set.tail
        table = self._tables[writes.index.entry.id]
        if writes.freed is not None:
            writes.begin_commit(table, 0)
            COUNT_LIVE(writes.address, 0, 1)
            self._heap.release(writes.freed)
        table.add(writes.counted_by_host())
        self._meter.committed(write_set.volumes(), STRUCTURE_BYTES, _FLAG_BYTES)
