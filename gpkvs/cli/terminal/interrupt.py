"""Ctrl-C while a command has nothing to clean up: its modules are loaded, or it is done."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from contextlib import contextmanager


def end_at_once_on_ctrl_c() -> bool:
    """Let Ctrl-C end the process at once, where Python would raise KeyboardInterrupt; return whether it would.

    Python would print a traceback, and a library that is being loaded may take the exception for a fault of its own. A
    handler of the command stays, and so does a Ctrl-C that is ignored, as in the background of a shell script.
    """
    if signal.getsignal(signal.SIGINT) is not signal.default_int_handler:
        return False
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    return True


@contextmanager
def ctrl_c_ends_at_once() -> Iterator[None]:
    """Let Ctrl-C end the process at once, for a while."""
    was_python = end_at_once_on_ctrl_c()
    try:
        yield
    finally:
        if was_python:
            signal.signal(signal.SIGINT, signal.default_int_handler)
