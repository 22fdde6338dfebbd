"""Makes a write set durable, with an undo log and a transaction flag.

A write set of the host's threads is stored by one native call (``kernels/commit_undo.hpp``). Where a GPU planned, its
steps are launched from here, and from the steps of `Transaction`. The order of stores and persists is the same:

    records, undo log -> (records durable) -> descriptor -> (log and descriptor durable) -> ACTIVE -> (durable)
    -> slots -> (durable) -> IDLE -> (durable)

The transactional shape (undo log first, flag, in-place update, flag) is that of gpKVS (GPM, ASPLOS '22, section 5.2 and
figure 6). docs/design.md names the invariants I1 to I7.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Sequence
from functools import partial

import numpy as np

from gpkvs import failpoint
from gpkvs.backends.base import Backend
from gpkvs.batch import U64
from gpkvs.engine.growth_steps import growth_after, leaving_block_0, split, split_upper_half_of_block_0
from gpkvs.engine.heap import Heap, SegmentCounts
from gpkvs.engine.meter import Meter
from gpkvs.engine.native_commit import NativeCommit
from gpkvs.engine.stores import DeviceStores, HostStores, Stores
from gpkvs.engine.table import Table
from gpkvs.engine.write_set import TableWrites, WriteSet, log_runs
from gpkvs.errors import memory_refused
from gpkvs.fatal import stop_process
from gpkvs.media.files import StoreFiles
from gpkvs.media.index import Index
from gpkvs.media.layout import FLAG_OFFSET, STRUCTURE_BYTES, UNIT_BYTES, Descriptor, LogRun, RunKind
from gpkvs.media.transaction import Transaction
from gpkvs.pm.region import Region

_BLOCKS_AT_ONCE = 256  # of an index, that one step of growth moves
_BLOCKS_AT_ONCE_ON_GPU = 2048  # where a step costs 0.3 ms besides
_FLAG_BYTES = 2 * 8  # ACTIVE and IDLE

_Parts = Sequence[tuple[TableWrites, Stores]]


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
        self._host = HostStores(backend)
        self._device = DeviceStores(backend, self._host, heap)
        self._backend = backend
        log, root = files.log, files.root_region
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
        """See `Committer.read_gate`: all that can be read is durable."""
        return 0

    def is_durable(self, gate: int) -> bool:
        """See `Committer.is_durable`."""
        return True

    def wait(self, gate: int) -> None:
        """See `Committer.wait`."""

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

    def commit(self, write_set: WriteSet) -> int:
        """Make a write set durable, then count what it changed. A failure ends the process: only recovery may go on."""
        try:
            if any(writes.device for writes in write_set.tables):
                self._store(write_set)
            else:
                self._store_natively(write_set)
        except BaseException as error:  # noqa: BLE001 - nothing may go on from here but recovery
            stop_process("a transaction could not be completed", error)
        return 0

    def begin_turn(self) -> NativeCommit:
        """See `Committer.begin_turn`."""
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
        try:
            self._store_nothing()
        except BaseException as error:  # noqa: BLE001 - nothing may go on from here but recovery
            stop_process("a transaction could not be completed", error)

    def _store_nothing(self) -> None:
        """Make a descriptor current that differs from the last one in what it says of growth, and of the time."""
        current = self.transaction.current
        descriptor = current._replace(
            epoch=self.transaction.next_epoch(),
            runs=(),
            first_sequence=current.next_sequence,
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
        """Begin to read a segment of a disk's heap that gets records (`read_ahead` in kernels/commit_undo.hpp)."""
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
            self._backend.host_stored(writes.index, writes.changed_slot[: writes.slots])

    def _begin_native(self) -> None:
        """Tell the native committer what Python may have changed since the last batch."""
        self.transaction.have_epoch()
        self._native.begin(self._files.growth, self._files.log.address, self._files.log_words_max)

    def _store(self, write_set: WriteSet) -> None:
        """Store a write set and make it durable, in the order of I1 to I4."""
        transaction, lap = self.transaction, self._meter.lap
        epoch = transaction.next_epoch()
        for segment in write_set.segments:
            if segment != self._heap.tail.segment:
                self._read_ahead(segment)
        parts: _Parts = [(writes, self._device if writes.device else self._host) for writes in write_set.tables]
        failpoint.hit("before_record")
        for writes, stores in parts:
            if writes.records:
                run_in_halves("mid_record", writes.records, partial(stores.records, writes))
        lap("record")
        failpoint.hit("before_log")
        digest = self._store_log(parts, write_set.runs, epoch) if self._logged else 0
        lap("log")
        failpoint.hit("before_descriptor")
        self._files.heap.persist()
        lap("persist_heap")
        descriptor = self._describe(write_set, epoch, digest)
        transaction.describe(descriptor)
        lap("persist_log")
        if self._logged:
            transaction.activate(epoch)
        lap("active")
        failpoint.hit("before_apply")
        for writes, stores in parts:
            run_in_halves("mid_apply", writes.slots, partial(stores.slots, writes))
        lap("apply")
        failpoint.hit("before_apply_persist")
        for writes, _ in parts:
            writes.index.region.persist()
        lap("persist_index")
        transaction.commit(descriptor)
        lap("idle")
        # Nothing but assignments from here on: the batch is durable, and the next one must know of it.
        self._count(parts, write_set)

    def _store_log(self, parts: _Parts, runs: tuple[LogRun, ...], epoch: int) -> int:
        """Store the undo log; return the digest of all its entries."""
        digest = 0
        for (writes, stores), run in zip(parts, runs, strict=True):
            run_in_halves("mid_log", writes.slots, partial(stores.log, writes, epoch, self._files.run_address(run)))
            digest += stores.log_digest(writes)
        return digest % (1 << 64)

    def _describe(self, write_set: WriteSet, epoch: int, digest: int) -> Descriptor:
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
            log_digest=digest,
            growth=self._files.growth,
        )

    def _count(self, parts: _Parts, write_set: WriteSet) -> None:
        """Take a durable batch into account; cannot fail."""
        self._heap.tail = write_set.tail
        for writes, stores in parts:
            index = writes.index
            if index.has_records:
                stores.count_live(writes)
            self._tables[index.entry.id].records += writes.new_keys - writes.removed_keys
        self._meter.committed(write_set.volumes(), STRUCTURE_BYTES, _FLAG_BYTES)


def run_in_halves(point: str, items: int, run: Callable[[int, int], None]) -> None:
    """Run over all items at once; in two halves if a test is going to die between them."""
    if failpoint.armed(point):
        run(0, items // 2)
        failpoint.hit(point)
        run(items // 2, items)
    else:
        failpoint.hit(point)
        run(0, items)
