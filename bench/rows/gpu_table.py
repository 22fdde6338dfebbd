"""The rows of a table, in memory of the host and of a GPU, and batches of keys that lie on the GPU.

Place number i of a table has the key mixed(i), as in `gpkvs.bench.rows.table`. `X[ids]` is given the places.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from gpkvs.bench.engine.workload import mixed
from gpkvs.bench.rows.table import DUPLICATES, Float32, Places
from gpkvs.columns.row_layout import RowLayout

BATCHES = 8
"""So many different ones take turns."""


@dataclass(frozen=True)
class GpuBatch:
    """Keys of a call.

    Attributes
    ----------
    host_keys : (n,) uint64
        In memory of the host.
    keys : (n,) uint64
        The same on the GPU.
    places : (n,) int64
        Where their rows lie, on the GPU.
    first
        Where the rows begin that are stored under them: in the table's own, so that they are others each time.
    """

    host_keys: Any
    keys: Any
    places: Any
    first: int


class GpuRowTable:
    """The rows of a table.

    Parameters
    ----------
    layout
        Of a row.
    count
        How many there are.
    xp
        CuPy.

    Attributes
    ----------
    rows : (count, dim) float32
        In memory of the host.
    held : (count, dim) float32
        The same on the GPU.
    """

    def __init__(self, layout: RowLayout, count: int, xp: Any) -> None:
        self.layout, self.count, self.xp = layout, count, xp
        self._random = np.random.default_rng(1)
        self.rows: Float32 = self._random.random((count, *layout.shape), np.float32)
        self.held: Any = xp.asarray(self.rows)

    def distinct(self, size: int) -> list[GpuBatch]:
        """Return batches whose keys are drawn at random, each once."""
        return [self._batch(self._random.permutation(self.count)[:size]) for _ in range(BATCHES)]

    def with_duplicates(self, size: int) -> list[GpuBatch]:
        """Return batches of which a part comes a second time, in random order."""
        again = int(DUPLICATES * size)
        batches = []
        for _ in range(BATCHES):
            places = self._random.permutation(self.count)[: size - again]
            batches.append(self._batch(self._random.permutation(np.concatenate([places, places[:again]]))))
        return batches

    def in_order(self, size: int) -> list[GpuBatch]:
        """Return batches that have each key once together; `first` says where their own rows begin."""
        starts = range(0, self.count, size)
        return [self._batch(np.arange(start, min(start + size, self.count)), start) for start in starts]

    def _batch(self, places: Places, first: int | None = None) -> GpuBatch:
        keys = mixed(places.astype(np.uint64))
        if first is None:
            first = int(self._random.integers(0, self.count - len(places) + 1))
        return GpuBatch(keys, self.xp.asarray(keys), self.xp.asarray(places), first)
