"""Start-up of a store with a journal: the batches after the checkpoint are replayed into the images.

    images read -> chain of frames walked -> records of the last ones verified -> replayed

The chain begins after the checkpoint's frame. Each frame names the one before by its digest. The chain ends where no
valid frame follows. Usually a crash came there, and what lies beyond is cut. It is rot, and the store is refused, if a
later frame says that the missing one was durable, or if the last opening recovered more than there is (W4).

Records are verified only of frames that no frame covers (`FrameHeader.durable_upto`): for the others a bad record is
damage of its key, no more (W6).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from gpkvs.backends.base import Backend
from gpkvs.engine.commit.growth_steps import fill_blocks
from gpkvs.errors import CorruptStoreError
from gpkvs.media.directory import Progress
from gpkvs.media.files import StoreFiles, blob_file
from gpkvs.media.frame import HEADER_BYTES, FrameHeader, SegmentHead
from gpkvs.media.growth import adopt, make_room
from gpkvs.media.image import Image
from gpkvs.media.journal import Ring, Written
from gpkvs.media.layout import (
    BLOCK_BYTES,
    BYTES_LAYOUT,
    LAYOUTS,
    NO_SLOT,
    PAGE_BYTES,
    STRIPE_ENTRIES,
    UNIT_BYTES,
    VERSION_MAX,
    BadBytesError,
    Descriptor,
    Growth,
    LogRun,
    RunKind,
    reference_length,
    reference_offset,
    slot_versions,
)
from gpkvs.pm.mapping import map_memory
from gpkvs.process import failpoint
from gpkvs.recovery.startup.lost_frame import require_no_lost_frame
from gpkvs.recovery.startup.memory import require_memory

U8 = NDArray[np.uint8]

# Of an entry of a table with records.
_SLOT_WORD, _CONTENTS_WORD, _REFERENCE_WORD, _META_WORD = 0, 2, 4, 5


class Replayed(NamedTuple):
    """What a replay found.

    Attributes
    ----------
    last
        The last batch that is there.
    frames, entries
        Batches that were replayed, and slots that they changed.
    cut
        Batches at the end of the journal whose records were not all written: nobody was told of them.
    """

    last: Written
    frames: int
    entries: int
    cut: int


class _Found(NamedTuple):
    """A valid frame, in memory."""

    header: FrameHeader
    digest: int
    position: int
    pages: U8

    @property
    def written(self) -> Written:
        return Written(self.header.descriptor, self.digest, self.position + self.header.pages)

    def run_address(self, run: LogRun) -> int:
        return int(self.pages.ctypes.data) + HEADER_BYTES + 8 * run.first_word


def load_images(files: StoreFiles) -> None:
    """Read every index into memory.

    Raises
    ------
    NoSpaceError
        If they do not fit the machine's free memory; nothing was read.
    """
    make_room(files, files.root.checkpoint.growth)
    images = [index.region for index in files.indexes.values() if isinstance(index.region, Image)]
    require_memory(sum(image.bytes for image in images))
    for image in images:
        image.load()


def replay(files: StoreFiles, backend: Backend, on_progress: Progress) -> Replayed:
    """Replay the journal into the images, which hold the checkpoint; nothing is written to a file.

    Raises
    ------
    CorruptStoreError
        If the journal is damaged.
    """
    reader = _Reader(files)
    start = _checkpoint_of(files)
    last, frames, entries = start, 0, 0
    uncovered: deque[_Found] = deque()
    for frame in reader.chain(start):
        _check_frame(files, frame)
        if not _verify_entries(files, backend, frame):
            break
        uncovered.append(frame)
        while uncovered and uncovered[0].header.epoch <= frame.header.durable_upto:
            last, entries = _replay_frame(files, backend, uncovered.popleft(), entries)
            frames += 1
            on_progress("replaying the journal", 0.2)
    if uncovered and files.blobs:
        files.blobs.forget()  # the page cache may show what the device never got
    while uncovered and _verify_records(files, backend, uncovered[0]):
        last, entries = _replay_frame(files, backend, uncovered.popleft(), entries)
        frames += 1
    _require_all(files, reader, last)
    if uncovered:
        _require_unseen(files, uncovered[0], last)
    adopt(files, last.descriptor.growth)
    require_no_lost_frame(files, backend, last.descriptor.next_sequence)
    return Replayed(last, frames, entries, len(uncovered))


def _checkpoint_of(files: StoreFiles) -> Written:
    """Return the batch that the image files hold, as the root says it."""
    at = files.root.checkpoint
    if not files.holds_tail(at.tail_segment, at.tail_bytes):
        raise CorruptStoreError(
            "journal", "the heap tail of the checkpoint lies outside the heap", path=files.root_region.path
        )
    descriptor = Descriptor(
        at.epoch,
        (),
        at.tail_segment,
        at.tail_bytes,
        at.next_sequence,
        at.next_sequence,
        at.time_horizon_ms,
        at.applied_sequence,
        0,
        at.growth,
    )
    return Written(descriptor, at.digest, at.position)


class _Reader:
    """Reads frames of the journal from the device."""

    def __init__(self, files: StoreFiles) -> None:
        assert files.data
        self._data = files.data
        self._root = files.root
        self._key = files.root.hash_keys
        self.ring = Ring.of(files.root)
        self._page = map_memory(PAGE_BYTES)
        if not self._data.is_direct:  # at once: a large piece of the cache goes whole or not at all
            self._data.forget_pages(0, files.root.journal_bytes)
            for place in self.ring.places[self.ring.places >= files.root.journal_bytes].tolist():
                self._data.forget_pages(place, self.ring.segment_bytes)

    def chain(self, start: Written) -> Iterator[_Found]:
        """Walk the valid frames after a batch, each after the one before."""
        before = start
        while frame := self._frame(before):
            yield frame
            before = frame.written

    def _frame(self, before: Written) -> _Found | None:
        found = self._header(before.position)
        if found is None:
            return None
        header, digest = found
        recovered = self._root.checkpoint.recovered_epoch
        follows = header.epoch == before.epoch + 1 and header.previous == before.digest
        # What an earlier life left beyond the batch that the last opening recovered does not count.
        is_stale = header.epoch > recovered and header.incarnation < self._root.incarnation
        fits = header.pages <= self.ring.frame_pages_max
        if not follows or is_stale or not fits:
            return None
        return _Found(header, digest, before.position, self._pages(before.position, header.pages))

    def _header(self, position: int) -> tuple[FrameHeader, int] | None:
        self._data.read_pages(self._page, self.ring.page_offset(position))
        return self._unpack(self._page)

    def _unpack(self, page: U8) -> tuple[FrameHeader, int] | None:
        try:
            return FrameHeader.unpack(page[:HEADER_BYTES].tobytes(), self._key)
        except BadBytesError:
            return None

    def _pages(self, position: int, count: int) -> U8:
        """Read pages, which may go on in the next segment."""
        memory = map_memory(count * PAGE_BYTES)
        done = 0
        while done < count:
            left = self.ring.segment_pages - (position + done) % self.ring.segment_pages
            part = memory[done * PAGE_BYTES : (done + min(left, count - done)) * PAGE_BYTES]
            self._data.read_pages(part, self.ring.page_offset(position + done))
            done += len(part) // PAGE_BYTES
        return memory

    def later_frame(self, last: Written) -> FrameHeader | None:
        """Find a frame beyond the end of the chain that says that the frame after the end was durable."""
        first_serial, first_page = divmod(last.position, self.ring.segment_pages)
        for serial in range(first_serial, first_serial + self.ring.segments):
            if serial != first_serial and self._is_old(serial):
                continue
            skipped = first_page if serial == first_serial else 0
            first = serial * self.ring.segment_pages + skipped
            for page in self._pages(first, self.ring.segment_pages - skipped).reshape(-1, PAGE_BYTES):
                found = self._unpack(page)
                if found and self._shows_loss(found[0], last):
                    return found[0]
        return None

    def _is_old(self, serial: int) -> bool:
        """Whether the place of a segment holds an earlier one, or none was ever there."""
        self._data.read_pages(self._page, self.ring.head_offset(serial))
        try:
            head = SegmentHead.unpack(self._page[:HEADER_BYTES].tobytes(), self._key)
        except BadBytesError:
            return not self._page.any()
        return head.serial < serial

    def _shows_loss(self, header: FrameHeader, last: Written) -> bool:
        return header.incarnation >= self._root.incarnation and header.durable_upto > last.epoch


def _check_frame(files: StoreFiles, frame: _Found) -> None:
    """Raise `CorruptStoreError` if a whole frame says what cannot be."""
    descriptor = frame.header.descriptor
    words_max = (frame.header.pages * PAGE_BYTES - HEADER_BYTES) // 8
    _make_room(files, descriptor.growth)
    for run in descriptor.runs:
        if not (_is_fill(files, run) or (run.kind == RunKind.REDO and run.first_word + run.words <= words_max)):
            raise _corrupt(files, frame, f"it has a run that cannot be: {run}")
    if not files.holds_tail(descriptor.tail_segment, descriptor.tail_bytes):
        raise _corrupt(files, frame, "the heap tail lies outside the heap")


def _make_room(files: StoreFiles, growth: Growth) -> None:
    """Have an index in memory as a frame wants it, if there is the memory."""
    index = files.indexes.get(growth.table_id)
    if index and growth.blocks == index.blocks and index.slots_mapped == index.slots:
        require_memory(index.region.bytes)
    make_room(files, growth)


def _is_fill(files: StoreFiles, run: LogRun) -> bool:
    """Whether a run empties blocks, and the index has them; that of a dropped table is not looked at."""
    index = files.indexes.get(run.table_id)
    blocks_max = index.region.bytes // BLOCK_BYTES if index else run.first_word + run.count
    return run.kind == RunKind.FILL and run.first_word + run.count <= blocks_max


def _corrupt(files: StoreFiles, frame: _Found, text: str) -> CorruptStoreError:
    assert files.data
    offset = Ring.of(files.root).page_offset(frame.position)
    return CorruptStoreError("journal", f"frame {frame.header.epoch}: {text}", path=files.data.path, offset=offset)


def _runs(files: StoreFiles, frame: _Found) -> Iterator[LogRun]:
    """Return the runs of tables that are there: others were dropped after the batch."""
    known = {(table.id, table.generation): table for table in files.catalog.tables}
    for run in frame.header.descriptor.runs:
        table = known.get((run.table_id, run.generation))
        if table is not None and table.slot_layout.entry_bytes == run.entry_bytes:
            yield run
        elif table is not None or run.table_id >= files.catalog.next_table_id:
            raise _corrupt(files, frame, f"it has a run that cannot be: {run}")


def _verify_entries(files: StoreFiles, backend: Backend, frame: _Found) -> bool:
    """Whether all entries of a frame are as they were written; a torn frame is not."""
    total = 0
    for run in frame.header.descriptor.runs:
        if run.kind == RunKind.FILL:
            continue
        layout = next((name for name, layout in LAYOUTS.items() if layout.entry_bytes == run.entry_bytes), None)
        if layout is None:
            raise _corrupt(files, frame, f"it has a run that cannot be: {run}")
        digest, wrong = np.empty(run.count, np.uint64), np.empty(run.count, np.uint8)
        index = files.indexes.get(run.table_id)
        slots = index.slots_mapped if index else NO_SLOT
        backend.launch(
            f"verify_log_{layout}",
            run.count,
            log=frame.run_address(run),
            epoch=frame.header.epoch,
            slots=slots,
            digest=digest,
            wrong=wrong,
        )
        if wrong.any():
            return False
        total += int(digest.sum(dtype=np.uint64))
    return total % (1 << 64) == frame.header.descriptor.log_digest


def _verify_records(files: StoreFiles, backend: Backend, frame: _Found) -> bool:
    """Whether the records of a batch are on the device as they were written."""
    assert files.data
    total = 0
    runs = [run for run in _runs(files, frame) if _has_records(run)]
    if len(runs) < sum(_has_records(run) for run in frame.header.descriptor.runs):
        return True  # a table was dropped since, durably: so the batch was durable too
    for run in runs:
        for first, last in _record_ranges(files, frame, run):
            digest, wrong = np.empty(run.count, np.uint64), np.empty(run.count, np.uint8)
            # The page cache may show what the device never got.
            memory = map_memory(last - first)
            files.data.read_pages(memory, files.root.journal_bytes + first)
            backend.launch(
                "verify_records",
                run.count,
                log=frame.run_address(run),
                first_sequence=frame.header.descriptor.first_sequence,
                is_move=int(_is_move(frame)),
                heap=int(memory.ctypes.data) - first,
                record_format=files.root.store_format,
                **blob_file(files),
                first_byte=first,
                end_byte=last,
                digest=digest,
                wrong=wrong,
            )
            if wrong.any():
                return False
            total += int(digest.sum(dtype=np.uint64))
    return total % (1 << 64) == frame.header.records_digest


def _has_records(run: LogRun) -> bool:
    """Whether a run's entries may name records."""
    return run.kind == RunKind.REDO and run.entry_bytes == BYTES_LAYOUT.entry_bytes


def _entries(frame: _Found, run: LogRun) -> NDArray[np.uint64]:
    """Return the entries of a run, one a row."""
    at = HEADER_BYTES + 8 * run.first_word
    words = run.entry_bytes // 8
    stripes = frame.pages[at : at + 8 * run.words].view(np.uint64).reshape(-1, words, STRIPE_ENTRIES)
    return stripes.transpose(0, 2, 1).reshape(-1, words)[: run.count]


def _is_move(frame: _Found) -> bool:
    """Whether a batch moved records, one for each entry: it gave no versions, and moved no blocks."""
    descriptor = frame.header.descriptor
    has_fill = any(run.kind == RunKind.FILL for run in descriptor.runs)
    return descriptor.first_sequence == descriptor.next_sequence and not has_fill


def _record_ranges(files: StoreFiles, frame: _Found, run: LogRun) -> Iterator[tuple[int, int]]:
    """Return where the records of a batch lie: in each segment of the heap the first byte and the end, whole pages.

    A long record goes on behind the segment that it begins in. No other record of the batch lies there.
    """
    entries = _entries(frame, run)
    versions = entries[:, _META_WORD] & np.uint64(VERSION_MAX)
    is_written = (versions >= np.uint64(frame.header.descriptor.first_sequence)) | _is_move(frame)
    references = entries[is_written][:, _REFERENCE_WORD]
    offsets = reference_offset(references)
    segments = offsets // np.uint64(files.segment_units)
    for segment in np.unique(segments).tolist():
        here = references[segments == segment]
        starts, ends = reference_offset(here), reference_offset(here) + reference_length(here)
        first = int(starts.min()) * UNIT_BYTES // PAGE_BYTES * PAGE_BYTES
        last = min(-(-int(ends.max()) * UNIT_BYTES // PAGE_BYTES) * PAGE_BYTES, files.heap.bytes)
        if first >= last:
            raise _corrupt(files, frame, "a record lies outside the heap")
        yield first, last


def _replay_frame(files: StoreFiles, backend: Backend, frame: _Found, entries: int) -> tuple[Written, int]:
    """Store the slots of a frame to the images; return its batch, and how many entries there were so far."""
    for run in _runs(files, frame):
        index = files.indexes[run.table_id]
        assert isinstance(index.region, Image)
        if run.kind == RunKind.FILL:
            fill_blocks(backend, index, run.first_word, run.count, frame.header.epoch)
            continue
        backend.launch(
            f"replay_{index.layout.name}",
            run.count,
            log=frame.run_address(run),
            epoch=frame.header.epoch,
            index=index,
            marks=index.region.marks,
        )
        entries += run.count
    failpoint.hit("mid_replay")
    return frame.written, entries


def _require_unseen(files: StoreFiles, cut: _Found, last: Written) -> None:
    """Raise `CorruptStoreError` if an index shows a batch that is to be cut: then it was durable (W2)."""
    if _is_in_files(files, last.descriptor.next_sequence) or _is_in_images(files, cut):
        raise _corrupt(
            files, cut, "its records are damaged, and the index shows it. Restore the directory from a backup"
        )


def _is_in_files(files: StoreFiles, next_sequence: int) -> bool:
    """Whether a file has a version that a cut batch gave; in the image, the replay may have stored over it."""
    for index in files.indexes.values():
        if index.has_records:
            assert isinstance(index.region, Image)
            for part in index.region.read_parts():
                if int(slot_versions(part.view(np.uint64)).max()) >= next_sequence:
                    return True
    return False


def _is_in_images(files: StoreFiles, cut: _Found) -> bool:
    """Whether an image has a slot as only the batch leaves it: also one that it emptied, which has no version."""
    for run in _runs(files, cut):
        index = files.indexes[run.table_id]
        if index.has_records and run.kind == RunKind.REDO:
            entries = _entries(cut, run)
            slots = index.region.words(0, index.slots_mapped * 4).reshape(-1, 4)[entries[:, _SLOT_WORD]]
            if (slots == entries[:, _CONTENTS_WORD:]).all(axis=1).any():
                return True
    return False


def _require_all(files: StoreFiles, reader: _Reader, last: Written) -> None:
    """Raise `CorruptStoreError` if the journal once had more than there is now."""
    assert files.data
    recovered = files.root.checkpoint.recovered_epoch
    offset = reader.ring.page_offset(last.position)
    if last.epoch < recovered:
        raise CorruptStoreError(
            "journal",
            f"the frame after that of epoch {last.epoch} is damaged, and epoch {recovered} was there when the store "
            "was last opened. Nothing was changed; restore the directory from a backup",
            path=files.data.path,
            offset=offset,
        )
    if later := reader.later_frame(last):
        raise CorruptStoreError(
            "journal",
            f"the frame after that of epoch {last.epoch} is damaged: that of epoch {later.epoch} says that it was "
            "durable. Nothing was changed; restore the directory from a backup",
            path=files.data.path,
            offset=offset,
        )
