"""The benchmark of the door: h2load on `gpkvs serve`, beside servers that do nothing, and beside redis.

In each round all servers take turns at the same load, so that a ratio is one of two neighbours in time.
"""

from __future__ import annotations

import asyncio
import os
import signal
import sys
import tempfile
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import asdict, replace
from pathlib import Path
from statistics import median
from time import perf_counter
from typing import Any

from gpkvs.bench.door.awake import awake
from gpkvs.bench.door.besieged import Besieged, besiege
from gpkvs.bench.door.bodies import ANSWERS, frame, write_methods, write_single, write_streams
from gpkvs.bench.door.crowd import flood, silent_connection, spread, store_large_value
from gpkvs.bench.door.empty_servers import GRPC_AIO, NGHTTP2, build_empty_servers
from gpkvs.bench.door.floods import FLOODS
from gpkvs.bench.door.h2load import METHODS, PIPELINE, Load, require_h2load, run_load
from gpkvs.bench.door.measured_doors import NATIVE, Target, serve_door
from gpkvs.bench.door.options import DoorOptions, Part
from gpkvs.bench.peers.contender import BenchError, Progress, require_promise
from gpkvs.bench.peers.redis_peer import NAME as REDIS
from gpkvs.bench.peers.redis_peer import Redis
from gpkvs.bench.peers.resp_port import require_redis
from gpkvs.bench.report.comparison import Comparison, rates_over
from gpkvs.bench.report.machine import describe_run
from gpkvs.bench.report.results import Measurement, Run
from gpkvs.bench.report.tables import rate_text
from gpkvs.info import package_version
from gpkvs.recovery.proof.servers.run_access import make_access
from gpkvs.recovery.proof.servers.server_process import ServerOptions

OPERATIONS = ("SET", "GET")
SHAPES = {"50 connections": (50, 1), "4 x 100 streams": (4, 100)}
_OF_METHODS = "50 connections"
_STREAM_MESSAGES = 64  # in the body of one stream
_REDIS_CONNECTIONS, _REDIS_PIPELINE = 50, 64
_CROWD_PER_SECOND = 1  # calls of each connection
_CROWD_MEMORY = "--memory-max=16GiB"  # so many connections are let in

# A ratio, and whether it should be that at least or at most.
_AIM_UNARY, _AIM_ALONE, _AIM_TLS, _AIM_CROWD, _AIM_BUSY = 0.4, 1.8, 0.7, 3.0, 0.9
_AIM_METHODS, _AIM_FLOOD, _AIM_HELD = 0.77, 3.0, 1.0
_AIM_PIPELINE = {"SET": 12.0, "GET": 14.0}

Measure = Callable[[], Awaitable[Run]]
Task = tuple[Load, int]
"""A load, and the operations of each call."""


async def run_door(options: DoorOptions, parts: tuple[Part, ...], progress: Progress) -> dict[str, Any]:
    """Run the chosen parts of the benchmark; return the result, ready for JSON.

    Raises
    ------
    BenchError
        If h2load is not installed, the directory gives another promise, or a server does not answer as it should.
    GpkvsError
        If a server does not start or stop.
    """
    began = perf_counter()
    require_promise(options.directory, options.promise)
    require_h2load()
    described = describe_run(options.directory)
    with tempfile.TemporaryDirectory(dir=options.directory, prefix="gpkvs-bench-") as folder:
        benchmark = _Benchmark(options, Path(folder), progress)
        for part in parts:
            await benchmark.run(part)
    return {
        "benchmark": "door",
        "promise": options.promise,
        **described,
        "seconds": perf_counter() - began,
        "parameters": {name: value for name, value in asdict(options).items() if name not in ("directory", "promise")},
        "contenders": benchmark.contenders,
        "missing": list(dict.fromkeys(benchmark.missing)),
        "measurements": [measurement.as_json() for measurement in benchmark.measurements],
        "ratios": [],
        "comparisons": [comparison.as_json() for comparison in benchmark.comparisons],
    }


class _Benchmark:
    """One run of the benchmark; what it finds gathers here."""

    def __init__(self, options: DoorOptions, folder: Path, progress: Progress) -> None:
        self._options, self._folder, self._progress = options, folder, progress
        self.measurements: list[Measurement] = []
        self.comparisons: list[Comparison] = []
        self.missing: list[str] = []
        self.contenders: dict[str, dict[str, str]] = {}
        self._empty = build_empty_servers(folder, self._miss)
        self._bodies = write_single(folder)
        self._streams = write_streams(folder, options.records, options.message, _STREAM_MESSAGES)

    async def run(self, part: Part) -> None:
        """Run one part."""
        parts: dict[Part, Callable[[], Awaitable[None]]] = {
            "unary": self._unary,
            "methods": self._methods,
            "alone": self._alone,
            "tls": self._tls,
            "pipeline": self._pipeline,
            "crowd": self._crowd,
            "floods": self._floods,
            "busy": self._busy,
        }
        await parts[part]()

    def _miss(self, what: str) -> None:
        self._progress(f"left out: {what}")
        self.missing.append(what)

    async def _serve(self, stack: AsyncExitStack, *more: str, **how: Any) -> Target:
        """Start a server."""
        self._progress(f"starting a server with {self._options.records:,} records")
        folder = Path(tempfile.mkdtemp(dir=self._folder))
        target = await stack.enter_async_context(serve_door(folder, self._options, more, **how))
        self.contenders[NATIVE] = {"version": package_version()}
        return target

    def _serve_empty(self, stack: AsyncExitStack, operation: str) -> list[Target]:
        found = []
        for name, start in self._empty.items():
            url, version = stack.enter_context(start(operation))
            self.contenders[name] = {"version": version}
            found.append(Target(name, url))
        return found

    def _single(self, operation: str, connections: int = 1, streams: int = 1) -> Load:
        answer_bytes = len(frame(ANSWERS[operation]))
        return Load(METHODS[operation], self._bodies[operation], connections, streams, answer_bytes)

    def _loads(self) -> dict[str, Load]:
        """Return the loads of single calls by name."""
        return {
            f"{operation}, {name}": self._single(operation, *shape)
            for operation in OPERATIONS
            for name, shape in SHAPES.items()
        }

    async def _rounds(self, task: str, measures: dict[str, Measure]) -> dict[str, Measurement]:
        """Measure all contenders in turn, after a round that warms up; each comes first in some round."""
        self._progress(f"{task}: {self._options.runs} rounds of {', '.join(measures)}")
        runs: dict[str, list[Run]] = {name: [] for name in measures}
        names = list(measures)
        for number in range(self._options.runs):
            first = number % len(names)
            for name in names[first:] + names[:first]:
                runs[name].append(await measures[name]())
        found = {name: Measurement(task, name, of) for name, of in runs.items()}
        self.measurements += found.values()
        return found

    def _compare(self, found: dict[str, Measurement], own: str, peer: str, aim: float | None) -> None:
        """Add a row of rates, if both were measured."""
        if own in found and peer in found:
            one, other = found[own], found[peer]
            note = f"{rate_text(one.rate)} a second, {rate_text(other.rate)}"
            self.comparisons.append(Comparison(one.task, own, peer, rates_over(one, other), aim=aim, note=note))

    async def _unary(self) -> None:
        async with AsyncExitStack() as stack:
            door = await self._serve(stack)
            for task, load in self._loads().items():
                async with AsyncExitStack() as empty:
                    targets = [door, *self._serve_empty(empty, task.partition(",")[0])]
                    found = await self._rounds(task, {one.name: self._timed(one, load) for one in targets})
                self._compare(found, NATIVE, NGHTTP2, _AIM_UNARY)
                self._compare(found, NATIVE, GRPC_AIO, None)

    async def _methods(self) -> None:
        """Compare single calls of other methods, on a table of bytes, with SETs."""
        connections, streams = SHAPES[_OF_METHODS]
        bodies = write_methods(self._folder)
        first, *others = bodies
        async with AsyncExitStack() as stack:
            door = await self._serve(stack)
            measures = {
                f"{NATIVE}: {name}": self._called(door, Load(path, body, connections, streams), operations)
                for name, (path, body, operations) in bodies.items()
            }
            found = await self._rounds(f"single calls, {_OF_METHODS}", measures)
            for name in others:
                self._compare(found, f"{NATIVE}: {name}", f"{NATIVE}: {first}", _AIM_METHODS)

    def _timed(self, target: Target, load: Load, operations: int = 1, log: Path | None = None) -> Measure:
        return lambda: target.run(load, self._options.seconds, operations, log)

    def _called(self, target: Target, load: Load, operations: int) -> Measure:
        """Measure calls, however many operations each of them has."""

        async def measure() -> Run:
            run = await target.run(load, self._options.seconds, operations)
            return replace(run, operations=run.operations // operations)

        return measure

    async def _alone(self) -> None:
        """Time single calls, of which there is one at a time."""
        log = self._folder / "alone.log"
        async with AsyncExitStack() as stack:
            stack.enter_context(awake())
            door = await self._serve(stack)
            for operation in OPERATIONS:
                load = self._single(operation)
                async with AsyncExitStack() as empty:
                    targets = [door, *self._serve_empty(empty, operation)]
                    measures = {one.name: self._timed(one, load, log=log) for one in targets}
                    found = await self._rounds(f"{operation}, one call alone", measures)
                if NGHTTP2 in found:
                    self._compare_latency(found[NATIVE], found[NGHTTP2], "p50", _AIM_ALONE)

    def _compare_latency(self, own: Measurement, peer: Measurement, percentile: str, aim: float | None) -> None:
        """Add a row of latencies."""
        mine, others = ([run.latencies_ms[percentile] for run in one.runs] for one in (own, peer))
        ratios = [one / other for one, other in zip(mine, others, strict=True)]
        note = f"{median(mine):.3f} ms, {median(others):.3f} ms"
        what = f"{own.task}: {percentile}"
        self.comparisons.append(Comparison(what, own.contender, peer.contender, ratios, aim, is_least=False, note=note))

    async def _tls(self) -> None:
        access = make_access(self._folder / "access")
        async with AsyncExitStack() as stack:
            targets = [await self._serve(stack), await self._serve(stack, tls=access)]
            for task, load in self._loads().items():
                found = await self._rounds(f"{task}, TLS", {one.name: self._timed(one, load) for one in targets})
                self._compare(found, f"{NATIVE}-tls", NATIVE, _AIM_TLS)

    async def _pipeline(self) -> None:
        async with AsyncExitStack() as stack:
            door = await self._serve(stack)
            redis = await stack.enter_async_context(self._redis())
            for operation in OPERATIONS:
                load, operations = self._stream(operation)
                measures = {NATIVE: self._timed(door, load, operations)}
                if redis:
                    measures[REDIS] = _redis_run(redis, operation, self._options)
                task = f"{operation} stream, {self._options.message:,} a message"
                found = await self._rounds(task, measures)
                self._compare(found, NATIVE, REDIS, _AIM_PIPELINE[operation])

    def _stream(self, operation: str) -> Task:
        """Return streams of messages, one at a time: h2load sends as fast as the server takes them."""
        return Load(PIPELINE, self._streams[operation]), _STREAM_MESSAGES * self._options.message

    @asynccontextmanager
    async def _redis(self) -> AsyncIterator[Redis | None]:
        try:
            require_redis()
        except BenchError as error:
            self._miss(f"{REDIS}: {error}")
            yield None
            return
        redis = Redis(self._folder / "redis", self._options.promise)
        try:
            redis.load(self._options.records)
            self.contenders[REDIS] = {"version": redis.version, "settings": redis.settings}
            yield redis
        finally:
            redis.close()

    async def _crowd(self) -> None:
        """Time the calls of a crowd, and again while one connection floods and one reads nothing."""
        connections = self._options.crowd - 2
        calls = max(int(connections * _CROWD_PER_SECOND * self._options.seconds), connections)
        load = replace(self._single("GET", connections), per_second=_CROWD_PER_SECOND)
        log = self._folder / "crowd.log"
        async with AsyncExitStack() as stack:
            door = await self._serve(stack, _CROWD_MEMORY)
            assert door.server
            address = door.server.target
            await store_large_value(address)

            async def alone() -> Run:
                return await run_load(door.url, load, calls, log, spread(connections))

            async def disturbed() -> Run:
                async with flood(door.url, self._bodies["SET"]):
                    with silent_connection(address):
                        return await run_load(door.url, load, calls, log, spread(connections))

            names = NATIVE, f"{NATIVE} flooded"
            task = f"GET, a crowd of {self._options.crowd:,}"
            found = await self._rounds(task, dict(zip(names, (alone, disturbed), strict=True)))
            self._compare_latency(found[names[1]], found[names[0]], "p99", _AIM_CROWD)

    async def _floods(self) -> None:
        """Time the calls of one client, and again beside each flood."""
        access = make_access(self._folder / "flooded")
        for name, sent in FLOODS.items():
            folder = Path(tempfile.mkdtemp(dir=self._folder))
            async with besiege(folder / "store", sent, ServerOptions(), access) as besieged:

                async def alone(besieged: Besieged = besieged) -> Run:
                    with awake():  # it computes where the flood will, and sends nothing
                        return await besieged.calls(self._options.seconds)

                async def flooded(besieged: Besieged = besieged, name: str = name) -> Run:
                    return await besieged.flooded_calls(name, self._options.seconds)

                names = NATIVE, f"{NATIVE} flooded"
                found = await self._rounds(f"flood: {name}", dict(zip(names, (alone, flooded), strict=True)))
            self._compare_latency(found[names[1]], found[names[0]], "p99", _AIM_FLOOD)
            held = [held / besieged.memory_bytes for held in besieged.held_bytes]
            note = f"of {besieged.memory_bytes >> 20:,} MiB; the flood took {median(besieged.flooding):.1f} processors"
            note += f"; {besieged.refused:,} calls refused" if besieged.refused else ""
            what = f"flood: {name}: memory"
            self.comparisons.append(Comparison(what, names[1], names[0], held, _AIM_HELD, is_least=False, note=note))

    async def _busy(self) -> None:
        """Compare servers with a busy Python thread with such a thread in a process beside them, and with idle ones."""
        tasks: dict[str, Task] = {task: (load, 1) for task, load in self._loads().items()}
        tasks |= {f"{operation}, one call at a time": (self._single(operation), 1) for operation in OPERATIONS}
        tasks |= {f"{operation} stream": self._stream(operation) for operation in OPERATIONS}
        async with AsyncExitStack() as stack:
            door, busy = await self._serve(stack), await self._serve(stack, busy=True)
            _signal(busy, signal.SIGSTOP)  # except while it is measured
            stack.callback(_signal, busy, signal.SIGCONT)
            for task, (load, operations) in tasks.items():
                idle = self._timed(door, load, operations)
                names = f"{NATIVE} idle", f"{NATIVE} beside", f"{NATIVE} busy"
                measures = (idle, _beside(idle), _resumed(busy, self._timed(busy, load, operations)))
                found = await self._rounds(f"{task}, busy", dict(zip(names, measures, strict=True)))
                self._compare(found, names[2], names[1], _AIM_BUSY)
                self._compare(found, names[2], names[0], None)


def _redis_run(redis: Redis, operation: str, options: DoorOptions) -> Measure:
    return lambda: redis.benchmark(operation, options.records, options.seconds, _REDIS_CONNECTIONS, _REDIS_PIPELINE)


def _beside(measure: Measure) -> Measure:
    """Measure while another process computes."""

    async def run() -> Run:
        process = await asyncio.create_subprocess_exec(sys.executable, "-c", "while True: pass")
        try:
            return await measure()
        finally:
            process.kill()
            await process.wait()

    return run


def _resumed(target: Target, measure: Measure) -> Measure:
    """Measure a server that is stopped while others are measured."""

    async def run() -> Run:
        _signal(target, signal.SIGCONT)
        try:
            return await measure()
        finally:
            _signal(target, signal.SIGSTOP)

    return run


def _signal(target: Target, number: signal.Signals) -> None:
    assert target.server
    os.kill(target.server.pid, number)
