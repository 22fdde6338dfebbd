"""The benchmark of rows: a table for each size of a row, in all stores at the same time; they take turns.

Every store is loaded with the same rows and checked. Then come GETs, SETs, adds and steps of training, each a call of
`batch` random keys.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing, contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory
from time import perf_counter
from typing import Any

from gpkvs.bench.disk.rounds import in_turn
from gpkvs.bench.peers.contender import Progress, Promise, found_promise
from gpkvs.bench.report.comparison import Comparison, rates_over
from gpkvs.bench.report.machine import describe_run
from gpkvs.bench.report.results import Measurement, ratios
from gpkvs.bench.report.tables import gigabytes_text
from gpkvs.bench.rows.gpkvs_rows import OWN, GpkvsRows
from gpkvs.bench.rows.lmdb_rows import LmdbRows
from gpkvs.bench.rows.numpy_rows import NumpyRows
from gpkvs.bench.rows.options import TASKS, RowsOptions, RowsPeer, Task, layout_of
from gpkvs.bench.rows.redis_rows import RedisRows
from gpkvs.bench.rows.row_store import RowStore
from gpkvs.bench.rows.sqlite_rows import SqliteRows
from gpkvs.bench.rows.table import RowTable
from gpkvs.bench.rows.turns import Turns, require_rows, takes_part

_MAKES: dict[RowsPeer, Callable[[Path, RowTable, Promise], RowStore]] = {
    "numpy": lambda *_: NumpyRows(),
    "lmdb": LmdbRows,
    "sqlite": SqliteRows,
    "redis": RedisRows,
}
_GET_AIMS = {NumpyRows.name: 0.5, LmdbRows.name: 5.0, RedisRows.name: 10.0}
_AIMED_DIM_MIN = 128
_ADD_AIM = 0.7
_BEYOND_AIM = 29
"""Bytes of a row beyond its own."""


@dataclass
class _Found:
    """The results so far."""

    comparisons: list[Comparison] = field(default_factory=list)
    space: list[Comparison] = field(default_factory=list)
    measurements: list[Measurement] = field(default_factory=list)
    contenders: dict[str, dict[str, Any]] = field(default_factory=dict)
    phases: dict[str, dict[str, float]] = field(default_factory=dict)


def run_rows(options: RowsOptions, progress: Progress) -> dict[str, Any]:
    """Run the benchmark; return its result, ready for JSON.

    Raises
    ------
    BenchError
        If a peer is not installed, the directory gives a promise that peers have no setting for, or a store returns
        wrong rows.
    """
    began, found = perf_counter(), _Found()
    promise = found_promise(options.directory)
    described = describe_run(options.directory)
    tables = {}
    for dim in options.dims:
        layout = layout_of(dim)
        table = RowTable(layout, options.rows(layout), options.batch)
        tables[layout.name] = table.count
        with _opened(options, promise, table) as stores:
            _load(stores, table, progress, found)
            for task in TASKS:
                _measure(stores, task, table, options, progress, found)
            _compare_add(found, table)
            for store in stores:
                _add_space(found, store, table, "overwritten")
    return {
        "benchmark": "rows",
        "promise": promise,
        **described,
        "seconds": perf_counter() - began,
        "parameters": {
            **{name: value for name, value in asdict(options).items() if name != "directory"},
            "records": max(tables.values()),
            "rows": tables,
        },
        "contenders": found.contenders,
        "measurements": [measurement.as_json() for measurement in found.measurements],
        "ratios": ratios(found.measurements, OWN, []),
        "comparisons": [comparison.as_json() for comparison in found.comparisons + found.space],
        "phases": found.phases,
    }


@contextmanager
def _opened(options: RowsOptions, promise: Promise, table: RowTable) -> Iterator[list[RowStore]]:
    """Open gpkvs and its peers, each in a directory of its own; close them and remove their directories."""
    makes = [GpkvsRows, *(_MAKES[peer] for peer in options.peers)]
    with ExitStack() as stack:
        stores = []
        for make in makes:
            path = Path(stack.enter_context(TemporaryDirectory(dir=options.directory, prefix="gpkvs-bench-")))
            stores.append(stack.enter_context(closing(make(path, table, promise))))
        yield stores


def _load(stores: list[RowStore], table: RowTable, progress: Progress, found: _Found) -> None:
    for store in stores:
        progress(f"loading {table.count:,} rows of {table.layout.name} into {store.name}")
        began = perf_counter()
        store.load(table)
        loaded = perf_counter() - began
        _add_space(found, store, table, "loaded")
        require_rows(store, table)
        known = found.contenders.setdefault(store.name, {"version": store.version})
        known[table.layout.name] = {"settings": store.settings, "load_seconds": loaded}


def _task(task: Task, table: RowTable) -> str:
    return f"{task}, {table.layout.name}"


def _measure(
    stores: list[RowStore], task: Task, table: RowTable, options: RowsOptions, progress: Progress, found: _Found
) -> None:
    """Let all stores take turns at one task."""
    taking = [store for store in stores if takes_part(store, task)]
    name = _task(task, table)
    progress(f"{name}: {options.runs} rounds of {', '.join(store.name for store in taking)}")
    turns = [Turns(store, task, table, options.seconds) for store in taking]
    runs = in_turn(options.runs, [turn.run for turn in turns])
    own, *others = (Measurement(name, store.name, runs[at]) for at, store in enumerate(taking))
    found.measurements += [own, *others]
    found.phases[name] = turns[0].phases
    has_aim = task == "get" and table.layout.shape[0] >= _AIMED_DIM_MIN
    size = table.layout.row_bytes
    for other in others:
        note = f"{gigabytes_text(own.rate * size)}, {gigabytes_text(other.rate * size)}"
        aim = _GET_AIMS.get(other.contender) if has_aim else None
        found.comparisons.append(Comparison(name, OWN, other.contender, rates_over(own, other), aim, note=note))


def _compare_add(found: _Found, table: RowTable) -> None:
    """Compare an add with a GET and a SET of as many rows."""
    get, put, add = (
        next(one for one in found.measurements if (one.task, one.contender) == (_task(task, table), OWN))
        for task in ("get", "set", "add")
    )
    both = [1 / (1 / one.rate + 1 / other.rate) for one, other in zip(get.runs, put.runs, strict=True)]
    rates = [run.rate / rate for run, rate in zip(add.runs, both, strict=True)]
    found.comparisons.append(Comparison(add.task, OWN, "get and set", rates, _ADD_AIM))


def _add_space(found: _Found, store: RowStore, table: RowTable, when: str) -> None:
    """Note what a row takes."""
    size, taken = table.layout.row_bytes, store.taken_bytes() / table.count
    found.space.append(
        Comparison(
            f"bytes of a row, {table.layout.name}, {when}",
            store.name,
            f"{size:,} B",
            [taken / size],
            round((size + _BEYOND_AIM) / size, 3) if store.name == OWN else None,
            is_least=False,
            note=f"{taken:,.0f} B, {taken - size:,.0f} B beyond it",
        )
    )
