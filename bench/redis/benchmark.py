"""The benchmark of the Redis protocol: the load of its usual tools on `gpkvs serve --resp`, beside a real redis-server.

In each round both servers take turns at the same load, so that a ratio is one of two neighbours in time. Both keep the
same promise.
"""

from __future__ import annotations

import asyncio
import tempfile
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import asdict, replace
from pathlib import Path
from time import perf_counter
from typing import Any

from gpkvs.bench.engine.workload import Shape
from gpkvs.bench.peers.compiled import compile_program
from gpkvs.bench.peers.contender import Progress, require_promise
from gpkvs.bench.peers.redis_peer import NAME as REDIS
from gpkvs.bench.peers.redis_peer import Redis
from gpkvs.bench.peers.resp_port import KEY_BYTES, RespPort, output_of, require_redis
from gpkvs.bench.redis.memory import Held, held_by_gpkvs, held_by_redis, overwrite
from gpkvs.bench.redis.options import Part, RedisOptions
from gpkvs.bench.report.comparison import Comparison, rates_over
from gpkvs.bench.report.machine import describe_run
from gpkvs.bench.report.results import Measurement, Run
from gpkvs.bench.report.tables import rate_text
from gpkvs.bench.server.measured_server import ServerBenchOptions, serve, server_options
from gpkvs.config import MIB
from gpkvs.info import package_version
from gpkvs.recovery.proof.servers.server_process import ServerOptions

GPKVS = "gpkvs"
OPERATIONS = ("SET", "GET", "INCR")
PIPELINE = 64
SETS = 8
"""In a transaction."""
_VALUE_BYTES = 8
_SHAPE = Shape("8 B", KEY_BYTES, _VALUE_BYTES)
_MEMORY_SHAPE = Shape("100 B", KEY_BYTES, 100)
_OVERWRITES = 20  # of each record, until records are moved to make room

# Of gpkvs over redis: on a tmpfs; on a disk; on a tmpfs with many processors, where redis reads and writes in threads.
_AIMS = {
    "process": {"SET": 0.8, "GET": 0.95, "SET -P 64": 2.0, "GET -P 64": 1.2, "MULTI": 1.2},
    "msync": {"SET": 0.7, "SET -P 64": 1.5},
    "threads": {"SET": 0.8, "GET": 0.8, "SET -P 64": 5.0, "GET -P 64": 5.0},
}
_MANY_RECORDS = 2_000_000  # what a server takes without any is little beside so many
_MEMORY_AIMS = {False: 1.35, True: 1.15}

Measure = Callable[[RespPort], Awaitable[Run]]


async def run_redis(options: RedisOptions, parts: tuple[Part, ...], progress: Progress) -> dict[str, Any]:
    """Run the chosen parts of the benchmark; return the result, ready for JSON.

    Raises
    ------
    BenchError
        If redis is not installed, the directory gives another promise, or a server does not answer as it should.
    GpkvsError
        If a server does not start or stop.
    """
    began = perf_counter()
    require_promise(options.directory, options.promise)
    require_redis()
    described = describe_run(options.directory)
    with tempfile.TemporaryDirectory(dir=options.directory, prefix="gpkvs-bench-") as folder:
        benchmark = _Benchmark(options, Path(folder), progress)
        for part in parts:
            await benchmark.run(part)
    return {
        "benchmark": "redis",
        "promise": options.promise,
        **described,
        "seconds": perf_counter() - began,
        "parameters": {name: value for name, value in asdict(options).items() if name not in ("directory", "promise")},
        "contenders": benchmark.contenders,
        "measurements": [measurement.as_json() for measurement in benchmark.measurements],
        "ratios": [],
        "comparisons": [comparison.as_json() for comparison in benchmark.comparisons],
    }


class _Benchmark:
    """One run of the benchmark; what it finds gathers here."""

    def __init__(self, options: RedisOptions, folder: Path, progress: Progress) -> None:
        self._options, self._folder, self._progress = options, folder, progress
        self.measurements: list[Measurement] = []
        self.comparisons: list[Comparison] = []
        self.contenders: dict[str, dict[str, str]] = {}
        self._aims = _AIMS["threads" if options.io_threads > 1 else options.promise]

    async def run(self, part: Part) -> None:
        """Run one part."""
        parts: dict[Part, Callable[[], Awaitable[None]]] = {
            "single": lambda: self._load(1),
            "pipelined": lambda: self._load(PIPELINE),
            "transactions": self._transactions,
            "memory": self._memory,
        }
        await parts[part]()

    @asynccontextmanager
    async def _both(self) -> AsyncIterator[dict[str, RespPort]]:
        """Start both servers, and give them the records."""
        options = self._options
        self._progress(f"starting {GPKVS} and {REDIS} with {options.records:,} records")
        folder = Path(tempfile.mkdtemp(dir=self._folder))
        sizes = server_options(
            ServerBenchOptions(folder, options.promise), _SHAPE, options.records, _OVERWRITES * options.records
        )
        sizes = replace(sizes, more=("--resp=127.0.0.1:0",))
        async with serve(folder / "store", sizes) as server:
            redis = Redis(folder / "redis", options.promise, options.io_threads)
            try:
                ports = {GPKVS: RespPort(int(server.resp[0].rpartition(":")[2])), REDIS: redis}
                for port in ports.values():
                    await asyncio.to_thread(port.load, options.records, _VALUE_BYTES)
                self.contenders[GPKVS] = {"version": package_version()}
                self.contenders[REDIS] = {"version": redis.version, "settings": redis.settings}
                yield ports
            finally:
                redis.close()

    async def _load(self, pipeline: int) -> None:
        """Run redis-benchmark."""
        options = self._options
        async with self._both() as ports:
            for operation in OPERATIONS:

                async def measure(port: RespPort, operation: str = operation) -> Run:
                    return await port.benchmark(
                        operation,
                        options.records,
                        options.seconds,
                        options.connections,
                        pipeline,
                        options.load_processes,
                    )

                name = operation if pipeline == 1 else f"{operation} -P {pipeline}"
                for port in ports.values():
                    port.load_busy.clear()
                found = await self._rounds(f"{name}, {options.connections} connections", ports, measure)
                busy = ", ".join(f"{max(port.load_busy):.0%}" for port in ports.values())
                self._compare(found, self._aims.get(name), f"load at most {busy} busy")

    async def _transactions(self) -> None:
        """Run MULTI, SETs, EXEC on many connections."""
        options = self._options
        program = compile_program(Path(__file__).parent / "transactions.cpp", self._folder)
        numbers = (options.connections, options.seconds, options.records, SETS, _VALUE_BYTES)

        async def measure(port: RespPort) -> Run:
            words = map(str, (program, port.port, *numbers))
            count, seconds, *milliseconds = (await asyncio.to_thread(output_of, *words)).split()
            latencies = dict(zip(("p50", "p95", "p99"), map(float, milliseconds), strict=True))
            return Run(int(count), float(seconds), latencies)

        async with self._both() as ports:
            found = await self._rounds(f"MULTI of {SETS} SETs, {options.connections} connections", ports, measure)
            self._compare(found, self._aims.get("MULTI"))

    async def _rounds(self, task: str, ports: dict[str, RespPort], measure: Measure) -> list[Measurement]:
        """Measure both in turn; each comes first in every second round."""
        self._progress(f"{task}: {self._options.runs} rounds of {' and '.join(ports)}")
        runs: dict[str, list[Run]] = {name: [] for name in ports}
        for number in range(self._options.runs):
            for name in sorted(ports, reverse=number % 2 == 1):
                runs[name].append(await measure(ports[name]))
        found = [Measurement(task, name, runs[name]) for name in ports]
        self.measurements += found
        return found

    def _compare(self, found: list[Measurement], aim: float | None, more: str = "") -> None:
        """Add a row of rates."""
        own, peer = found
        rates = f"{rate_text(own.rate)} a second, {rate_text(peer.rate)}"
        note = "; ".join(filter(None, (rates, more)))
        self.comparisons.append(Comparison(own.task, GPKVS, REDIS, rates_over(own, peer), aim=aim, note=note))

    async def _memory(self) -> None:
        """Compare what both hold for the same records: loaded, each overwritten once, and a minute later."""
        options, value_bytes = self._options, _MEMORY_SHAPE.value_bytes
        self._progress(f"memory of {options.records:,} records of {_MEMORY_SHAPE.text}")
        folder = Path(tempfile.mkdtemp(dir=self._folder))
        store = folder / "store"
        async with serve(store, _usual_sizes(options)) as server:
            redis = Redis(folder / "redis", options.promise, options.io_threads)
            try:
                own = RespPort(int(server.resp[0].rpartition(":")[2]))
                for port in (own, redis):
                    await asyncio.to_thread(port.load, options.records, value_bytes)
                aim = _MEMORY_AIMS[options.records >= _MANY_RECORDS]
                self._compare_memory("loaded", await held_by_gpkvs(server, store), held_by_redis(redis, folder), aim)
                for port in (own, redis):
                    await overwrite(port, options.records, value_bytes)
                self._compare_memory("overwritten", await held_by_gpkvs(server, store), held_by_redis(redis, folder))
                await asyncio.sleep(options.idle_seconds)
                self._compare_memory("at rest", await held_by_gpkvs(server, store), held_by_redis(redis, folder))
            finally:
                redis.close()

    def _compare_memory(self, when: str, own: Held, peer: Held, aim: float | None = None) -> None:
        what = f"memory, {self._options.records:,} records, {_MEMORY_SHAPE.text}, {when}"
        note = f"{own.total / MIB:,.0f} MiB ({own.text}), {peer.total / MIB:,.0f} MiB"
        ratio = own.total / peer.total
        self.comparisons.append(Comparison(what, GPKVS, REDIS, [ratio], aim, is_least=False, note=note))


def _usual_sizes(options: RedisOptions) -> ServerOptions:
    """Return the sizes of a store that nobody has chosen: it grows."""
    sizes = server_options(ServerBenchOptions(options.directory, options.promise), _MEMORY_SHAPE, 1)
    more = ("--resp=127.0.0.1:0", f"--format={options.store_format}")
    return replace(sizes, index="", heap="", log="", journal="", more=more)
