"""What is in an export: MessagePack objects, one after the other (docs/export.md).

    header         a map: format, version, table, layout, prefix, gpkvs
    record ...     an array: key, value, and when it expires in milliseconds since 1970 (0: never)
                   bytes: binary, binary; u64: two numbers; rows: a number, and the bytes of the row, little-endian
    end            a map of always the same size: records, damaged, crc32

The last four bytes of the file are the CRC-32 of everything before them: a file that was cut or changed is known by it.
"""

from __future__ import annotations

import struct
import zlib
from dataclasses import asdict, dataclass
from typing import Any

import msgpack
import numpy as np
from numpy.typing import NDArray

from gpkvs.batch import U8
from gpkvs.columns.row_layout import RowLayout, row_layout_of
from gpkvs.errors import GpkvsError
from gpkvs.media.layout import U64_LAYOUT
from gpkvs.native import library, number
from gpkvs.scan import ScanPiece

FORMAT, VERSION = "gpkvs-export", 1
VERSION_OF_ROWS = 2
"""Of an export of rows, which a reader of the version 1 does not know."""
PIECES_FORMAT = "gpkvs-pieces"
"""Of what becomes a Parquet file (`gpkvs.export.pieces`)."""

_PACKED_BYTES_MAX = number("PACKED_BYTES_MAX")

# A map of three, whose numbers always take 8, 8 and 4 bytes: MessagePack allows that, and the end is found by its size.
_END = struct.Struct(">1s8ssQ8ssQ6ss")
_CRC = struct.Struct(">I")
END_BYTES = _END.size + _CRC.size


class ExportError(GpkvsError):
    """A file is no whole export, or cannot become one."""


@dataclass(frozen=True)
class Header:
    """The first object of an export.

    Parameters
    ----------
    table, layout
        Of the records.
    prefix
        Only keys that begin with it are in the file.
    gpkvs
        The version of gpkvs that made the file.
    format
        What follows the header: `FORMAT` or `PIECES_FORMAT`.
    """

    table: str
    layout: str
    prefix: bytes = b""
    gpkvs: str = ""
    format: str = FORMAT

    @property
    def is_u64(self) -> bool:
        """Whether keys and values are numbers."""
        return self.layout == U64_LAYOUT.name

    @property
    def rows(self) -> RowLayout | None:
        """What the values are, if they are rows."""
        return row_layout_of(self.layout)

    def encode(self) -> bytes:
        """Return the object as it is in a file."""
        version = VERSION_OF_ROWS if self.rows else VERSION
        packed: bytes = msgpack.packb({"format": self.format, "version": version, **asdict(self)})
        return packed

    @staticmethod
    def decode(found: Any) -> Header:
        """Return the header that an object is; a newer version of the format may have more in it.

        Raises
        ------
        ExportError
            If it is none, or of a format that this gpkvs does not know.
        """
        if not isinstance(found, dict) or found.get("format") not in (FORMAT, PIECES_FORMAT):
            raise ExportError("it is no export of gpkvs: it does not begin with a header")
        if found.get("version") not in (VERSION, VERSION_OF_ROWS):
            raise ExportError(
                f"its format has the version {found.get('version')!r}, this gpkvs knows {VERSION} and "
                f"{VERSION_OF_ROWS}: use a newer one"
            )
        header = Header(*(found.get(name) for name in Header.__dataclass_fields__))  # type: ignore[arg-type]
        texts = (header.table, header.layout, header.gpkvs)
        if not all(isinstance(text, str) for text in texts) or not isinstance(header.prefix, bytes):
            raise ExportError("its header is incomplete")
        return header


@dataclass(frozen=True)
class End:
    """The last object of an export.

    Parameters
    ----------
    records
        How many are in the file.
    damaged
        How many are not, since they failed their checks in the store.
    """

    records: int
    damaged: int

    def encode(self, crc32: int) -> bytes:
        """Return the object as it is in a file; `crc32` is that of everything before it."""
        numbers = (b"\xa7records", b"\xcf", self.records, b"\xa7damaged", b"\xcf", self.damaged)
        head = _END.pack(b"\x83", *numbers, b"\xa5crc32", b"\xce")
        return head + _CRC.pack(zlib.crc32(head, crc32))

    @staticmethod
    def decode(data: bytes) -> End | None:
        """Return the end that the last bytes of a file look like; None if they are none."""
        if len(data) != END_BYTES:
            return None
        _, _, _, records, _, _, damaged, _, _ = _END.unpack_from(data)
        end = End(records, damaged)
        return end if end.encode(0)[: _END.size] == data[: _END.size] else None


def encode_records(piece: ScanPiece, header: Header) -> bytes | memoryview:
    """Return the records of a piece as they are in a file."""
    if header.is_u64:
        return _encode_numbers(piece)
    return _encode_rows(piece, header.rows) if header.rows else _encode_bytes(piece)


def _encode_numbers(piece: ScanPiece) -> bytes:
    records = np.empty((len(piece), 20), np.uint8)
    records[:, 0], records[:, 1], records[:, 10], records[:, 19] = 0x93, 0xCF, 0xCF, 0
    records[:, 2:10], records[:, 11:19] = _big_endian(piece.keys), _big_endian(piece.values)
    return records.tobytes()


def _encode_rows(piece: ScanPiece, layout: RowLayout) -> bytes:
    head = np.frombuffer(b"\xc6" + layout.row_bytes.to_bytes(4, "big"), np.uint8)
    begin = 10 + len(head)
    end = begin + layout.row_bytes
    records = np.empty((len(piece), end + (9 if len(piece.expiries) else 1)), np.uint8)
    records[:, 0], records[:, 1], records[:, 2:10] = 0x93, 0xCF, _big_endian(piece.keys)
    records[:, 10:begin], records[:, begin:end] = head, piece.values.reshape(-1, layout.row_bytes)
    records[:, end] = 0
    if len(piece.expiries):
        records[:, end], records[:, end + 1 :] = 0xCF, _big_endian(piece.expiries)
    return records.tobytes()


def _big_endian(numbers: NDArray[Any]) -> U8:
    """Return numbers of 64 bits, or the bytes of such, as a file has them: (n, 8)."""
    return numbers.view("<u8").astype(">u8").view(np.uint8).reshape(-1, 8)


def _encode_bytes(piece: ScanPiece) -> memoryview:
    out = np.empty(len(piece.keys) + len(piece.values) + _PACKED_BYTES_MAX * len(piece), np.uint8)
    columns = [
        np.ascontiguousarray(column)
        for column in (piece.keys, piece.key_lengths, piece.values, piece.value_lengths, piece.expiries)
    ]
    addresses = [column.ctypes.data if len(column) else None for column in columns]
    size = library.gpkvs_pack_records(*addresses, len(piece), out.ctypes.data)
    assert size <= len(out)
    return out[:size].data
