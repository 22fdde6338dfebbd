"""The benchmark of the server: a real `gpkvs serve` beside a real `redis-server` with the same promise."""

from __future__ import annotations

import tempfile
from dataclasses import asdict
from pathlib import Path
from time import perf_counter
from typing import Any, Literal, get_args

from gpkvs.bench.peers.contender import Progress, require_promise
from gpkvs.bench.peers.resp_port import require_redis
from gpkvs.bench.report.comparison import Comparison, aimed
from gpkvs.bench.report.machine import describe_run
from gpkvs.bench.report.results import ratios
from gpkvs.bench.server.call_counts import count_calls
from gpkvs.bench.server.measured_server import ServerBenchOptions
from gpkvs.bench.server.memory_and_start import measure_memory, measure_start
from gpkvs.bench.server.metrics_cost import measure_metrics_cost
from gpkvs.bench.server.reads_beside_sets import measure_reads
from gpkvs.bench.server.throughput import OWN, aims, measure_throughput
from gpkvs.bench.server.transactions import measure_transactions

Part = Literal["throughput", "reads", "memory", "start", "metrics", "calls", "transactions"]
PARTS: tuple[Part, ...] = get_args(Part)
_COUNTED_SIZES = (64, 4096)


async def run_server(options: ServerBenchOptions, parts: tuple[Part, ...], progress: Progress) -> dict[str, Any]:
    """Run the chosen parts of the benchmark; return the result, ready for JSON.

    Raises
    ------
    BenchError
        If redis is not installed, or the directory gives another promise.
    GpkvsError
        If a server does not do what it should.
    """
    began = perf_counter()
    require_promise(options.directory, options.promise)
    if options.has_redis and "throughput" in parts:
        require_redis()
    result: dict[str, Any] = {
        "benchmark": "server",
        "promise": options.promise,
        **describe_run(options.directory),
        "parameters": {name: value for name, value in asdict(options).items() if name not in ("directory", "promise")},
        "measurements": [],
        "ratios": [],
    }
    comparisons: list[Comparison] = []
    for part in parts:
        with tempfile.TemporaryDirectory(dir=options.directory, prefix="gpkvs-bench-") as folder:
            if part == "reads":
                comparisons += await measure_reads(options, Path(folder), progress)
            elif part == "transactions":
                comparisons += await measure_transactions(options, Path(folder), progress)
            else:
                result |= await _measure(part, options, Path(folder), progress, comparisons)
    result["comparisons"] = [comparison.as_json() for comparison in comparisons]
    return {**result, "seconds": perf_counter() - began}


async def _measure(
    part: Part, options: ServerBenchOptions, directory: Path, progress: Progress, comparisons: list[Comparison]
) -> dict[str, Any]:
    """Run one part; return its fields of the result, and add its comparisons."""
    if part == "memory":
        return {"memory": await measure_memory(options, directory, progress)}
    if part == "start":
        return {"start": await measure_start(options, directory, progress)}
    if part == "metrics":
        return {"metrics_cost": await measure_metrics_cost(options, directory, progress)}
    if part == "calls":
        progress("counting the server's calls of functions")
        return {"calls": await count_calls(options, directory, _COUNTED_SIZES)}
    measurements, known = await measure_throughput(options, directory, progress)
    comparisons += aimed(measurements, OWN, aims(options.promise))
    return {
        "measurements": [measurement.as_json() for measurement in measurements],
        "ratios": ratios(measurements, OWN, aims(options.promise)),
        **known,
    }
