"""What all gathering has in common: a queue of calls, a few messages in flight, deadlines, and the end.

The calls of one turn of the event loop, or those that come while messages are in flight, make the next message. So no
timer adds delay when there is little to do, and messages grow when there is much.
"""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable
from itertools import chain
from math import inf
from typing import Any, Generic, Protocol, TypeVar

from gpkvs.client.errors import ClientClosedError, DeadlineError, ServerError
from gpkvs.client.retry import closed_in_flight
from gpkvs.errors import GpkvsError


class Queued(Protocol):
    """What somebody waits for."""

    deadline: float
    future: asyncio.Future[Any]

    def give_up(self, reason: GpkvsError) -> None:
        """End it, if it has no result yet."""


Call = TypeVar("Call", bound=Queued)


class Sending(ABC, Generic[Call]):
    """Sends what waits, a few messages at a time.

    Parameters
    ----------
    messages_in_flight_max
        At the same time.
    over
        Called when nothing waits or is in flight any more.
    """

    def __init__(self, messages_in_flight_max: int, over: Callable[[], object] | None = None) -> None:
        self._loop = asyncio.get_running_loop()
        self._messages_in_flight_max = messages_in_flight_max
        self._over = over
        self._in_flight: dict[asyncio.Task[None], list[Call]] = {}
        self._flush_is_due = False
        self._sweep_at = inf
        self._sweep_timer: asyncio.TimerHandle | None = None

    @abstractmethod
    def _waiting(self) -> Iterable[Call]:
        """Return the calls that are in no message yet."""

    @abstractmethod
    def _has_waiting(self) -> bool:
        """Whether there are any."""

    @abstractmethod
    def _take(self) -> list[Call]:
        """Take the next message's calls from those that wait, in order; none of them has a result."""

    @abstractmethod
    def _clear(self) -> list[Call]:
        """Take all that wait."""

    @abstractmethod
    async def _deliver(self, calls: list[Call]) -> None:
        """Send calls until each has a result or an error."""

    @abstractmethod
    def _late(self, call: Call) -> DeadlineError:
        """Return why a call fails whose deadline has passed."""

    def _flush_soon(self) -> None:
        """Send after all tasks that are ready now have run, so that their calls are gathered too."""
        if not self._flush_is_due and len(self._in_flight) < self._messages_in_flight_max:
            self._flush_is_due = True
            self._loop.call_soon(self._flush)

    def _flush(self) -> None:
        self._flush_is_due = False
        while self._has_waiting() and len(self._in_flight) < self._messages_in_flight_max:
            calls = self._take()
            if calls:
                task = self._loop.create_task(self._deliver(calls))
                self._in_flight[task] = calls
                task.add_done_callback(self._landed)
        self._look_whether_over()

    def _landed(self, task: asyncio.Task[None]) -> None:
        calls = self._in_flight.pop(task)
        if task.cancelled():
            _give_up(calls, closed_in_flight().error)
        elif (error := task.exception()) is not None:
            # This is a bug of the client; but nobody must wait for ever.
            reason = ServerError(f"the client failed: {error!r}")
            self._loop.call_exception_handler({"message": str(reason), "exception": error, "task": task})
            _give_up(calls, reason)
        if self._has_waiting():
            self._flush_soon()
        self._look_whether_over()

    def _look_whether_over(self) -> None:
        if self._over and not self._has_waiting() and not self._in_flight:
            self._sweep_by(inf)
            self._over()

    def _sweep_by(self, deadline: float) -> None:
        if self._sweep_timer is not None:
            self._sweep_timer.cancel()
        self._sweep_at = deadline
        self._sweep_timer = None if deadline == inf else self._loop.call_at(deadline, self._sweep)

    def _sweep(self) -> None:
        """End the calls whose deadline has passed.

        One timer serves all of them, at the earliest deadline: a timer for each call would cost more than the call.
        """
        now = max(self._loop.time(), self._sweep_at)
        next_deadline = inf
        for call in self._live():
            if call.deadline > now:
                next_deadline = min(next_deadline, call.deadline)
            else:
                call.give_up(self._late(call))
        self._sweep_by(next_deadline)

    def _live(self) -> Iterable[Call]:
        return (call for call in chain(self._waiting(), *self._in_flight.values()) if not call.future.done())

    async def close(self, grace_s: float) -> None:
        """Refuse the calls that were not sent, wait some time for the others, then give them up."""
        for call in self._clear():
            call.give_up(ClientClosedError("the client was closed before the call was sent"))
        tasks = list(self._in_flight)
        try:
            if tasks:
                await asyncio.wait(tasks, timeout=grace_s)
        finally:
            for task in tasks:
                task.cancel()
            self._sweep_by(inf)
        await asyncio.gather(*tasks, return_exceptions=True)


def _give_up(calls: Iterable[Queued], reason: GpkvsError) -> None:
    for call in calls:
        call.give_up(reason)
