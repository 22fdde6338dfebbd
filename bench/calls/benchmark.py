"""The benchmark of single calls: one operation a call, as most programs begin, beside LMDB in the same process.

Both hold the same records and take turns, key by key in random order. Each SET and increment is a transaction of its
own, with the same promise on both sides. Then all again beside a thread that computes in Python.
"""

from __future__ import annotations

import tempfile
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from time import perf_counter
from typing import Any, Literal, get_args

from gpkvs.bench.engine.workload import SHAPES, Columns, Workload
from gpkvs.bench.peers.contender import BenchError, Progress, Promise, require_promise
from gpkvs.bench.peers.embedded_gpkvs import EmbeddedGpkvs
from gpkvs.bench.peers.lmdb_peer import Lmdb, split
from gpkvs.bench.report.machine import describe_run
from gpkvs.bench.report.results import Measurement, Run, ratios

CallsPeer = Literal["lmdb"]
CALLS_PEERS: tuple[CallsPeer, ...] = get_args(CallsPeer)

BUSY = "beside a busy thread"
_SHAPE = SHAPES["bytes"]
_COUNTERS = 16
_BUSY_SHARE = 20


@dataclass(frozen=True)
class CallsOptions:
    """What to measure.

    Parameters
    ----------
    directory
        For the stores: its file system decides the promise.
    promise
        What an acknowledged write must survive.
    records
        How many each store holds.
    calls
        In a run.
    runs
        Of each kind; the median counts.
    peers
        The stores to compare with.
    """

    directory: Path
    promise: Promise = "process"
    records: int = 100_000
    calls: int = 20_000
    runs: int = 5
    peers: tuple[CallsPeer, ...] = CALLS_PEERS

    def calls_of(self, task: str) -> int:
        """Return how many calls a run of a task makes: few where a call may wait for milliseconds."""
        return max(self.calls // _BUSY_SHARE, 1) if task.endswith(BUSY) else self.calls


Calls = Callable[[int], None]
"""Makes so many calls."""


def run_calls(options: CallsOptions, progress: Progress) -> dict[str, Any]:
    """Run the benchmark; return the result, ready for JSON.

    Raises
    ------
    BenchError
        If a peer is not installed, the directory gives another promise, or a store returns a wrong value.
    """
    began = perf_counter()
    require_promise(options.directory, options.promise)
    described = describe_run(options.directory)
    contenders: dict[str, dict[str, Any]] = {}
    runs: dict[tuple[str, str], list[Run]] = {}
    with tempfile.TemporaryDirectory(dir=options.directory, prefix="gpkvs-bench-") as folder:
        _measure(options, Path(folder), progress, contenders, runs)
    measurements = [Measurement(task, contender, found) for (task, contender), found in runs.items()]
    return {
        "benchmark": "calls",
        "promise": options.promise,
        **described,
        "seconds": perf_counter() - began,
        "parameters": {name: value for name, value in asdict(options).items() if name != "directory"}
        | {"shape": _SHAPE.text},
        "contenders": contenders,
        "measurements": [measurement.as_json() for measurement in measurements],
        "ratios": ratios(measurements, EmbeddedGpkvs.name, []),
    }


def _measure(
    options: CallsOptions,
    folder: Path,
    progress: Progress,
    contenders: dict[str, dict[str, Any]],
    runs: dict[tuple[str, str], list[Run]],
) -> None:
    workload = Workload(_SHAPE, options.records, min(options.records, options.calls))
    stores: list[EmbeddedGpkvs | Lmdb] = []
    makes: list[type[EmbeddedGpkvs | Lmdb]] = [EmbeddedGpkvs, *(Lmdb for _ in options.peers)]
    try:
        for make in makes:
            progress(f"loading {options.records:,} records into {make.name}")
            (folder / make.name).mkdir()
            store = make(folder / make.name, workload, options.promise, 4 * options.runs * options.calls)
            stores.append(store)
            store.load(workload)
            contenders[store.name] = {"version": store.version, _SHAPE.name: {"settings": store.settings}}
        columns = next(workload.batches("random", seed=0))
        tasks = {store.name: _tasks(store, columns, options.calls) for store in stores}
        for number in range(options.runs):
            for task in tasks[EmbeddedGpkvs.name]:
                for contender, calls in tasks.items():
                    progress(f"{task}: {contender}, run {number + 1}")
                    with _busy(is_wanted=task.endswith(BUSY)):
                        began = perf_counter()
                        calls[task](options.calls_of(task))
                        seconds = perf_counter() - began
                    runs.setdefault((task, contender), []).append(Run(options.calls_of(task), seconds))
        for store in stores:
            _require_sum(store, options.runs * sum(map(options.calls_of, ("increment", f"increment {BUSY}"))))
    finally:
        for store in stores:
            store.close()


def _tasks(store: EmbeddedGpkvs | Lmdb, columns: Columns, calls: int) -> dict[str, Calls]:
    """Return the runs of each kind."""
    held = dict(zip(split(columns.keys), split(columns.values), strict=True))  # a key has one value
    pairs = [*held.items()]
    pairs = (pairs * (calls // len(pairs) + 1))[:calls]

    def sets(calls: int) -> None:
        for key, value in pairs[:calls]:
            store.set_one(key, value)

    def gets(calls: int) -> None:
        for key, value in pairs[:calls]:
            if store.get_one(key) != value:
                raise BenchError(f"{store.name} does not return the value that was stored in it")

    def increments(calls: int) -> None:
        for number in range(calls):
            store.increment_one(_counter(number))

    found: dict[str, Calls] = {"SET": sets, "GET": gets, "increment": increments}
    return found | {f"{task} {BUSY}": run for task, run in found.items()}


def _counter(number: int) -> bytes:
    return b"counter %08d" % (number % _COUNTERS)


def _require_sum(store: EmbeddedGpkvs | Lmdb, wanted: int) -> None:
    """Raise if increments were lost."""
    found = sum(int(store.get_one(_counter(number)) or b"0") for number in range(_COUNTERS))
    if found != wanted:
        raise BenchError(f"{store.name} has counted {found:,}, {wanted:,} increments were made")


@contextmanager
def _busy(*, is_wanted: bool) -> Iterator[None]:
    """Have another thread compute meanwhile, which wants Python's lock all the time."""
    if not is_wanted:
        yield
        return
    stop = False

    def compute() -> None:
        number = 0
        while not stop:
            number += 1

    thread = threading.Thread(target=compute, daemon=True)
    thread.start()
    try:
        yield
    finally:
        stop = True
        thread.join()
