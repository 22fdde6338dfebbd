"""Runs of batches on one contender: each batch is timed alone, without the time to make it."""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator
from time import perf_counter
from typing import Any

from gpkvs.bench.engine.workload import Columns, Workload
from gpkvs.bench.peers.contender import BenchError, Contender
from gpkvs.bench.report.results import Run, latencies_ms

BATCHES_MIN = 3

Prepared = tuple[Callable[[Any], object], Any, int]
"""A function to call, its argument, and how many operations the call does."""


def require_values(contender: Contender, workload: Workload) -> None:
    """Read a batch and compare all values with what was loaded.

    Raises
    ------
    BenchError
        If they differ: a store that loses or mixes up records is not worth timing.
    """
    columns = next(workload.loads("random"))
    result = contender.get(contender.prepare_get(columns))
    if contender.values(result) != columns.values.tobytes():
        raise BenchError(f"{contender.name} does not return the values that were stored in it")


def prepared(contender: Contender, operation: str, batches: Iterator[Columns]) -> Iterator[Prepared]:
    """Yield each batch as its contender takes it."""
    for columns in batches:
        if operation == "SET":
            yield contender.set, contender.prepare_set(columns), len(columns)
        else:
            yield contender.get, contender.prepare_get(columns), len(columns)


def timed(batches: Iterator[Prepared], batches_max: int, seconds_max: float) -> Run:
    """Time batches one by one; Python's garbage collector is off meanwhile.

    Parameters
    ----------
    batches
        What is run, without end.
    batches_max, seconds_max
        The run ends after so many batches, or so many timed seconds, but not before three batches.
    """
    seconds: list[float] = []
    operations = 0
    for action, argument, count in batches:
        gc.disable()
        began = perf_counter()
        result = action(argument)
        seconds.append(perf_counter() - began)
        gc.enable()
        del result  # its objects are freed outside of the timed part
        operations += count
        if len(seconds) >= batches_max or (sum(seconds) >= seconds_max and len(seconds) >= BATCHES_MIN):
            break
    return Run(operations, sum(seconds), latencies_ms(seconds, 50, 99))
