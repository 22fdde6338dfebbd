"""Which users have used which connection: one that only users have used who are gone is closed."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Coroutine
from concurrent.futures import Executor
from typing import Any

from gpkvs.server.access.caller import Caller
from gpkvs.server.access.connections import end_of, open_ends

# Of one connection so many callers are told apart; with more, it is taken for one that all share.
_CALLERS_MAX = 256
# Nobody says when a connection has ended. With so many in the table, those that have are looked for.
_PEERS_MIN = 1024
# A connection is closed when nothing has waited on it at two looks: the last response has left then.
_LOOK_SECONDS = 0.1


class Sessions:
    """The connections over which users have logged in.

    Parameters
    ----------
    is_busy
        Says whether requests of a connection wait to be executed, by its name as gRPC writes it.
    close
        Closes connections, by these names; it does not wait.
    helpers
        Threads in which connections are looked for; by default those of the loop.
    """

    def __init__(
        self,
        is_busy: Callable[[str], bool],
        close: Callable[[Collection[str]], None],
        *,
        helpers: Executor | None = None,
    ) -> None:
        self._is_busy = is_busy
        self._helpers = helpers
        self._close = close
        self._ports: Collection[int] = ()
        self._callers: dict[str, set[Caller]] = {}
        self._shared: set[str] = set()
        self._peers_max = _PEERS_MIN
        self._forgetting: asyncio.Task[None] | None = None
        self._closing: asyncio.Task[None] | None = None

    def __len__(self) -> int:
        """Return how many connections are known."""
        return len(self._callers)

    def begin(self, ports: Collection[int]) -> None:
        """Take the connections for those to these ports."""
        self._ports = ports

    def is_new(self, peer: str, caller: Caller) -> bool:
        """Note that a caller uses a connection; return whether this is the first time."""
        callers = self._callers.get(peer)
        if callers is not None and caller in callers:
            return False
        self._note(peer, callers, caller)
        return True

    def close_unused(self) -> None:
        """Close the connections of users who are gone, as soon as what they had queued is answered."""
        self._closing = _started(self._closing, self._close_unused)

    async def stop(self) -> None:
        """End what is under way: the event loop is about to end."""
        for task in (self._forgetting, self._closing):
            if task:
                task.cancel()
                await asyncio.wait([task])

    def _note(self, peer: str, callers: set[Caller] | None, caller: Caller) -> None:
        if callers is None:
            callers = self._callers[peer] = set()
            if len(self._callers) > self._peers_max:
                self._forgetting = _started(self._forgetting, self._forget_ended)
        if len(callers) >= _CALLERS_MAX:
            callers.clear()
            self._shared.add(peer)
        callers.add(caller)

    async def _forget_ended(self) -> None:
        """Forget connections that have ended."""
        peers = list(self._callers)
        try:
            ends = await asyncio.get_running_loop().run_in_executor(self._helpers, open_ends, self._ports)
        except OSError:  # the process has as many open files as it may: at the next new connection
            return
        for peer in peers:
            if end_of(peer) not in ends:
                self._forget(peer)
        self._peers_max = max(_PEERS_MIN, 2 * len(self._callers))

    async def _close_unused(self) -> None:
        idle: set[str] = set()
        while unused := self._unused():
            still_idle = {peer for peer in unused if not self._is_busy(peer)}
            if closed := idle & still_idle:
                self._close(closed)
                for peer in closed:
                    self._forget(peer)
            idle = still_idle
            await asyncio.sleep(_LOOK_SECONDS)

    def _unused(self) -> list[str]:
        """Return the connections that no user uses who is still there."""
        return [
            peer
            for peer, callers in self._callers.items()
            if peer not in self._shared and all(caller.is_gone for caller in callers)
        ]

    def _forget(self, peer: str) -> None:
        self._callers.pop(peer, None)
        self._shared.discard(peer)


def _started(task: asyncio.Task[None] | None, job: Callable[[], Coroutine[Any, Any, None]]) -> asyncio.Task[None]:
    """Start a job, unless it is under way."""
    return asyncio.create_task(job()) if task is None or task.done() else task
