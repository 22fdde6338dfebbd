"""A segment: a file with what changed behind a position, in order.

    SERIAL-TIMELINE-NUMBER.changes
        header      format, serial, the position behind which it begins, whether it goes on from the segment before,
                    when it was begun (by the archiver's clock), what is archived
        entries     as in a backup's file of changes (`gpkvs.backup.spill`)
        end         entries, number and time of the last whole one, where this frame begins, checksum of the last entry

All are frames (`gpkvs.backup.frames`); the first entry goes on from the header, and the end stands for itself. A
segment with an end is sealed: all of it must be right. One without was not finished: it is read as far as its frames
are whole. The serial numbers of an archive go up by one; the position in the name is that of the header.

A segment ends behind a whole entry: parts behind the last whole one are told again in the next segment.
"""

from __future__ import annotations

import os
import re
import struct
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO, NamedTuple, Self

from gpkvs.backup.frames import HEAD, damaged, pack_frame, read_frame
from gpkvs.backup.spill import ENTRY_MAGIC, pack_entries, unpack_entry
from gpkvs.changes import Changes, Position
from gpkvs.errors import StoreError
from gpkvs.media.directory import sync_path

SUFFIX = ".changes"
_NAME = re.compile(r"(\d{8,})-([0-9a-f]{16}-\d{1,19})\.changes")
_VERSION = 1
_HEADER_MAGIC, _END_MAGIC = b"GPKVSSEG", b"GPKVSEND"
# version, flags, serial, timeline, number, time, bytes of the source's name; the name follows.
_HEADER = struct.Struct("<IIQQQQQ")
_GOES_ON = 1
_END = struct.Struct("<QQQQQ")
_END_BYTES = HEAD.size + _END.size


@dataclass(frozen=True)
class Header:
    """How a segment begins.

    Parameters
    ----------
    serial
        Of the segments of an archive it is this one.
    first
        The position behind which it begins.
    goes_on
        Whether the segment before it ends there. Else the archive began anew.
    time_ms
        When it was begun, by the clock of the archiver.
    source
        What is archived, for people.
    """

    serial: int
    first: Position
    goes_on: bool
    time_ms: int
    source: str

    @property
    def name(self) -> str:
        """Of the file."""
        return f"{self.serial:08}-{self.first}{SUFFIX}"

    def pack(self) -> tuple[bytes, int]:
        """Return the frame, and its checksum."""
        source = self.source.encode()
        numbers = (_VERSION, _GOES_ON * self.goes_on, self.serial, self.first.timeline, self.first.number, self.time_ms)
        return pack_frame(_HEADER_MAGIC, 0, _HEADER.pack(*numbers, len(source)) + source)


@dataclass(frozen=True)
class Segment:
    """A file of an archive.

    Parameters
    ----------
    path
        Of the file.
    header
        How it begins.
    last
        Number of its last whole entry, or that of the position at which it begins.
    time_ms
        Of that entry; 0: it has none.
    bytes_whole
        Of the file, up to there.
    is_sealed
        Whether it has an end.
    """

    path: Path
    header: Header
    last: int
    time_ms: int
    bytes_whole: int
    is_sealed: bool

    @property
    def end(self) -> Position:
        """Behind its last entry."""
        return Position(self.header.first.timeline, self.last)

    def entries(self) -> Iterator[Changes]:
        """Yield its entries, whole transactions only.

        Raises
        ------
        StoreError
            If it is not what was written.
        """
        number = self.header.first.number
        for entry, _ in _read_entries(self.path):
            if entry.number > self.last and not self.is_sealed:
                return
            number = entry.number
            yield entry
        if number != self.last:
            raise damaged(self.path, self.bytes_whole)


def segment_paths(folder: Path) -> list[Path]:
    """Return the files of an archive that are named like segments, in the order in which they were begun."""
    return sorted(path for path in folder.iterdir() if _NAME.fullmatch(path.name))


def serial_of(path: Path) -> int:
    """Return which of the segments of an archive a file is, by its name."""
    return int(path.name.partition("-")[0])


def read_segment(path: Path) -> Segment:
    """Return what a segment holds: by its end if it is sealed, else by reading all of it.

    Raises
    ------
    StoreError
        If it is none, or its header or its end is damaged.
    OSError
        If the operating system refuses.
    """
    with path.open("rb") as file:
        header, _, at = _read_header(file, path)
        end = _read_end(file, path)
    if end:
        _, last, time_ms, bytes_whole, _ = end
        return Segment(path, header, last, time_ms, bytes_whole, is_sealed=True)
    last, time_ms = header.first.number, 0
    try:
        for entry, end_at in _read_entries(path):
            if entry.is_whole:
                last, time_ms, at = entry.number, entry.time_ms, end_at
    except StoreError:
        pass  # it ends before, and `bytes_whole` says so
    return Segment(path, header, last, time_ms, at, is_sealed=False)


def _read_header(file: BinaryIO, path: Path) -> tuple[Header, int, int]:
    """Return the header, its checksum, and where the first entry begins."""
    magic, body, crc = read_frame(file, path, 0, 0)
    if magic != _HEADER_MAGIC or len(body) < _HEADER.size:
        raise damaged(path, 0)
    version, flags, serial, timeline, number, time_ms, length = _HEADER.unpack_from(body)
    if version != _VERSION:
        raise StoreError(f"{path} is of version {version} of segments: take the gpkvs that made it")
    source = body[_HEADER.size : _HEADER.size + length].decode()
    header = Header(serial, Position(timeline, number), bool(flags & _GOES_ON), time_ms, source)
    if header.name != path.name:
        raise StoreError(f"{path} at byte 0: it is the segment {header.name}: give it its name again")
    return header, crc, HEAD.size + len(body)


def _read_end(file: BinaryIO, path: Path) -> tuple[int, int, int, int, int] | None:
    """Return the numbers of the end, None if there is no end."""
    at = os.fstat(file.fileno()).st_size - _END_BYTES
    if at < 0:
        return None
    file.seek(at)
    try:
        magic, body, _ = read_frame(file, path, at, 0)
    except StoreError:
        return None
    if magic != _END_MAGIC or len(body) != _END.size:
        return None
    found = _END.unpack(body)
    if found[3] != at:
        raise damaged(path, at)
    return found


def _read_entries(path: Path) -> Iterator[tuple[Changes, int]]:
    """Yield entries, and where each ends.

    Raises
    ------
    StoreError
        If something is damaged, or what a sealed segment should have is missing.
    """
    with path.open("rb") as file:
        header, crc, at = _read_header(file, path)
        end = _read_end(file, path)
        size = os.fstat(file.fileno()).st_size if end is None else end[3]
        file.seek(at)
        number, was_whole, count = header.first.number, True, 0
        while at < size:
            frame = read_frame(file, path, at, crc)
            if frame.magic != ENTRY_MAGIC:
                raise damaged(path, at)
            entry = unpack_entry(frame.body)
            if entry.number < number or (was_whole and entry.number == number):
                raise damaged(path, at)
            number, was_whole, crc, count = entry.number, entry.is_whole, frame.crc, count + 1
            at += HEAD.size + len(frame.body)
            yield entry, at
        if end and (count, number, crc) != (end[0], end[1], end[4]):
            raise damaged(path, at)


class Synced(NamedTuple):
    """How far an archive is durable.

    Attributes
    ----------
    position
        Behind a whole entry.
    time_ms
        Of that entry; 0: there is none in this segment.
    """

    position: Position
    time_ms: int


class _State(NamedTuple):
    """How far a segment goes, behind a whole entry."""

    size: int
    crc: int
    entries: int
    last: int
    time_ms: int


class SegmentWriter:
    """Appends entries to a new segment.

    Parameters
    ----------
    folder
        Of the archive.
    header
        How it begins.

    Attributes
    ----------
    last
        Number of the last whole entry that is in it.
    size
        Of the file, in bytes.

    Raises
    ------
    OSError
        If the operating system refuses, as in all methods. Then the file ends behind a whole entry: `last`.
    """

    def __init__(self, folder: Path, header: Header) -> None:
        self.header = header
        self.path = folder / header.name
        self.last = header.first.number
        self._entries = 0
        frame, self._crc = header.pack()
        self.size = 0
        self._descriptor = os.open(self.path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        try:
            self._write(frame)
            self._whole = self._durable = self._state(0)
            self.sync()
            sync_path(folder)
        except BaseException:
            os.close(self._descriptor)
            self.path.unlink()
            raise

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.close()

    @property
    def has_entries(self) -> bool:
        """Whether anything is in it."""
        return self.last > self.header.first.number

    @property
    def is_whole(self) -> bool:
        """Whether it ends behind a whole entry."""
        return self._whole.size == self.size

    @property
    def end(self) -> Position:
        """Behind its last whole entry."""
        return Position(self.header.first.timeline, self.last)

    @property
    def synced(self) -> Synced:
        """How far it is durable."""
        return Synced(Position(self.header.first.timeline, self._durable.last), self._durable.time_ms)

    def append(self, entries: Sequence[Changes]) -> None:
        """Write entries behind those before."""
        whole = next((at for at in range(len(entries), 0, -1) if entries[at - 1].is_whole), 0)
        if whole:
            self._add(entries[:whole])
            self.last = entries[whole - 1].number
            self._whole = self._state(entries[whole - 1].time_ms)
        if whole < len(entries):
            self._add(entries[whole:])

    def _add(self, entries: Sequence[Changes]) -> None:
        frames, crc = pack_entries(entries, self._crc)
        self._write(frames)
        self._crc = crc
        self._entries += len(entries)

    def sync(self) -> None:
        """Make durable what is in it."""
        state = self._whole
        try:
            os.fdatasync(self._descriptor)
        except OSError:
            self._take_back(self._durable)
            raise
        self._durable = state

    def seal(self) -> None:
        """End it behind its last whole entry, durably."""
        self._take_back(self._whole)
        state = self._whole
        numbers = (state.entries, state.last, state.time_ms, state.size, state.crc)
        frame, _ = pack_frame(_END_MAGIC, 0, _END.pack(*numbers))
        self._write(frame)
        self.sync()

    def close(self) -> None:
        """Let go of the file."""
        os.close(self._descriptor)

    def _write(self, data: bytes) -> None:
        remaining, at = memoryview(data), self.size
        try:
            while remaining:
                written = os.pwrite(self._descriptor, remaining, at)
                remaining, at = remaining[written:], at + written
        except OSError:
            if self.size:
                self._take_back(self._whole)
            raise
        self.size = at

    def _state(self, time_ms: int) -> _State:
        return _State(self.size, self._crc, self._entries, self.last, time_ms)

    def _take_back(self, state: _State) -> None:
        """Let the file end where it ended once: what is behind that is asked for again."""
        self.size, self._crc, self._entries, self.last, _ = self._whole = state
        os.ftruncate(self._descriptor, self.size)
