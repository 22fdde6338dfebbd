"""Format 1, the only place that knows it: its root, and where its keys live.

Everything else has the bytes of version 2 (format 3). What descriptors have more there was zero in format 1, which says
the same.
"""

from __future__ import annotations

import struct
from dataclasses import replace

import numpy as np

from gpkvs.batch import U64
from gpkvs.media.catalog import TableEntry
from gpkvs.media.layout import (
    BYTE_ORDER,
    FIRST_CHECKPOINT,
    FORMAT_3,
    STRUCTURE_BYTES,
    BadBytesError,
    BadFormatError,
    CommitKind,
    Root,
)
from gpkvs.native import crc32c
from gpkvs.recovery.copy.placement import Placement, mul_high

VERSION = 1
_MAGIC = b"GPKVSRT\0"
_ROOT = struct.Struct("<8sIIQQ16s16sQQIIQQQQ")


def unpack_root(data: bytes) -> Root:
    """Read one copy of the root; raises `BadBytesError` if it is damaged or of another format."""
    magic, version, byte_order = _ROOT.unpack_from(data)[:3]
    if magic != _MAGIC:
        raise BadBytesError("the root has a wrong magic")
    if (version, byte_order) != (VERSION, BYTE_ORDER):
        raise BadFormatError(f"the store has format version {version}, byte order {byte_order:#x}")
    if crc32c(data[: STRUCTURE_BYTES - 8]) != int.from_bytes(data[STRUCTURE_BYTES - 8 : STRUCTURE_BYTES], "little"):
        raise BadBytesError("the root has a wrong checksum")
    fields = (*_ROOT.unpack_from(data)[3:], CommitKind.UNDO, 0, 0, FIRST_CHECKPOINT)
    return replace(Root(*fields), store_format=FORMAT_3)


def _by_first_word(fingerprint0: U64, _: U64, entry: TableEntry) -> U64:
    """Return the first candidate: fingerprint0 scaled to all buckets of the table, which chooses the block too."""
    in_block: U64 = mul_high(fingerprint0, entry.buckets) % np.uint64(entry.slot_layout.block_buckets)
    return in_block


PLACEMENT = Placement(_by_first_word, marks_each_block=False)
