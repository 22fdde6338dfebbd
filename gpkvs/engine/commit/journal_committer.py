"""Makes a write set durable with a journal: a frame of new slot contents, and one flush.

A write set of the host's threads is stored by one native call (``kernels/commit/commit_journal.hpp``). On a GPU its
steps are launched from here. The order is the same:

    room for the frame -> records written -> entries -> frame handed over -> slots stored to the image
                                                          |
                                              written, flushed: durable

The next batch is planned while the frame is on its way. A result waits for its gate (`Committer.wait`). docs/design.md
names the invariants W1 to W6.
"""

from __future__ import annotations

import ctypes
from functools import partial

import numpy as np

from gpkvs.backends.base import Backend
from gpkvs.backends.cpu.backend import address_of
from gpkvs.batch import U64
from gpkvs.engine.commit.checkpoint import Checkpointer
from gpkvs.engine.commit.growth_steps import Moves, find_moves, growth_after, log_moves, split_image
from gpkvs.engine.commit.stores import ImageStores, run_in_halves
from gpkvs.engine.seam.meter import Meter
from gpkvs.engine.seam.native_commit import NativeCommit
from gpkvs.engine.seam.write_set import WriteSet
from gpkvs.engine.space.zeroed_space import ZeroedSpace
from gpkvs.engine.state.heap import Heap, SegmentCounts
from gpkvs.engine.state.table import Table
from gpkvs.errors import NoMemoryError, memory_refused
from gpkvs.info import JournalInfo
from gpkvs.media.files import StoreFiles
from gpkvs.media.frame import HEADER_BYTES, frame_pages
from gpkvs.media.image import Image
from gpkvs.media.index import Index
from gpkvs.media.journal import Frame, Journal, Ring, Written
from gpkvs.media.layout import NO_SERIAL, PAGE_BYTES, UNIT_BYTES, Descriptor, Growth, LogRun, RunKind
from gpkvs.process import failpoint
from gpkvs.process.fatal import stop_process

_BLOCKS_AT_ONCE = 256  # of an index, that one step of growth moves


class JournalCommitter:
    """Stores write sets.

    Parameters
    ----------
    backend, files, heap
        Of the store.
    tables
        By id; their records are counted.
    journal
        Where frames go.
    meter
        Told what each phase took, and what was written.

    Attributes
    ----------
    checkpointer
        Writes the images to their files.
    is_native
        Whether write sets of the host's threads are stored by one native call.
    """

    def __init__(
        self,
        backend: Backend,
        files: StoreFiles,
        tables: dict[int, Table],
        heap: Heap,
        journal: Journal,
        meter: Meter,
    ) -> None:
        self._backend = backend
        self._files = files
        self._tables = tables
        self._heap = heap
        self._meter = meter
        self.journal = journal
        journal.on_new_memory = backend.attach_memory
        self._stores = ImageStores(backend, files, heap)
        self._space = ZeroedSpace(files)
        self._native = NativeCommit(
            "commit_journal",
            "gpkvs_journal_committer",
            heap,
            meter,
            frames=journal.address,
            time_ms=journal.ended.descriptor.time_horizon_ms,
            waiting_space=heap.waiting_space,
            zeroed_space=ctypes.addressof(self._space),
            pages=self._stores.pages_address,
            live_units=address_of(heap.live_units),
        )
        self.is_native = True
        self.checkpointer = Checkpointer(files, journal, self)

    @property
    def next_sequence(self) -> int:
        """See `Committer.next_sequence`."""
        return self.journal.next_sequence

    @property
    def kept_ms(self) -> int:
        """See `Committer.kept_ms`."""
        return self.ended.descriptor.time_horizon_ms

    def take_time(self, now_ms: int) -> None:
        """See `Committer.take_time`."""
        self._native.time_ms = max(self._native.time_ms, now_ms)

    @property
    def begun(self) -> int:
        """The newest epoch whose slots are stored to the image, or may be."""
        return self.journal.begun

    @property
    def ended(self) -> Written:
        """The newest batch whose slots are all stored."""
        return self.journal.ended

    def commit(self, write_set: WriteSet) -> int:
        """See `Committer.commit`."""
        is_of_host = not any(writes.device for writes in write_set.tables)
        return self._commit_natively(write_set) if self.is_native and is_of_host else self._commit_in_steps(write_set)

    def _commit_natively(self, write_set: WriteSet) -> int:
        """Store a write set by one call."""
        for writes in write_set.tables:
            image = writes.index.region
            assert isinstance(image, Image)
            writes.keep(marks=image.marks)
            writes.begin_commit(self._tables[writes.index.entry.id], 0)
        self._begin_native()
        # It may wait for the disk, and for a thread of Python.
        if self._backend is self._backend.host:
            return self._native.run(write_set)
        try:
            gate = self._native.run(write_set)
            for writes in write_set.tables:
                self._backend.host_stored(writes.index, writes.changed_slot[: writes.slots])
        except NoMemoryError:
            raise
        except BaseException as error:  # noqa: BLE001 - a mirror may not know of it: only recovery may go on
            stop_process("a transaction could not be completed", error)
        return gate

    def _begin_native(self) -> None:
        """Tell the native committer what Python may have changed since the last batch."""
        self._native.begin(self._files.growth, 0, self.journal.ring.frame_words_max)

    def _commit_in_steps(self, write_set: WriteSet) -> int:
        """Store a write set by steps of the backend."""
        words = sum(run.words for run in write_set.runs)
        with self.journal.appending:
            with memory_refused():
                freed_units = np.zeros_like(self._heap.live_units)
            frame = self.journal.reserve(frame_pages(words))
            try:
                self._store(write_set, frame, freed_units)
            except BaseException as error:  # noqa: BLE001 - nothing may go on from here but recovery
                stop_process("a transaction could not be completed", error)
            return self.begun

    def _store(self, write_set: WriteSet, frame: Frame, freed_units: U64) -> None:
        lap, epoch, tables = self._meter.lap, self.begun + 1, write_set.tables
        lap("persist_log")  # waiting for room
        self._space.prepare(self._heap.start, write_set.tail)
        failpoint.hit("before_record")
        for writes in tables:
            if writes.records:
                run_in_halves("mid_record", writes.records, partial(self._stores.records, writes))
        lap("record")
        failpoint.hit("before_log")
        for writes, run in zip(tables, write_set.runs, strict=True):
            address = frame.entries + 8 * run.first_word
            run_in_halves("mid_log", writes.slots, partial(self._stores.entries, writes, epoch, address))
        lap("log")
        descriptor = self._describe(write_set, epoch)
        durable = self.journal.durable
        self.journal.begin(epoch)
        failpoint.hit("before_frame")
        self.journal.append(descriptor, sum(writes.records_digest for writes in tables) % 2**64, durable)
        failpoint.hit("before_apply")
        for writes in tables:
            run_in_halves("mid_apply", writes.slots, partial(self._stores.slots, writes))
        lap("apply")
        # Nothing but assignments from here on: the next batch must know of this one.
        self.journal.end()
        self._count(write_set, epoch, durable, freed_units)

    def _describe(self, write_set: WriteSet, epoch: int) -> Descriptor:
        before = self.ended.descriptor
        return before._replace(
            epoch=epoch,
            growth=self._files.growth,
            runs=write_set.runs,
            tail_segment=write_set.tail.segment,
            tail_bytes=write_set.tail.units * UNIT_BYTES,
            first_sequence=before.next_sequence,
            next_sequence=before.next_sequence + write_set.operations,
            time_horizon_ms=self._native.time_ms,
            log_digest=sum(self._stores.entries_digest(writes) for writes in write_set.tables) % (1 << 64),
        )

    def _count(self, write_set: WriteSet, epoch: int, durable: int, freed_units: U64) -> None:
        """Take a batch into account; cannot fail."""
        self._heap.tail = write_set.tail
        for writes in write_set.tables:
            table = self._tables[writes.index.entry.id]
            if writes.index.has_records:
                writes.begin_commit(table, 0)
                self._stores.count_live(writes, freed_units)
            table.add(writes.counted_by_host())
        if freed_units.any():
            self._heap.release_later(epoch, freed_units)
        self._heap.release_covered(self.journal.covered_by(durable))
        self._meter.committed(write_set.volumes(), HEADER_BYTES, 0)

    def go_on(self) -> None:
        """See `Committer.go_on`: the writer does."""

    def land(self) -> None:
        """See `Committer.land`: images have what was committed."""

    def begin_turn(self) -> NativeCommit:
        """See `Committer.begin_turn`."""
        self._begin_native()
        return self._native

    def blocks_at_once(self, index: Index) -> int:
        """See `Committer.blocks_at_once`: so many full blocks fit one frame."""
        block_words = index.layout.block_slots * index.layout.entry_bytes // 8
        return max(1, min(self._files.log_words_max // block_words, _BLOCKS_AT_ONCE))

    def move_blocks(self, index: Index, first: int, last: int) -> None:
        """See `Committer.move_blocks`.

        The frame of a step has no entries of users (W7): it empties the targets, then come all of their slots. A replay
        stores them over whatever a checkpoint has copied of the targets.
        """
        assert 0 <= first < last == index.unmoved
        with self.journal.appending:
            with memory_refused():
                moves = find_moves(self._backend, index, first, last)
            entry = index.entry
            of_table = (entry.id, entry.generation, index.layout.entry_bytes)
            fill = LogRun(RunKind.FILL, *of_table, 2 * first, 2 * (last - first))
            redo = LogRun(RunKind.REDO, *of_table, 0, moves.entries)
            frame = self.journal.reserve(frame_pages(redo.words))
            try:
                self._store_moved(index, (fill, redo), moves, frame, growth_after(index, first))
                index.set_unmoved(first)
            except BaseException as error:  # noqa: BLE001 - nothing may go on from here but recovery
                stop_process("a growing table could not be stored", error)

    def _store_moved(
        self, index: Index, runs: tuple[LogRun, LogRun], moves: Moves, frame: Frame, growth: Growth
    ) -> None:
        before, first, last = self.ended.descriptor, moves.first, index.unmoved
        epoch = before.epoch + 1
        descriptor = before._replace(
            epoch=epoch,
            growth=growth,
            runs=runs if moves.entries else runs[:1],
            first_sequence=before.next_sequence,
            log_digest=log_moves(self._backend, index, moves, epoch, frame.entries),
        )
        durable = self.journal.durable
        self.journal.begin(epoch)
        failpoint.hit("before_growth_frame")
        self.journal.append(descriptor, 0, durable)
        self._files.growth = growth
        failpoint.hit("before_growth_apply")
        middle = (first + last + 1) // 2 if failpoint.armed("mid_growth_apply") else first
        if middle < last:
            split_image(self._backend, index, middle, last, epoch)
        failpoint.hit("mid_growth_apply")
        if first < middle:
            split_image(self._backend, index, first, middle, epoch)
        self._backend.host_stored_blocks(index, 2 * first, 2 * last)
        self.journal.end()

    def read_gate(self) -> int:
        """See `Committer.read_gate`."""
        return self.begun

    def is_durable(self, gate: int) -> bool:
        """See `Committer.is_durable`."""
        return gate <= self.durable_gate

    @property
    def durable_gate(self) -> int:
        """See `Committer.durable_gate`."""
        return self.journal.durable

    def wait(self, gate: int) -> None:
        """See `Committer.wait`."""
        self.journal.wait(gate)

    def release(self, counts: SegmentCounts, blobs: U64) -> None:
        """See `Committer.release`: batches that are not durable yet may still name these records."""
        if self._heap.blobs:
            self._heap.blobs.free_later(self.begun, blobs)
        self._heap.release_later(self.begun, counts.live)
        self._heap.discharge(counts.charged)

    def release_waiting(self) -> bool:
        """See `Committer.release_waiting`: a durable frame must say that the epoch is durable (W6)."""
        epoch = self._heap.freed_epoch
        if not epoch:
            return False
        self.wait(epoch)
        self._commit_nothing()
        return self._heap.release_covered(self.journal.covered_by(self.journal.durable))

    def keep_time(self, now_ms: int) -> None:
        """See `Committer.keep_time`."""
        self._native.time_ms = now_ms
        self._commit_nothing()

    def take_number(self) -> None:
        """See `Committer.take_number`."""
        self._commit_nothing(numbers=1)

    def _commit_nothing(self, numbers: int = 0) -> None:
        """Append an empty frame, which takes so many sequence numbers, and wait for it."""
        with self.journal.appending:
            self.wait(self._append_empty(numbers))

    def release_covered(self) -> None:
        """See `Committer.release_covered`: a frame that came since the last batch may cover it (W6)."""
        self._heap.release_covered(self.journal.covered_by(self.journal.durable))

    def cover(self) -> bool:
        """Append an empty frame that says what is durable, unless a batch is under way or the last frame is empty.

        For a thread that no interrupt reaches: one between lock and release would leave the lock taken.
        """
        if self.journal.is_empty or not self.journal.try_appending():
            return False
        try:
            return self._cover()
        finally:
            self.journal.end_appending()

    def _cover(self) -> bool:
        if self.journal.is_empty or self.journal.durable < self.begun or self.journal.is_nearly_full:
            return False
        self._append_empty()
        return True

    def _append_empty(self, numbers: int = 0) -> int:
        """Append a frame without entries, which takes so many sequence numbers; return its epoch."""
        self.journal.reserve(frame_pages(0))
        before = self.ended.descriptor
        descriptor = before._replace(
            epoch=before.epoch + 1,
            growth=self._files.growth,
            runs=(),
            first_sequence=before.next_sequence,
            next_sequence=before.next_sequence + numbers,
            time_horizon_ms=self._native.time_ms,
            log_digest=0,
        )
        try:
            self.journal.begin(descriptor.epoch)
            self.journal.append(descriptor, 0, self.journal.durable)
            self.journal.end()
        except BaseException as error:  # noqa: BLE001 - half a step would leave a hole in the chain
            stop_process("a transaction could not be completed", error)
        return self.begun

    def begin(self) -> None:
        """Append the first frame of an opening, over what lies there, and wait for it (W4); then begin checkpoints."""
        if self.journal.is_nearly_full:
            self.checkpointer.write(paced=False)
        failpoint.hit("before_first_frame")
        self._commit_nothing()
        self.checkpointer.start()

    def grow_journal(self) -> None:
        """Put the extents that are not in the ring yet into it; no batch runs meanwhile."""
        with self.journal.appending:
            serial = self.journal.serial
            extents = tuple(
                extent._replace(serial=serial) if extent.serial == NO_SERIAL else extent
                for extent in self._files.root.journal_extents
            )
            try:
                failpoint.hit("before_extent_root")
                with self._files.changing:
                    self._files.roots.change(journal_extents=extents)
                failpoint.hit("before_extent_use")
                self.journal.grow(Ring.of(self._files.root))
            except BaseException as error:  # noqa: BLE001 - either root may be durable now
                stop_process("the journal could not grow", error)

    def journal_info(self) -> JournalInfo:
        """See `Committer.journal_info`."""
        journal, checkpointer = self.journal, self.checkpointer
        return JournalInfo(
            is_direct=journal.is_direct,
            used_bytes=journal.used_pages * PAGE_BYTES,
            capacity_bytes=journal.ring.capacity * PAGE_BYTES,
            batches_in_flight=max(self.begun - journal.durable, 0),
            room_seconds=journal.room_seconds,
            flushes=journal.flushes,
            flush_seconds=journal.flush_seconds,
            checkpoints=checkpointer.checkpoints,
            checkpoint_bytes=checkpointer.pages * PAGE_BYTES,
            dirty_bytes=checkpointer.dirty_pages * PAGE_BYTES,
        )

    def close(self) -> None:
        """See `Committer.close`."""
        self.checkpointer.close()
        with self.journal.appending:
            self._cover()  # a record that rots from now on is damage of its key, not the end of the journal
            self.journal.close()
