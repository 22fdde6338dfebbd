"""A process whose memory nobody else sees: it leaves no core, and no program of the same user may look into it.

Linux then keeps some files of ``/proc/self`` for root. Those that the process itself goes on reading are opened before.
"""

from __future__ import annotations

import ctypes
import os
import threading
from contextlib import suppress
from pathlib import Path

_OWN = Path("/proc/self")
_PR_SET_DUMPABLE = 4
_IO, _DESCRIPTORS = "io", "fd"

_kept: dict[str, int] = {}
_listing = threading.Lock()  # all share one place in the open directory


def keep_memory_private() -> None:
    """Make this process private until it ends; a program that it starts is not."""
    for name in (_IO, _DESCRIPTORS):
        with suppress(OSError):  # where the system gives it to nobody, it is missed later as before
            _kept[name] = os.open(_OWN / name, os.O_RDONLY | os.O_CLOEXEC)
    ctypes.CDLL(None).prctl(_PR_SET_DUMPABLE, 0, 0, 0, 0)


def own_io() -> str:
    """Return ``/proc/self/io``.

    Raises
    ------
    OSError
        If the system does not give it.
    """
    kept = _kept.get(_IO)
    return (_OWN / _IO).read_text() if kept is None else os.pread(kept, 4096, 0).decode()


def own_descriptors() -> list[int]:
    """Return the open files of this process, by their numbers; that of the listing itself may be among them.

    Raises
    ------
    OSError
        If the system does not give them.
    """
    with _listing, os.scandir(_kept.get(_DESCRIPTORS, _OWN / _DESCRIPTORS)) as entries:
        return [int(entry.name) for entry in entries]
