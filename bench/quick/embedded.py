"""Stores in this process: single calls and batches, gpkvs and LMDB in turn."""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing
from itertools import chain, islice
from pathlib import Path
from time import perf_counter

from gpkvs.bench.engine.timed import prepared, require_values, timed
from gpkvs.bench.engine.workload import SHAPES, Columns, Shape, Workload
from gpkvs.bench.peers.contender import Progress, Promise
from gpkvs.bench.peers.embedded_gpkvs import EmbeddedGpkvs
from gpkvs.bench.peers.lmdb_peer import Lmdb, split
from gpkvs.bench.quick.options import BATCH, OPERATIONS, Found, QuickOptions, in_turn
from gpkvs.bench.report.results import Run, latencies_ms

_PERCENTILES = (50, 99)
_WARM_UP_BATCHES = 2
_ENDLESS = 1 << 62

Stores = dict[str, EmbeddedGpkvs | Lmdb]


def measure_embedded(options: QuickOptions, promise: Promise, folder: Path, progress: Progress, found: Found) -> None:
    """Measure both shapes of records: text of 16 and 100 bytes, and numbers."""
    if not importlib.util.find_spec("lmdb"):
        found.absent[Lmdb.name] = f"not installed; {sys.executable} -m pip install lmdb brings it"
    for shape in (SHAPES["bytes"], SHAPES["u64"]):  # what everybody knows comes first
        workload = Workload(shape, options.records, BATCH)
        with ExitStack() as stack:
            stores = _opened(stack, workload, promise, folder, progress, found)
            if not shape.is_numbers:
                columns = [*islice(workload.batches("random", seed=0), 16)]
                for operation in OPERATIONS:
                    calls = {name: _calls(store, operation, columns) for name, store in stores.items()}
                    _take_turns(_task(operation, shape, "one a call"), calls, options, progress, found)
            for number, operation in enumerate(OPERATIONS):
                batches = {name: _batches(store, operation, workload, number) for name, store in stores.items()}
                _take_turns(_task(operation, shape, f"{BATCH:,} a batch"), batches, options, progress, found)


def _task(operation: str, shape: Shape, how: str) -> str:
    return f"embedded {operation}{' numbers' if shape.is_numbers else ''}, {how}"


def _opened(
    stack: ExitStack, workload: Workload, promise: Promise, folder: Path, progress: Progress, found: Found
) -> Stores:
    """Open a store of each kind, load it, and check what it returns."""
    stores: Stores = {}
    makes: list[Callable[[Path], EmbeddedGpkvs | Lmdb]] = [
        lambda path: EmbeddedGpkvs(path, workload, promise, 0, grows=True)
    ]
    if Lmdb.name not in found.absent:
        makes.append(lambda path: Lmdb(path, workload, promise, 0))
    for number, make in enumerate(makes):
        path = folder / f"{workload.shape.name}-{number}"
        path.mkdir()
        store = stack.enter_context(closing(make(path)))
        progress(f"loading {workload.records:,} records, {workload.shape.text}, into {store.name}")
        store.load(workload)
        require_values(store, workload)
        found.contenders.setdefault(store.name, {"version": store.version, "settings": store.settings})
        stores[store.name] = store
    return stores


def _take_turns(
    task: str, measures: dict[str, Callable[[float], Run]], options: QuickOptions, progress: Progress, found: Found
) -> None:
    progress(task)
    for number in range(options.runs):
        for name in in_turn([*measures], number):
            found.add(task, name, measures[name](options.run_seconds))


def _batches(store: EmbeddedGpkvs | Lmdb, operation: str, workload: Workload, seed: int) -> Callable[[float], Run]:
    batches = prepared(store, operation, workload.batches("random", seed))
    timed(batches, _WARM_UP_BATCHES, 0)
    return lambda seconds: timed(batches, _ENDLESS, seconds)


def _calls(store: EmbeddedGpkvs | Lmdb, operation: str, columns: list[Columns]) -> Callable[[float], Run]:
    """Return what makes one call after the other, each of one record."""
    keys = [key for one in columns for key in split(one.keys)]
    values = [value for one in columns for value in split(one.values)]

    def run(seconds: float) -> Run:
        latencies: list[float] = []
        pairs: Iterator[tuple[bytes, bytes]] = chain.from_iterable(iter(lambda: zip(keys, values, strict=True), None))
        began = last = perf_counter()
        for key, value in pairs:
            if operation == "SET":
                store.set_one(key, value)
            else:
                store.get_one(key)
            now = perf_counter()
            latencies.append(now - last)
            last = now
            if now - began >= seconds:
                break
        return Run(len(latencies), last - began, latencies_ms(latencies, *_PERCENTILES))

    return run
