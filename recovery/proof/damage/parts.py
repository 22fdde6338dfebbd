"""The parts of a store's files that `gpkvs bitflip` damages, and how often."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from gpkvs.media.directory import BLOBS_FILE, DATA_FILE, HEAP_FILE
from gpkvs.media.files import StoreFiles, open_files
from gpkvs.media.frame import HEADER_BYTES, FrameHeader
from gpkvs.media.journal import Ring
from gpkvs.media.layout import (
    BLOB_CHECKSUM_BYTES,
    BLOB_PIECE_BYTES,
    BLOB_WORDS_BYTES,
    PAGE_BYTES,
    REFERENCE_LENGTH_BITS,
    ROOT_OFFSETS,
    SHORT_RECORD_HEADER_BYTES,
    STRUCTURE_BYTES,
    BadBytesError,
    Descriptor,
    blob_pages,
)

LAST_FRAME = "data: the last frame"
LAST_RECORDS = "data: records of the last frame"
RECORDS = "data: records"
VALUES, CHECKSUMS = "blobs: values", "blobs: checksums"
LAST_BLOBS = "blobs: of the last frame"
_HEAD_BYTES = 48

Range = tuple[int, int]  # the first byte, and how many


@dataclass(frozen=True)
class Part:
    """A part of a file.

    Parameters
    ----------
    name
        As the report has it.
    file
        Its name.
    ranges
        Where it is; empty for the whole file.
    share
        Of the random places.
    """

    name: str
    file: str
    ranges: tuple[Range, ...]
    share: float

    def has(self, file: str, offset: int) -> bool:
        """Whether a byte belongs to it."""
        inside = any(first <= offset < first + count for first, count in self.ranges)
        return file == self.file and (inside or not self.ranges)

    def ranges_in(self, size: int) -> tuple[Range, ...]:
        """Return where it is in a file of so many bytes."""
        return self.ranges or ((0, size),)

    def bytes_in(self, size: int) -> int:
        """Return how many bytes it has."""
        return sum(count for _, count in self.ranges_in(size))


def _whole(file: str, share: float) -> Part:
    return Part(file, file, (), share)


_ALIKE = (_whole("catalog-1.json", 0.05), _whole("LOCK", 0.025), _whole("recovery.json", 0.025))
UNDO_PARTS: tuple[Part, ...] = (
    _whole("heap", 0.35),
    _whole("index-0-0", 0.25),
    _whole("index-1-0", 0.15),
    _whole("log", 0.1),
    _whole("root", 0.05),
    *_ALIKE,
)


def journal_places(path: Path) -> tuple[tuple[tuple[str, int, int], ...], tuple[Part, ...]]:
    """Return structures and parts of a store with a journal: every bit of roots and of the frames' headers."""
    files = open_files(path, None)
    try:
        return _journal_places(files, (path / "data").read_bytes())
    finally:
        files.close()


def _journal_places(files: StoreFiles, data: bytes) -> tuple[tuple[tuple[str, int, int], ...], tuple[Part, ...]]:
    ring, begin = Ring.of(files.root), files.root.journal_bytes
    heap_end = begin + files.root.heap_bytes_own  # the sample's extents of the journal lie behind the heap
    frames = _frames(files, data, ring, 0)
    after = _frames(files, data, ring, files.root.checkpoint.position)
    first_kept = files.root.checkpoint.position
    before = [frame for frame in frames if frame[0] < first_kept]
    uncovered = after[-1:]
    used = sum(header.pages for _, header in frames)
    heads = tuple((ring.head_offset(serial), _HEAD_BYTES) for serial in range(-(-used // ring.segment_pages)))
    parts = [
        Part("data: heads of segments", "data", heads, 0.03),
        Part(LAST_FRAME, "data", _pages(ring, uncovered), 0.1),
        Part("data: frames to replay", "data", _pages(ring, after[:-1]), 0.12),
        Part("data: frames before the checkpoint", "data", _pages(ring, before), 0.05),
        Part("data: free space of the journal", "data", ((0, begin), (heap_end, len(data) - heap_end)), 0.02),
    ]
    end = begin + _tail(files, after[-1][1].descriptor)
    last = begin + _tail(files, after[-2][1].descriptor)
    if end > last:
        parts.append(Part(LAST_RECORDS, "data", ((last, end - last),), 0.08))
    parts += [
        Part(RECORDS, "data", ((begin, last - begin),), 0.18),
        Part("data: free space of the heap", "data", ((end, heap_end - end),), 0.02),
        _whole("index-0-0", 0.2),
        _whole("index-1-0", 0.06),
        _whole("root", 0.04),
        *_ALIKE,
    ]
    roots = [("root", offset, STRUCTURE_BYTES) for offset in ROOT_OFFSETS]
    headers = [("data", ring.page_offset(position), HEADER_BYTES) for position, _ in after]
    return (*roots, *headers), tuple(parts)


def blob_places(
    files: dict[str, bytes], last: list[bytes], others: list[bytes], parts: tuple[Part, ...]
) -> tuple[tuple[tuple[str, int, int], ...], tuple[Part, ...]]:
    """Return structures and parts of a store with blobs: every bit of checksums, and of the records that name blobs.

    Parameters
    ----------
    files
        Of the store.
    last, others
        The values that lie in blobs: those of the last frame that nobody was told of, and all others.
    parts
        Of the other files.
    """
    blobs = files[BLOBS_FILE]
    heap = HEAP_FILE if HEAP_FILE in files else DATA_FILE
    values, checksums, of_last = [], [], []
    structures = []
    for value in (*last, *others):
        first = blobs.index(value)
        end = first + -(-len(value) // 8) * 8
        sums = (end, BLOB_CHECKSUM_BYTES * -(-len(value) // BLOB_PIECE_BYTES))
        if value in last:
            of_last += [(first, end - first), sums]
        else:
            values.append((first, end - first))
            checksums.append(sums)
        reference = first // PAGE_BYTES << REFERENCE_LENGTH_BITS | blob_pages(len(value))
        said = reference.to_bytes(8, "little") + len(value).to_bytes(8, "little")
        said_at = files[heap].rindex(said)  # by the newest record: an older one may have named the same pages
        record = (heap, said_at - SHORT_RECORD_HEADER_BYTES, SHORT_RECORD_HEADER_BYTES + BLOB_WORDS_BYTES)
        structures += [(BLOBS_FILE, *sums), record]
    ours = [
        Part(VALUES, BLOBS_FILE, tuple(values), 0.3),
        Part(CHECKSUMS, BLOBS_FILE, tuple(checksums), 0.1),
        _whole(BLOBS_FILE, 0.1),  # what is free
    ]
    if of_last:
        ours.insert(0, Part(LAST_BLOBS, BLOBS_FILE, tuple(of_last), 0.15))
    return tuple(structures), (*ours, *parts)


def _frames(files: StoreFiles, data: bytes, ring: Ring, position: int) -> list[tuple[int, FrameHeader]]:
    """Return the frames from a page of the journal on, each with its page."""
    found: list[tuple[int, FrameHeader]] = []
    while True:
        at = ring.page_offset(position)
        try:
            header, _ = FrameHeader.unpack(data[at : at + HEADER_BYTES], files.root.hash_keys)
        except BadBytesError:
            return found
        found.append((position, header))
        position += header.pages


def _pages(ring: Ring, frames: list[tuple[int, FrameHeader]]) -> tuple[Range, ...]:
    return tuple(
        (ring.page_offset(position + page), PAGE_BYTES) for position, header in frames for page in range(header.pages)
    )


def _tail(files: StoreFiles, descriptor: Descriptor) -> int:
    """Return where the next record goes, in the heap; the sample fills less than one round of it."""
    return descriptor.tail_segment * files.root.segment_bytes + descriptor.tail_bytes
