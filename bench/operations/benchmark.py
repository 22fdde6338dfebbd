"""The benchmark of operations that look before they act, each beside plain SETs (or GETs) of as many keys.

One store for each shape of records. In every round all kinds of batches take turns on the same keys, so that a ratio is
one of two neighbours in time.
"""

from __future__ import annotations

import gc
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from time import perf_counter
from typing import Any

import numpy as np

from gpkvs.batch import Batch, Condition, RequestResult, Status
from gpkvs.bench.engine.workload import SHAPES, Columns, Shape, Workload
from gpkvs.bench.operations.batches import Maker, hot
from gpkvs.bench.peers.contender import BenchError, Progress, Promise, require_promise
from gpkvs.bench.peers.embedded_gpkvs import TABLE, EmbeddedGpkvs
from gpkvs.bench.report.comparison import Comparison
from gpkvs.bench.report.machine import describe_run
from gpkvs.config import DEFAULT_TABLE

SET, SET_HOT, GET = "SET", "SET of 16 keys", "GET"
_AIM = {"u64": 0.7, "bytes": 0.5}
_WITH_AIM = ("INCREMENT", "SET if version", "SET if present")
_BESIDE = {"INCREMENT of 16 keys": SET_HOT, "EXISTS": GET}
_WRITES_A_ROUND = 8  # batches of records, at most


@dataclass(frozen=True)
class OperationsOptions:
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
    rounds
        Batches of each kind; the median of their ratios counts.
    """

    directory: Path
    promise: Promise = "process"
    records: int = 1_000_000
    batch: int = 65_536
    rounds: int = 15


@dataclass
class _Timed:
    """The seconds of each kind of batch, round by round."""

    seconds: dict[str, list[float]] = field(default_factory=dict)

    def add(self, kind: str, seconds: float) -> None:
        self.seconds.setdefault(kind, []).append(seconds)

    def comparisons(self, shape: Shape) -> Iterator[Comparison]:
        for kind, mine in self.seconds.items():
            if kind in (SET, SET_HOT, GET):
                continue
            beside = _BESIDE.get(kind, SET)
            yield Comparison(
                what=f"{shape.name} {kind}",
                store="gpkvs",
                beside=beside,
                ratios=[other / own for own, other in zip(mine, self.seconds[beside], strict=True)],
                aim=_AIM[shape.name] if kind in _WITH_AIM else None,
            )


def run_operations(options: OperationsOptions, progress: Progress) -> dict[str, Any]:
    """Run the benchmark; return its result, ready for JSON.

    Raises
    ------
    BenchError
        If the directory gives another promise, or the store returns wrong numbers.
    """
    began = perf_counter()
    require_promise(options.directory, options.promise)
    described = describe_run(options.directory)
    comparisons: list[Comparison] = []
    for shape in SHAPES.values():
        with tempfile.TemporaryDirectory(dir=options.directory, prefix="gpkvs-bench-") as path:
            comparisons += _measure(Path(path), shape, options, progress)
    return {
        "benchmark": "operations",
        "promise": options.promise,
        **described,
        "seconds": perf_counter() - began,
        "parameters": {"records": options.records, "batch": options.batch, "runs": options.rounds},
        "measurements": [],
        "comparisons": [comparison.as_json() for comparison in comparisons],
    }


def _measure(path: Path, shape: Shape, options: OperationsOptions, progress: Progress) -> list[Comparison]:
    workload = Workload(shape, options.records, options.batch)
    sets_max = (options.rounds + 1) * _WRITES_A_ROUND * options.batch
    contender = EmbeddedGpkvs(path, workload, options.promise, sets_max)
    try:
        runner = _Runner(contender, shape)
        progress(f"loading {options.records:,} records, {shape.text}")
        for columns in workload.loads("random"):
            runner.run(runner.make.sets(columns))
        progress(f"{shape.name}: {options.rounds} rounds")
        popular = hot(workload, workload.batches("random", seed=4))
        rounds = zip(workload.batches("random", seed=3), popular, strict=False)
        timed = _Timed()
        for number, (columns, of_few) in enumerate(islice(rounds, options.rounds + 1)):
            runner.round(columns, of_few, timed if number else _Timed())  # the first one warms up
        return list(timed.comparisons(shape))
    finally:
        contender.close()


class _Runner:
    """Runs batches of one shape."""

    def __init__(self, contender: EmbeddedGpkvs, shape: Shape) -> None:
        self._store = contender.store
        self._table = TABLE if shape.is_numbers else DEFAULT_TABLE
        self._is_numbers = shape.is_numbers
        self.make = Maker(shape)

    def run(self, batch: Batch) -> RequestResult:
        return self._store.execute(batch, table=self._table)

    def round(self, columns: Columns, of_few: Columns, timed: _Timed) -> None:
        """Run a batch of each kind, each on keys with the values of the plain SETs."""
        make = self.make
        self._timed(SET, make.sets(columns), timed)
        sums = self._timed("INCREMENT", make.increments(columns), timed)
        self._check_increments(columns, sums)
        self._timed(SET_HOT, make.sets(of_few), timed)
        self._timed("INCREMENT of 16 keys", make.increments(of_few), timed)
        self.run(make.sets(columns))
        present = self._timed("SET if present", make.on_condition(columns, Condition.PRESENT), timed)
        self._check(present, Status.OK)
        unchanged = self._unchanged(columns)
        self._timed("SET if version", make.if_equals(columns, unchanged), timed)
        absent = self._timed("SET if absent, none is", make.on_condition(columns, Condition.ABSENT), timed)
        self._check(absent, Status.CONDITION_FAILED)
        self._timed(GET, make.gets(columns), timed)
        self._timed("EXISTS", make.exists(columns), timed)
        if not self._is_numbers:
            self._timed("APPEND", make.appends(columns), timed)
            self.run(make.sets(columns))

    def _timed(self, kind: str, batch: Batch, timed: _Timed) -> RequestResult:
        gc.disable()
        began = perf_counter()
        result = self.run(batch)
        timed.add(kind, perf_counter() - began)
        gc.enable()
        return result

    def _unchanged(self, columns: Columns) -> np.ndarray[Any, np.dtype[np.uint64]]:
        """Return what a condition compares: the number, or the version."""
        found = self.run(self.make.gets(columns))
        return found.values.view(np.uint64) if self._is_numbers else found.versions

    def _check_increments(self, columns: Columns, sums: RequestResult) -> None:
        """Raise if a key of the batch does not hold the last sum that was returned for it."""
        self._check(sums, Status.OK)
        last = dict(zip(columns.numbers.tolist(), sums.values.view(np.int64).tolist(), strict=True))
        values = self.run(self.make.gets(columns)).value_list()
        held = [int.from_bytes(value, "little", signed=True) if self._is_numbers else int(value) for value in values]
        if [last[key] for key in columns.numbers.tolist()] != held:
            raise BenchError("the store does not hold the sums that it returned")

    @staticmethod
    def _check(result: RequestResult, status: Status) -> None:
        if not (result.status == status.value).all():
            raise BenchError(f"operations have another status than {status.name}")
