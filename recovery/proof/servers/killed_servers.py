"""Runs a server under load and kills it as one round of a drill says, also in its recovery."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, closing
from pathlib import Path
from typing import Protocol

from gpkvs.recovery.proof.servers.kill_plan import SIGKILL, Round
from gpkvs.recovery.proof.servers.server_process import ServerOptions, ServerProcess

_FAILPOINT_SECONDS_MAX = 120.0  # a checkpoint may take that long on a slow disk


class Clients(Protocol):
    """The clients of a server."""

    last_error: str

    async def run(self, target: str) -> None:
        """Let all clients work until each has lost its server."""


class KilledServers:
    """Starts and kills the servers of one store, one after the other.

    Parameters
    ----------
    path
        The store's directory.
    options
        How to start servers.
    clients
        The load on each server.
    """

    def __init__(self, path: Path, options: ServerOptions, clients: Clients) -> None:
        self.path = path
        self._options = options
        self._clients = clients

    def start(self, armed: str = "") -> ServerProcess:
        """Start a server, with or without an armed failpoint."""
        return ServerProcess(self.path, self._options, armed=armed)

    async def run_and_kill(self, round: Round) -> tuple[str, ...]:
        """Run a server under load and kill it as a round says, also in its recovery; return the kills in order.

        Raises
        ------
        ServerProcessError
            If a server did not die as planned.
        """
        kills = [round.engine_point or SIGKILL]
        if round.kind == SIGKILL:
            await self._kill(round.load_seconds)
        else:
            await self._die(f"{round.engine_point}:{round.hit}")
        for _ in range(round.recovery_kills):
            await self.die_in_recovery(round.kind)
            kills.append(round.kind)
        return tuple(kills)

    @asynccontextmanager
    async def under_load(self, armed: str = "") -> AsyncIterator[tuple[ServerProcess, asyncio.Task[None]]]:
        """Start a server and the clients; at the end, kill the server and wait until all clients have noticed."""
        with closing(self.start(armed)) as server:
            await server.ready()
            load = asyncio.create_task(self._clients.run(server.target))
            try:
                yield server, load
            finally:
                server.close()
                await load

    async def _kill(self, load_seconds: float) -> None:
        """Kill the server with SIGKILL after some seconds."""
        async with self.under_load() as (server, load):
            done, _ = await asyncio.wait([load], timeout=load_seconds)
            if done or not server.alive:
                raise server.error(f"the clients lost a server that nobody killed ({self._clients.last_error})")
            server.kill()

    async def _die(self, armed: str) -> None:
        """Let the server kill itself at a failpoint."""
        async with self.under_load(armed) as (server, _):
            if not await server.dead(_FAILPOINT_SECONDS_MAX):
                raise server.error(f"failpoint {armed} was not reached in {_FAILPOINT_SECONDS_MAX:.0f} s of load")
            if not server.killed:
                raise server.error(f"the server did not die at failpoint {armed}")

    async def die_in_recovery(self, point: str) -> None:
        """Start the server with an armed failpoint of recovery, which it must not survive."""
        with closing(self.start(point)) as server:
            if not await server.dead(_FAILPOINT_SECONDS_MAX) or not server.killed:
                raise server.error(f"the server did not die at failpoint {point} while it started")
