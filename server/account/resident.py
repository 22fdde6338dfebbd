"""The memory that the C library has given out, and keeps."""

from __future__ import annotations

import asyncio
import ctypes
from concurrent.futures import Executor

from gpkvs.process.machine import anonymous_bytes

_LIBC = ctypes.CDLL(None)


class _Allocated(ctypes.Structure):
    """glibc's `struct mallinfo2`."""

    _fields_ = [
        (name, ctypes.c_size_t)
        for name in (
            "arena",
            "ordblks",
            "smblks",
            "hblks",
            "hblkhd",
            "usmblks",
            "fsmblks",
            "uordblks",
            "fordblks",
            "keep",
        )
    ]


def allocated_bytes() -> int:
    """Return the memory that is allocated and not freed; if the C library cannot say, all that belongs to no file."""
    allocated = _allocated()
    return int(allocated.uordblks + allocated.hblkhd) if allocated else anonymous_bytes()


def freed_bytes() -> int:
    """Return freed memory that the C library keeps, as it says, or else as much as there may be."""
    allocated = _allocated()
    return int(allocated.fordblks) if allocated else anonymous_bytes()


class FreeMemory:
    """Gives memory back to the system that was freed and that the C library keeps, if it is much; made when idle.

    Parameters
    ----------
    bytes_max
        Less than this may stay.
    helpers
        Threads that give it back; by default those of the loop.
    """

    def __init__(self, bytes_max: int, helpers: Executor | None = None) -> None:
        self._bytes_max = bytes_max
        self._helpers = helpers
        self._loop = asyncio.get_running_loop()
        self._idle_bytes = anonymous_bytes() - allocated_bytes()
        self._freed_bytes = 0  # at the last look

    def look(self) -> None:
        """Look at what is there; called now and then."""
        try:
            taken_bytes = anonymous_bytes()
        except OSError:  # the process has as many open files as it may: the next look sees more
            return
        # Memory that nobody allocated may also be an index of a store with a journal, which grows as it fills up. What
        # the C library calls free may have been given back before.
        unallocated_bytes = taken_bytes - allocated_bytes() - self._idle_bytes
        freed = freed_bytes()
        if min(unallocated_bytes, freed) > self._bytes_max and freed != self._freed_bytes:
            self._loop.run_in_executor(self._helpers, give_back_free)
        self._freed_bytes = freed


def _allocated() -> _Allocated | None:
    """Return the C library's account; None if it has none that counts beyond 2 GiB (glibc has one from 2.33 on)."""
    describe = getattr(_LIBC, "mallinfo2", None)
    if describe is None:
        return None
    describe.restype = _Allocated
    account: _Allocated = describe()
    return account


def give_back_free() -> None:
    """Return freed memory that the C library keeps to the system. It may take some ms: not for the event loop."""
    trim = getattr(_LIBC, "malloc_trim", None)  # glibc has it
    if trim is not None:
        trim(0)
