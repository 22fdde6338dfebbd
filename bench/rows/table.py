"""The rows that all stores hold, and the batches that they all get.

Place number i of a table has the key mixed(i), so keys are uniform and distinct. NumPy, which has no keys, is given the
places.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from gpkvs.bench.engine.workload import mixed
from gpkvs.columns.row_layout import RowLayout

Float32 = NDArray[np.float32]
Places = NDArray[np.int64]

DUPLICATES = 0.2
"""Of the keys of an add: how many come a second time."""

_DELTA = np.float32(1e-3)


@dataclass(frozen=True)
class Grouped:
    """Keys that may come again, each once, for a store that cannot add.

    Attributes
    ----------
    places : (m,) int64
        Distinct ones.
    passes
        Pairs of indices (of `places`, of the batch). In a pass no key comes twice: the passes, one after the other, add
        in the order of the batch.
    """

    places: Places
    passes: list[tuple[Places, Places]]

    def add(self, rows: Float32, deltas: Float32) -> None:
        """Add the rows of a batch to those of `places`."""
        for of_places, of_batch in self.passes:
            rows[of_places] += deltas[of_batch]


@dataclass(frozen=True)
class RowBatch:
    """Keys with a row for each.

    Parameters
    ----------
    places : (n,) int64
        Where the rows lie in the table of NumPy.
    rows : (n, dim) float32
        What is set or added; contiguous.
    """

    places: Places
    rows: Float32

    def __len__(self) -> int:
        return len(self.places)

    @cached_property
    def keys(self) -> NDArray[np.uint64]:
        """The keys, (n,) uint64."""
        return mixed(self.places.astype(np.uint64))

    def grouped(self) -> Grouped:
        """Return each key once."""
        places, inverse = np.unique(self.places, return_inverse=True)
        left = np.argsort(inverse, kind="stable")
        passes = []
        while len(left):
            of_places = inverse[left]
            is_first = np.concatenate([[True], of_places[1:] != of_places[:-1]])
            passes.append((of_places[is_first], left[is_first]))
            left = left[~is_first]
        return Grouped(places, passes)


class RowTable:
    """The rows of a table, and batches on them.

    Parameters
    ----------
    layout
        Of a row.
    count
        How many there are.
    batch
        Rows in a batch.
    """

    def __init__(self, layout: RowLayout, count: int, batch: int) -> None:
        self.layout, self.count, self.batch = layout, count, batch
        self._random = np.random.default_rng(1)
        self.rows: Float32 = self._random.random((count, *layout.shape), np.float32)
        # Batches take their rows from a few more than a batch has.
        self._pool: Float32 = self._random.random((3 * batch, *layout.shape), np.float32)

    def loads(self) -> Iterator[RowBatch]:
        """Yield all rows once, in the order of their places: keys come in an order that looks random."""
        for start in range(0, self.count, self.batch):
            rows = self.rows[start : start + self.batch]
            yield RowBatch(np.arange(start, start + len(rows)), rows)

    def drawn(self) -> RowBatch:
        """Return a batch of keys drawn uniformly, with other rows."""
        start = int(self._random.integers(0, 2 * self.batch))
        places = self._random.integers(0, self.count, self.batch)
        return RowBatch(places, self._pool[start : start + self.batch])

    def with_duplicates(self) -> RowBatch:
        """Return a batch of which a part comes a second time, in random order, with small rows."""
        batch = self.drawn()
        again = int(DUPLICATES * self.batch)
        places = batch.places
        if again:
            places[-again:] = places[:again]
        return replace(batch, places=self._random.permutation(places), rows=batch.rows * _DELTA)
