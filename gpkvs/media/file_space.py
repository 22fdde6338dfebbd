"""The space that a file has on its disk: which parts lack it, and how a part gives it back.

A part of a file without space is a hole. It reads as zeros, and a store to its mapping ends the process if the disk is
full. So whoever stores to a file must know that there is no hole.
"""

from __future__ import annotations

import ctypes
import errno
import fcntl
import os
import struct
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

_libc = ctypes.CDLL(None, use_errno=True)
_libc.fallocate.argtypes = [ctypes.c_int, ctypes.c_int, ctypes.c_int64, ctypes.c_int64]
_KEEP_SIZE, _PUNCH_HOLE = 1, 2

# `FS_IOC_FIEMAP` of Linux: the parts of a file that have space, also where nothing was written to it.
_FIEMAP: Final = 0xC020660B
_FIEMAP_HEADER, _FIEMAP_EXTENT = struct.Struct("=QQIIII"), struct.Struct("=QQQQQIIII")
_EXTENTS_AT_ONCE: Final = 256
_LAST_EXTENT: Final = 1
_NOWHERE: Final = 2  # an extent that has no place on the disk yet
CANNOT_PUNCH: Final = (errno.EOPNOTSUPP, errno.ENOSYS, errno.EPERM)  # a file system that never takes space back
PUNCHED_AT_ONCE: Final = 16 << 20  # bytes; stores to the file wait meanwhile
_BLOCK_BYTES: Final = 512  # the unit of `st_blocks`, whatever a file system's own


@contextmanager
def _opened(file: Path | int, flags: int) -> Iterator[int]:
    """Open a file, unless it is open."""
    if isinstance(file, int):
        yield file
        return
    opened = os.open(file, flags | os.O_CLOEXEC)
    try:
        yield opened
    finally:
        os.close(opened)


def punch(file: Path | int, offset: int, count: int) -> None:
    """Give the space of a part of a file back; its size stays.

    Raises
    ------
    OSError
        If the file system cannot, or the operating system refuses.
    """
    with _opened(file, os.O_RDWR) as opened:
        while _libc.fallocate(opened, _PUNCH_HOLE | _KEEP_SIZE, offset, count):
            code = ctypes.get_errno()
            if code != errno.EINTR:
                raise OSError(code, os.strerror(code), str(file))


def reserve(file: Path | int, offset: int, count: int) -> None:
    """Reserve space for a part of a file, where it has none; not durable before a sync.

    Raises
    ------
    OSError
        If the operating system refuses; the file may have some of it then.
    """
    with _opened(file, os.O_RDWR) as opened:
        os.posix_fallocate(opened, offset, count)


def reserves(file: int, count: int) -> bool:
    """Whether the file system reserves the first bytes of a file by itself; else the C library writes to each block.

    Raises
    ------
    OSError
        If it would, and now refuses.
    """
    while _libc.fallocate(file, 0, 0, count):
        code = ctypes.get_errno()
        if code in (errno.EOPNOTSUPP, errno.ENOSYS):
            return False
        if code != errno.EINTR:
            raise OSError(code, os.strerror(code))
    return True


def holes(file: Path | int, offset: int, count: int) -> list[tuple[int, int]]:
    """Find the parts of a file, between two offsets, that have no space, or may have none.

    Returns
    -------
    list of tuple of int
        The first byte of each, and the first one behind it; ascending.
    """
    with _opened(file, os.O_RDONLY) as opened:
        found = os.fstat(opened)
        try:
            used = list(_extents(opened, offset, count))
        except OSError as error:
            if error.errno not in (errno.EOPNOTSUPP, errno.ENOTTY, errno.EINVAL, errno.ENOSYS, errno.EPERM):
                raise
            # Without extents, the number of blocks says whether there are holes (tmpfs counts nothing else).
            if found.st_blocks * _BLOCK_BYTES >= found.st_size:
                return []
            used = list(_written(opened, offset, count))
        return list(_between(used, offset, offset + count))


def _extents(file: int, offset: int, count: int) -> Iterator[tuple[int, int]]:
    """Find the parts that have space."""
    at, end = offset, offset + count
    while at < end:
        request = bytearray(_FIEMAP_HEADER.size + _EXTENTS_AT_ONCE * _FIEMAP_EXTENT.size)
        _FIEMAP_HEADER.pack_into(request, 0, at, end - at, 0, 0, _EXTENTS_AT_ONCE, 0)
        fcntl.ioctl(file, _FIEMAP, request)
        extents = _FIEMAP_HEADER.unpack_from(request)[3]
        for number in range(extents):
            first, _, length, _, _, flags, *_ = _FIEMAP_EXTENT.unpack_from(
                request, _FIEMAP_HEADER.size + number * _FIEMAP_EXTENT.size
            )
            if not flags & _NOWHERE:
                yield first, first + length
            at = first + length
        if extents < _EXTENTS_AT_ONCE or flags & _LAST_EXTENT:
            return


def _written(file: int, offset: int, count: int) -> Iterator[tuple[int, int]]:
    """Find the parts that were written: space that was only reserved is not among them."""
    at, end = offset, offset + count
    while at < end:
        try:
            first = os.lseek(file, at, os.SEEK_DATA)
        except OSError as error:
            if error.errno != errno.ENXIO:
                raise
            return
        at = os.lseek(file, first, os.SEEK_HOLE)
        yield first, at


def _between(used: list[tuple[int, int]], at: int, end: int) -> Iterator[tuple[int, int]]:
    for first, last in used:
        if first > at:
            yield at, min(first, end)
        at = max(at, last)
        if at >= end:
            return
    if at < end:
        yield at, end
