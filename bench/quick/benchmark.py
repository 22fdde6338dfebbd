"""The quick benchmark: what a machine does in a minute, embedded and served, beside LMDB and redis where they are."""

from __future__ import annotations

import asyncio
import os
import tempfile
from pathlib import Path
from time import perf_counter
from typing import Any

import uvloop

from gpkvs.bench.peers.contender import Progress, found_promise
from gpkvs.bench.peers.lmdb_peer import Lmdb
from gpkvs.bench.peers.redis_peer import NAME as REDIS
from gpkvs.bench.quick.embedded import measure_embedded
from gpkvs.bench.quick.options import BATCH, CONNECTIONS, PIPELINE, Found, QuickOptions
from gpkvs.bench.quick.served import GPKVS, measure_served
from gpkvs.bench.report.machine import describe_run
from gpkvs.bench.report.results import ratios

STEPS = 18
"""How often progress is told, if all peers are there."""

_BUSY_SHARE = 0.3  # of the processors: what runs already when the benchmark begins

_SURVIVES = {
    "process": "the death of the process, not a loss of power",
    "msync": "a loss of power, as far as the disk keeps its word",
}


def run_quick(options: QuickOptions, progress: Progress) -> dict[str, Any]:
    """Run the benchmark; return the result, ready for JSON.

    Raises
    ------
    BenchError
        If the directory gives a promise that the peers do not know, or a store returns wrong values.
    GpkvsError
        If a server does not start or stop.
    """
    began, found, load = perf_counter(), Found(), os.getloadavg()[0]
    promise = found_promise(options.directory)
    described = describe_run(options.directory)
    with tempfile.TemporaryDirectory(dir=options.directory, prefix="gpkvs-bench-") as folder:
        measure_embedded(options, promise, Path(folder), progress, found)
    with (
        tempfile.TemporaryDirectory(dir=options.directory, prefix="gpkvs-bench-") as folder,
        asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner,
    ):
        runner.run(measure_served(options, promise, Path(folder), progress, found))
    measurements = found.measurements()
    return {
        "benchmark": "quick",
        "promise": promise,
        "survives": _SURVIVES[promise],
        **described,
        "seconds": perf_counter() - began,
        "parameters": {
            "records": options.records,
            "runs": options.runs,
            "run_seconds": options.run_seconds,
            "batch": BATCH,
            "pipeline": PIPELINE,
            "connections": CONNECTIONS,
        },
        "contenders": found.contenders,
        "measurements": [measurement.as_json() for measurement in measurements],
        "ratios": ratios(measurements, GPKVS, []),
        "absent": found.absent,
        "load_average": load,
        "limits": _limits(options, found, load),
    }


def _limits(options: QuickOptions, found: Found, load: float) -> list[str]:
    """Say what these figures do not tell."""
    processors = len(os.sched_getaffinity(0))
    limits = [
        "Clients run beside the servers, on the same processors. A server alone on a machine does more.",
        f"Runs of {options.run_seconds:.2g} s on {options.records:,} records in memory: a tenth more or less means "
        "nothing, and nothing here tells of long overwriting. The other benchmarks take longer and tell more.",
    ]
    if Lmdb.name in found.contenders:
        limits.append("LMDB is called from Python, as gpkvs is; from C it is faster.")
    if REDIS in found.contenders:
        limits.append("redis promises less out of the box. It has no gRPC, so those streams stand alone.")
    if load > _BUSY_SHARE * processors:
        limits.insert(
            0,
            f"Other work kept this machine busy: a load of {load:.1f} on {processors} processors when this began. "
            "Measure again when it rests.",
        )
    peers = [f"{name} has {one['settings']}" for name, one in found.contenders.items() if name != GPKVS]
    return [f"All survive the same: {'; '.join(peers)}.", *limits] if peers else limits
