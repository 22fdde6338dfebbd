"""The runs of one store at one task: call after call, each on keys drawn anew."""

from __future__ import annotations

import gc
from collections.abc import Callable
from functools import partial
from time import perf_counter
from typing import Any

import numpy as np

from gpkvs.bench.peers.contender import BenchError
from gpkvs.bench.report.results import Run, latencies_ms
from gpkvs.bench.rows.gpkvs_rows import GpkvsRows
from gpkvs.bench.rows.numpy_rows import NumpyRows
from gpkvs.bench.rows.options import Task
from gpkvs.bench.rows.row_store import RowStore
from gpkvs.bench.rows.table import Float32, RowTable

_CALLS_MIN = 3


class Turns:
    """The runs of one store.

    Parameters
    ----------
    store
        It holds the table.
    task
        What is timed.
    table
        The rows.
    seconds
        A run ends after so many timed seconds, but not before three calls.

    Attributes
    ----------
    phases : dict
        The seconds that gpkvs has spent in each phase of the timed calls; empty for another store.
    """

    def __init__(self, store: RowStore, task: Task, table: RowTable, seconds: float) -> None:
        self._store, self._task, self._table, self._seconds = store, task, table, seconds
        self._out: Float32 = np.zeros((table.batch, *table.layout.shape), np.float32)
        self.phases: dict[str, float] = {}

    def run(self) -> Run:
        """Time calls; what SETs left to be done later is done afterwards, and not timed."""
        if isinstance(self._store, GpkvsRows) and not self._task.startswith("get"):
            self._store.fill_journal()
        self._call()()  # what the turns of others took out of the caches, comes back
        before = self._phases_now()
        gc.collect()
        gc.disable()
        seconds = self._timed()
        gc.enable()
        for phase, now in self._phases_now().items():
            if now > before[phase]:
                self.phases[phase] = self.phases.get(phase, 0.0) + now - before[phase]
        self._store.settle()
        return Run(len(seconds) * self._table.batch, sum(seconds), latencies_ms(seconds, 50, 99))

    def _timed(self) -> list[float]:
        seconds: list[float] = []
        while sum(seconds) < self._seconds or len(seconds) < _CALLS_MIN:
            call = self._call()
            began = perf_counter()
            result = call()
            seconds.append(perf_counter() - began)
            del result  # freed outside of the timed part
        return seconds

    def _call(self) -> Callable[[], Any]:
        """Make a batch into what the store takes; return the call that is timed."""
        store = self._store
        if self._task == "add":
            return partial(store.add, store.adds_of(self._table.with_duplicates()))
        batch = self._table.drawn()
        keys = store.keys_of(batch)
        if self._task == "get":
            return partial(store.get, keys)
        if self._task == "get into out":
            assert isinstance(store, GpkvsRows | NumpyRows)
            return partial(store.get_into, keys, self._out)
        if self._task == "set":
            return partial(store.set, keys, store.rows_of(batch.rows))
        return partial(_step, store, keys, batch.rows)

    def _phases_now(self) -> dict[str, float]:
        return self._store.phases() if isinstance(self._store, GpkvsRows) else {}


def _step(store: RowStore, keys: Any, gradients: Float32) -> None:
    """Train: read rows, change them, and store them under the same keys."""
    rows = store.get(keys) - gradients
    store.set(keys, store.rows_of(rows))


def takes_part(store: RowStore, task: Task) -> bool:
    """Return whether a store has a task: only arrays leave rows in memory that is there."""
    return task != "get into out" or isinstance(store, GpkvsRows | NumpyRows)


def require_rows(store: RowStore, table: RowTable) -> None:
    """Read, set and add a batch, and compare what the store returns with what it must, bit by bit.

    Raises
    ------
    BenchError
        If they differ: a store that loses or mixes up rows is not worth timing.
    """
    drawn = table.drawn()
    keys = store.keys_of(drawn)
    _require(store, keys, table.rows[drawn.places])
    store.set(keys, store.rows_of(drawn.rows))
    held = table.rows.copy()
    held[drawn.places] = drawn.rows
    _require(store, keys, held[drawn.places])
    adds = table.with_duplicates()
    store.add(store.adds_of(adds))
    np.add.at(held, adds.places, adds.rows)
    _require(store, store.keys_of(adds), held[adds.places])


def _require(store: RowStore, keys: Any, wanted: Float32) -> None:
    if not np.array_equal(store.get(keys), wanted):
        raise BenchError(f"{store.name} does not return the rows that were stored in it")
