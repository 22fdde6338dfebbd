"""The file of an export: msgpack objects, one after the other.

    header    a map: what the file is, its version, the table's name and layout, the prefix
    records   an array each: key, value, and when it expires in milliseconds since 1970 (0: never)
    end       a map of `_END_BYTES` bytes: how many records, and the CRC-32 of all bytes before it and of that count

In a table of the layout ``u64`` keys and values are numbers, else they are bytes. A file without its end was cut.

A file is written as ``FILE.part``, and gets its name when it is whole and durable. ``FILE.part.state`` says how far the
part is durable, and with which cursor the scan goes on there.
"""

from __future__ import annotations

import fcntl
import json
import os
import zlib
from collections.abc import Iterator
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any, BinaryIO

import msgpack
import numpy as np

from gpkvs.errors import GpkvsError
from gpkvs.native import library
from gpkvs.scan import ScanPiece

FORMAT, VERSION = "gpkvs-export", 1


_PACKED_BYTES_MAX = 20  # `PACKED_BYTES_MAX` in kernels/pack.hpp
_END_DATA_BYTES = 12
_END_BYTES = len(msgpack.packb({"end": bytes(_END_DATA_BYTES)}))
_READ_BYTES = 4 << 20


class ExportFileError(GpkvsError):
    """A file is no whole export, or cannot be written."""


@dataclass(frozen=True)
class Header:
    """What an export holds."""

    table: str
    layout: str
    prefix: str = ""  # in hexadecimal digits

    def pack(self) -> bytes:
        """Return the first object of the file."""
        packed: bytes = msgpack.packb({"format": FORMAT, "version": VERSION, **asdict(self)})
        return packed


@dataclass
class State:
    """How far a part is durable.

    Attributes
    ----------
    size, crc
        Bytes of the part, and their CRC-32.
    records, damaged
        In these bytes, and left out of them.
    cursor
        Of the scan, in hexadecimal digits: what comes next. None: nothing does.
    """

    size: int = 0
    crc: int = 0
    records: int = 0
    damaged: int = 0
    cursor: str | None = ""


def pack_piece(piece: ScanPiece, layout: str) -> bytes | memoryview:
    """Return the records of a piece as they stand in the file."""
    return _pack_numbers(piece) if layout == "u64" else _pack_records(piece)


def _pack_numbers(piece: ScanPiece) -> bytes:
    rows = np.empty((len(piece), 20), np.uint8)
    rows[:, 0], rows[:, 1], rows[:, 10], rows[:, 19] = 0x93, 0xCF, 0xCF, 0
    for first, column in ((2, piece.keys), (11, piece.values)):
        rows[:, first : first + 8] = column.view(np.uint64).astype(">u8").view(np.uint8).reshape(-1, 8)
    return rows.tobytes()


def _pack_records(piece: ScanPiece) -> memoryview:
    out = np.empty(len(piece.keys) + len(piece.values) + _PACKED_BYTES_MAX * len(piece), np.uint8)
    columns = [
        np.ascontiguousarray(column)
        for column in (piece.keys, piece.key_lengths, piece.values, piece.value_lengths, piece.expiries)
    ]
    addresses = [column.ctypes.data if len(column) else None for column in columns]
    size = library.gpkvs_pack_records(*addresses, len(piece), out.ctypes.data)
    assert size <= len(out)
    return out[:size].data


class ExportWriter:
    """Writes an export, from where an interrupted one has ended.

    Parameters
    ----------
    path
        Of the whole file.
    header
        What it holds; an interrupted one must hold the same.

    Raises
    ------
    ExportFileError
        If the file is there already, its directory is not, or what an interrupted export left is of another one.
    """

    def __init__(self, path: Path, header: Header) -> None:
        self.path = path
        self.part = path.with_name(path.name + ".part")
        self._state_path = path.with_name(path.name + ".part.state")
        self._header = header
        if path.exists():
            raise ExportFileError(f"{path} is there already: name another file, or remove it")
        try:
            self._file: BinaryIO = self.part.open("a+b")  # neither made anew nor cut before it is locked
            fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            self.state = self._state_left()
            self.is_resumed = bool(self.state.size)
            self._file.truncate(self.state.size)
        except BlockingIOError as error:
            raise ExportFileError(f"another export writes {self.part}") from error
        except OSError as error:
            raise ExportFileError(f"cannot write {self.part}: {error.strerror}") from error
        if not self.is_resumed:
            self._write(header.pack())

    def _state_left(self) -> State:
        """Return how far an interrupted export came."""
        if not self._state_path.exists():
            return State()
        anew = f"remove {self.part} and {self._state_path} to begin anew"
        try:
            left = json.loads(self._state_path.read_text())
            header = Header(**left.pop("header"))
            state = State(**left)
        except (ValueError, TypeError, AttributeError, KeyError) as error:
            raise ExportFileError(f"{self._state_path} is not readable: {anew}") from error
        if header != self._header:
            raise ExportFileError(
                f"{self.part} was begun for table {header.table!r}, prefix {bytes.fromhex(header.prefix)!r}: {anew}"
            )
        if state.cursor is None or self.part.stat().st_size < state.size:
            raise ExportFileError(f"{self.part} is shorter than {self._state_path} says: {anew}")
        return state

    def _write(self, data: bytes | memoryview) -> None:
        self._file.write(data)
        self.state.crc = zlib.crc32(data, self.state.crc)
        self.state.size += len(data)

    def write(self, piece: ScanPiece) -> None:
        """Add the records of a piece."""
        self._write(pack_piece(piece, self._header.layout))
        self.state.records += len(piece)
        self.state.damaged += piece.damaged
        self.state.cursor = piece.cursor.hex() or None

    def keep(self) -> None:
        """Make durable what was written, and note that an interrupted export goes on there."""
        self._file.flush()
        os.fsync(self._file.fileno())
        text = json.dumps({"header": asdict(self._header), **asdict(self.state)})
        temporary = self._state_path.with_name(self._state_path.name + ".tmp")
        with temporary.open("w") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(self._state_path)

    def finish(self) -> None:
        """Write the end, durably, and give the file its name."""
        self._file.write(pack_end(self.state.records, self.state.crc))
        self._file.flush()
        os.fsync(self._file.fileno())
        self._file.close()
        self.part.rename(self.path)
        directory = os.open(self.path.parent, os.O_RDONLY)
        try:
            os.fsync(directory)
        finally:
            os.close(directory)
        self._state_path.unlink(missing_ok=True)

    def close(self) -> None:
        """Close the part; what `keep` noted stays."""
        self._file.close()


def pack_end(records: int, crc: int) -> bytes:
    """Return the last object of a file; `crc` is that of all before it."""
    count = records.to_bytes(8, "little")
    packed: bytes = msgpack.packb({"end": count + zlib.crc32(count, crc).to_bytes(4, "little")})
    assert len(packed) == _END_BYTES
    return packed


class ExportReader:
    """Reads a whole export.

    Parameters
    ----------
    path
        The file; all of it is read and checked first.

    Attributes
    ----------
    header
        What it holds.
    records
        How many.

    Raises
    ------
    ExportFileError
        If it is no export, or not whole.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        try:
            with path.open("rb") as file:
                self.records = self._check(file)
                file.seek(0)
                unpacker = msgpack.Unpacker(file, raw=False)
                self.header = self._header(next(unpacker, None))
        except OSError as error:
            raise ExportFileError(f"cannot read {path}: {error.strerror}") from error
        except (ValueError, msgpack.UnpackException) as error:
            raise self._no_export() from error

    def _no_export(self) -> ExportFileError:
        return ExportFileError(f"{self.path} is no file of gpkvs export")

    def _header(self, first: Any) -> Header:
        if not isinstance(first, dict) or first.get("format") != FORMAT:
            raise self._no_export()
        if first.get("version") != VERSION:
            raise ExportFileError(f"{self.path} has version {first.get('version')!r}, this gpkvs reads {VERSION}")
        try:
            return Header(**{field.name: first[field.name] for field in fields(Header)})
        except KeyError as error:
            raise self._no_export() from error

    def _check(self, file: BinaryIO) -> int:
        """Check the end and the CRC of all before it; return how many records there are."""
        size = os.fstat(file.fileno()).st_size
        left, crc = size - _END_BYTES, 0
        begins_right = file.read(64).find(FORMAT.encode()) > 0
        if not begins_right:
            raise self._no_export()
        file.seek(0)
        while left > 0:
            data = file.read(min(left, _READ_BYTES))
            crc = zlib.crc32(data, crc)
            left -= len(data)
        end = file.read(_END_BYTES)
        records = int.from_bytes(end[-_END_DATA_BYTES:-4], "little")
        if left < 0 or end != pack_end(records, crc):
            raise ExportFileError(
                f"{self.path} was cut, or is damaged: nothing is imported of it. Export it again; an export that was "
                "interrupted goes on when it is called again"
            )
        return records

    def batches(self, records_max: int, bytes_max: int) -> Iterator[list[tuple[Any, Any, int]]]:
        """Return the records, some at a time."""
        with self.path.open("rb") as file:
            unpacker = msgpack.Unpacker(file, raw=False, read_size=_READ_BYTES, max_buffer_size=0)
            next(unpacker)
            batch: list[tuple[Any, Any, int]] = []
            size = 0
            for _ in range(self.records):
                key, value, expiry = next(unpacker)
                batch.append((key, value, expiry))
                size += 16 if isinstance(key, int) else len(key) + len(value)
                if len(batch) == records_max or size >= bytes_max:
                    yield batch
                    batch, size = [], 0
            if batch:
                yield batch


def columns_of(batch: list[tuple[Any, Any, int]], layout: str) -> tuple[list[bytes], list[bytes], list[int]]:
    """Return the keys, values and expiries of records, numbers as bytes."""
    if layout == "u64":
        keys, values = ([record[n].to_bytes(8, "little") for record in batch] for n in range(2))
        return keys, values, [0] * len(batch)
    return [key for key, _, _ in batch], [value for _, value, _ in batch], [expiry for _, _, expiry in batch]
