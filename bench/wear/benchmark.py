"""The benchmark of wear: speed, space and refusals of a store that is overwritten again and again."""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from dataclasses import asdict, replace
from pathlib import Path
from time import perf_counter
from typing import Any

from gpkvs.bench.engine.workload import SHAPES
from gpkvs.bench.peers.contender import Progress, require_promise
from gpkvs.bench.report.machine import describe_run
from gpkvs.bench.report.results import ratios
from gpkvs.bench.wear.deleted import measure_deleted
from gpkvs.bench.wear.options import Found, WearOptions, WearPart
from gpkvs.bench.wear.overwrites import OWN, measure_overwrites
from gpkvs.bench.wear.space import SHAPE, measure_space

_MEASURES: dict[WearPart, Callable[[WearOptions, Progress, Found], None]] = {
    "overwrites": measure_overwrites,
    "space": measure_space,
    "deleted": measure_deleted,
}


def run_wear(options: WearOptions, parts: tuple[WearPart, ...], progress: Progress) -> dict[str, Any]:
    """Run the chosen parts; return the result, ready for JSON.

    Raises
    ------
    BenchError
        If a peer is not installed, the directory gives another promise, or a store returns wrong values.
    """
    began, found = perf_counter(), Found()
    require_promise(options.directory, options.promise)
    described = describe_run(options.directory)
    with tempfile.TemporaryDirectory(dir=options.directory, prefix="gpkvs-bench-") as folder:
        for part in parts:
            _MEASURES[part](replace(options, directory=Path(folder)), progress, found)
    return {
        "benchmark": "wear",
        "promise": options.promise,
        **described,
        "seconds": perf_counter() - began,
        "parameters": {
            **{name: value for name, value in asdict(options).items() if name != "directory"},
            "records": found.records or options.large_records,
            "runs": 1,
            "shapes": {shape.name: shape.text for shape in (SHAPES["bytes"], SHAPE)},
        },
        "contenders": found.contenders,
        "measurements": [measurement.as_json() for measurement in found.measurements],
        "ratios": ratios(found.measurements, OWN, []),
        "comparisons": [comparison.as_json() for comparison in found.comparisons],
    }
