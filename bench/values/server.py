"""Large values over the Redis protocol: `gpkvs serve --resp` beside redis-server, with the same client (load.cpp)."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial
from itertools import count
from pathlib import Path
from tempfile import TemporaryDirectory

from gpkvs.bench.disk.rounds import in_turn
from gpkvs.bench.peers.compiled import compile_program
from gpkvs.bench.peers.contender import Progress
from gpkvs.bench.peers.redis_peer import NAME as REDIS
from gpkvs.bench.peers.redis_peer import Redis
from gpkvs.bench.peers.resp_port import RespPort, output_of, require_redis
from gpkvs.bench.report.results import Measurement, Run
from gpkvs.bench.server.measured_server import serve
from gpkvs.bench.values.gpkvs_values import OWN, value_bytes_max
from gpkvs.bench.values.options import Found, ValuesOptions
from gpkvs.bench.values.payload import Payload, equal_sizes, size_text
from gpkvs.bench.values.resp_values import RespValues
from gpkvs.info import package_version
from gpkvs.recovery.proof.servers.server_process import ServerOptions

_AIMS = {"SET": 2.0, "GET": 1.5}


def measure_server(options: ValuesOptions, progress: Progress, found: Found) -> None:
    """Measure SETs and GETs on one connection and on several, in new servers for each size."""
    if REDIS in options.peers:
        require_redis()
    with TemporaryDirectory(dir=options.directory, prefix="gpkvs-bench-") as folder:
        program = compile_program(Path(__file__).parent / "load.cpp", Path(folder), ("-pthread",))
        for size in options.sizes:
            asyncio.run(_measure(options, program, size, progress, found))


async def _measure(options: ValuesOptions, program: Path, size: int, progress: Progress, found: Found) -> None:
    payload = Payload.of_sizes(equal_sizes(size, options.total_bytes))
    seeds = count(1)

    def run(port: RespPort, operation: str, connections: int) -> Run:
        numbers = (connections, options.seconds, len(payload), size, next(seeds))
        done, seconds, *milliseconds = output_of(*map(str, (program, port.port, operation, *numbers))).split()
        latencies = dict(zip(("p50", "p99"), map(float, milliseconds), strict=True))
        return Run(int(done), float(seconds), latencies)

    async with _servers(options, payload, progress, found) as ports:
        for operation in ("SET", "GET"):
            for connections in sorted({1, options.connections}):
                task = f"{operation} {size_text(size)}, {connections} connection{'s' if connections > 1 else ''}"
                progress(f"{task}: {options.runs} rounds of {' and '.join(ports)}")
                runs = in_turn(options.runs, [partial(run, port, operation, connections) for port in ports.values()])
                measured = {name: Measurement(task, name, runs[at]) for at, name in enumerate(ports)}
                found.add(task, OWN, measured, size, {REDIS: _AIMS[operation]})


@asynccontextmanager
async def _servers(
    options: ValuesOptions, payload: Payload, progress: Progress, found: Found
) -> AsyncIterator[dict[str, RespPort]]:
    """Start the servers, and give them the values."""
    progress(f"starting servers with {len(payload):,} values of {size_text(len(payload.values[0]))}")
    with TemporaryDirectory(dir=options.directory, prefix="gpkvs-bench-") as name:
        folder = Path(name)
        async with serve(folder / "store", server_options(options)) as server:
            port = RespPort(int(server.resp[0].rpartition(":")[2]))
            own = RespValues(OWN, package_version(), f"serve --resp, format {options.store_format}", port)
            _load(own, payload, found)
            if REDIS not in options.peers:
                yield {OWN: port}
                return
            redis = Redis(folder / "redis", "process")
            try:
                _load(RespValues(REDIS, redis.version, redis.settings, redis), payload, found)
                yield {OWN: port, REDIS: redis}
            finally:
                redis.close()


def server_options(options: ValuesOptions) -> ServerOptions:
    """Return the sizes of a store that nobody has chosen, with room for the largest value."""
    more = (
        "--resp=127.0.0.1:0",
        f"--format={options.store_format}",
        f"--value-bytes-max={value_bytes_max(options)}",
    )
    return ServerOptions(index="", heap="", log="", commit="auto", journal="", more=more)


def _load(server: RespValues, payload: Payload, found: Found) -> None:
    try:
        payload.load(server)
        found.contender(server, "server")
    finally:
        server.close()
