"""Imported by the process whose forks explore: when the command is killed, that process dies too, and its forks do.

Each of them holds an end of what the others wait for, so none would end by itself.
"""

from __future__ import annotations

import ctypes
import os
import signal

_PR_SET_PDEATHSIG = 1  # prctl(2)
_IMPORTED_BY = os.getpid()


def die_with_parent() -> None:
    """Have the system kill this process, a fork of the one that imported this, when that one dies."""
    _ask()
    if os.getppid() != _IMPORTED_BY:  # it has died before
        os._exit(1)


def _ask() -> None:
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)


_ask()
