"""The benchmark of the engine: batches against embedded stores that promise the same, one after the other.

For each shape of records and each contender, it loads all records and checks one batch of them. Then come runs of GETs
and of SETs, with batches in random order and sorted by the caller. A contender's files are removed before the next one
starts.
"""

from __future__ import annotations

import tempfile
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from time import perf_counter
from typing import Any

from gpkvs.bench.engine.timed import BATCHES_MIN, prepared, require_values, timed
from gpkvs.bench.engine.workload import SHAPES, Order, Shape, Workload
from gpkvs.bench.peers.contender import Contender, Progress, Promise, require_promise
from gpkvs.bench.peers.embedded_gpkvs import EmbeddedGpkvs
from gpkvs.bench.peers.embedded_stores import PEERS, PeerName
from gpkvs.bench.peers.lmdb_peer import Lmdb
from gpkvs.bench.report.machine import describe_run
from gpkvs.bench.report.results import Aim, Measurement, ratios

ORDERS: tuple[Order, ...] = ("random", "sorted")
OPERATIONS = ("GET", "SET")  # reads first: no store may tidy up after writes while they are timed

_WARM_UP_BATCHES = 2


@dataclass(frozen=True)
class EngineOptions:
    """What to measure, and for how long.

    Parameters
    ----------
    directory
        The directory for the stores: its file system decides the promise.
    promise
        What an acknowledged batch must survive.
    records
        How many are loaded before anything is timed.
    batch
        Operations in a batch.
    runs
        How many of each measurement; their median counts.
    batches_max, seconds_max
        A run ends after so many batches, or so many timed seconds, but not before three batches.
    shapes, peers
        The shapes of records to measure, and the stores to compare with.
    """

    directory: Path
    promise: Promise = "process"
    records: int = 10_000_000
    batch: int = 65_536
    runs: int = 5
    batches_max: int = 20
    seconds_max: float = 3.0
    shapes: tuple[Shape, ...] = tuple(SHAPES.values())
    peers: tuple[PeerName, ...] = ("lmdb", "rocksdb")

    @property
    def sets_max(self) -> int:
        """How many SETs come after loading, at most."""
        return len(ORDERS) * (self.runs * max(self.batches_max, BATCHES_MIN) + _WARM_UP_BATCHES) * self.batch


def steps(options: EngineOptions) -> int:
    """Return how often progress is told."""
    return len(options.shapes) * (1 + len(options.peers)) * (1 + len(ORDERS) * len(OPERATIONS))


@dataclass
class _Found:
    """The results so far."""

    measurements: list[Measurement] = field(default_factory=list)
    contenders: dict[str, dict[str, Any]] = field(default_factory=dict)
    phases: dict[str, dict[str, Any]] = field(default_factory=dict)


def task_name(shape: Shape, operation: str, order: Order) -> str:
    """Return the name under which contenders are compared."""
    return f"{shape.name} {operation} {order}"


def aims() -> list[Aim]:
    """Return the target ratios: for batches in random order, as clients send them."""
    return [
        Aim("u64 SET random", Lmdb.name, 15),
        Aim("u64 GET random", Lmdb.name, 25),
        *(Aim(f"bytes {operation} random", peer.name, 5) for operation in OPERATIONS for peer in PEERS.values()),
    ]


def run_engine(options: EngineOptions, progress: Progress) -> dict[str, Any]:
    """Run the benchmark; return its result, ready for JSON.

    Raises
    ------
    BenchError
        If a peer is not installed, the directory gives another promise, or a store returns wrong values.
    """
    began, found = perf_counter(), _Found()
    require_promise(options.directory, options.promise)
    described = describe_run(options.directory)
    for shape in options.shapes:
        workload = Workload(shape, options.records, options.batch)
        for make in (EmbeddedGpkvs, *(PEERS[peer] for peer in options.peers)):
            progress(f"loading {options.records:,} records, {shape.text}, into {make.name}")
            with tempfile.TemporaryDirectory(dir=options.directory, prefix="gpkvs-bench-") as path:
                contender = make(Path(path), workload, options.promise, options.sets_max)
                try:
                    _contest(contender, workload, options, progress, found)
                finally:
                    contender.close()
    return {
        "benchmark": "engine",
        "promise": options.promise,
        **described,
        "seconds": perf_counter() - began,
        "parameters": {
            "records": options.records,
            "batch": options.batch,
            "runs": options.runs,
            "batches_max": options.batches_max,
            "seconds_max": options.seconds_max,
            "shapes": {shape.name: shape.text for shape in options.shapes},
        },
        "contenders": found.contenders,
        "measurements": [measurement.as_json() for measurement in found.measurements],
        "ratios": ratios(found.measurements, EmbeddedGpkvs.name, aims()),
        "phases": found.phases,
    }


def _contest(
    contender: Contender, workload: Workload, options: EngineOptions, progress: Progress, found: _Found
) -> None:
    """Load one contender, check it, and measure it at every task."""
    began = perf_counter()
    contender.load(workload)
    loaded = perf_counter() - began
    require_values(contender, workload)
    known = found.contenders.setdefault(contender.name, {"version": contender.version})
    known[workload.shape.name] = {"settings": contender.settings, "load_seconds": loaded}
    for number, (operation, order) in enumerate((operation, order) for operation in OPERATIONS for order in ORDERS):
        task = task_name(workload.shape, operation, order)
        progress(f"{task}, {contender.name}")
        before = _phases(contender)
        batches = prepared(contender, operation, workload.batches(order, seed=number))
        for action, argument, _ in islice(batches, _WARM_UP_BATCHES):
            action(argument)
        runs = [timed(batches, options.batches_max, options.seconds_max) for _ in range(options.runs)]
        found.measurements.append(Measurement(task, contender.name, runs))
        if before:
            found.phases[task] = {
                phase: seconds - before[phase]
                for phase, seconds in _phases(contender).items()
                if seconds > before[phase]
            }


def _phases(contender: Contender) -> dict[str, float]:
    """Return the seconds that the engine has spent in each phase; nothing for a peer."""
    return dict(contender.store.meter.phase_seconds) if isinstance(contender, EmbeddedGpkvs) else {}
