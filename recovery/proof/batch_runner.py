"""Runs the batches of an explorer's store as a server does: natively, or phase by phase as a GPU does."""

from __future__ import annotations

from typing import Literal

from gpkvs.batch import Batch, BatchResult
from gpkvs.engine.seam.left import Left
from gpkvs.store import Store

EngineName = Literal["native", "phases"]


class BatchRunner:
    """Runs batches, one at a time, each in a turn of its own.

    Parameters
    ----------
    store
        Open.
    engine
        `native`: native code runs all of them. `phases`: its threads stand for a GPU, and run batches of plain
        operations phase by phase.

    Attributes
    ----------
    natively : int
        How many batches native code ran.
    """

    def __init__(self, store: Store, engine: EngineName) -> None:
        self._engine = store._engine
        self._meter = store.meter
        if engine == "phases":
            store._backend.host_ops_max = 0
        self.natively = 0

    def execute(self, batch: Batch) -> tuple[BatchResult, int]:
        """Run a batch as `Engine.execute` does."""
        before = self._meter.left_batches[Left.DEVICE]
        result, gate = self._engine.execute(batch)
        self._engine.own_turn.end()
        self.natively += self._meter.left_batches[Left.DEVICE] == before
        return result, gate

    def wait(self, result: BatchResult, gate: int) -> None:
        """Return when the result of a batch may be seen, from any thread."""
        self._engine.wait(result, gate)

    def run(self, batch: Batch) -> BatchResult:
        """Run a batch; return its result when it may be seen."""
        result, gate = self.execute(batch)
        self.wait(result, gate)
        return result
