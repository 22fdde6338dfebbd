"""Checks and reads an export."""

from __future__ import annotations

import zlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import msgpack

from gpkvs.export.file_format import END_BYTES, FORMAT, End, ExportError, Header
from gpkvs.media.layout import LONGEST_RECORD_UNITS, UNIT_BYTES

CHUNK_BYTES = 1 << 20
_HEADER_BYTES_MAX = LONGEST_RECORD_UNITS * UNIT_BYTES
_NO_HEADER = "it is no export of gpkvs: it does not begin with a header"
_OBJECT_BYTES_MAX = (1 << 31) - 1

Record = tuple[Any, Any, int]
"""Key, value, and when it expires: milliseconds since 1970, 0 never."""


def read_chunks(file: Path, length: int) -> Iterator[bytes]:
    """Yield the first `length` bytes of a file, or fewer if it is shorter."""
    with file.open("rb") as opened:
        while length and (chunk := opened.read(min(CHUNK_BYTES, length))):
            length -= len(chunk)
            yield chunk


def read_head(file: Path) -> tuple[Header, int]:
    """Return the header of a file, finished or not, and how many bytes it takes.

    Raises
    ------
    ExportError
        If it has none.
    """
    unpacker = msgpack.Unpacker(max_buffer_size=_HEADER_BYTES_MAX + CHUNK_BYTES)
    for chunk in read_chunks(file, _HEADER_BYTES_MAX):
        unpacker.feed(chunk)
        try:
            return Header.decode(unpacker.unpack()), unpacker.tell()
        except msgpack.OutOfData:
            continue  # a prefix may be as long as a key
        except (msgpack.UnpackException, ValueError) as error:
            raise ExportError(_NO_HEADER) from error
    raise ExportError(_NO_HEADER)


def read_end(file: Path) -> End:
    """Return the end of a file.

    Raises
    ------
    ExportError
        If it has none.
    """
    with file.open("rb") as opened:
        opened.seek(max(file.stat().st_size - END_BYTES, 0))
        end = End.decode(opened.read())
    if end is None:
        raise ExportError("it has no end: it was cut, or is no finished export")
    return end


class ExportReader:
    """An export that is whole: that is checked before anything of it is used.

    Parameters
    ----------
    file
        The export.
    on_progress
        Told how many bytes more of the file were checked.

    Raises
    ------
    ExportError
        If it is cut, damaged, or no export.
    """

    def __init__(self, file: Path, on_progress: Callable[[int], None] = lambda _bytes: None) -> None:
        self.file = file
        self._on_progress = on_progress
        try:
            self.header, _ = read_head(file)
            if self.header.format != FORMAT:
                raise ExportError("it is a part of an export to Parquet: the same gpkvs export ends it with --resume")
            self._length = file.stat().st_size - END_BYTES
            self.end = read_end(file)
            self._check()
        except ExportError as error:
            raise ExportError(f"{file}: {error}") from error
        except OSError as error:
            raise ExportError(f"{file}: {error.strerror}") from error

    def _check(self) -> None:
        crc32 = 0
        for chunk in read_chunks(self.file, self._length):
            crc32 = zlib.crc32(chunk, crc32)
            self._on_progress(len(chunk))
        self._crc32 = crc32
        with self.file.open("rb") as opened:
            opened.seek(self._length)
            if opened.read() != self.end.encode(crc32):
                raise ExportError("it is damaged: its checksum does not fit")

    def chunks(self) -> Iterator[list[Record]]:
        """Yield the records, some at a time.

        Raises
        ------
        ExportError
            If the file was changed after it was checked, or whoever made it did not keep to the format.
        """
        unpacker = msgpack.Unpacker(use_list=False, max_buffer_size=_OBJECT_BYTES_MAX)
        records, crc32, is_first = 0, 0, True
        try:
            for chunk in read_chunks(self.file, self._length):
                crc32 = zlib.crc32(chunk, crc32)
                unpacker.feed(chunk)
                found = list(unpacker)
                if is_first and found:
                    del found[0]  # the header
                    is_first = False
                self._require_records(found)
                records += len(found)
                yield found
        except (msgpack.UnpackException, ValueError) as error:
            raise ExportError(f"{self.file}: it is no export of gpkvs: {error}") from error
        if (records, crc32, unpacker.tell()) != (self.end.records, self._crc32, self._length):
            raise ExportError(
                f"{self.file}: {records:,} records were read, its end says {self.end.records:,}: it was changed "
                "meanwhile, or is no export"
            )

    def _require_records(self, found: list[Any]) -> None:
        """Check what the checksum cannot: that whoever made the file kept to the format."""
        is_u64, rows = self.header.is_u64, self.header.rows
        key_kind, value_kind = int if is_u64 or rows else bytes, int if is_u64 else bytes
        fits = (
            {type(record) for record in found} <= {tuple}
            and set(map(len, found)) <= {3}
            and {type(record[0]) for record in found} <= {key_kind}
            and {type(record[1]) for record in found} <= {value_kind}
            and {type(record[2]) for record in found} <= {int}
        )
        if fits and rows:
            fits = {len(record[1]) for record in found} <= {rows.row_bytes}
        if fits and found:
            numbers = (0, 1, 2) if is_u64 else (0, 2) if rows else (2,)
            fits = all(min(record[at] for record in found) >= 0 for at in numbers)
        if not fits:
            raise ExportError(f"{self.file}: an object in it is no record of the layout {self.header.layout}")
