"""Calls reach the store through the gate: it is open from the end of recovery until the server stops."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from gpkvs.config import ServerConfig
from gpkvs.errors import GpkvsError
from gpkvs.store import Store

if TYPE_CHECKING:
    from gpkvs.server.request_queue import RequestQueue


class NotServingError(GpkvsError):
    """The server is starting or stopping; the request was not executed."""


@dataclass(frozen=True)
class Serving:
    """An open store, the queue of requests, and the bounds of calls."""

    store: Store
    queue: RequestQueue
    message_bytes_max: int
    watches_max: int = ServerConfig.watches_max

    def now_ms(self) -> int:
        """Return the time by which keys expire, in milliseconds since 1970."""
        return self.store.now_ms


class Gate:
    """Lets calls through to the store while there is one, and counts those under way."""

    def __init__(self) -> None:
        self._serving: Serving | None = None
        self.refusal = "the store is recovering: try again soon"  # why calls are not let through
        self._at_end: list[Callable[[], None]] = []
        self.is_over = False  # it has closed, and all that had come through has ended
        self._calls = 0
        self._idle = asyncio.Event()
        self._idle.set()

    def open(self, serving: Serving) -> None:
        """Let calls through."""
        self._serving = serving

    def close(self) -> None:
        """Refuse new calls; calls under way go on."""
        self._serving = None
        self.refusal = "the server is stopping: try again elsewhere or later"

    def end(self) -> None:
        """Say that nothing more happens to the store."""
        self.is_over = True
        for tell in self._at_end:
            tell()

    def call_at_end(self, tell: Callable[[], None]) -> None:
        """Have a function called when nothing more happens to the store."""
        self._at_end.append(tell)

    def serving(self) -> Serving:
        """Return the open store.

        Raises
        ------
        NotServingError
            If there is none yet, or none any more.
        """
        if self._serving is None:
            raise NotServingError(self.refusal)
        return self._serving

    def __enter__(self) -> None:
        self._calls += 1
        self._idle.clear()

    def __exit__(self, *exception: object) -> None:
        self._calls -= 1
        if self._calls == 0:
            self._idle.set()

    async def wait_idle(self) -> None:
        """Wait until no call is under way."""
        await self._idle.wait()
