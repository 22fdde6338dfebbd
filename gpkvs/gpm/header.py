"""The header of a file of gpkvs.gpm: one structure of 64 bytes, then what the file is, as JSON, then zeros.

Invariants
----------
gpm-header   magic, format version, byte order, and a CRC32C over the header, all right
gpm-size     the file has the bytes that the header says
"""

from __future__ import annotations

import json
import os
import struct
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from gpkvs.errors import CorruptStoreError, FormatError
from gpkvs.native import crc32c

PAGE_BYTES: Final = 4096
STATE_BYTES: Final = PAGE_BYTES
FORMAT_VERSION: Final = 1
MAGIC: Final = b"GPKVSGPM"
_BYTE_ORDER: Final = 0x01020304
_FIELDS: Final = struct.Struct("<8sIIQQQQ")  # magic, version, byte order, header and data bytes, bytes of JSON, CRC
_FIXED_BYTES: Final = 64


def whole_pages(count: int) -> int:
    """Return how many bytes the pages have that so many bytes take."""
    return -(-count // PAGE_BYTES) * PAGE_BYTES


def pack_header(kind: str, about: Mapping[str, Any], data_bytes: int) -> bytes:
    """Return a header, whole pages; `about` can be written as JSON."""
    text = json.dumps({"kind": kind, **about}, separators=(",", ":")).encode()
    header_bytes = whole_pages(_FIXED_BYTES + len(text))
    body = text.ljust(header_bytes - _FIXED_BYTES, b"\0")
    fields = MAGIC, FORMAT_VERSION, _BYTE_ORDER, header_bytes, data_bytes, len(text)
    unsigned = _FIELDS.pack(*fields, 0).ljust(_FIXED_BYTES, b"\0") + body
    return _FIELDS.pack(*fields, crc32c(unsigned)).ljust(_FIXED_BYTES, b"\0") + body


def read_header(path: Path, file: int) -> tuple[str, dict[str, Any], int, int]:
    """Return kind and description, where the data begin, and how many bytes they are."""
    fixed = os.pread(file, _FIXED_BYTES, 0)
    if len(fixed) < _FIXED_BYTES or fixed[:8] != MAGIC:
        raise FormatError(f"{path} is no file of gpkvs.gpm; it was not touched")
    _, version, order, header_bytes, data_bytes, text_bytes, checksum = _FIELDS.unpack_from(fixed)
    if version != FORMAT_VERSION or order != _BYTE_ORDER:
        raise FormatError(f"{path} has format {version}, and this gpkvs reads {FORMAT_VERSION}; it was not touched")
    size = os.fstat(file).st_size
    if header_bytes % PAGE_BYTES or not PAGE_BYTES <= header_bytes <= size:
        raise CorruptStoreError("gpm-header", f"it says {header_bytes} bytes of header", path=path)
    body = os.pread(file, header_bytes - _FIXED_BYTES, _FIXED_BYTES)
    unsigned = fixed[: _FIELDS.size - 8] + bytes(8) + fixed[_FIELDS.size :] + body
    if crc32c(unsigned) != checksum or text_bytes > len(body):
        raise CorruptStoreError("gpm-header", "its checksum is wrong: restore the file from a backup", path=path)
    data_at = header_bytes + STATE_BYTES
    if size < data_at + data_bytes:
        raise CorruptStoreError(
            "gpm-size", f"it has {size:,} bytes and needs {data_at + data_bytes:,}: restore it", path=path
        )
    about = json.loads(body[:text_bytes])
    return about.pop("kind"), about, data_at, data_bytes
