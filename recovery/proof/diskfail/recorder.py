"""Records what this process does to the files of one directory (``disk_trace.cpp``, which must be preloaded)."""

from __future__ import annotations

import ctypes
import os
from enum import IntEnum
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from gpkvs.errors import BackendError
from gpkvs.native import installed_library

LIBRARY = installed_library("_disk_trace.so")
# Files that say nothing of a store's contents; they are not recorded.
IGNORED = frozenset({"LOCK", "recovery.json", "recovery.json.tmp"})


class Kind(IntEnum):
    """What an event is, as ``disk_trace.cpp`` numbers it."""

    WRITE = 0
    WRITE_END = 1
    SIZE = 2
    CREATE = 3
    RENAME = 4
    UNLINK = 5
    FLUSH = 6
    FLUSH_END = 7
    NAMES_FLUSH = 8
    NAMES_FLUSH_END = 9
    MARK = 10


class Mark(IntEnum):
    """What the workload says of itself, with a number."""

    OPENED = 0
    BEGUN = 1  # a batch is about to be executed
    ACKNOWLEDGED = 2  # all batches up to this one must survive
    SCHEMA_BEGUN = 3
    SCHEMA_DONE = 4
    WATCHED = 5  # a script says whether the places from here on are of interest: 1 or 0; 2: just this one
    CRASHED = 6  # here the next life of a script begins
    EXECUTED = 7  # a batch is executed: 1 by the native engine, 0 phase by phase
    TOLD = 8  # a follower was told of this batch: it must survive, and all before it
    SCHEMA_TOLD = 9  # the same of a change of tables


class Event(NamedTuple):
    """One event of the trace."""

    kind: Kind
    id: int  # an end has the id of its begin
    inode: int
    at: int  # of a write; the `Mark`
    amount: int  # bytes of a write; the size of a file; the number of a mark
    data: bytes  # of a write; a name, and after a zero the second one

    @property
    def names(self) -> list[str]:
        """The names in the directory that it is about."""
        return self.data.decode().split("\0")


class Recorder:
    """Records one directory at a time, in the whole process."""

    def __init__(self) -> None:
        if str(LIBRARY) not in os.environ.get("LD_PRELOAD", ""):
            raise BackendError(f"the process must be started with LD_PRELOAD={LIBRARY}")
        self._library = library = ctypes.CDLL(str(LIBRARY))
        library.disk_trace_start.argtypes = [ctypes.c_char_p, ctypes.c_uint64, ctypes.c_uint64]
        library.disk_trace_add.argtypes = [ctypes.c_char_p]
        library.disk_trace_count.restype = ctypes.c_uint64
        library.disk_trace_events.restype = ctypes.c_void_p
        library.disk_trace_mark.argtypes = [ctypes.c_uint64, ctypes.c_uint64]
        library.disk_trace_delay.argtypes = [ctypes.c_uint64]
        library.disk_trace_hold.argtypes = [ctypes.c_char_p]
        library.disk_trace_held.restype = ctypes.c_uint64

    def start(self, directory: Path, delay_us: int, seed: int) -> None:
        """Begin to record; flushes take up to `delay_us` from now on."""
        self._library.disk_trace_start(os.fsencode(directory), delay_us, seed)
        for entry in os.scandir(directory):
            if entry.name not in IGNORED:
                self._library.disk_trace_add(os.fsencode(entry.path))

    def mark(self, mark: Mark, number: int = 0) -> None:
        """Put a mark into the sequence."""
        self._library.disk_trace_mark(mark, number)

    def set_delay(self, delay_us: int) -> None:
        """Change how long flushes take."""
        self._library.disk_trace_delay(delay_us)

    def hold(self, file: Path | None) -> None:
        """Have each flush of a file wait until it is let through, or `None` is given."""
        self._library.disk_trace_hold(os.fsencode(file) if file else None)

    def let_through(self) -> None:
        """Let one held flush go on, or the next one that comes."""
        self._library.disk_trace_let_through()

    @property
    def held(self) -> int:
        """How many flushes have been held since `hold`."""
        return int(self._library.disk_trace_held())

    def call_unheard(self, function: Any, *words: int) -> None:
        """Call a native function of four words, which wakes up no thread."""
        self._library.disk_trace_call_unheard(ctypes.cast(function, ctypes.c_void_p), (ctypes.c_uint64 * 4)(*words))

    def stop(self) -> list[Event]:
        """End the recording, and return it."""
        self._library.disk_trace_stop()
        count = self._library.disk_trace_count()
        if not count:
            return []
        words = np.ctypeslib.as_array((ctypes.c_uint64 * (6 * count)).from_address(self._library.disk_trace_events()))
        events = [_event(*row) for row in words.reshape(-1, 6).tolist()]
        self._library.disk_trace_clear()
        return events


def _event(kind: int, number: int, inode: int, at: int, count: int, data: int) -> Event:
    known = Kind(kind)
    text = b""
    if known is Kind.WRITE:
        text = ctypes.string_at(data, count)
    elif known is Kind.RENAME:
        first = ctypes.string_at(data)
        text = first + b"\0" + ctypes.string_at(data + len(first) + 1)
    elif data:
        text = ctypes.string_at(data)
    return Event(known, number, inode, at, count, text)
