"""A batch that was run, and whose result may have to wait until it is durable."""

from __future__ import annotations

from typing import NamedTuple

from gpkvs.batch import BatchResult
from gpkvs.engine.engine import Engine


class BegunBatch(NamedTuple):
    """A batch between its transaction and the moment when anybody may hear of its result.

    Attributes
    ----------
    engine
        That ran it.
    result
        Nobody may see it before `finish` has returned.
    gate
        What must be durable before (`Engine.wait`).
    """

    engine: Engine
    result: BatchResult
    gate: int

    @property
    def is_durable(self) -> bool:
        """Whether `finish` returns at once."""
        return self.engine.is_durable(self.gate)

    def finish(self) -> BatchResult:
        """Wait until the result may be seen; from any thread, also while the store is closed."""
        self.engine.wait(self.result, self.gate)
        return self.result
