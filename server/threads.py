"""The threads of a server begin with it: later the system may give none (ulimit -v, TasksMax).

What libraries keep for each thread is allocated when the thread first uses it. Where there is no memory for that, the C
library ends the process, with status 127. So each thread uses it when it begins.
"""

from __future__ import annotations

import ctypes
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress

from gpkvs.errors import BackendError, GpkvsError
from gpkvs.server.door.versions import library_path


class NoThreadError(GpkvsError):
    """The system gives the process no thread that it needs to serve."""

    def __init__(self) -> None:
        super().__init__(
            "the system gives no thread: there may be too many (ulimit -u, TasksMax, pids.max), or no memory for its "
            "stack (ulimit -v)"
        )


def begun_thread(name: str, work: Callable[[], None]) -> threading.Thread:
    """Return a thread that does this and keeps no process from its end.

    Raises
    ------
    NoThreadError
        If the system gives none.
    """

    def run() -> None:
        _use_storage()
        work()

    thread = threading.Thread(target=run, name=name, daemon=True)
    try:
        thread.start()
    except RuntimeError as error:
        raise NoThreadError from error
    return thread


def begun_threads(name: str, count: int = 1) -> ThreadPoolExecutor:
    """Return an executor whose threads all run already: no job has to wait for a new one.

    Raises
    ------
    NoThreadError
        If the system gives fewer.
    """
    threads = ThreadPoolExecutor(count, name)
    have_begun = threading.Event()

    def begin() -> None:
        _use_storage()
        have_begun.wait()

    try:
        for _ in range(count):
            threads.submit(begin)  # those that have begun are busy, so each takes one more
    except RuntimeError as error:
        threads.shutdown(wait=False)
        raise NoThreadError from error
    finally:
        have_begun.set()
    return threads


def _use_storage() -> None:
    import numpy as np  # noqa: PLC0415 - a server has loaded it; tab completion of its options does without

    np.empty(1)
    with suppress(BackendError, OSError):  # there is no native door
        ctypes.CDLL(library_path()).gpkvs_door_begin_thread()
