"""Runs the batches of an explorer's store as a server does: by the native engine, or by Python's."""

from __future__ import annotations

from typing import Literal

import numpy as np

from gpkvs.batch import Batch, BatchPart, BatchResult, RequestResult
from gpkvs.engine.native_engine import Ran
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
        `native`: what the native door would give to the native engine is given to it, in a turn of its own. What the
        door would not, and what that engine leaves, is run by Python's, as all is with `python`.

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
        if self._driver and _is_on_one_table(batch):
            answer = self._run_natively(self._driver, batch)
            if answer.ran is not Ran.LEFT:
                self.natively += 1
                return _result_of(batch, answer), answer.gate
        return self._engine.execute(batch)

    def _run_natively(self, driver: NativeDriver, batch: Batch) -> Answer:
        driver.native.begin_turn()
        if self._engine.expiry.is_used:
            self._engine.expiry.now()  # an explorer sets the clock; native code knows the time that counted last
        try:
            return driver.run(batch)
        finally:
            driver.native.end_turn()

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


def _is_on_one_table(batch: Batch) -> bool:
    """Whether a door may form such batches."""
    tables = batch.request_tables
    return bool((tables == tables[0]).all())


def _result_of(batch: Batch, answer: Answer) -> BatchResult:
    assert answer.requests == len(batch.request_ops)  # nothing bounds what they read together
    result = RequestResult(
        np.array(answer.status, np.uint8),
        np.array(answer.versions, np.uint64),
        np.array([len(value) for value in answer.values], np.uint32),
        np.frombuffer(b"".join(answer.values), np.uint8),
    )
    is_done = np.ones(answer.requests, np.bool_)
    is_done[list(answer.conflicts)] = False
    done = BatchPart(np.flatnonzero(is_done), batch.take(is_done) if answer.conflicts else batch, result)
    return BatchResult((done,) if is_done.any() else (), dict(answer.conflicts), answer.requests)
