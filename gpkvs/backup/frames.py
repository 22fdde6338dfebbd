"""Frames: parts of a file that follow each other, each with a checksum over itself and the one before.

    head     magic, CRC-32C, bytes of the body (a multiple of 8)
    body

The CRC-32C is that of the head, with the CRC-32C of the frame before in its place (0: the frame stands for itself),
and of the body. So a frame that was changed, cut, left out or moved is found when it, or the next one, is read.
"""

from __future__ import annotations

import os
import struct
from pathlib import Path
from typing import BinaryIO, NamedTuple

from gpkvs.errors import StoreError
from gpkvs.native import crc32c

HEAD = struct.Struct("<8sQQ")


class Frame(NamedTuple):
    """A frame that was read; its checksum is that which the next one goes on from."""

    magic: bytes
    body: bytes
    crc: int


def pack_frame(magic: bytes, before: int, body: bytes) -> tuple[bytes, int]:
    """Return the bytes of a frame behind the one with the checksum `before`, and its own checksum."""
    body += bytes(-len(body) % 8)
    crc = crc32c(HEAD.pack(magic, before, len(body)) + body)
    return HEAD.pack(magic, crc, len(body)) + body, crc


def read_frame(file: BinaryIO, path: Path, at: int, before: int) -> Frame:
    """Read the frame at a place, where the file stands.

    Raises
    ------
    StoreError
        If it is not what was written there.
    """
    head = file.read(HEAD.size)
    if len(head) == HEAD.size:
        magic, crc, length = HEAD.unpack(head)
        if not length % 8 and length <= os.fstat(file.fileno()).st_size - at - HEAD.size:
            body = file.read(length)
            if len(body) == length and crc32c(HEAD.pack(magic, before, length) + body) == crc:
                return Frame(magic, body, crc)
    raise damaged(path, at)


def damaged(path: Path, at: int) -> StoreError:
    """Return the error of a place that does not hold what was written there."""
    return StoreError(f"{path} at byte {at}: it is not what was written there: check the disk, or take another copy")
