"""A mutex that one thread may hold for long turns: the turn ends soon when another thread wants the mutex."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager


class TurnMutex:
    """A mutex whose holder hears that somebody waits.

    Parameters
    ----------
    end_turn
        Makes the turn end that is under way, or else the next one as soon as it begins; from any thread.
    """

    def __init__(self, end_turn: Callable[[], None]) -> None:
        self._end_turn = end_turn
        self._lock = threading.Lock()
        self._changed = threading.Condition()
        self._waiting = self._served = 0  # threads; and how many had waited

    def __enter__(self) -> None:
        if self._lock.acquire(blocking=False):
            return
        with self._changed:
            self._waiting += 1
        try:
            self._end_turn()
            self._lock.acquire()
        finally:
            with self._changed:
                self._waiting -= 1
                self._served += 1
                self._changed.notify_all()

    def __exit__(self, *exception: object) -> None:
        self._lock.release()

    @contextmanager
    def turn(self) -> Iterator[None]:
        """Hold the mutex for a turn; whoever waits for it has it first, but not those who come meanwhile."""
        with self._changed:
            all_served = self._served + self._waiting
            self._changed.wait_for(lambda: self._served >= all_served)
        with self._lock:
            yield
