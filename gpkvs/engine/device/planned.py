"""What planning a batch for a GPU comes to."""

from __future__ import annotations

from typing import NamedTuple

from gpkvs.batch import BatchResult
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
