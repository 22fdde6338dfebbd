"""Calls on a GPU, timed: each ends when the GPU has nothing left to do."""

from __future__ import annotations

import gc
from collections.abc import Callable, Mapping
from itertools import count
from time import perf_counter

from gpkvs.bench.disk.rounds import in_turn
from gpkvs.bench.report.results import Measurement, Run, latencies_ms

CALLS_MIN = 3

Call = Callable[[int], object]
"""What is timed; it gets the number of the call, so that each one has other keys."""


def measured(
    task: str, rows: int, calls: Mapping[str, Call], wait: Callable[[], object], rounds: int, seconds: float
) -> dict[str, Measurement]:
    """Time calls that take turns; return the measurement of each.

    Parameters
    ----------
    task
        What they do.
    rows
        How many a call reads or writes.
    calls
        By contender.
    wait
        It returns when the GPU has nothing left to do.
    rounds
        Each has a run of each contender.
    seconds
        A run ends after so many timed seconds, but not before three calls. One more comes first, and is not timed.
    """
    numbers = count()

    def run_of(call: Call) -> Callable[[], Run]:
        return lambda: _run(call, rows, wait, numbers, seconds)

    runs = in_turn(rounds, [run_of(call) for call in calls.values()])
    return {name: Measurement(task, name, found) for name, found in zip(calls, runs, strict=True)}


def _run(call: Call, rows: int, wait: Callable[[], object], numbers: count[int], seconds: float) -> Run:
    call(next(numbers))  # what the turns of others took out of the caches, comes back
    wait()
    gc.collect()
    gc.disable()
    try:
        found: list[float] = []
        while sum(found) < seconds or len(found) < CALLS_MIN:
            began = perf_counter()
            result = call(next(numbers))
            wait()
            found.append(perf_counter() - began)
            del result  # freed outside of the timed part
    finally:
        gc.enable()
    return Run(len(found) * rows, sum(found), latencies_ms(found, 50, 99))
