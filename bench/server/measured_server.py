"""Starts the real servers of a benchmark, each a process of its own with its own store."""

from __future__ import annotations

import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

from gpkvs.bench.engine.workload import SHAPES, Shape
from gpkvs.bench.peers.contender import Promise
from gpkvs.bench.peers.embedded_gpkvs import TABLE, heap_bytes, index_bytes, usual_journal_bytes
from gpkvs.bench.server.load import all_records, fill
from gpkvs.client import AsyncClient
from gpkvs.config import MIB
from gpkvs.recovery.proof.servers.server_process import GPKVS, ServerOptions, ServerProcess

START_SECONDS_MAX = 300.0


@dataclass(frozen=True)
class ServerBenchOptions:
    """What to measure, and for how long.

    Parameters
    ----------
    directory
        The directory for the stores: its file system decides the promise.
    promise
        What an acknowledged write must survive.
    records
        How many the u64 table, and redis, hold before anything is timed.
    runs
        How many of each measurement; their median counts.
    seconds
        The length of a run.
    message
        Operations in a message of a stream.
    in_flight
        Messages of a stream that wait for their responses, at most.
    connections
        How many for single calls, and for redis-benchmark.
    callers
        Concurrent callers of the client that gathers calls.
    large_records
        How many records of 1 KiB, for memory and start-up time.
    starts
        How many of each store, after a stop and after a kill.
    has_redis
        Whether to compare with redis.
    """

    directory: Path
    promise: Promise = "process"
    records: int = 10_000_000
    runs: int = 5
    seconds: float = 3.0
    message: int = 4096
    in_flight: int = 32
    connections: int = 50
    callers: int = 256
    large_records: int = 1_000_000
    starts: int = 3
    has_redis: bool = True


LARGE = Shape("1 KiB", 16, 1024)


def server_options(options: ServerBenchOptions, shape: Shape, records: int, sets_max: int = 0) -> ServerOptions:
    """Return the sizes of a store for records of one shape."""
    index = index_bytes(shape, records)
    return ServerOptions(
        durability="auto",
        index=str(MIB if shape.is_numbers else index),
        heap=str(64 * MIB if shape.is_numbers else heap_bytes(shape, records, sets_max)),
        log=str(64 * MIB),
        commit="auto",
        journal=str(usual_journal_bytes(index)),
    )


@asynccontextmanager
async def serve(data: Path, options: ServerOptions, program: tuple[str, ...] = GPKVS) -> AsyncIterator[ServerProcess]:
    """Start a server, wait until it serves, and stop it at the end."""
    server = ServerProcess(data, options, program=program)
    try:
        await server.ready(START_SECONDS_MAX)
        yield server
        if server.alive:
            await server.stop()
    finally:
        server.close()


@asynccontextmanager
async def serve_numbers(
    directory: Path, options: ServerBenchOptions, records: int, program: tuple[str, ...] = GPKVS
) -> AsyncIterator[tuple[ServerProcess, AsyncClient]]:
    """Serve a u64 table that holds `records`, and connect a client to it."""
    numbers = SHAPES["u64"]
    async with (
        serve(directory, server_options(options, numbers, records), program) as server,
        AsyncClient(server.target, table=TABLE, timeout=60) as client,
    ):
        await client.create_table(TABLE, layout="u64", index_bytes=index_bytes(numbers, records))
        await fill(client, all_records(records, options.message))
        yield server, client


def python_program(module: str, *arguments: str) -> tuple[str, ...]:
    """Return the command that runs a module of this gpkvs."""
    return (sys.executable, "-P", "-m", module, *arguments)
