"""How well the path of a batch is chosen: a fixed grid of batches, on the host's threads, on the GPU, and as chosen."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from time import perf_counter
from typing import Any

import numpy as np

import gpkvs
from gpkvs.backends import path_costs
from gpkvs.batch import U64
from gpkvs.bench.peers.contender import Progress
from gpkvs.bench.report.machine import describe_run
from gpkvs.bench.report.plot import framed, text_at
from gpkvs.bench.report.tables import Rows
from gpkvs.config import GIB, MIB, Limits

SIZES = (1, 64, 2048, 32_768, 262_144, 2_097_152)
_TASKS = ("GET", "SET")
_ARRAYS = ("host", "GPU")
_ZIPFIAN_CONSTANT = 0.99  # YCSB's
_ROUNDS = 11
_ROUND_SECONDS = 0.1
_LEARN_SECONDS, _LEARN_BATCHES = 0.4, 40
_BATCHES_MIN, _BATCHES_MAX = 2, 200
_AIMS = {"median": 0.02, "p95": 0.05, "worst": 0.15}


@dataclass(frozen=True)
class PathsOptions:
    """What to measure.

    Parameters
    ----------
    directory
        For the store: a tmpfs.
    large_index_bytes, small_index_bytes
        Of the table of uniform keys, and of that of zipfian ones.
    large_keys
        In the table of uniform keys.
    """

    directory: Path
    large_index_bytes: int = 8 * GIB
    small_index_bytes: int = 64 * MIB
    large_keys: int = 50 * SIZES[-1]


class _Table:
    """A table, and how its keys are drawn."""

    def __init__(self, store: gpkvs.Store, name: str, index_bytes: int, keys: int) -> None:
        self.name = name
        self._keys, self._rng = keys, np.random.default_rng(7)
        self._is_zipfian = name == "zipfian"
        store.create_table(name, layout="u64", index_bytes=index_bytes)
        self.table = store.table(name)
        for first in range(0, keys, SIZES[-1]):
            numbers = self._scrambled(np.arange(first, min(first + SIZES[-1], keys), dtype=np.uint64))
            self.table.set_many(numbers, numbers)
        if self._is_zipfian:
            weights = 1 / np.arange(1, keys + 1) ** _ZIPFIAN_CONSTANT
            self._ends = np.cumsum(weights) / weights.sum()

    @staticmethod
    def _scrambled(numbers: U64) -> U64:
        return numbers * np.uint64(0x9E3779B97F4A7C15)  # odd: no two become one

    def draw(self, count: int) -> U64:
        """Return keys of the table."""
        if self._is_zipfian:
            ranks = np.minimum(np.searchsorted(self._ends, self._rng.random(count)), self._keys - 1)
            return self._scrambled(ranks.astype(np.uint64))
        return self._scrambled(self._rng.integers(0, self._keys, count, np.uint64))


def run_paths(options: PathsOptions, progress: Progress) -> dict[str, Any]:
    """Run the grid; return all results."""
    folder = Path(tempfile.mkdtemp(prefix="gpkvs-bench-paths-", dir=options.directory))
    try:
        with gpkvs.open(
            folder / "store",
            backend="cuda",
            log_bytes=128 * SIZES[-1],
            heap_bytes=64 * MIB,
            limits=Limits(request_ops_max=SIZES[-1], result_bytes_max=GIB),
        ) as store:
            progress("filling the tables")
            tables = [
                _Table(store, "uniform", options.large_index_bytes, options.large_keys),
                _Table(store, "zipfian", options.small_index_bytes, SIZES[-1]),
            ]
            cells = []
            for table in tables:
                for task in _TASKS:
                    for arrays in _ARRAYS:
                        for size in SIZES:
                            progress(f"{task} of {size:,}, {table.name} keys, arrays of the {arrays}")
                            cells.append(_cell(store, table, task, arrays, size))
            device = store.info().backend
        result = {
            "benchmark": "paths",
            **describe_run(folder),
            "device": device,
            "options": asdict(options),
            "cells": cells,
            "regret": regrets(cells),
            "aims": _AIMS,
        }
        result["commit"] = os.environ.get("GPKVS_REVISION") or result["commit"]
        return result
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _cell(store: gpkvs.Store, table: _Table, task: str, arrays: str, size: int) -> dict[str, Any]:
    """Measure one kind of batch: the three ways take turns."""
    backend: Any = store._backend  # the benchmark chooses the path, and brings columns to the GPU
    costs: path_costs.PathCosts = backend.path_costs
    call = _call(backend, table, task, arrays, size)
    ways: dict[str, path_costs.Path | None] = {"host": path_costs.Path.HOST, "GPU": path_costs.Path.GPU, "chosen": None}
    batches = {}
    for way, costs.forced in ways.items():
        call()
        begin, count = perf_counter(), 0
        while count < _BATCHES_MIN or (
            way == "chosen" and count < _LEARN_BATCHES and perf_counter() - begin < _LEARN_SECONDS
        ):
            call()
            count += 1
        each = (perf_counter() - begin) / count
        batches[way] = int(min(max(_ROUND_SECONDS / each, _BATCHES_MIN), _BATCHES_MAX))
    seconds: dict[str, list[float]] = {way: [] for way in ways}
    for _ in range(_ROUNDS):
        for way, costs.forced in ways.items():
            call()  # what the way before left to be done
            begin = perf_counter()
            for _ in range(batches[way]):
                call()
            seconds[way].append((perf_counter() - begin) / batches[way])
    medians = {way: float(np.median(found)) for way, found in seconds.items()}
    best = min(medians["host"], medians["GPU"])
    return {
        "table": table.name,
        "task": task,
        "arrays": arrays,
        "operations": size,
        "seconds": seconds,
        "m_per_s": {way: size / median / 1e6 for way, median in medians.items()},
        "better": "host" if medians["host"] == best else "GPU",
        "factor": max(medians["host"], medians["GPU"]) / best,
        "regret": medians["chosen"] / best - 1,
    }


def _call(backend: Any, table: _Table, task: str, arrays: str, size: int) -> Callable[[], object]:
    """Return a call that runs one of some batches, another one each time."""
    columns = []
    for _ in range(4):
        keys = table.draw(size)
        pair = (keys, keys + np.uint64(1))
        columns.append(tuple(backend.upload(column) for column in pair) if arrays == "GPU" else pair)
    number = 0

    def call() -> None:
        nonlocal number
        number += 1
        keys, values = columns[number % len(columns)]
        if task == "SET":
            table.table.set_many(keys, values)
        else:
            table.table.get_many(keys)
        backend.wait()

    return call


def regrets(cells: list[dict[str, Any]]) -> dict[str, float]:
    """Return by how much batches take longer as chosen than by the better way: of 1."""
    found = sorted(cell["regret"] for cell in cells)
    return {
        "median": float(np.median(found)),
        "p95": float(np.quantile(found, 0.95)),
        "worst": found[-1],
    }


def paths_tables(result: dict[str, Any]) -> list[Rows]:
    """Return a result as tables."""
    cells = Rows(
        "M operations a second",
        ("table", "task", "arrays", "operations", "host", "GPU", "chosen", "better", "regret"),
        [
            (
                cell["table"],
                cell["task"],
                cell["arrays"],
                f"{cell['operations']:,}",
                *(f"{cell['m_per_s'][way]:.4g}" for way in ("host", "GPU", "chosen")),
                f"{cell['better']}, {cell['factor']:.2g} times",
                f"{100 * cell['regret']:.1f} %",
            )
            for cell in result["cells"]
        ],
        left=3,
    )
    lines: list[tuple[str, ...]] = [
        (name, f"{100 * regret:.1f} %", f"{100 * result['aims'][name]:.0f} %")
        for name, regret in result["regret"].items()
    ]
    return [cells, Rows("Regret", ("of all cells", "found", "at most"), lines)]


_WIDTH, _LEFT, _TOP, _CELL_WIDTH, _CELL_HEIGHT = 880, 250, 96, 100, 38
_COLOURS = {"host": "#1f6feb", "GPU": "#2da44e"}
_DARK = 0.75


def draw_paths(result: dict[str, Any]) -> str:
    """Return an SVG of the grid: who is better, by how much, and what was lost by what was chosen."""
    rows: dict[tuple[str, str, str], list[dict[str, Any]]] = {}
    for cell in result["cells"]:
        rows.setdefault((cell["task"], cell["arrays"], cell["table"]), []).append(cell)
    height = _TOP + len(rows) * (_CELL_HEIGHT + 4) + 20
    parts = [
        text_at(20, 27, "Who plans a batch better, and by how many times", 15, weight=600),
        text_at(20, 46, f"below it what the choice lost; {result['device'][:60]}", 12, fill="#57606a"),
    ]
    for column, size in enumerate(SIZES):
        parts.append(text_at(_LEFT + column * _CELL_WIDTH + 8, _TOP - 12, f"{size:,}", 12, weight=600))
    for row, ((task, arrays, table), cells) in enumerate(sorted(rows.items())):
        top = _TOP + row * (_CELL_HEIGHT + 4)
        parts.append(text_at(20, top + 24, f"{task}, arrays of the {arrays}, {table}", 12))
        for cell in cells:
            left = _LEFT + SIZES.index(cell["operations"]) * _CELL_WIDTH
            strength = min(1.0, 0.25 + 0.2 * float(np.log2(cell["factor"])))
            parts.append(
                f"<rect x='{left}' y='{top}' width='{_CELL_WIDTH - 4}' height='{_CELL_HEIGHT}' rx='4' "
                f"fill='{_COLOURS[cell['better']]}' fill-opacity='{strength:.2f}'/>"
            )
            colour = "#ffffff" if strength > 0.6 else "#1f2328"
            parts.append(
                text_at(left + 8, top + 16, f"{cell['better']} {cell['factor']:.2g}x", 12, fill=colour, weight=600)
            )
            parts.append(text_at(left + 8, top + 31, f"{100 * cell['regret']:+.1f} %", 11, fill=colour))
    return framed(_WIDTH, height, parts)
