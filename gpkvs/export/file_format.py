"""What is in an export: MessagePack objects, one after the other (docs/export.md).

    header         a map: format, version, table, layout, prefix, gpkvs
    record ...     an array: [key, value], or [key, value, expiry]
    end            a map of always the same bytes: records, damaged, crc32

The end is the last `END_BYTES` of the file. Its checksum is of everything before it, so that a file that was cut or
changed anywhere is known by it.
"""

from __future__ import annotations

import struct
from dataclasses import asdict, dataclass
from itertools import starmap
from typing import Any

import msgpack
import numpy as np

from gpkvs.errors import GpkvsError
from gpkvs.media.layout import U64_LAYOUT
from gpkvs.scan import ScanPiece

FORMAT, VERSION = "gpkvs export", 1

# A map of three, whose numbers always take 8, 8 and 4 bytes: MessagePack allows that, and the end is found by its size.
_END = struct.Struct(">1s8ssQ8ssQ6ssI")
END_BYTES = _END.size


class ExportError(GpkvsError):
    """A file is no whole export, or cannot become one."""


@dataclass(frozen=True)
class Header:
    """The first object of an export.

    Parameters
    ----------
    table, layout
        Of the records. With the layout ``u64`` keys and values are numbers, else bytes.
    prefix
        Only keys that begin with it are in the file.
    gpkvs
        The version of the server that they are from.
    """

    table: str
    layout: str
    prefix: bytes = b""
    gpkvs: str = ""

    @property
    def is_u64(self) -> bool:
        """Whether keys and values are numbers."""
        return self.layout == U64_LAYOUT.name

    def encode(self) -> bytes:
        """Return the object as it is in a file."""
        packed: bytes = msgpack.packb({"format": FORMAT, "version": VERSION, **asdict(self)})
        return packed

    @staticmethod
    def decode(found: Any) -> Header:
        """Return the header that an object is; a newer version of the format may have more in it.

        Raises
        ------
        ExportError
            If it is none, or of a format that this gpkvs does not know.
        """
        if not isinstance(found, dict) or found.get("format") != FORMAT:
            raise ExportError("it is no export of gpkvs: it does not begin with a header")
        if found.get("version") != VERSION:
            raise ExportError(
                f"its format has the version {found.get('version')!r}, this gpkvs knows {VERSION}: use a newer one"
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
    crc32
        That of zlib, of everything before the end.
    """

    records: int
    damaged: int
    crc32: int

    def encode(self) -> bytes:
        """Return the object as it is in a file."""
        numbers = (b"\xa7records", b"\xcf", self.records, b"\xa7damaged", b"\xcf", self.damaged)
        return _END.pack(b"\x83", *numbers, b"\xa5crc32", b"\xce", self.crc32)

    @staticmethod
    def decode(data: bytes) -> End | None:
        """Return the end that the last bytes of a file are; None if they are none."""
        if len(data) != END_BYTES:
            return None
        _, _, _, records, _, _, damaged, _, _, crc32 = _END.unpack(data)
        end = End(records, damaged, crc32)
        return end if end.encode() == data else None


def encode_records(piece: ScanPiece, *, is_u64: bool) -> bytes:
    """Return the records of a piece as they are in a file."""
    if not len(piece):
        return b""
    records: list[Any]
    if is_u64:
        records = list(zip(*(column.view("<u8").tolist() for column in (piece.keys, piece.values)), strict=True))
    else:
        records = list(piece.pairs())
        if np.any(piece.expiries):
            expiring = zip(records, piece.expiry_list(), strict=True)
            records = list(starmap(lambda pair, expiry: (*pair, expiry) if expiry else pair, expiring))
    packed: bytes = msgpack.packb(records)
    return packed[_array_head_bytes(len(records)) :]


def _array_head_bytes(count: int) -> int:
    """Return how many bytes MessagePack puts before the elements of an array."""
    return 1 if count < 16 else 3 if count < 1 << 16 else 5
