"""SQLite, as Python brings it, with rows as blobs."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

import numpy as np

from gpkvs.bench.peers.contender import Promise
from gpkvs.bench.rows.byte_rows import Adds, ByteRows
from gpkvs.bench.rows.table import Float32, RowBatch, RowTable

_SYNCHRONOUS: dict[Promise, str] = {"process": "OFF", "msync": "FULL"}
_CACHE_KIB = 1 << 20
_FILE = "rows.sqlite"

# An IN with as many parameters answers in another order, and one SELECT for each key takes twice the time.
_GET = "SELECT row FROM json_each(?) AS wanted CROSS JOIN rows ON rows.key = wanted.value"
_SET = "INSERT INTO rows VALUES (?, ?) ON CONFLICT (key) DO UPDATE SET row = excluded.row"


class SqliteKeys(NamedTuple):
    """Keys for a SET, and for a GET: as one parameter."""

    numbers: list[int]
    text: str


class SqliteRows(ByteRows):
    """A database with a write-ahead log and one table by INTEGER PRIMARY KEY; arguments as of `GpkvsRows`."""

    name = "SQLite"

    def __init__(self, directory: Path, table: RowTable, promise: Promise) -> None:
        super().__init__(table.layout)
        self.version = sqlite3.sqlite_version
        self.settings = f"journal_mode=WAL, synchronous={_SYNCHRONOUS[promise]}, cache of 1 GiB, json_each, executemany"
        self._file = directory / _FILE
        self._database = sqlite3.connect(self._file, isolation_level=None)
        for pragma in (f"synchronous={_SYNCHRONOUS[promise]}", "journal_mode=WAL", f"cache_size=-{_CACHE_KIB}"):
            self._database.execute(f"PRAGMA {pragma}")
        self._database.execute("CREATE TABLE rows (key INTEGER PRIMARY KEY, row BLOB)")

    @contextmanager
    def _transaction(self) -> Iterator[None]:
        self._database.execute("BEGIN IMMEDIATE")
        with self._database:  # it commits, or rolls back
            yield

    def load(self, table: RowTable) -> None:
        """Insert all rows in the order of their keys."""
        numbers = RowBatch(np.arange(table.count), table.rows).keys.view(np.int64)
        order = np.argsort(numbers)
        with self._transaction():
            for start in range(0, table.count, table.batch):
                places = order[start : start + table.batch]
                self._set(numbers[places].tolist(), self.rows_of(table.rows[places]))
        self._database.execute("PRAGMA wal_checkpoint(TRUNCATE)")

    def keys_of(self, batch: RowBatch) -> SqliteKeys:
        """Return keys as numbers with a sign, and as JSON."""
        numbers = batch.keys.view(np.int64).tolist()
        return SqliteKeys(numbers, json.dumps(numbers))

    def get(self, keys: SqliteKeys) -> Float32:
        """Read a batch with one statement, and join the blobs."""
        return self.array([row for (row,) in self._database.execute(_GET, (keys.text,))])

    def set(self, keys: SqliteKeys, rows: list[bytes]) -> None:
        """Store a batch."""
        with self._transaction():
            self._set(keys.numbers, rows)

    def _set(self, numbers: list[int], rows: list[bytes]) -> None:
        self._database.executemany(_SET, zip(numbers, rows, strict=True))

    def add(self, adds: Adds) -> None:
        """Read, add and store, in one transaction."""
        with self._transaction():
            self._set(adds.keys.numbers, self.added(self.get(adds.keys), adds))

    def taken_bytes(self) -> int:
        """Return the size of the database; not that of the log beside it."""
        return self._file.stat().st_blocks * 512

    def close(self) -> None:
        """Close the database."""
        self._database.close()
