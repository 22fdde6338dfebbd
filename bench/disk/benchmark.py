"""The benchmark of a store on a disk: every row of its table of targets, as ratios within one run."""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from dataclasses import asdict, replace
from pathlib import Path
from time import perf_counter
from typing import Any, Literal, get_args

from gpkvs.bench.disk.batches import measure_batches
from gpkvs.bench.disk.device_writes import measure_device_writes
from gpkvs.bench.disk.one_set import measure_one_set
from gpkvs.bench.disk.opening import measure_opening
from gpkvs.bench.disk.options import OWN, DiskOptions, Found
from gpkvs.bench.disk.reads_beside_sets import measure_reads_beside_sets
from gpkvs.bench.disk.tails import measure_tails
from gpkvs.bench.engine.workload import SHAPES
from gpkvs.bench.peers.contender import Progress, require_promise
from gpkvs.bench.report.machine import describe_run
from gpkvs.bench.report.results import ratios

DiskPart = Literal["batches", "one-set", "tails", "reads", "writes", "opening"]
DISK_PARTS: tuple[DiskPart, ...] = get_args(DiskPart)

_MEASURES: dict[DiskPart, Callable[[DiskOptions, Progress, Found], None]] = {
    "batches": measure_batches,
    "one-set": measure_one_set,
    "tails": measure_tails,
    "reads": measure_reads_beside_sets,
    "writes": measure_device_writes,
    "opening": measure_opening,
}


def run_disk(options: DiskOptions, parts: tuple[DiskPart, ...], progress: Progress) -> dict[str, Any]:
    """Run the chosen parts; return the result, ready for JSON.

    Raises
    ------
    BenchError
        If a peer is not installed, or a directory gives another promise than it must.
    """
    began, found = perf_counter(), Found()
    require_promise(options.directory, "msync")
    require_promise(options.memory, "process")
    described = describe_run(options.directory)
    with tempfile.TemporaryDirectory(dir=options.directory, prefix="gpkvs-bench-") as folder:
        for part in parts:
            _MEASURES[part](replace(options, directory=Path(folder)), progress, found)
    return {
        "benchmark": "engine",
        "promise": "msync",
        **described,
        "seconds": perf_counter() - began,
        "parameters": {
            **{name: value for name, value in asdict(options).items() if name not in ("directory", "memory")},
            "runs": options.rounds,
            "shapes": {shape.name: shape.text for shape in SHAPES.values()},
        },
        "contenders": found.contenders,
        "measurements": [measurement.as_json() for measurement in found.measurements],
        "ratios": ratios(found.measurements, OWN, []),
        "comparisons": [comparison.as_json() for comparison in found.comparisons],
        "phases": found.phases,
    }
