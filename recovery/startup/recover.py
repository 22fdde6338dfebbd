"""Start-up recovery: the batch in progress, if any, is rolled back before anything is served.

The steps are those of docs/design.md, section 4, and keep I5 (undo is idempotent: a crash in here, any number of times,
loses nothing) and I6 (the whole log is verified before the first undo store). The undo kernel follows gpKVS (GPM,
ASPLOS '22, figure 6b); unlike there, the flag is cleared once, after every slot is durable.
"""

from __future__ import annotations

import json
import logging
import time
from dataclasses import asdict, dataclass
from typing import NamedTuple

import numpy as np

from gpkvs.backends.base import Backend
from gpkvs.batch import U64
from gpkvs.engine.space.recount import recount
from gpkvs.engine.state.blobs import Blobs
from gpkvs.engine.state.heap import Heap, SegmentCounts, Tail
from gpkvs.engine.state.table import Held
from gpkvs.errors import CorruptStoreError
from gpkvs.info import RecoveryReport
from gpkvs.media.chunks import corrupt_log, find_chunks
from gpkvs.media.directory import RECOVERY_FILE, Progress, write_file
from gpkvs.media.files import StoreFiles
from gpkvs.media.growth import adopt, make_room
from gpkvs.media.journal import Journal
from gpkvs.media.layout import (
    LOG_ENTRIES_OFFSET,
    UNIT_BYTES,
    ChunkMarker,
    Descriptor,
    LogRun,
    Opened,
    RunKind,
    State,
)
from gpkvs.media.transaction import (
    Transaction,
    begin_incarnation,
    find_descriptor,
    read_descriptors,
    read_flag,
    store_flag,
)
from gpkvs.process import failpoint
from gpkvs.recovery.startup.replay import Replayed, load_images, replay
from gpkvs.recovery.startup.salvage import after_loss, newest_descriptor, require_accepted_loss, salvage
from gpkvs.text import counted

_log = logging.getLogger("gpkvs")


@dataclass(frozen=True)
class Recovered:
    """What an engine needs to go on."""

    log: Transaction | Journal
    heap: Heap
    held: dict[int, Held]  # by table id
    report: RecoveryReport


def recover(
    files: StoreFiles, backend: Backend, on_progress: Progress, *, accept_loss: bool = False, flushes: bool = True
) -> Recovered:
    """Bring a store into the state of its last committed batch.

    Parameters
    ----------
    files
        Mapped for writing, the directory locked.
    backend
        Runs the undo and recount kernels.
    on_progress
        Called with the name of a step and the share of the work done, 0 to 1.
    accept_loss
        Drop what cannot be read of a store that was in use without an undo log and was not closed.
    flushes
        Whether a journal's frames are durable only when its file was flushed.

    Raises
    ------
    UnsafeStoreError
        If it is such a store and the loss is not accepted; nothing was stored then.
    CorruptStoreError
        If flag, descriptors, an active log or a journal are damaged; nothing was stored then.
    """
    begin = time.perf_counter()
    require_accepted_loss(files, accept_loss)
    on_progress("making durable what is there", 0.0)
    failpoint.hit("before_settle")
    # Whatever follows relies on it, in a domain that may be stronger than that of the lives before.
    files.fsync()
    restored = _replay(files, backend, on_progress, flushes) if files.data else _restore(files, backend, on_progress)
    try:
        return _recovered(files, backend, restored, begin, on_progress)
    except BaseException:
        if isinstance(restored.log, Journal):
            restored.log.close()  # its thread must end before the files are closed
        raise


def _recovered(
    files: StoreFiles, backend: Backend, restored: _Restored, begin: float, on_progress: Progress
) -> Recovered:
    """Count what the store holds, and report."""
    failpoint.hit("before_recount")
    on_progress("counting live records", 0.5)
    heap, held = _count(files, backend, restored.current)
    records = sum(of_table.records for of_table in held.values())
    report = _report(files, restored, heap, records, time.perf_counter() - begin)
    try:
        write_file(files.path / RECOVERY_FILE, json.dumps(asdict(report), indent=1).encode() + b"\n")
    except OSError as error:  # a full disk must not keep a store from starting
        _log.warning("%s could not be written: %s", RECOVERY_FILE, error)
    on_progress("recovered", 1.0)
    return Recovered(restored.log, heap, held, report)


@dataclass(frozen=True)
class _Restored:
    """A store in the state of its last committed batch, and what that took."""

    log: Transaction | Journal
    current: Descriptor
    undone: bool = False  # a batch was in progress
    undone_entries: int = 0
    was_unsafe: bool = False  # in use without an undo log, and not closed
    dropped_slots: int = 0
    replayed: Replayed | None = None


def _replay(files: StoreFiles, backend: Backend, on_progress: Progress, flushes: bool) -> _Restored:
    """Read the images, replay the journal, and begin the next incarnation: both root copies say what is there (W4)."""
    assert files.data
    on_progress("reading the index", 0.1)
    load_images(files)
    on_progress("replaying the journal", 0.2)
    replayed = replay(files, backend, on_progress)
    failpoint.hit("before_incarnation")
    checkpoint = files.root.checkpoint._replace(recovered_epoch=replayed.last.epoch)
    opened = _opened(files, replayed.last.descriptor, was_unsafe=False)
    files.roots.change(incarnation=files.root.incarnation + 1, checkpoint=checkpoint, **opened)
    journal = Journal(files.data, files.root, replayed.last, flushes=flushes)
    return _Restored(journal, replayed.last.descriptor, replayed=replayed)


def _restore(files: StoreFiles, backend: Backend, on_progress: Progress) -> _Restored:
    """Undo a batch in progress, or drop what cannot be read; then begin the next incarnation."""
    on_progress("reading the transaction flag", 0.1)
    was_unsafe = files.root.is_unsafe
    state, epoch = read_flag(files)
    undone_entries = 0
    if was_unsafe:
        current = newest_descriptor(files)
    elif state is State.ACTIVE:
        current, undone_entries = _roll_back(files, backend, epoch, on_progress)
    else:
        current = find_descriptor(files, epoch)
    check_tail(files, current)
    adopt(files, current.growth)
    if state is State.ACTIVE:
        # Durable with the roots, which are written next: until then, all of it is done again.
        store_flag(files, State.IDLE, current.epoch)
    dropped_slots = salvage(files, backend) if was_unsafe else 0
    current = begin_incarnation(files, current, **_opened(files, current, was_unsafe=was_unsafe))
    transaction = after_loss(files, current) if was_unsafe else Transaction(files, current)
    return _Restored(transaction, transaction.current, state is State.ACTIVE, undone_entries, was_unsafe, dropped_slots)


def _opened(files: StoreFiles, current: Descriptor, *, was_unsafe: bool) -> dict[str, Opened]:
    """Return what the roots are to say of this opening, which begins behind this transaction."""
    if not files.root.has_timelines:
        return {}
    if was_unsafe:  # something may be lost of what was told
        return {"opened": Opened(current.next_sequence, 0, ())}
    return {"opened": files.root.opened.again(current.next_sequence)}


def _count(files: StoreFiles, backend: Backend, current: Descriptor) -> tuple[Heap, dict[int, Held]]:
    """Count what every table holds, and what of the heap is live."""
    counts = SegmentCounts.of(files.segments)
    named: list[U64] = [np.empty(0, np.uint64)]
    held = {table: recount(files, backend, index, counts, named) for table, index in files.indexes.items()}
    tail = Tail(current.tail_segment, current.tail_bytes // UNIT_BYTES)
    root = files.root
    blobs = Blobs(files, np.concatenate(named)) if root.has_blobs else None
    heap = Heap(root.segment_bytes, tail, counts, size=root.heap_bytes, record_format=root.store_format, blobs=blobs)
    heap.leave(files.journal_segments, is_opening=True)
    return heap, held


def _report(files: StoreFiles, restored: _Restored, heap: Heap, records: int, seconds: float) -> RecoveryReport:
    repaired = files.roots.found.repaired
    did = "no batch was in progress"
    replayed = restored.replayed
    if replayed:
        transactions, slots = counted(replayed.frames, "transaction"), counted(replayed.entries, "slot")
        did = "the journal had nothing to replay"
        if replayed.frames:
            did = f"{transactions} of the journal replayed that came after its last checkpoint: {slots}"
        if replayed.cut:
            did += f"; {counted(replayed.cut, 'transaction')} of which nobody was told dropped"
    if restored.undone:
        did = f"a batch was in progress: {counted(restored.undone_entries, 'slot')} rolled back"
    root = f"; root copy {repaired} was damaged or old, written again" if repaired else ""
    loss = f"{_loss(restored.dropped_slots)}; " if restored.was_unsafe else ""
    return RecoveryReport(
        undone=restored.undone,
        undone_entries=restored.undone_entries,
        replayed_batches=replayed.frames if replayed else 0,
        replayed_slots=replayed.entries if replayed else 0,
        cut_batches=replayed.cut if replayed else 0,
        dropped_slots=restored.dropped_slots,
        root_copy_repaired=repaired,
        records=records,
        heap_live_bytes=heap.live_bytes,
        seconds=seconds,
        text=f"{loss}{did}; {counted(records, 'record')}{root}; {seconds * 1000:.1f} ms",
    )


def _loss(dropped_slots: int) -> str:
    return (
        "the store was in use without an undo log and was not closed, the loss was accepted: "
        f"{counted(dropped_slots, 'slot')} dropped that could not be read"
    )


def _roll_back(files: StoreFiles, backend: Backend, epoch: int, on_progress: Progress) -> tuple[Descriptor, int]:
    """Undo the batch of an ACTIVE flag, durably; return the descriptor before it, and how many slots were restored."""
    descriptor = find_descriptor(files, epoch)
    before = previous_descriptor(files, epoch)
    on_progress("verifying the undo log", 0.2)
    for growth in (descriptor.growth, before.growth):
        make_room(files, growth)
    logged = verify_log(files, backend, descriptor)
    on_progress("rolling back", 0.3)
    failpoint.hit("before_undo")
    for part in logged:
        undo(files, backend, part)
    failpoint.hit("before_undo_persist")
    for run in descriptor.runs:
        # The flag becomes durable with the roots, also in the domain `none`.
        files.indexes[run.table_id].region.persist_unlogged()
    failpoint.hit("before_undo_idle_flag")
    return before, sum(part.entries for part in logged)


def make_room_for_log(files: StoreFiles) -> None:
    """Have the index of a table that grows in memory as either descriptor needs it.

    Raises
    ------
    CorruptStoreError
        If a growth cannot be; nothing was changed.
    """
    for descriptor in read_descriptors(files):
        if isinstance(descriptor, Descriptor):
            make_room(files, descriptor.growth)


class LoggedPart(NamedTuple):
    """Entries of the undo log that are durable, side by side in a run.

    Attributes
    ----------
    run
        In which run.
    first, entries
        The first of its entries, and how many.
    marker
        What says so, of a chunk; None: they are the whole run, and the descriptor says so.
    """

    run: LogRun
    first: int
    entries: int
    marker: ChunkMarker | None = None

    @property
    def kernels(self) -> str:
        """The part of the names of kernels that says which entries they read."""
        return "chunk_" if self.marker else ""


def undo(files: StoreFiles, backend: Backend, part: LoggedPart) -> None:
    """Restore the slots of a part of the log, which was verified; not durable before `Region.persist`."""
    run = part.run
    # In two halves, so that a test can die between them.
    half, end = part.first + part.entries // 2, part.first + part.entries
    for first, last in ((part.first, half), (half, end)):
        backend.launch(
            f"undo_{part.kernels}{files.table(run.table_id).slot_layout.name}",
            last - first,
            log=files.run_address(run),
            first=first,
            index=files.indexes[run.table_id],
        )
        if first == part.first:
            failpoint.hit("mid_undo")


def previous_descriptor(files: StoreFiles, epoch: int) -> Descriptor:
    """Return the descriptor that was current before the batch with an ACTIVE flag.

    Raises
    ------
    CorruptStoreError
        If there is none, or it is not older.
    """
    for descriptor in read_descriptors(files):
        if isinstance(descriptor, Descriptor) and descriptor.epoch < epoch:
            return descriptor
    raise CorruptStoreError("descriptor", f"the descriptor before epoch {epoch:#x} is damaged", path=files.log.path)


def verify_log(files: StoreFiles, backend: Backend, descriptor: Descriptor) -> list[LoggedPart]:
    """Prove all that is durable of a descriptor's log before anything is undone (I6).

    Returns
    -------
    list of LoggedPart
        What is to be undone.

    Raises
    ------
    CorruptStoreError
        Naming the entry, if one is wrong; nothing was stored.
    """
    total, parts = 0, []
    for run in descriptor.runs:
        _check_run(files, run)
        if run.kind == RunKind.CHUNKS:
            for marker in find_chunks(files, descriptor.epoch, run):
                part = LoggedPart(run, marker.first, marker.entries, marker)
                if _digest_of(files, backend, part, descriptor.epoch, first=part.first) != marker.digest:
                    whose = f"that of the marker of chunk {marker.number} of processor {marker.processor}"
                    raise _wrong_digest(files, whose)
                parts.append(part)
        else:
            parts.append(LoggedPart(run, 0, run.count))
            total += _digest_of(files, backend, parts[-1], descriptor.epoch)
    if total % (1 << 64) != descriptor.log_digest:
        raise _wrong_digest(files, "the descriptor's")
    return parts


def _digest_of(files: StoreFiles, backend: Backend, part: LoggedPart, epoch: int, **more: int) -> int:
    """Return the sum of the digests of entries, each of which names a slot."""
    run, table = part.run, files.table(part.run.table_id)
    digest, wrong = np.empty(part.entries, np.uint64), np.empty(part.entries, np.uint8)
    backend.launch(
        f"verify_{'chunk' if part.marker else 'log'}_{table.slot_layout.name}",
        part.entries,
        log=files.run_address(run),
        epoch=epoch,
        slots=files.indexes[table.id].slots_mapped,
        digest=digest,
        wrong=wrong,
        **more,
    )
    if wrong.any():
        entry = part.first + int(wrong.argmax())
        what = f"entry {entry} of {run.count} names no slot or another epoch"
        raise corrupt_log(files, what, LOG_ENTRIES_OFFSET + 8 * run.first_word)
    return int(digest.sum(dtype=np.uint64))


def _wrong_digest(files: StoreFiles, whose: str) -> CorruptStoreError:
    return corrupt_log(files, f"the digest of the entries is not {whose}", LOG_ENTRIES_OFFSET)


def _check_run(files: StoreFiles, run: LogRun) -> None:
    possible = {
        (kind, table.id, table.generation, table.slot_layout.entry_bytes_of(kind))
        for table in files.catalog.tables
        for kind in (RunKind.UNDO, RunKind.CHUNKS)
    }
    if (run.kind, run.table_id, run.generation, run.entry_bytes) not in possible or (
        run.first_word + run.words > files.log_words_max
    ):
        raise CorruptStoreError("undo-log", f"the descriptor has a run that cannot be: {run}", path=files.log.path)


def check_tail(files: StoreFiles, descriptor: Descriptor) -> None:
    """Raise `CorruptStoreError` if a descriptor's heap tail lies outside the heap."""
    if not files.holds_tail(descriptor.tail_segment, descriptor.tail_bytes):
        raise CorruptStoreError(
            "descriptor",
            f"the heap tail (segment {descriptor.tail_segment}, byte {descriptor.tail_bytes}) lies outside the heap",
            path=files.log.path,
        )
