"""The threads of a server begin with it: later the system may give none (ulimit -v, TasksMax).

What libraries keep for each thread is allocated when the thread first uses it. Where there is no memory for that, the C
library ends the process, with status 127. So each thread uses it when it begins.
"""

from __future__ import annotations

import ctypes
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from typing import TypeVar

from gpkvs.errors import BackendError, GpkvsError
from gpkvs.server.door_library import library_path

Made = TypeVar("Made")


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


class PausingThread:
    """A thread for jobs whose steps hold the store: while others use it, it leaves time to them between two steps.

    Parameters
    ----------
    name
        Its name.
    pause
        What it leaves, in times of what the step before took.

    Raises
    ------
    NoThreadError
        If the system gives none.
    """

    def __init__(self, name: str, pause: float) -> None:
        self._thread = begun_threads(name)
        self._pause = pause
        self._owed_seconds = 0.0  # to others

    def submit(self, job: Callable[[], Made]) -> Future[Made]:
        """Run a job."""
        return self._thread.submit(job)

    def submit_step(self, is_in_use: Callable[[], bool], step: Callable[[], Made]) -> Future[Made]:
        """Run a job of one step, behind the pause that the one before it owes if others use the store then."""

        def run() -> Made:
            self.pause(is_in_use())
            return self.step(step)

        return self._thread.submit(run)

    def pause(self, is_in_use: bool) -> None:
        """Sleep as long as the step before owes to others, if they use the store; in the thread, before each step.

        It owes for what it has computed, and not for what it has waited for: a disk, or others.
        """
        if is_in_use:
            time.sleep(self._owed_seconds)

    def step(self, step: Callable[[], Made]) -> Made:
        """Do a step of a job; in the thread."""
        began = time.thread_time()
        try:
            return step()
        finally:
            self._owed_seconds = self._pause * (time.thread_time() - began)


def _use_storage() -> None:
    import numpy as np  # noqa: PLC0415 - a server has loaded it; tab completion of its options does without

    np.empty(1)
    with suppress(BackendError, OSError):  # there is no native door
        ctypes.CDLL(library_path()).gpkvs_door_begin_thread()
