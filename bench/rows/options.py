"""What the benchmark of rows measures, and how much of it."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Literal, get_args

from gpkvs.columns.row_layout import RowLayout
from gpkvs.config import MIB

Task = Literal["get", "get into out", "set", "add", "step"]
TASKS: tuple[Task, ...] = get_args(Task)
"""What a call does. A step is one of training: get rows, change them, set them again."""

RowsPeer = Literal["numpy", "lmdb", "sqlite", "redis"]
PEERS: tuple[RowsPeer, ...] = get_args(RowsPeer)


@dataclass(frozen=True)
class RowsOptions:
    """What to measure, and for how long.

    Parameters
    ----------
    directory
        The directory for the stores: its file system decides the promise.
    dims
        How many float32 a row has; a table for each.
    table_bytes, rows_max
        A table has as many rows as take so many bytes, but no more than this.
    batch
        Rows in a call.
    runs
        Rounds of each measurement; in each, all stores take turns. Medians count.
    seconds
        How long a run times calls.
    peers
        What to compare with.
    """

    directory: Path
    dims: tuple[int, ...] = (8, 128, 768)
    table_bytes: int = 512 * MIB
    rows_max: int = 1_000_000
    batch: int = 4096
    runs: int = 5
    seconds: float = 0.3
    peers: tuple[RowsPeer, ...] = PEERS

    def rows(self, layout: RowLayout) -> int:
        """Return how many rows a table of a layout has."""
        return max(min(self.rows_max, self.table_bytes // layout.row_bytes), 1)


def layout_of(dim: int) -> RowLayout:
    """Return the layout of rows of so many float32."""
    return RowLayout("float32", (dim,))
