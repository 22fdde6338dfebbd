"""The part of a state that recovery can read: two states that agree on it count as one.

Three things are left out: the entries of the log while the flag is IDLE, and, while no index changes, the bytes of the
heap to which no slot refers, and the pages of the file of blobs that no record of a slot names. Everything else counts:
it is better to visit a state twice than not at all.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from functools import lru_cache
from hashlib import blake2b

import numpy as np

from gpkvs.media.catalog import Catalog
from gpkvs.media.directory import BLOBS_FILE, HEAP_FILE, LOG_FILE, ROOT_FILE
from gpkvs.media.layout import (
    BYTES_LAYOUT,
    DESCRIPTOR_OFFSETS,
    FLAG_OFFSET,
    KIND_EXPIRING_BLOB,
    KIND_SHIFT,
    LOG_ENTRIES_OFFSET,
    PAGE_BYTES,
    RECORD_HEADER_BYTES,
    SHORT_RECORD_HEADER_BYTES,
    STRUCTURE_BYTES,
    UNIT_BYTES,
    BadBytesError,
    Descriptor,
    State,
    reference_length,
    reference_offset,
    unpack_flag,
)
from gpkvs.media.slot_kinds import names_blob
from gpkvs.native import crc32c
from gpkvs.recovery.proof.powerfail.crash_models import Change, Epoch
from gpkvs.recovery.proof.powerfail.trace import WORD_BYTES, Event, Image, Kind, Words

_FLAG_AT = FLAG_OFFSET // WORD_BYTES
_ENTRIES_AT = LOG_ENTRIES_OFFSET // WORD_BYTES
_KEY_BITS = 128
_NO_WORDS = np.zeros(0, np.uint64)


def canonical_digest(image: Image) -> bytes:
    """Return a digest of the part of a recovered image that can be read.

    All descriptors with a wrong checksum count as equal: `Descriptor.unpack` refuses each of them, and nothing reads a
    descriptor in another way.
    """
    digest = blake2b(digest_size=16)
    idle = _is_idle(image)
    for name in sorted(image.names):
        words = image.files[image.names[name]]
        digest.update(name.encode() + len(words).to_bytes(8, "little"))
        if name == LOG_FILE and idle:
            for offset in DESCRIPTOR_OFFSETS:
                data = words[offset // WORD_BYTES : (offset + STRUCTURE_BYTES) // WORD_BYTES].tobytes()
                digest.update(b"torn" if _is_torn(data) else data)
        elif name == HEAP_FILE and idle:
            for start, end in _live_ranges(image):
                digest.update(words[start:end].data)
        elif len(words):
            digest.update(words.data)
    return digest.digest()


def readable(epoch: Epoch) -> Epoch:
    """Return the epoch without the changes that recovery reads in none of its states."""
    durable = epoch.durable
    changed = [event for unit in epoch.units for step in unit for _, event in step]
    if not _stays_idle(durable, changed):
        return epoch
    log, heap = durable.names[LOG_FILE], durable.names[HEAP_FILE]
    indexes = {number for name, number in durable.names.items() if name.startswith("index-")}
    heap_is_read = any(event.file in indexes for event in changed)
    live = [] if heap_is_read else _live_ranges(durable)
    blobs = durable.names.get(BLOBS_FILE)
    live_blobs = [] if heap_is_read else _blob_ranges(durable)

    def is_read(change: Change) -> bool:
        event = change[1]
        if event.file == log:
            return event.at < _ENTRIES_AT
        if event.file in (heap, blobs) and not heap_is_read:
            ranges = live if event.file == heap else live_blobs
            return any(event.at < end and start < event.at + len(event.words) for start, end in ranges)
        return True

    units = []
    for unit in epoch.units:
        steps = (tuple(change for change in step if is_read(change)) for step in unit)
        left = tuple(step for step in steps if step)
        if left:
            units.append(left)
    return Epoch(epoch.number, durable, tuple(units), epoch.acknowledged, epoch.in_progress)


class StateKeys:
    """Names the states of an epoch: states with the same readable bytes have the same key.

    The key is a sum over the words that differ from an image, with a term for names and sizes. So the work for a state
    depends only on what it changes.

    Parameters
    ----------
    epoch
        An epoch that `readable` returned.
    before
        The image to compare with.
    """

    def __init__(self, epoch: Epoch, before: Image) -> None:
        self._durable, self._before = epoch.durable, before
        self._sums: dict[tuple[str, int], int] = {}
        self._skipped: dict[str, list[tuple[int, int]]] = {}
        changed = [event for unit in epoch.units for step in unit for _, event in step]
        if _stays_idle(epoch.durable, changed):
            self._skip(changed)

    def _skip(self, changed: list[Event]) -> None:
        """Leave out what no state can read."""
        names, files = self._durable.names, self._durable.files
        self._skipped[LOG_FILE] = [(_ENTRIES_AT, len(files[names[LOG_FILE]]))]
        indexes = {number for name, number in names.items() if name.startswith("index-")}
        if not any(event.file in indexes for event in changed):
            self._skipped[HEAP_FILE] = _between(_live_ranges(self._durable), len(files[names[HEAP_FILE]]))
            if BLOBS_FILE in names:
                self._skipped[BLOBS_FILE] = _between(_blob_ranges(self._durable), len(files[names[BLOBS_FILE]]))

    def key(self, changes: Iterable[Event]) -> bytes:
        """Return the key of the state with these changes."""
        names, kept = self._durable.names, {}
        sizes: dict[int, int] = {}
        for event in changes:
            if event.kind is Kind.NAME:
                names = {**names, event.name: event.file} if event.file else _without(names, event.name)
            elif event.kind is Kind.SIZE:
                sizes[event.file] = event.at
            else:
                kept.update({(event.file, at): word for at, word in enumerate(event.words, event.at)})
        total = 0
        for name, file in names.items():
            size = sizes.get(file, self._size(file))
            if size < self._size(file):  # the file was cut off: sum the rest again
                total += self._sum_of(name, self._durable.files[file][:size])
            else:
                total += self._sum(name, file)
            total += _term(name, -1, size)
        by_file = {file: name for name, file in names.items()}
        for (file, at), word in kept.items():
            name = by_file.get(file, "")
            if name and at < sizes.get(file, self._size(file)):
                old = int(self._durable.files[file][at]) if at < self._size(file) else 0
                total += _term(name, at, word) - _term(name, at, old)
        return (total % (1 << _KEY_BITS)).to_bytes(_KEY_BITS // 8, "little")

    def _size(self, file: int) -> int:
        return len(self._durable.files.get(file, ()))

    def _sum(self, name: str, file: int) -> int:
        if (name, file) not in self._sums:
            self._sums[name, file] = self._sum_of(name, self._durable.files.get(file, _NO_WORDS))
        return self._sums[name, file]

    def _sum_of(self, name: str, words: Words) -> int:
        first = self._before.files.get(self._before.names.get(name, 0), _NO_WORDS)
        if len(first) != len(words):
            first = np.zeros(len(words), np.uint64)
        total = 0
        for at in np.flatnonzero(words != first).tolist():
            if not any(start <= at < end for start, end in self._skipped.get(name, ())):
                total += _term(name, at, int(words[at])) - _term(name, at, int(first[at]))
        return total


def _between(ranges: list[tuple[int, int]], size: int) -> list[tuple[int, int]]:
    """Return what of a file lies in none of some ranges."""
    left, end = [], 0
    for start, stop in [*sorted(ranges), (size, size)]:
        left.append((end, start))
        end = max(end, stop)
    return left


def _without(names: dict[str, int], gone: str) -> dict[str, int]:
    return {name: file for name, file in names.items() if name != gone}


@lru_cache(1 << 18)
def _term(name: str, at: int, word: int) -> int:
    data = f"{name} {at} {word}".encode()
    return int.from_bytes(blake2b(data, digest_size=_KEY_BITS // 8).digest(), "little")


def _stays_idle(durable: Image, changed: list[Event]) -> bool:
    """Whether the flag is IDLE in every state, and all files are there in each."""
    if any(event.kind in (Kind.NAME, Kind.SIZE) for event in changed) or not _is_idle(durable):
        return False
    root = durable.names[ROOT_FILE]
    return not any(event.file == root and event.at <= _FLAG_AT < event.at + len(event.words) for event in changed)


def _is_idle(image: Image) -> bool:
    if not {ROOT_FILE, LOG_FILE, HEAP_FILE} <= image.names.keys():
        return False
    words = image.files[image.names[ROOT_FILE]][_FLAG_AT : _FLAG_AT + 1]
    try:
        return unpack_flag(words.tobytes())[0] is State.IDLE
    except BadBytesError:
        return False


def _is_torn(data: bytes) -> bool:
    try:
        Descriptor.unpack(data)
    except BadBytesError:
        return True
    return False


def _live_ranges(image: Image) -> list[tuple[int, int]]:
    """Return the ranges of words in the heap to which slots refer, of all tables in any catalogue."""
    return [_range(reference, UNIT_BYTES) for slots in _slots(image) for reference in np.unique(slots[:, 2]).tolist()]


def _blob_ranges(image: Image) -> list[tuple[int, int]]:
    """Return the ranges of words in the file of blobs that records of slots name."""
    heap = image.files[image.names[HEAP_FILE]]
    ranges = []
    for slots in _slots(image):
        for _, _, reference, meta in slots[names_blob(slots[:, 3])].tolist():
            expires = meta >> KIND_SHIFT == KIND_EXPIRING_BLOB
            header_bytes = RECORD_HEADER_BYTES if expires else SHORT_RECORD_HEADER_BYTES
            at = _range(reference, UNIT_BYTES)[0] + header_bytes // WORD_BYTES
            ranges.append(_range(int(heap[at]), PAGE_BYTES))
    return ranges


def _range(reference: int, unit_bytes: int) -> tuple[int, int]:
    start = reference_offset(reference) * (unit_bytes // WORD_BYTES)
    return start, start + reference_length(reference) * (unit_bytes // WORD_BYTES)


def _slots(image: Image) -> Iterator[Words]:
    """Return the slots that hold a key, of each table of records in any catalogue."""
    for name in _referring(image):
        slots = image.files[image.names[name]].reshape(-1, 4)
        yield slots[slots[:, 3] != 0]


def _referring(image: Image) -> set[str]:
    """Return the indexes of the layout `bytes`."""
    catalogs = (words for name, words in image.items() if name.startswith("catalog-"))
    return set().union(*(_named_by(words.tobytes()) for words in catalogs)) & image.names.keys()


@lru_cache
def _named_by(catalog: bytes) -> frozenset[str]:
    try:
        tables = Catalog.unpack(catalog, crc32c(catalog)).tables
    except (ValueError, KeyError):
        return frozenset()
    return frozenset(table.file_name for table in tables if table.slot_layout is BYTES_LAYOUT)
