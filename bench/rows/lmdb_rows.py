"""LMDB with rows as values."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from gpkvs.bench.engine.workload import Shape, Workload
from gpkvs.bench.peers.contender import Promise
from gpkvs.bench.peers.lmdb_peer import Lmdb
from gpkvs.bench.rows.byte_rows import Adds, ByteRows, key_bytes
from gpkvs.bench.rows.table import Float32, RowBatch, RowTable
from gpkvs.bench.wear.options import stored_bytes
from gpkvs.columns.row_layout import KEY_BYTES


class LmdbRows(ByteRows):
    """An LMDB environment whose keys are numbers (``integerkey``); arguments as of `GpkvsRows`."""

    name = Lmdb.name

    def __init__(self, directory: Path, table: RowTable, promise: Promise) -> None:
        super().__init__(table.layout)
        shape = Shape(table.layout.name, KEY_BYTES, table.layout.row_bytes)
        self._env = Lmdb(directory, Workload(shape, table.count, table.batch), promise, 0)
        self.version, self.settings = self._env.version, self._env.settings
        self._directory = directory

    def load(self, table: RowTable) -> None:
        """Append all rows in the order of their keys, which leaves every page full."""
        order = np.argsort(RowBatch(np.arange(table.count), table.rows).keys)
        for start in range(0, table.count, table.batch):
            places = order[start : start + table.batch]
            rows = table.rows[places]
            self._env.append(zip(key_bytes(RowBatch(places, rows)), self.rows_of(rows), strict=True))

    def keys_of(self, batch: RowBatch) -> list[bytes]:
        """Return keys as bytes."""
        return key_bytes(batch)

    def get(self, keys: list[bytes]) -> Float32:
        """Read a batch with one cursor, and join the values."""
        return self.array([value for _, value in self._env.get(keys)])

    def set(self, keys: list[bytes], rows: list[bytes]) -> None:
        """Store a batch with one cursor."""
        self._env.set(zip(keys, rows, strict=True))

    def add(self, adds: Adds) -> None:
        """Read, add and store, in one transaction."""
        self._env.update(
            adds.keys,
            lambda pairs: zip(adds.keys, self.added(self.array([value for _, value in pairs]), adds), strict=True),
        )

    def taken_bytes(self) -> int:
        """Return the size of the files."""
        return stored_bytes(self._directory)

    def close(self) -> None:
        """Close the environment."""
        self._env.close()
