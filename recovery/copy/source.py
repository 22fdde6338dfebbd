"""The store that is copied: opened read-only, recovered in memory, its slots read in columns."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from gpkvs.backends.cpu.backend import CpuBackend
from gpkvs.batch import U64
from gpkvs.errors import CorruptStoreError, FormatError, UnsafeStoreError
from gpkvs.media.catalog import TableEntry
from gpkvs.media.chunks import read_chunk
from gpkvs.media.directory import ROOT_FILE
from gpkvs.media.files import StoreFiles, open_files
from gpkvs.media.growth import adopt, make_room
from gpkvs.media.layout import (
    BLOCK_BYTES,
    DRAFTS,
    FINAL_DRAFT,
    KIND_BLOB,
    KIND_EXPIRING,
    KIND_EXPIRING_BLOB,
    KIND_SHIFT,
    LOG_ENTRIES_OFFSET,
    STRIPE_ENTRIES,
    WAYS,
    ChunkMarker,
    Descriptor,
    LogRun,
    Root,
    RunKind,
    State,
)
from gpkvs.media.transaction import find_descriptor, read_flag
from gpkvs.recovery.copy import format1
from gpkvs.recovery.copy.placement import PLACEMENT, Placement, fingerprints_of_numbers, mul_high
from gpkvs.recovery.startup.recover import check_tail, previous_descriptor, verify_log
from gpkvs.recovery.startup.replay import load_images, replay
from gpkvs.text import counted, quoted

_BLOCKS_AT_ONCE = 256
_KINDS = (1, KIND_BLOB)  # a record, one with a blob
_EXPIRING_KINDS = (KIND_EXPIRING, KIND_EXPIRING_BLOB)
_OPEN = partial(Root.unpack, drafts=(*DRAFTS, FINAL_DRAFT))


@dataclass(frozen=True)
class Rows:
    """Slots that hold a key: their words, their numbers in the index, and the fingerprints of their keys."""

    words: U64  # (n, words of a slot)
    slot: U64
    fingerprint0: U64
    fingerprint1: U64

    def __len__(self) -> int:
        return len(self.slot)

    def take(self, which: NDArray[np.bool_] | NDArray[np.int64]) -> Rows:
        """Return some of the rows."""
        return Rows(self.words[which], self.slot[which], self.fingerprint0[which], self.fingerprint1[which])

    @staticmethod
    def join(parts: list[Rows]) -> Rows:
        """Return the rows of all parts."""
        if len(parts) == 1:
            return parts[0]
        return Rows(
            np.concatenate([part.words for part in parts]),
            np.concatenate([part.slot for part in parts]),
            np.concatenate([part.fingerprint0 for part in parts]),
            np.concatenate([part.fingerprint1 for part in parts]),
        )


@dataclass(frozen=True)
class _Undone:
    """Slots that the batch in progress may have changed, ascending, and their words before it."""

    slot: U64
    words: U64


class Source:
    """A store as its last committed batch left it; no byte of its files is changed.

    Parameters
    ----------
    files
        Mapped read-only, the directory locked.
    placement
        Of its format.
    version
        The number of its format.
    backend
        Runs kernels.

    Attributes
    ----------
    current
        The descriptor of the last committed batch.
    recovery
        What was rolled back or replayed in memory, as text.

    Raises
    ------
    UnsafeStoreError
        If it was in use without an undo log, and not closed.
    CorruptStoreError
        If flag, descriptors, an active log or a journal are damaged.
    NoSpaceError
        If it has a journal, and its indexes do not fit the memory.
    """

    def __init__(self, files: StoreFiles, placement: Placement, format_text: str, backend: CpuBackend) -> None:
        self.files = files
        self.format_text = format_text
        self._placement = placement
        self._backend = backend
        self._undone: dict[int, _Undone] = {}
        self.recovery = "no batch was in progress"
        _require_safe(files)
        self.current = self._find_current()

    def _find_current(self) -> Descriptor:
        """Return the descriptor of the last committed batch; of a batch in progress keep what takes it back."""
        files = self.files
        if files.data:
            load_images(files)
            replayed = replay(files, self._backend, lambda step, share: None)  # which adopts the growth
            self.recovery = f"{counted(replayed.frames, 'transaction')} of the journal replayed in memory"
            return replayed.last.descriptor
        state, epoch = read_flag(files)
        descriptor = find_descriptor(files, epoch)
        check_tail(files, descriptor)
        if state is State.IDLE:
            adopt(files, descriptor.growth)
            return descriptor
        before = previous_descriptor(files, epoch)
        check_tail(files, before)
        make_room(files, descriptor.growth)
        adopt(files, before.growth)
        logged = verify_log(files, self._backend, descriptor)
        for run in descriptor.runs:
            self._undone[run.table_id] = _undone(files, run, [part.marker for part in logged if part.run is run])
        undone = counted(sum(part.entries for part in logged), "slot")
        self.recovery = f"a batch was in progress: {undone} taken as before it"
        return before

    def rows(self, entry: TableEntry, first: int, last: int) -> Rows:
        """Return the slots of the blocks `first` to `last - 1` that hold a key, in the order of their blocks.

        Blocks are those of the catalogue. Where the table grows, one that has moved is two of the index.

        Raises
        ------
        CorruptStoreError
            If one has an unknown kind, or lies where its key cannot be.
        """
        unmoved = self.files.indexes[entry.id].unmoved
        ranges = ((first, min(last, unmoved)), (2 * max(first, unmoved), 2 * last if last > unmoved else 0))
        begins = [(begin, end) for begins, end in ranges for begin in range(begins, end, _BLOCKS_AT_ONCE)]
        return Rows.join([self._rows(entry, begin, min(begin + _BLOCKS_AT_ONCE, end)) for begin, end in begins])

    def has_places_of(self, entry: TableEntry) -> bool:
        """Return whether all keys may lie in a table of a new store where they lie in this one."""
        index = self.files.indexes[entry.id]
        is_as_large = self.files.table(entry.id).blocks == entry.blocks and not index.is_growing
        return is_as_large and self._placement is PLACEMENT

    def _rows(self, entry: TableEntry, first: int, last: int) -> Rows:
        words = self._words(entry, first, last)
        live = self._live(entry, words, first, last)
        words = words[live]
        if entry.slot_layout.has_records:
            fingerprint0, fingerprint1 = words[:, 0].copy(), words[:, 1].copy()
        else:
            fingerprint0, fingerprint1 = fingerprints_of_numbers(self._backend, words[:, 0], self.files.root.hash_keys)
        slot = live.astype(np.uint64) + np.uint64(first * entry.slot_layout.block_slots)
        rows = Rows(words, slot, fingerprint0, fingerprint1)
        self._check_buckets(entry, rows)
        return rows

    def _words(self, entry: TableEntry, first: int, last: int) -> U64:
        """Return the words of all slots of some blocks, as the last committed batch left them."""
        region, words = self.files.indexes[entry.id].region, entry.slot_layout.slot_bytes // 8
        region.prefetch(first * BLOCK_BYTES, (last - first) * BLOCK_BYTES)
        slots = region.words(first * BLOCK_BYTES, (last - first) * BLOCK_BYTES // 8).reshape(-1, words)
        undone = self._undone.get(entry.id)
        if undone is None:
            return slots
        first_slot = first * entry.slot_layout.block_slots
        begin, end = np.searchsorted(undone.slot, np.array([first_slot, first_slot + len(slots)], np.uint64)).tolist()
        slots = slots.copy()
        slots[undone.slot[begin:end] - np.uint64(first_slot)] = undone.words[begin:end]
        return slots

    def _live(self, entry: TableEntry, words: U64, first: int, last: int) -> NDArray[np.int64]:
        """Return which slots hold a key, by their places in `words`."""
        if entry.slot_layout.has_records:
            live = np.flatnonzero(words.any(axis=1))
            kinds = _KINDS + (_EXPIRING_KINDS if self.files.root.may_expire else ())
            wrong = live[~np.isin(words[live, 3] >> KIND_SHIFT, kinds)]
        else:
            markers = self._placement.empty_markers(self._backend, self.files.root.hash_keys, entry, first, last)
            is_empty = words[:, 0] == np.repeat(markers, WAYS)
            live = np.flatnonzero(~is_empty)
            wrong = np.flatnonzero(is_empty & (words[:, 1] != 0))
        if len(wrong):
            self.refuse(entry, int(wrong[0]) + first * entry.slot_layout.block_slots, "slot-kind")
        return live

    def _check_buckets(self, entry: TableEntry, rows: Rows) -> None:
        first, second = self._placement.candidates(rows.fingerprint0, rows.fingerprint1, entry)
        block, index = self._placement.block(rows.fingerprint0, entry), self.files.indexes[entry.id]
        if index.is_growing:
            moved = block >= np.uint64(index.unmoved)
            block[moved] = mul_high(rows.fingerprint0[moved], 2 * entry.blocks)
        base = block * np.uint64(entry.slot_layout.block_buckets)
        bucket = rows.slot // np.uint64(WAYS)
        wrong = np.flatnonzero((bucket != base + first) & (bucket != base + second))
        if len(wrong):
            self.refuse(entry, int(rows.slot[wrong[0]]), "slot-bucket")

    def refuse(self, entry: TableEntry, slot: int, invariant: str) -> None:
        """Raise `CorruptStoreError` for a slot."""
        checker = "gpkvs check" if self._placement is PLACEMENT else "gpkvs check, of the gpkvs that wrote it,"
        raise CorruptStoreError(
            invariant,
            f"slot {slot} of table {quoted(entry.name)} or its record is damaged. A damaged store is not copied: "
            f"{checker} names all that is wrong; restore the store from a backup",
            path=self.files.indexes[entry.id].region.path,
            offset=slot * entry.slot_layout.slot_bytes,
        )

    def close(self) -> None:
        """Unmap everything."""
        self.files.close()


def _require_safe(files: StoreFiles) -> None:
    if files.root.is_unsafe:
        raise UnsafeStoreError(
            f"{files.path} was in use with durability=none and was not closed: any batch of that time may be lost or "
            f"there in part. Restore it from a backup, or keep what can be read: run `gpkvs recover --accept-loss "
            f"{files.path}` with the gpkvs that wrote it, then copy it"
        )


def _undone(files: StoreFiles, run: LogRun, markers: list[ChunkMarker | None]) -> _Undone:
    """Return what the verified parts of a run of the undo log say, by slot."""
    if run.kind == RunKind.CHUNKS:
        return _undone_by_chunks(files, run, [marker for marker in markers if marker])
    words, stripes = run.entry_bytes // 8, -(-run.count // STRIPE_ENTRIES)
    striped = files.log.words(LOG_ENTRIES_OFFSET + 8 * run.first_word, run.words)
    entries = striped.reshape(stripes, words, STRIPE_ENTRIES).transpose(0, 2, 1).reshape(-1, words)[: run.count]
    entries = entries[np.argsort(entries[:, 0])]
    return _Undone(entries[:, 0].copy(), entries[:, 2:].copy())


def _undone_by_chunks(files: StoreFiles, run: LogRun, markers: list[ChunkMarker]) -> _Undone:
    layout, index = files.table(run.table_id).slot_layout, files.indexes[run.table_id]
    slots, words = [np.empty(0, np.uint64)], [np.empty((0, layout.slot_bytes // 8), np.uint64)]
    for marker in markers:
        chunk = read_chunk(files, run, marker, layout.key_words)
        kept = np.flatnonzero(~chunk.has_key)
        at = chunk.slot[kept].astype(np.int64)
        now = index.region.words(0, index.region.bytes // 8).reshape(-1, layout.slot_bytes // 8)
        chunk.words[kept, : layout.key_words] = now[at, : layout.key_words]
        slots.append(chunk.slot)
        words.append(chunk.words)
    slot = np.concatenate(slots)
    order = np.argsort(slot)
    return _Undone(slot[order], np.concatenate(words)[order])


@contextmanager
def open_source(path: Path, backend: CpuBackend, *, root_file: str = ROOT_FILE) -> Iterator[Source]:
    """Open the store in a locked directory, of whatever format can be copied.

    Raises
    ------
    FormatError, CorruptStoreError, UnsafeStoreError
        If it cannot be copied; nothing was touched.
    """
    placement = PLACEMENT
    try:
        files = open_files(path, None, root_file=root_file, unpack_root=_OPEN)
        format_text = files.root.format_text
    except FormatError as other:
        try:
            files = open_files(path, None, unpack_root=format1.unpack_root)
        except FormatError:
            raise other from None
        placement, format_text = format1.PLACEMENT, str(format1.VERSION)
    try:
        yield Source(files, placement, format_text, backend)
    finally:
        files.close()
