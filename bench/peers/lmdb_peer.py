"""LMDB, through the PyPI package lmdb, as its documentation recommends it for speed."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import numpy as np

from gpkvs.bench.engine.workload import Columns, Workload
from gpkvs.bench.peers.contender import Promise, need_extra

_PAGE_BYTES = 4096
_INTEGER_BYTES = 8


class Lmdb:
    """An LMDB environment with one database; arguments as of `EmbeddedGpkvs`.

    One write transaction a batch, ``putmulti`` and ``getmulti`` of one cursor. Numbers are keys of the type
    ``integerkey``. ``writemap`` for both promises; without power loss to survive, ``sync=False`` and ``map_async``.
    """

    name = "LMDB"

    def __init__(self, directory: Path, workload: Workload, promise: Promise, sets_max: int) -> None:
        del sets_max  # freed pages are used again
        lmdb = need_extra("lmdb")
        self.version = f"{'.'.join(map(str, lmdb.version()))}, Python package {lmdb.__version__}"
        self._integers = workload.shape.key_bytes == _INTEGER_BYTES
        record = workload.shape.key_bytes + workload.shape.value_bytes + 16
        # A transaction copies every page that it changes. Two may be under way at a time, and pages may be half full.
        map_bytes = 2 * workload.records * record + 8 * workload.batch * _PAGE_BYTES + (64 << 20)
        durable = promise == "msync"
        options = {"writemap": True, "sync": durable, "metasync": durable, "map_async": not durable}
        self.settings = ", ".join(f"{name}={value}" for name, value in options.items())
        if self._integers:
            self.settings += ", integerkey"
        self._env = lmdb.open(str(directory), map_size=map_bytes, max_dbs=1, **options)
        self._db = self._env.open_db(b"records", integerkey=self._integers)

    def load(self, workload: Workload) -> None:
        """Append all records in the order of their keys, which leaves every page full."""
        for columns in workload.loads("sorted"):
            self.append(self.prepare_set(columns))

    def append(self, pairs: Iterable[tuple[bytes, bytes]]) -> None:
        """Store records in the order of their keys, behind all others, as one transaction."""
        with self._env.begin(write=True) as transaction, transaction.cursor(self._db) as cursor:
            cursor.putmulti(pairs, append=True)

    def prepare_set(self, columns: Columns) -> list[tuple[bytes, bytes]]:
        """Return pairs of bytes."""
        return list(zip(self.prepare_get(columns), split(columns.values), strict=True))

    def set(self, prepared: Iterable[tuple[bytes, bytes]]) -> None:
        """Store a batch as one transaction."""
        with self._env.begin(write=True) as transaction, transaction.cursor(self._db) as cursor:
            cursor.putmulti(prepared)

    def prepare_get(self, columns: Columns) -> list[bytes]:
        """Return keys as bytes: numbers in the order of the machine, as ``integerkey`` wants them."""
        keys = columns.numbers.view(np.uint8).reshape(-1, 8) if self._integers else columns.keys
        return split(keys)

    def get(self, prepared: list[bytes]) -> list[tuple[bytes, bytes]]:
        """Read a batch."""
        with self._env.begin() as transaction, transaction.cursor(self._db) as cursor:
            result: list[tuple[bytes, bytes]] = cursor.getmulti(prepared)
        return result

    def update(
        self, keys: list[bytes], change: Callable[[list[tuple[bytes, bytes]]], Iterable[tuple[bytes, bytes]]]
    ) -> None:
        """Read a batch and store what a function makes of it, as one transaction."""
        with self._env.begin(write=True) as transaction, transaction.cursor(self._db) as cursor:
            cursor.putmulti(change(cursor.getmulti(keys)))

    def set_one(self, key: bytes, value: bytes) -> None:
        """Store one record as one transaction."""
        with self._env.begin(write=True, db=self._db) as transaction:
            transaction.put(key, value)

    def get_one(self, key: bytes) -> bytes | None:
        """Read one record."""
        with self._env.begin(db=self._db) as transaction:
            value: bytes | None = transaction.get(key)
        return value

    def increment_one(self, key: bytes) -> None:
        """Add one to a number as text, as one transaction."""
        with self._env.begin(write=True, db=self._db) as transaction:
            transaction.put(key, b"%d" % (int(transaction.get(key, b"0")) + 1))

    def scan(self, *, values: bool) -> Iterator[Any]:
        """Yield all keys, with their values or without, in one transaction."""
        with self._env.begin() as transaction, transaction.cursor(self._db) as cursor:
            yield from cursor.iternext(keys=True, values=values)

    def values(self, result: list[tuple[bytes, bytes]]) -> bytes:
        """Join the values."""
        return b"".join(value for _, value in result)

    def delete(self, keys: list[bytes]) -> None:
        """Delete keys as one transaction."""
        with self._env.begin(write=True, db=self._db) as transaction:
            for key in keys:
                transaction.delete(key)

    def is_tidying(self) -> bool:
        """Return that it is not: a transaction leaves nothing to be done."""
        return False

    def settle(self) -> None:
        """Return at once."""

    def close(self) -> None:
        """Close the environment."""
        self._env.close()


def split(rows: Any) -> list[bytes]:
    """Return the rows of an array as bytes."""
    size = rows.shape[1]
    data = rows.tobytes()
    return [data[start : start + size] for start in range(0, len(data), size)]
