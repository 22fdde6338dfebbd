"""The benchmark of what security costs: TLS on streams, a token on single calls, handshakes.

Servers with and without stand beside each other and take turns, so that a ratio is one of two neighbours in time.
"""

from __future__ import annotations

import tempfile
from contextlib import AsyncExitStack
from dataclasses import asdict, replace
from operator import attrgetter
from pathlib import Path
from statistics import median
from time import perf_counter
from typing import Any

import numpy as np

from gpkvs.bench.engine.workload import Shape
from gpkvs.bench.peers.contender import Progress, require_promise
from gpkvs.bench.peers.embedded_gpkvs import heap_bytes, index_bytes
from gpkvs.bench.report.comparison import Comparison
from gpkvs.bench.report.machine import describe_run
from gpkvs.bench.security.clients import Clients, Used, connect
from gpkvs.bench.security.load_process import KEY_BYTES, VALUE_BYTES
from gpkvs.bench.security.login_time import login_us
from gpkvs.bench.security.options import SecurityOptions
from gpkvs.bench.server.measured_server import serve
from gpkvs.config import MIB
from gpkvs.recovery.proof.servers.run_access import RunAccess, make_access
from gpkvs.recovery.proof.servers.server_process import ServerOptions

OPERATIONS = ("GET", "SET")
SIZES = {4096: 8, 64: 32}
"""Operations in a message of a stream, and how many of these messages wait for their responses."""
_OVERWRITES = 20  # of each record, until records are moved to make room
_AIM = 0.8
_TOKEN_US_AIM = 3.0
_PAIRS_OF_CALLS = 3  # for each of streams: what a token costs is smaller than the noise of one pair
_LOGIN_CALLS = 200


async def run_security(options: SecurityOptions, progress: Progress) -> dict[str, Any]:
    """Run the benchmark; return its result, ready for JSON.

    Raises
    ------
    BenchError
        If the directory gives another promise, or a server refuses what it should do.
    GpkvsError
        If a server does not start or stop.
    """
    began = perf_counter()
    require_promise(options.directory, options.promise)
    described = describe_run(options.directory)
    with tempfile.TemporaryDirectory(dir=options.directory, prefix="gpkvs-bench-") as path:
        folder = Path(path)
        access = make_access(folder / "access")
        found = await _measure(options, folder, access, progress)
        progress("the login alone")
        found["login_us"] = await login_us(access.users, access.token, max(_LOGIN_CALLS * options.runs // 9, 10))
    return {
        "benchmark": "security",
        "promise": options.promise,
        **described,
        "seconds": perf_counter() - began,
        "parameters": {name: value for name, value in asdict(options).items() if name not in ("directory", "promise")},
        "measurements": [],
        **found,
    }


async def _measure(options: SecurityOptions, folder: Path, access: RunAccess, progress: Progress) -> dict[str, Any]:
    async with AsyncExitStack() as stack:

        async def start(name: str, *more: str, ca: Path | None = None, token: str | None = None) -> Clients:
            server = await stack.enter_async_context(serve(folder / name, _sizes(options, more)))
            clients = await stack.enter_async_context(connect(server, options.clients, ca, token))
            await clients.run("fill", clients=1, records=options.records)
            return clients

        progress(f"starting three servers with {options.records:,} records")
        plain = await start("plain")
        secure = await start("tls", *access.tls_options, ca=access.cert)
        known = await start("users", *access.users_options, token=access.token)
        comparisons = [
            comparison
            for size, in_flight in SIZES.items()
            for operation in OPERATIONS
            for comparison in await _streams(options, secure, plain, operation, size, in_flight, progress)
        ]
        calls = await _calls(options, known, plain, progress)
        progress("handshakes")
        handshakes = [await secure.run("handshakes", seconds=options.seconds) for _ in range(options.runs)]
    return {
        "comparisons": [comparison.as_json() for comparison in comparisons],
        "token": calls,
        "handshakes": {
            "rate": median(one.rate for one in handshakes),
            "server_cpu_us": median(one.server_cpu_us for one in handshakes),
            "runs": [asdict(one) for one in handshakes],
        },
    }


def _sizes(options: SecurityOptions, more: tuple[str, ...]) -> ServerOptions:
    shape = Shape("100 B", KEY_BYTES, VALUE_BYTES)
    sizes = ServerOptions(
        index=str(index_bytes(shape, options.records)),
        heap=str(heap_bytes(shape, options.records, _OVERWRITES * options.records)),
        log=str(64 * MIB),
        commit="auto",
        journal="",
    )
    return replace(sizes, more=more)


async def _streams(
    options: SecurityOptions,
    secure: Clients,
    plain: Clients,
    operation: str,
    size: int,
    in_flight: int,
    progress: Progress,
) -> list[Comparison]:
    """Return the throughput with TLS over that without, and the same of the server's processor time."""
    progress(f"{operation} streams, {size:,} operations a message: {options.runs} pairs of runs")
    for clients in (secure, plain):
        await clients.run("prepare", operation=operation, size=size, records=options.records)
    load = {"operation": operation, "size": size, "in_flight": in_flight, "seconds": options.seconds}
    pairs = await _in_turn("stream", secure, plain, options.runs, **load)
    on, off = ([pair[which] for pair in pairs] for which in (0, 1))
    note = (
        f"{median(one.rate for one in on):,.0f} a second, {median(one.rate for one in off):,.0f}; "
        f"busiest client {max(one.client_cpu_s / one.seconds for one in (*on, *off)):.0%} of a processor"
    )
    cpu = f"{median(one.server_cpu_us for one in on):.3f} µs an operation, "
    cpu += f"{median(one.server_cpu_us for one in off):.3f} µs"
    what = f"{operation} stream, {size:,} a message"
    return [
        Comparison(what, "TLS", "plain", [one.rate / other.rate for one, other in pairs], aim=_AIM, note=note),
        Comparison(
            f"{what}: CPU of the server",
            "TLS",
            "plain",
            [one.server_cpu_us / other.server_cpu_us for one, other in pairs],
            note=cpu,
        ),
    ]


async def _calls(options: SecurityOptions, known: Clients, plain: Clients, progress: Progress) -> dict[str, Any]:
    """Return what a token costs a single call."""
    count = _PAIRS_OF_CALLS * options.runs
    progress(f"single SETs with a token: {count} pairs of runs")
    pairs = await _in_turn("calls", known, plain, count, clients=1, seconds=options.seconds / 2)
    found: dict[str, Any] = {"aim_us": _TOKEN_US_AIM}
    for kind, us in (("wall", attrgetter("wall_us")), ("server_cpu", attrgetter("server_cpu_us"))):
        costs = [us(one) - us(other) for one, other in pairs]
        found[kind] = {
            "without_us": median(us(other) for _, other in pairs),
            "cost_us": median(costs),
            "middle_us": np.percentile(costs, (25, 75)).tolist(),
        }
    return {**found, "with": [asdict(one) for one, _ in pairs], "without": [asdict(other) for _, other in pairs]}


async def _in_turn(kind: str, one: Clients, other: Clients, count: int, **parameters: Any) -> list[tuple[Used, Used]]:
    """Run the same load on two servers in turn, after a pair that warms up; each comes first in every second pair."""
    pairs = []
    for number in range(count + 1):
        used: dict[bool, Used] = {}
        for is_one in (number % 2 == 0, number % 2 == 1):
            used[is_one] = await (one if is_one else other).run(kind, **parameters)
        pairs.append((used[True], used[False]))
    return pairs[1:]
