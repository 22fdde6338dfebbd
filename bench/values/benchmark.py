"""The benchmark of large values: in servers, in embedded stores, on a disk, and the space that they take."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from tempfile import TemporaryDirectory
from time import perf_counter
from typing import Any

from gpkvs.bench.peers.contender import BenchError, Progress, Promise, require_promise
from gpkvs.bench.report.machine import describe_run
from gpkvs.bench.report.results import ratios
from gpkvs.bench.values.embedded import measure_disk, measure_embedded
from gpkvs.bench.values.gpkvs_values import OWN, value_bytes_taken
from gpkvs.bench.values.options import Found, ValuesOptions
from gpkvs.bench.values.payload import size_text
from gpkvs.bench.values.server import measure_server
from gpkvs.bench.values.space import measure_disk_space, measure_space

_MEASURES: dict[str, Callable[[ValuesOptions, Progress, Found], None]] = {
    "server": measure_server,
    "embedded": measure_embedded,
    "space": measure_space,
    "disk": measure_disk,
    "disk-space": measure_disk_space,
}


def run_values(options: ValuesOptions, promise: Promise, parts: Sequence[str], progress: Progress) -> dict[str, Any]:
    """Run the chosen parts, which all have the same promise; return the result, ready for JSON.

    Raises
    ------
    BenchError
        If something that is needed is missing, a directory gives another promise, a store returns wrong values, or no
        size can be measured.
    GpkvsError
        If a server does not start or stop.
    """
    began, found = perf_counter(), Found()
    directory = options.disk if promise == "msync" else options.directory
    require_promise(directory, promise)
    described = describe_run(directory)
    with TemporaryDirectory(dir=directory, prefix="gpkvs-bench-") as folder:
        here = replace(options, directory=Path(folder), disk=Path(folder))
        taken = value_bytes_taken(here, here.directory)
        measured = replace(here, sizes=tuple(size for size in options.sizes if size <= taken))
        if not measured.sizes:
            raise BenchError(f"the smallest size is above what a store takes, {taken:,} bytes: give a smaller --size")
        for part in parts:
            _MEASURES[part](measured, progress, found)
    result = {
        "benchmark": "values",
        "promise": promise,
        **described,
        "seconds": perf_counter() - began,
        "parameters": {
            **{name: value for name, value in asdict(options).items() if name not in ("directory", "disk")},
            "records": options.total_bytes // min(measured.sizes),
        },
        "contenders": found.contenders,
        "measurements": [measurement.as_json() for measurement in found.measurements],
        "ratios": ratios(found.measurements, OWN, []),
        "comparisons": [comparison.as_json() for comparison in found.comparisons],
        "phases": found.phases,
    }
    left_out = {
        f"values of {size_text(size)}": f"gpkvs takes values of up to {taken:,} bytes here"
        for size in options.sizes
        if size > taken
    }
    return {**result, "left_out": left_out} if left_out else result
