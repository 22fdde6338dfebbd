"""The server's throughput beside redis: streams, single calls, gathered calls."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import grpc

from gpkvs.bench.peers.contender import Progress, Promise
from gpkvs.bench.peers.embedded_gpkvs import TABLE
from gpkvs.bench.peers.redis_peer import NAME as REDIS
from gpkvs.bench.peers.redis_peer import Redis
from gpkvs.bench.report.results import Aim, Measurement, Run
from gpkvs.bench.server.empty_server import NAME as EMPTY
from gpkvs.bench.server.empty_server import empty_server
from gpkvs.bench.server.load import DrawnKeys, gathered_calls, single_calls, stream
from gpkvs.bench.server.measured_server import ServerBenchOptions, serve_numbers
from gpkvs.bench.server.process_usage import cpu_seconds
from gpkvs.client import AsyncClient
from gpkvs.info import package_version
from gpkvs.recovery.proof.servers.server_process import ServerProcess
from gpkvs.server.signs.metrics_reader import Scrape

OWN = "gpkvs"
OPERATIONS = ("SET", "GET")
_REDIS_PIPELINE = 64
_PHASES = "gpkvs_phase_seconds_total"

Measure = Callable[[], Awaitable[Run]]


def task_stream(operation: str) -> str:
    """Return the name of the task of streams."""
    return f"{operation} stream"


def task_single(operation: str) -> str:
    """Return the name of the task of single calls."""
    return f"{operation} single"


def task_gathered(operation: str) -> str:
    """Return the name of the task of gathered calls."""
    return f"{operation} gathered"


def aims(promise: Promise) -> list[Aim]:
    """Return the target ratios."""
    if promise == "msync":
        return [Aim(task_stream("SET"), REDIS, 7.5), Aim(task_gathered("SET"), REDIS, 1.3)]
    return [
        Aim(task_stream("SET"), REDIS, 10),
        Aim(task_stream("GET"), REDIS, 5),
        *(Aim(task_gathered(operation), REDIS, 0.5) for operation in OPERATIONS),
    ]


async def measure_throughput(
    options: ServerBenchOptions, directory: Path, progress: Progress
) -> tuple[list[Measurement], dict[str, Any]]:
    """Measure both servers in turn; return the measurements, and where the time of gpkvs went.

    Both servers run all the time, so that a run of one follows each run of the other.
    """
    runs: dict[tuple[str, str], list[Run]] = {}
    spent: dict[str, Any] = {}
    progress(f"loading {options.records:,} records into gpkvs")
    async with (
        serve_numbers(directory / "gpkvs", options, options.records) as (server, client),
        _redis(options, directory / "redis", progress) as redis,
    ):
        for operation in OPERATIONS:
            for task, own, peer in _tasks(options, operation, server, client, redis):
                progress(f"{task}: {options.runs} runs")
                before = _Spent(server)
                for _ in range(options.runs):
                    runs.setdefault((task, OWN), []).append(await own())
                    if redis:
                        runs.setdefault((task, REDIS), []).append(await peer())
                spent[task] = before.until_now(sum(run.operations for run in runs[task, OWN]))
            task = task_single(operation)
            progress(f"{task}, {EMPTY}: {options.runs} runs")
            runs[task, EMPTY], cpu_us = await _measure_empty(options, operation)
            spent[task] |= {"empty_server_cpu_us": cpu_us}
        contenders: dict[str, dict[str, str]] = {
            OWN: {"version": package_version(), "settings": _commit_of(server)},
            EMPTY: {"version": grpc.__version__},
        }
        if redis:
            contenders[REDIS] = {"version": redis.version, "settings": redis.settings}
    measurements = [Measurement(task, contender, found) for (task, contender), found in runs.items()]
    phases = {task: found.pop("phases") for task, found in spent.items()}
    return measurements, {"contenders": contenders, "spent": spent, "phases": phases}


def _commit_of(server: ServerProcess) -> str:
    """Say how the server's batches become durable."""
    return f"commit {'journal' if Scrape(server.metrics).has('gpkvs_journal_bytes') else 'undo'}"


def _tasks(
    options: ServerBenchOptions, operation: str, server: ServerProcess, client: AsyncClient, redis: Redis | None
) -> list[tuple[str, Measure, Measure]]:
    """Return the tasks of one operation: name, a run of gpkvs, a run of redis."""
    batches = DrawnKeys(options.records, seed=1).batches(operation, options.message)
    keys = DrawnKeys(options.records, seed=2).singly()
    seconds = options.seconds

    def peer(pipeline: int) -> Measure:
        assert redis or not options.has_redis
        return lambda: redis.benchmark(operation, options.records, seconds, options.connections, pipeline)  # type: ignore[union-attr]

    return [
        (task_stream(operation), lambda: stream(client, batches, seconds, options.in_flight), peer(_REDIS_PIPELINE)),
        (
            task_single(operation),
            lambda: single_calls(server.target, TABLE, operation, keys, seconds, options.connections),
            peer(1),
        ),
        (task_gathered(operation), lambda: gathered_calls(client, operation, keys, seconds, options.callers), peer(1)),
    ]


async def _measure_empty(options: ServerBenchOptions, operation: str) -> tuple[list[Run], float]:
    """Make the same single calls to a server that does nothing; return the runs, and its processor time for a call."""
    keys = DrawnKeys(options.records, seed=2).singly()
    with empty_server() as (target, pid):
        before = cpu_seconds(pid)
        runs = [
            await single_calls(target, TABLE, operation, keys, options.seconds, options.connections)
            for _ in range(options.runs)
        ]
        return runs, 1e6 * (cpu_seconds(pid) - before) / sum(run.operations for run in runs)


@asynccontextmanager
async def _redis(options: ServerBenchOptions, directory: Path, progress: Progress) -> AsyncIterator[Redis | None]:
    if not options.has_redis:
        yield None
        return
    progress(f"loading {options.records:,} records into redis")
    redis = Redis(directory, options.promise)
    try:
        redis.load(options.records)
        yield redis
    finally:
        redis.close()


class _Spent:
    """Measures the processor time of the server and of this client, from now on."""

    def __init__(self, server: ServerProcess) -> None:
        self._server = server
        self._phases = Scrape(server.metrics).by(_PHASES, "phase")
        self._cpu = cpu_seconds(server.pid), time.process_time()

    def until_now(self, operations: int) -> dict[str, Any]:
        """Return seconds by phase of the engine, and processor time for each operation."""
        phases = Scrape(self._server.metrics).by(_PHASES, "phase")
        grown = {phase: seconds - self._phases.get(phase, 0.0) for phase, seconds in phases.items()}
        server, client = cpu_seconds(self._server.pid) - self._cpu[0], time.process_time() - self._cpu[1]
        return {
            "operations": operations,
            "server_cpu_us": 1e6 * server / operations,
            "client_cpu_us": 1e6 * client / operations,
            "engine_us": 1e6 * sum(grown.values()) / operations,
            "phases": {phase: seconds for phase, seconds in grown.items() if seconds > 0},
        }
