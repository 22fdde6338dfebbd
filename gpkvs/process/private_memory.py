"""A process whose memory nobody else sees: it leaves no core, and no program of the same user may look into it.

Linux then gives its files in ``/proc`` to root. The process may still read those that everybody may read, and list its
open files. The one file for the owner only that it goes on reading is opened before.
"""

from __future__ import annotations

import ctypes
import os
from contextlib import suppress
from pathlib import Path

_IO = Path("/proc/self/io")
_PR_SET_DUMPABLE = 4

_kept: list[int] = []  # the open `_IO` of a private process


def keep_memory_private() -> None:
    """Make this process private until it ends; a program that it starts is not."""
    with suppress(OSError):  # where the system gives it to nobody, `own_io` says so
        _kept.append(os.open(_IO, os.O_RDONLY | os.O_CLOEXEC))
    ctypes.CDLL(None).prctl(_PR_SET_DUMPABLE, 0, 0, 0, 0)


def own_io() -> str:
    """Return ``/proc/self/io``.

    Raises
    ------
    OSError
        If the system does not give it.
    """
    return os.pread(_kept[0], 4096, 0).decode() if _kept else _IO.read_text()
