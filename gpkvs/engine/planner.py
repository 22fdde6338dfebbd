"""What a planner must offer: `NativePlanner` and `PhasePlanner` are planners."""

from __future__ import annotations

from typing import NamedTuple, Protocol

from gpkvs.batch import Batch, BatchResult
from gpkvs.engine.write_set import WriteSet


class ExpiredKeysError(Exception):
    """A batch meets keys that look expired. The engine removes them, and has the batch planned again."""


class Planned(NamedTuple):
    """A batch as planned: its results, which nobody may see before the write set is durable.

    Attributes
    ----------
    result
        Of the batch; it is made before the commit, where a refusal of memory harms nothing.
    write_set
        What to commit; `None` if nothing changes and no version was given.
    """

    result: BatchResult
    write_set: WriteSet | None


class Planner(Protocol):
    """Turns batches into results and write sets. A planner only reads PM: nothing has happened if it fails."""

    def plan(self, batch: Batch, first_sequence: int, now: int, /) -> Planned | None:
        """Plan the longest run of requests from the first on that fits one transaction.

        Parameters
        ----------
        batch
            Valid columns (`Batch.validate`).
        first_sequence
            The version of the first operation.
        now
            The time, in milliseconds since 1970; 0: no key is looked at for its expiry.

        Returns
        -------
        Planned or None
            `None`: another planner must do it.

        Raises
        ------
        ExpiredKeysError
            If a key that the batch names has a record that looks expired.
        """
