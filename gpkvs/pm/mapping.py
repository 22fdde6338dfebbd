"""A file mapped into memory, without a descriptor that stays open for it: Python's own `mmap` keeps one."""

from __future__ import annotations

import ctypes
import mmap
import os
import weakref
from typing import Any

import numpy as np
from numpy.typing import NDArray

_MAP_FAILED = ctypes.c_void_p(-1).value

_libc = ctypes.CDLL(None, use_errno=True)
_libc.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int, ctypes.c_int, ctypes.c_int, ctypes.c_long]
_libc.mmap.restype = ctypes.c_void_p
_libc.munmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t]
_libc.madvise.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]
_libc.mremap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_size_t, ctypes.c_int]
_libc.mremap.restype = ctypes.c_void_p
_MREMAP_MAYMOVE = 1
_MADV_POPULATE_WRITE = 23  # since Linux 5.14; not in Python's mmap module

_unmappings: dict[int, weakref.finalize[[int, int], Any]] = {}  # by address


def map_file(file: int, count: int, flags: int, access: int, offset: int = 0) -> NDArray[np.uint8]:
    """Map `count` bytes of an open file, from a whole page on; they stay mapped until the array and its views are gone.

    Parameters
    ----------
    file
        Its descriptor; it may be closed afterwards.
    count
        Bytes.
    flags, access
        `MAP_` and `PROT_` constants of the module `mmap`.

    Raises
    ------
    OSError
        If the operating system refuses.
    """
    address = _libc.mmap(None, count, access, flags, file, offset)
    if address == _MAP_FAILED:
        error = ctypes.get_errno()
        raise OSError(error, os.strerror(error))
    return _owned(address, count)


def _owned(address: int, count: int) -> NDArray[np.uint8]:
    """Return a mapping as an array that unmaps it at its end."""
    owner = (ctypes.c_uint8 * count).from_address(address)
    unmapping = _unmappings[address] = weakref.finalize(owner, _unmap, address, count)
    # Not at the interpreter's exit: threads may still look at it, and the system unmaps everything anyway.
    unmapping.atexit = False
    return np.ctypeslib.as_array(owner)


def _unmap(address: int, count: int) -> None:
    # First: as soon as it is unmapped, another thread may be given the address.
    _unmappings.pop(address, None)
    _libc.munmap(address, count)


def grow_mapping(mapped: NDArray[np.uint8], count: int) -> NDArray[np.uint8]:
    """Make a mapping longer; it may get another address, and nobody may look at the old array or its views any more.

    What is new of a file must be there already; what is new of memory is zero. Pages that were touched stay so.

    Raises
    ------
    OSError
        If the operating system refuses; the mapping is as it was.
    """
    old = int(mapped.ctypes.data)
    address = _libc.mremap(old, len(mapped), count, _MREMAP_MAYMOVE)
    if address == _MAP_FAILED:
        error = ctypes.get_errno()
        raise OSError(error, os.strerror(error))
    _unmappings.pop(old).detach()
    return _owned(address, count)


def map_memory(count: int) -> NDArray[np.uint8]:
    """Return anonymous memory, all zero, which begins at a page; it takes no memory before it is touched.

    Raises
    ------
    MemoryError
        If the operating system refuses.
    """
    try:
        memory = map_file(-1, count, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS, mmap.PROT_READ | mmap.PROT_WRITE)
    except OSError as error:
        raise MemoryError(f"{count:,} bytes: {error.strerror}") from error
    advise(memory, mmap.MADV_HUGEPAGE)
    return memory


def touch_pages(mapped: NDArray[np.uint8], first: int, count: int) -> bool:
    """Have pages of a mapping in memory, to be stored to; return whether the system did it."""
    refused: int = _libc.madvise(int(mapped.ctypes.data) + first, count, _MADV_POPULATE_WRITE)
    return not refused


def advise(mapped: NDArray[np.uint8], advice: int) -> None:
    """Tell the system how a whole mapping will be read (`MADV_` constants of `mmap`); it may ignore it."""
    _libc.madvise(mapped.ctypes.data, len(mapped), advice)
