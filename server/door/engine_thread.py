"""The engine's thread behind the native door: turns of the door, and Python's jobs between them.

A turn runs requests, batch after batch, without Python's lock. A job, such as a table that is made, interrupts it. Each
turn is queued behind the jobs that wait, and each job behind the turn: they alternate.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import Executor, Future
from typing import Any, TypeVar

from gpkvs.process.fatal import stop_process
from gpkvs.server.threads import begun_threads

Made = TypeVar("Made")


class EngineThread(Executor):
    """The thread that alone runs transactions.

    Parameters
    ----------
    interrupt
        Ends the door's turn soon, or the next one if none is under way; called in any thread.
    """

    def __init__(self, interrupt: Callable[[], None]) -> None:
        self._interrupt = interrupt
        self._thread = begun_threads("engine")
        self._ending = threading.Lock()
        self._is_over = False

    def begin(self, turn: Callable[[], bool]) -> None:
        """Run turns from now on, until one returns False. One that fails ends the process: all requests would wait."""

        def run() -> None:
            try:
                if turn():
                    with self._ending:
                        if not self._is_over:
                            self._thread.submit(run)
            except BaseException as error:  # noqa: BLE001 - nobody else would hear of it
                stop_process("a turn of the engine failed", error)

        self._thread.submit(run)

    def submit(self, job: Callable[..., Made], /, *arguments: Any, **named: Any) -> Future[Made]:
        """Run a job soon."""
        running = self._thread.submit(job, *arguments, **named)
        self._interrupt()
        return running

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        """Take no more jobs. A turn that goes on is the last one."""
        with self._ending:
            self._is_over = True
        self._thread.shutdown(wait, cancel_futures=cancel_futures)
