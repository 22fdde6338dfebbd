"""Counts the calls and the objects of Python for a message: neither may depend on the number of operations in it.

This shows that no Python object is made for an operation between the socket and the kernels.
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
import time
from pathlib import Path
from typing import Any

from gpkvs.bench.peers.contender import BenchError
from gpkvs.bench.server.load import DrawnKeys
from gpkvs.bench.server.measured_server import ServerBenchOptions, python_program, serve_numbers
from gpkvs.client import AsyncClient
from gpkvs.recovery.proof.servers.server_process import ServerProcess

_RECORDS = 50_000
_MESSAGES = 30
_WRITE_SECONDS_MAX = 30.0
_SHOWN = 25


async def count_calls(options: ServerBenchOptions, directory: Path, sizes: tuple[int, ...]) -> dict[str, Any]:
    """Return the calls of functions for a message, by operation and by operations in the message.

    One message is in flight at a time, so that each is a transaction of its own.
    """
    file = directory / "calls.json"
    program = python_program("gpkvs.bench.server.counting_server", str(file))
    found: dict[str, Any] = {}
    async with serve_numbers(directory / "counted", options, _RECORDS, program) as (server, client):
        for operation in ("SET", "GET"):
            found[operation] = {str(size): await _count(server, client, file, operation, size) for size in sizes}
    return found


async def _count(server: ServerProcess, client: AsyncClient, file: Path, operation: str, size: int) -> dict[str, Any]:
    batches = DrawnKeys(_RECORDS, seed=5).batches(operation, size)
    async with client.pipeline(in_flight_max=1) as pipeline:
        await (await pipeline.send(next(batches)))
        await asyncio.to_thread(_take, server, file)
        for _ in range(_MESSAGES):
            await (await pipeline.send(next(batches)))
        counted = await asyncio.to_thread(_take, server, file)
    calls = counted["functions"]
    top = sorted(calls.items(), key=lambda item: -item[1]["seconds"])[:_SHOWN]
    return {
        "calls_per_message": sum(entry["calls"] for entry in calls.values()) / _MESSAGES,
        "objects_most": counted["objects_most"],
        "cpu_us_per_message": 1e6 * sum(entry["seconds"] for entry in calls.values()) / _MESSAGES,
        "functions": {
            name: {
                "calls_per_message": entry["calls"] / _MESSAGES,
                "cpu_us_per_message": 1e6 * entry["seconds"] / _MESSAGES,
            }
            for name, entry in top
        },
    }


def _take(server: ServerProcess, file: Path) -> dict[str, Any]:
    """Let the server write its counts since the last time, and read them."""
    file.unlink(missing_ok=True)
    os.kill(server.pid, signal.SIGUSR1)
    give_up = time.monotonic() + _WRITE_SECONDS_MAX
    while not file.exists():
        if time.monotonic() > give_up:
            raise BenchError(f"the counting server wrote nothing within {_WRITE_SECONDS_MAX:.0f} s")
        time.sleep(0.01)
    counted: dict[str, Any] = json.loads(file.read_text())
    return counted
