"""What planning a batch for a GPU comes to."""

from __future__ import annotations

from typing import NamedTuple

from gpkvs.batch import BatchResult
from gpkvs.engine.seam.write_set import WriteSet


class ForHostError(Exception):
    """A batch does not fit as it is, or meets what only the host's planner sees to.

    A plan only reads PM, so that one runs it: it has what is lacking grow, removes what has expired, and knows which
    requests are refused.
    """


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
