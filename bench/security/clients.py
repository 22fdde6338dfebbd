"""Client processes of one server, driven from here."""

from __future__ import annotations

import asyncio
import json
import subprocess
from asyncio.subprocess import Process
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gpkvs.bench.peers.contender import BenchError
from gpkvs.bench.server.measured_server import python_program
from gpkvs.bench.server.process_usage import cpu_seconds
from gpkvs.recovery.proof.servers.server_process import ServerProcess


@dataclass(frozen=True)
class Used:
    """What a load took.

    Parameters
    ----------
    done
        Operations, calls or handshakes.
    rate
        How many a second, of all clients together.
    server_cpu_s, client_cpu_s
        Processor time of the server, and of the client that used most.
    seconds
        How long it took.
    """

    done: int
    rate: float
    server_cpu_s: float
    client_cpu_s: float
    seconds: float

    @property
    def wall_us(self) -> float:
        """Time for one of them, of one client after another."""
        return 1e6 / self.rate

    @property
    def server_cpu_us(self) -> float:
        """The server's processor time for one of them."""
        return 1e6 * self.server_cpu_s / self.done


class Clients:
    """Processes that load one server (`gpkvs.bench.security.load_process`)."""

    def __init__(self, server: ServerProcess, processes: list[Process]) -> None:
        self._server = server
        self._processes = processes

    async def run(self, kind: str, *, clients: int | None = None, **parameters: Any) -> Used:
        """Let all processes, or so many of them, do the same at the same time.

        Raises
        ------
        BenchError
            If one of them ends instead.
        """
        processes = self._processes[:clients]
        line = json.dumps({"kind": kind, **parameters}).encode() + b"\n"
        before = [cpu_seconds(pid) for pid in (self._server.pid, *(process.pid for process in processes))]
        found = await asyncio.gather(*(_ask(process, line) for process in processes))
        after = [cpu_seconds(pid) for pid in (self._server.pid, *(process.pid for process in processes))]
        server, *own = (end - begin for begin, end in zip(before, after, strict=True))
        return Used(
            sum(one["done"] for one in found),
            sum(one["done"] / one["seconds"] for one in found if one["seconds"]),
            server,
            max(own),
            max(one["seconds"] for one in found),
        )


async def _ask(process: Process, line: bytes) -> dict[str, Any]:
    assert process.stdin
    assert process.stdout
    process.stdin.write(line)
    if not (answer := await process.stdout.readline()):
        raise BenchError("a client process of the benchmark ended; its error stands above")
    found: dict[str, Any] = json.loads(answer)
    return found


@asynccontextmanager
async def connect(
    server: ServerProcess, count: int, ca: Path | None = None, token: str | None = None
) -> AsyncIterator[Clients]:
    """Start so many client processes of a server; the token goes to them on their standard input."""
    hello = {"target": server.target, "ca": str(ca) if ca else None, "token": token}
    async with AsyncExitStack() as stack:
        processes = []
        for _ in range(count):
            process = await asyncio.create_subprocess_exec(
                *python_program("gpkvs.bench.security.load_process"), stdin=subprocess.PIPE, stdout=subprocess.PIPE
            )
            stack.push_async_callback(_end, process)
            assert process.stdin
            process.stdin.write(json.dumps(hello).encode() + b"\n")
            processes.append(process)
        yield Clients(server, processes)


async def _end(process: Process) -> None:
    if process.returncode is None:
        process.kill()
    await process.wait()
