"""Single GETs of keys that nobody writes, without SETs and while another client makes single SETs durable."""

from __future__ import annotations

import asyncio
import subprocess
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from statistics import median

from gpkvs.bench.peers.contender import BenchError, Progress
from gpkvs.bench.peers.embedded_gpkvs import TABLE
from gpkvs.bench.report.comparison import Comparison
from gpkvs.bench.server.load import DrawnKeys, single_calls
from gpkvs.bench.server.measured_server import ServerBenchOptions, python_program, serve_numbers

_AIM = 1.5


async def measure_reads(options: ServerBenchOptions, directory: Path, progress: Progress) -> list[Comparison]:
    """Return the 99th percentile of GETs beside SETs, over that without; runs take turns."""
    progress(f"GET beside SETs: {options.runs} runs")
    half = max(options.records // 2, 1)
    keys = DrawnKeys(half, seed=7).singly()
    alone: list[float] = []
    beside: list[float] = []
    sets = 0
    async with serve_numbers(directory / "reads", options, options.records) as (server, _):
        for number in range(options.runs):
            for with_sets in (bool(number % 2), not number % 2):
                if with_sets:
                    p99, done = await _beside(server.target, half, options, keys)
                    beside.append(p99)
                    sets += done
                else:
                    alone.append(await _p99(server.target, options, keys))
    return [
        Comparison(
            what="server: GET of a key that nobody writes, p99 beside SETs",
            store="gpkvs",
            beside="p99 without",
            ratios=[one / other for one, other in zip(beside, alone, strict=True)],
            aim=_AIM,
            is_least=False,
            note=f"{median(beside):.2f} ms over {median(alone):.2f} ms; {sets:,} SETs meanwhile",
        )
    ]


async def _p99(target: str, options: ServerBenchOptions, keys: Iterator[bytes]) -> float:
    run = await single_calls(target, TABLE, "GET", keys, options.seconds, connections=1)
    return run.latencies_ms["p99"]


async def _beside(target: str, first: int, options: ServerBenchOptions, keys: Iterator[bytes]) -> tuple[float, int]:
    """Return the percentile, and how many SETs another process made meanwhile."""
    command = python_program("gpkvs.bench.server.set_caller", target, str(first), str(max(options.records, first + 1)))
    process = await asyncio.create_subprocess_exec(*command, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    try:
        assert process.stdin
        assert process.stdout
        if not await process.stdout.readline():
            raise BenchError("the client that makes SETs ended at once")
        p99 = await _p99(target, options, keys)
        process.stdin.close()
        return p99, int(await process.stdout.readline())
    finally:
        if process.returncode is None:
            with suppress(ProcessLookupError):
                process.kill()
            await process.wait()
