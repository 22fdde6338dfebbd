"""Threads that do what their caller need not wait for yet."""

from __future__ import annotations

import weakref
from collections.abc import Callable
from concurrent.futures import Future
from queue import SimpleQueue
from threading import Thread
from typing import Any

_Work = tuple[Future[None], Callable[..., None], tuple[Any, ...]]


class Helpers:
    """Some threads, which are there from the beginning; they end with this object, or with the program.

    An executor of the standard library starts its threads when there is work. Where the system gives none, as at the
    interpreter's end or at a limit of processes, it has queued the work and raises.

    Parameters
    ----------
    count
        How many; where the system gives none, the caller does the work itself.
    name
        Of the threads.
    """

    def __init__(self, count: int, name: str) -> None:
        self._work: SimpleQueue[_Work | None] = SimpleQueue()
        self._threads = [Thread(target=_serve, args=(self._work,), name=name, daemon=True) for _ in range(count)]
        for number, thread in enumerate(self._threads):
            try:
                thread.start()
            except RuntimeError:
                del self._threads[number:]
                break
        self._end = weakref.finalize(self, _end, self._work, len(self._threads))

    def begin(self, work: Callable[..., None], *arguments: Any) -> Future[None]:
        """Have a thread do some work; whoever asks for the result gets what it raises."""
        begun: Future[None] = Future()
        if self._threads and self._end.alive:
            self._work.put((begun, work, arguments))
        else:
            do(begun, work, *arguments)
        return begun

    def close(self) -> None:
        """Return when all work is done, and the threads have ended."""
        self._end()
        for thread in self._threads:
            thread.join()


def _end(work: SimpleQueue[_Work | None], threads: int) -> None:
    for _ in range(threads):
        work.put(None)


def _serve(queue: SimpleQueue[_Work | None]) -> None:
    while found := queue.get():
        begun, work, arguments = found
        do(begun, work, *arguments)
        del found, begun, work, arguments  # they may be all that keeps an array, or these helpers


def do(begun: Future[None], work: Callable[..., None], *arguments: Any) -> None:
    """Do some work now; a future has what comes of it."""
    try:
        work(*arguments)
    except BaseException as error:  # noqa: BLE001 - whoever waits for it raises it
        begun.set_exception(error)
    else:
        begun.set_result(None)
