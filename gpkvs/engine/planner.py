"""What a planner must offer: `NativePlanner` and `PhasePlanner` are planners."""

from __future__ import annotations

from typing import NamedTuple, Protocol

from gpkvs.batch import Batch, BatchPart
from gpkvs.engine.write_set import WriteSet
from gpkvs.errors import GpkvsError


class Planned(NamedTuple):
    """A batch as planned: its results, which nobody may see before the write set is durable.

    Attributes
    ----------
    parts, rejected, requests
        As in `BatchResult`.
    write_set
        What to commit; `None` if nothing changes and no version was given.
    """

    parts: tuple[BatchPart, ...]
    rejected: dict[int, GpkvsError]
    requests: int
    write_set: WriteSet | None


class Planner(Protocol):
    """Turns batches into results and write sets. A planner only reads PM: nothing has happened if it fails."""

    def plan(self, batch: Batch, first_sequence: int, /) -> Planned | None:
        """Plan the longest run of requests from the first on that fits one transaction.

        Parameters
        ----------
        batch
            Valid columns (`Batch.validate`).
        first_sequence
            The version of the first operation.

        Returns
        -------
        Planned or None
            `None`: another planner must do it.
        """
