"""The nine workloads of GPM under CAP-fs, CAP-mm and gpkvs.gpm (ASPLOS '22, figures 9 and 11, tables 4 and 5).

Each operation runs in all three ways, in turn. Of transactional and native workloads all of an operation is timed; of
iterative ones, the checkpoint. The limit of an operation is measured in the same run: the longer one of the time in
which kernels store as many bytes to the same file system one after the other, and of what computing takes if nothing
persists.
"""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from statistics import median
from time import perf_counter
from typing import Any, Final

from gpkvs import gpm
from gpkvs.bench.gpm.cap import MODES, VOLATILE, Cap
from gpkvs.bench.gpm.checkpointing import checkpointed
from gpkvs.bench.gpm.library import measure_library
from gpkvs.bench.gpm.logs import compare_logs, stream_rate
from gpkvs.bench.gpm.native import bfs, prefix_sum, srad
from gpkvs.bench.gpm.operation import Operation
from gpkvs.bench.gpm.transactional import gpdb, kvs
from gpkvs.bench.gpm.workloads import workload
from gpkvs.bench.peers.contender import Progress
from gpkvs.bench.report.machine import describe_run
from gpkvs.config import DurabilityName
from gpkvs.errors import InvalidArgumentError, NoSpaceError

GPM: Final = "GPM"
SIZES: Final = ("tiny", "small", "paper")
PARTS: Final = ("workloads", "logs", "library")
_STREAM_BYTES: Final = {"tiny": 1 << 20, "small": 64 << 20, "paper": 1 << 30}
_LOG_THREADS: Final = {
    "tiny": (1 << 8, 1 << 10),
    "small": (1 << 10, 1 << 13, 1 << 16),
    "paper": (1 << 12, 1 << 15, 1 << 18, 1 << 21),
}

Operations = Callable[[Path, str, gpm.Place, DurabilityName], Iterator[Operation]]
WORKLOADS: Final[dict[str, Operations]] = {
    "kvs": kvs,
    "gpdb": gpdb,
    "dnn": partial(checkpointed, "dnn"),
    "cfd": partial(checkpointed, "cfd"),
    "black_scholes": partial(checkpointed, "black_scholes"),
    "hotspot": partial(checkpointed, "hotspot"),
    "bfs": bfs,
    "srad": srad,
    "prefix_sum": prefix_sum,
}


@dataclass(frozen=True)
class GpmOptions:
    """What to measure.

    Parameters
    ----------
    directory
        Where files are made, and removed.
    place
        Where the workloads run.
    size
        One of `SIZES`.
    workloads
        Names of `WORKLOADS`.
    parts
        Some of `PARTS`.
    disk
        A directory on an ordinary disk, for the checkpoints that go there.
    runs
        How often each operation is timed, after once that is not.
    durability
        As `gpkvs.open` has it.
    """

    directory: Path
    place: str = "cpu"
    size: str = "small"
    workloads: tuple[str, ...] = tuple(WORKLOADS)
    parts: tuple[str, ...] = PARTS
    disk: Path = Path("/var/tmp")
    runs: int = 5
    durability: DurabilityName = "auto"


def run_gpm(options: GpmOptions, progress: Progress, keep: Callable[[dict[str, Any]], object]) -> dict[str, Any]:
    """Run all; return all results.

    Parameters
    ----------
    options
        What to measure.
    progress
        Called with what is done now.
    keep
        Called with the results so far, after each part and each workload: a long run may be ended.

    Raises
    ------
    GpkvsError
        If the place does not reach the directory. A workload that does not fit is left out, and `not_run` says why.
    """
    if options.size not in SIZES:
        raise InvalidArgumentError(f"size={options.size!r}: there are {', '.join(SIZES)}")
    place = gpm.find_place(options.place)
    folder, disk = (
        Path(tempfile.mkdtemp(prefix="gpkvs-bench-gpm-", dir=where)) for where in (options.directory, options.disk)
    )
    try:
        result: dict[str, Any] = {
            "benchmark": "gpm",
            **describe_run(folder),
            "place": place.name,
            "gpu": getattr(place, "gpu_name", None),
            "options": {"size": options.size, "runs": options.runs, "durability": options.durability},
        }
        result["commit"] = os.environ.get("GPKVS_REVISION") or result["commit"]
        if "library" in options.parts:
            result["library"] = measure_library(folder, disk, place, options.size, options.runs, progress)
            keep(result)
        if {"workloads", "logs"}.intersection(options.parts):
            progress("stores in a stream")
            rate = stream_rate(folder, _STREAM_BYTES[options.size], place, options.durability)
            result["stream_bytes_per_s"] = rate
        if "logs" in options.parts:
            result["logs"] = _measure_logs(options, place, folder, rate, progress)
            keep(result)
        if "workloads" in options.parts:
            result |= {"operations": [], "not_run": {}}
            for name in options.workloads:
                try:
                    result["operations"] += _measured(name, options, place, folder, rate, progress)
                except NoSpaceError as error:
                    result["not_run"][name] = str(error)
                keep(result)
        return result
    finally:
        for made in (folder, disk):
            shutil.rmtree(made, ignore_errors=True)


def _measure_logs(
    options: GpmOptions, place: gpm.Place, folder: Path, rate: float, progress: Progress
) -> list[dict[str, Any]]:
    logs = []
    for threads in _LOG_THREADS[options.size]:
        progress(f"logs of {threads:,} threads")
        found = compare_logs(folder, threads, place, options.durability)
        logs.append({**found, "limit_ms": found["bytes"] / rate * 1e3})
    return logs


def _measured(
    name: str, options: GpmOptions, place: gpm.Place, folder: Path, rate: float, progress: Progress
) -> list[dict[str, Any]]:
    """Measure the operations of a workload in a folder of its own."""
    own = folder / name
    own.mkdir()
    data_bytes = workload(name).SIZES[options.size].file_bytes
    progress(f"{name}: data")
    found = []
    try:
        with Cap(folder, data_bytes, place, options.durability) as cap:
            for operation in WORKLOADS[name](own, options.size, place, options.durability):
                progress(f"{operation.name}: {operation.what}")
                found.append(_measure(operation, cap, place, options.runs, rate))
    finally:
        shutil.rmtree(own)
    return found


def _measure(operation: Operation, cap: Cap, place: gpm.Place, runs: int, rate: float) -> dict[str, Any]:
    seconds: dict[str, list[float]] = {mode: [] for mode in (*MODES, GPM, VOLATILE)}
    for _ in range(1 + runs):
        for mode in (VOLATILE, *MODES):
            cap.mode, cap.stored_bytes = mode, 0
            operation.reset(cap)
            seconds[mode].append(_seconds(place, partial(operation.run_cap, cap)))
        operation.reset(None)
        seconds[GPM].append(_seconds(place, operation.run_gpm))
    computing = seconds.pop(VOLATILE)[1:]
    middle = {mode: median(found[1:]) for mode, found in seconds.items()}
    limit = max(median(computing), (operation.stored_bytes + operation.log_bytes) / rate)
    found: dict[str, Any] = {
        "name": operation.name,
        "kind": operation.kind,
        "what": operation.what,
        "seconds": {mode: times[1:] for mode, times in seconds.items()},
        "speedup": {mode: middle[MODES[0]] / time for mode, time in middle.items()},
        "stored_bytes": operation.stored_bytes,
        "log_bytes": operation.log_bytes,
        "cap_bytes": cap.stored_bytes,
        "write_amplification": cap.stored_bytes / operation.stored_bytes,
        "computing_seconds": computing,
        "limit_seconds": limit,
        "share_of_limit": limit / middle[GPM],
    }
    if operation.restore:
        found["restore_seconds"] = _restore_seconds(operation, place, runs)
        whole = operation.whole_seconds(middle[GPM])
        found["restoration_share"] = median(found["restore_seconds"]) / whole
    return found


def _restore_seconds(operation: Operation, place: gpm.Place, runs: int) -> list[float]:
    assert operation.restore
    found = []
    for _ in range(1 + runs):
        operation.crash()
        found.append(_seconds(place, operation.restore))
    return found[1:]


def _seconds(place: gpm.Place, run: Callable[[], object]) -> float:
    place.settle()
    begin = perf_counter()
    run()
    place.settle()
    return perf_counter() - begin
