"""An array of NumPy in memory: the limit. It keeps nothing when its process ends."""

from __future__ import annotations

import numpy as np

from gpkvs.bench.rows.table import Float32, Grouped, Places, RowBatch, RowTable


class NumpyRows:
    """An array that is indexed."""

    name = "NumPy"
    version = np.__version__
    settings = "X[ids], X[ids] = rows: in memory, NOT durable; the limit of all others"

    def __init__(self) -> None:
        self._rows: Float32 = np.empty((0, 0), np.float32)

    def load(self, table: RowTable) -> None:
        """Copy all rows."""
        self._rows = table.rows.copy()

    def keys_of(self, batch: RowBatch) -> Places:
        """Return the places."""
        return batch.places

    def rows_of(self, rows: Float32) -> Float32:
        """Return them as they are."""
        return rows

    def get(self, keys: Places) -> Float32:
        """Copy rows out."""
        return self._rows[keys]

    def get_into(self, keys: Places, out: Float32) -> Float32:
        """Copy rows into memory that is there, without a check of each index."""
        return np.take(self._rows, keys, axis=0, out=out, mode="clip")

    def set(self, keys: Places, rows: Float32) -> None:
        """Copy rows in."""
        self._rows[keys] = rows

    def adds_of(self, batch: RowBatch) -> tuple[Grouped, Float32]:
        """Return the keys grouped: that is faster than ``np.add.at`` by 1.2 to 5."""
        return batch.grouped(), batch.rows

    def add(self, adds: tuple[Grouped, Float32]) -> None:
        """Add to rows."""
        grouped, deltas = adds
        for of_places, of_batch in grouped.passes:
            self._rows[grouped.places[of_places]] += deltas[of_batch]

    def taken_bytes(self) -> int:
        """Return the size of the array."""
        return self._rows.nbytes

    def settle(self) -> None:
        """Return at once."""

    def close(self) -> None:
        """Let the memory go."""
        del self._rows
