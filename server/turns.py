"""Turns: a number of callers go at once, the others wait in the order in which they came."""

from __future__ import annotations

import asyncio
from collections import deque


class Turns:
    """A number of turns; a caller takes one and gives it back.

    Parameters
    ----------
    count
        How many callers may have a turn at the same time.
    """

    __slots__ = ("_free", "_waiting")

    def __init__(self, count: int) -> None:
        self._free = count
        self._waiting: deque[asyncio.Future[None]] = deque()

    async def take(self) -> None:
        """Wait for a turn."""
        if self._free:
            self._free -= 1
            return
        turn = asyncio.get_running_loop().create_future()
        self._waiting.append(turn)
        try:
            await turn
        except asyncio.CancelledError:
            if turn.done() and not turn.cancelled():
                self.give()  # the turn came at the same moment
            raise

    def give(self) -> None:
        """Give a turn back; the next caller that waits has it."""
        while self._waiting:
            turn = self._waiting.popleft()
            if not turn.done():
                turn.set_result(None)
                return
        self._free += 1
