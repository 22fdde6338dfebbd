"""A batch on several tables: a batch of each table, one after the other. A request is on one table, and stays whole."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np

from gpkvs.batch import Batch, BatchPart, BatchResult
from gpkvs.errors import GpkvsError, NoMemoryError


def is_on_one_table(batch: Batch) -> bool:
    """Whether all requests of a batch are on the same table."""
    tables = batch.request_tables
    return len(tables) == 1 or bool((tables == tables[0]).all())


def run_by_table(batch: Batch, run: Callable[[Batch], tuple[BatchResult, int]]) -> tuple[BatchResult, int]:
    """Run all requests of a batch, those of one table together, in their order.

    Parameters
    ----------
    batch
        Valid columns.
    run
        Runs a batch on one table, as `Engine.execute` does.

    Returns
    -------
    BatchResult
        Of all requests.
    int
        Its gate.

    Raises
    ------
    NoMemoryError
        If there is no memory for the first; nothing has happened. Later, requests are rejected with it.
    """
    parts: list[BatchPart] = []
    rejected: dict[int, GpkvsError] = {}
    newest = 0
    for table in dict.fromkeys(batch.request_tables.tolist()):
        numbers = np.flatnonzero(batch.request_tables == table)
        while len(numbers):
            is_taken = np.zeros(len(batch.request_ops), np.bool_)
            is_taken[numbers] = True
            try:
                result, gate = run(batch.take(is_taken))
            except MemoryError:
                if not parts and not rejected:
                    raise
                rejected |= dict.fromkeys(numbers.tolist(), NoMemoryError())
                break
            parts += [replace(part, numbers=numbers[part.numbers]) for part in result.parts]
            rejected |= {int(numbers[number]): refusal for number, refusal in result.rejected.items()}
            newest = max(newest, gate)
            numbers = numbers[result.requests :]
    return BatchResult(tuple(parts), rejected, len(batch.request_ops)), newest
