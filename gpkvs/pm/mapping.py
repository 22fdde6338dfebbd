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
_libc.mremap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_size_t, ctypes.c_int, ctypes.c_void_p]
_libc.mremap.restype = ctypes.c_void_p
_MREMAP_MAYMOVE, _MREMAP_FIXED = 1, 2
_PROT_NONE, _MAP_FIXED, _MAP_NORESERVE = 0, 0x10, 0x4000
_MADV_POPULATE_WRITE = 23  # since Linux 5.14; not in Python's mmap module

_unmappings: dict[int, weakref.finalize[[int, int], Any]] = {}  # by address
_rooms: dict[int, int] = {}  # by address: bytes that are kept free for a mapping and what it grows by


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
    return _owned(_checked(_libc.mmap(None, count, access, flags, file, offset)), count)


def _checked(address: int) -> int:
    if address == _MAP_FAILED:
        error = ctypes.get_errno()
        raise OSError(error, os.strerror(error))
    return address


def _owned(address: int, count: int) -> NDArray[np.uint8]:
    """Return a mapping as an array that unmaps it, and the room behind it, at its end."""
    owner = (ctypes.c_uint8 * count).from_address(address)
    unmapping = _unmappings[address] = weakref.finalize(owner, _unmap, address, max(count, _rooms.get(address, 0)))
    # Not at the interpreter's exit: threads may still look at it, and the system unmaps everything anyway.
    unmapping.atexit = False
    return np.ctypeslib.as_array(owner)


def _unmap(address: int, count: int) -> None:
    # First: as soon as it is unmapped, another thread may be given the address.
    _unmappings.pop(address, None)
    _rooms.pop(address, None)
    _libc.munmap(address, count)


def reserve_room(mapped: NDArray[np.uint8], room: int) -> NDArray[np.uint8]:
    """Move a mapping to where `room` bytes of addresses are free for it; nobody may look at the old array any more.

    What is mapped there later (`map_into_room`, `take_room`) does not move it: a GPU that has registered the mapping
    need not let go of it.

    Raises
    ------
    OSError
        If the operating system refuses; the mapping is as it was.
    """
    count, old = len(mapped), int(mapped.ctypes.data)
    assert count % mmap.PAGESIZE == room % mmap.PAGESIZE == 0
    free = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | _MAP_NORESERVE
    address = _checked(_libc.mmap(None, room, _PROT_NONE, free, -1, 0))
    try:
        _checked(_libc.mremap(old, count, count, _MREMAP_MAYMOVE | _MREMAP_FIXED, address))
    except OSError:
        _libc.munmap(address, room)
        raise
    _unmappings.pop(old).detach()
    _rooms[address] = room
    return _owned(address, count)


def room_of(mapped: NDArray[np.uint8]) -> int:
    """Return how long a mapping can become where it is."""
    return max(len(mapped), _rooms.get(int(mapped.ctypes.data), 0))


def map_into_room(
    mapped: NDArray[np.uint8], first: int, last: int, flags: int, access: int, file: int = -1, offset: int = 0
) -> None:
    """Map the bytes `first` to `last - 1` behind a mapping, in its room; arguments and errors as of `map_file`."""
    assert len(mapped) <= first <= last <= room_of(mapped)
    _checked(_libc.mmap(mapped.ctypes.data + first, last - first, access, flags | _MAP_FIXED, file, offset))


def take_room(mapped: NDArray[np.uint8], count: int) -> NDArray[np.uint8]:
    """Return a mapping with what was mapped into its room, `count` bytes in all; the address stays."""
    assert len(mapped) <= count <= room_of(mapped)
    address = int(mapped.ctypes.data)
    _unmappings.pop(address).detach()
    return _owned(address, count)


def grow_mapping(mapped: NDArray[np.uint8], count: int) -> NDArray[np.uint8]:
    """Make a mapping longer; it may get another address, and nobody may look at the old array or its views any more.

    What is new of a file must be there already; what is new of memory is zero. Pages that were touched stay so.

    Raises
    ------
    OSError
        If the operating system refuses; the mapping is as it was.
    """
    old = int(mapped.ctypes.data)
    assert old not in _rooms
    address = _checked(_libc.mremap(old, len(mapped), count, _MREMAP_MAYMOVE, None))
    _unmappings.pop(old).detach()
    return _owned(address, count)


_MEMORY = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS, mmap.PROT_READ | mmap.PROT_WRITE


def map_memory(count: int) -> NDArray[np.uint8]:
    """Return anonymous memory, all zero, which begins at a page; it takes no memory before it is touched.

    Raises
    ------
    MemoryError
        If the operating system refuses.
    """
    try:
        memory = map_file(-1, count, *_MEMORY)
    except OSError as error:
        raise MemoryError(f"{count:,} bytes: {error.strerror}") from error
    advise(memory, mmap.MADV_HUGEPAGE)
    return memory


def map_memory_into_room(mapped: NDArray[np.uint8], first: int, last: int) -> None:
    """Have memory as of `map_memory` behind such memory, in its room; `OSError` if the operating system refuses."""
    map_into_room(mapped, first, last, *_MEMORY)
    _libc.madvise(mapped.ctypes.data + first, last - first, mmap.MADV_HUGEPAGE)


def touch(address: int, count: int) -> bool:
    """Have mapped pages in memory, to be stored to; return whether the system did it."""
    refused: int = _libc.madvise(address, count, _MADV_POPULATE_WRITE)
    return not refused


def touch_pages(mapped: NDArray[np.uint8], first: int, count: int) -> bool:
    """Do the same to pages of a mapping."""
    return touch(int(mapped.ctypes.data) + first, count)


def advise(mapped: NDArray[np.uint8], advice: int) -> None:
    """Tell the system how a whole mapping will be read (`MADV_` constants of `mmap`); it may ignore it."""
    _libc.madvise(mapped.ctypes.data, len(mapped), advice)
