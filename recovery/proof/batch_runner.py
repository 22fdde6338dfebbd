"""Runs the batches of an explorer's store as a server does: by the native engine, or by Python's."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal

import numpy as np

from gpkvs.batch import Batch, BatchPart, BatchResult, RequestResult
from gpkvs.engine.left import Left
from gpkvs.errors import GpkvsError
from gpkvs.recovery.proof.native_driver import Answer, NativeDriver
from gpkvs.store import Store

EngineName = Literal["native", "python"]


class BatchRunner:
    """Runs batches, one at a time.

    Parameters
    ----------
    store
        Open.
    engine
        `native`: each batch is given to the native engine, in a turn of its own, and again when the crew has done what
        it lacks. `python`: Python's engine runs them.

    Attributes
    ----------
    natively : int
        How many batches the native engine ran.
    """

    def __init__(self, store: Store, engine: EngineName) -> None:
        self._engine = store._engine
        self._driver = NativeDriver(store) if engine == "native" else None
        if self._driver:
            self._driver.waits = False
        self.natively = 0

    def execute(self, batch: Batch) -> tuple[BatchResult, int]:
        """Run a batch as `Engine.execute` does."""
        if self._driver and (answer := self._driver.run_with_help(batch)):
            self.natively += 1
            return _result_of(batch, answer, self._driver.refusals), answer.gate
        return self._engine.execute(batch)

    def wait(self, result: BatchResult, gate: int) -> None:
        """Return when the result of a batch may be seen, from any thread."""
        if self._driver:
            self._driver.wait(gate)
        else:
            self._engine.wait(result, gate)

    def run(self, batch: Batch) -> BatchResult:
        """Run a batch; return its result when it may be seen."""
        result, gate = self.execute(batch)
        self.wait(result, gate)
        return result


def _result_of(batch: Batch, answer: Answer, lacking: Mapping[Left, GpkvsError]) -> BatchResult:
    result = RequestResult(
        np.array(answer.status, np.uint8),
        np.array(answer.versions, np.uint64),
        np.array([len(value) for value in answer.values], np.uint32),
        np.frombuffer(b"".join(answer.values), np.uint8),
    )
    rejected = {**answer.conflicts, **{number: lacking[what] for number, what in answer.lacking.items()}}
    is_done = np.arange(len(batch.request_ops)) < answer.requests
    is_done[list(rejected)] = False
    done = BatchPart(np.flatnonzero(is_done), batch if is_done.all() else batch.take(is_done), result)
    return BatchResult(done if is_done.any() else None, rejected, answer.requests)
