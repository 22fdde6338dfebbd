"""What stores share whose values are bytes, and which cannot add."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable
from typing import Any, NamedTuple

import numpy as np

from gpkvs.bench.peers.lmdb_peer import split
from gpkvs.bench.rows.table import Float32, Grouped, RowBatch
from gpkvs.columns.row_layout import KEY_BYTES, RowLayout


class Adds(NamedTuple):
    """Each key once, how the rows of the batch belong to them, and these rows."""

    keys: Any
    grouped: Grouped
    deltas: Float32


class ByteRows(ABC):
    """A store of rows as bytes.

    Parameters
    ----------
    layout
        Of the rows.
    """

    def __init__(self, layout: RowLayout) -> None:
        self._layout = layout

    @abstractmethod
    def keys_of(self, batch: RowBatch) -> Any:
        """Return keys as the store takes them."""

    def rows_of(self, rows: Float32) -> list[bytes]:
        """Return rows as bytes."""
        return split(rows.view(np.uint8))

    def adds_of(self, batch: RowBatch) -> Adds:
        """Return each key once."""
        grouped = batch.grouped()
        return Adds(self.keys_of(RowBatch(grouped.places, batch.rows)), grouped, batch.rows)

    def added(self, rows: Float32, adds: Adds) -> list[bytes]:
        """Return the sums, as bytes."""
        sums = rows.copy()
        adds.grouped.add(sums, adds.deltas)
        return self.rows_of(sums)

    def array(self, values: Iterable[bytes]) -> Float32:
        """Return values as rows."""
        return np.frombuffer(b"".join(values), np.float32).reshape(-1, *self._layout.shape)

    @staticmethod
    def settle() -> None:
        """Return at once: no call leaves anything to be done that is waited for."""
        return


def key_bytes(batch: RowBatch) -> list[bytes]:
    """Return keys as bytes, in the machine's order."""
    return split(batch.keys.view(np.uint8).reshape(-1, KEY_BYTES))
