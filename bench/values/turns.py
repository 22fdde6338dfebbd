"""The runs of one store at one task: each key has its turn once, in random order, one call each."""

from __future__ import annotations

import gc
from collections.abc import Callable
from functools import partial
from time import perf_counter
from typing import Any, Literal

from gpkvs.bench.report.results import Run, latencies_ms
from gpkvs.bench.values.gpkvs_values import GpkvsValues
from gpkvs.bench.values.payload import Payload, key_of
from gpkvs.bench.values.value_store import ValueStore

Operation = Literal["SET", "GET"]


class Turns:
    """The runs of one store.

    Parameters
    ----------
    store
        It holds the payload.
    operation
        What is timed.
    payload
        The values.
    seconds_max
        A run ends after so many timed seconds, too.

    Attributes
    ----------
    phases : dict
        The seconds that gpkvs has spent in each phase of the timed calls; empty for another store.
    """

    def __init__(self, store: ValueStore, operation: Operation, payload: Payload, seconds_max: float) -> None:
        self._store, self._operation, self._payload, self._seconds_max = store, operation, payload, seconds_max
        self._runs = 0
        self.phases: dict[str, float] = {}

    def run(self) -> Run:
        """Time one call after the other; what SETs left to be done later is done afterwards."""
        self._runs += 1
        before = self._phases_now()
        gc.collect()
        gc.disable()
        seconds = self._timed()
        gc.enable()
        for phase, now in self._phases_now().items():
            if now > before[phase]:
                self.phases[phase] = self.phases.get(phase, 0.0) + now - before[phase]
        self._store.settle()
        return Run(len(seconds), sum(seconds), latencies_ms(seconds, 50, 99))

    def _timed(self) -> list[float]:
        seconds: list[float] = []
        for number in self._payload.order(self._runs):
            call = self._call(number)
            began = perf_counter()
            result = call()
            seconds.append(perf_counter() - began)
            del result  # freed outside of the timed part
            if sum(seconds) >= self._seconds_max:
                break
        return seconds

    def _call(self, number: int) -> Callable[[], Any]:
        key = key_of(number)
        if self._operation == "GET":
            return partial(self._store.get_one, key)
        return partial(self._store.set_one, key, self._payload.value(number, self._runs))

    def _phases_now(self) -> dict[str, float]:
        return self._store.phases() if isinstance(self._store, GpkvsValues) else {}
