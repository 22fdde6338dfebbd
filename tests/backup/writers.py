"""Random writers beside a backup, and what a dictionary makes of the changes that a store tells."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from random import Random

import numpy as np

import gpkvs
from gpkvs.backup.manifest import BackupReport
from gpkvs.changes import ChangeKind, Changes
from gpkvs.config import Making, StoreConfig
from gpkvs.errors import ConflictError, InvalidArgumentError, NotANumberError, NumberOverflowError
from gpkvs.following import Following
from gpkvs.store import OpenTable, Store
from tests.conftest import assert_clean

Row = tuple[bytes, int, int]  # value, version, expiry

_OTHERS = (InvalidArgumentError, ConflictError, NotANumberError, NumberOverflowError)
_INDEX_BYTES = 64 << 10  # it grows
TABLES_MAX = 4


@dataclass
class Model:
    """Each table's layout, and its keys with value, version and expiry."""

    tables: dict[str, dict[bytes, Row]] = field(default_factory=dict)
    layouts: dict[str, str] = field(default_factory=dict)
    time_ms: int = 0  # of the last entry

    @property
    def keys(self) -> int:
        """How many there are, those that have expired and were not removed yet included."""
        return sum(map(len, self.tables.values()))

    def living(self, time_ms: int) -> dict[str, dict[bytes, Row]]:
        """Return what has not expired at a time."""
        return {
            name: {key: row for key, row in rows.items() if not 0 < row[2] <= time_ms}
            for name, rows in self.tables.items()
        }

    def apply(self, changes: Changes) -> None:
        """Do what an entry says."""
        self.time_ms = changes.time_ms
        if changes.made:
            self.tables[changes.name], self.layouts[changes.name] = {}, changes.made.layout
        elif changes.is_dropped:
            del self.tables[changes.name], self.layouts[changes.name]
        else:
            rows = self.tables[changes.name]
            versions = changes.versions.tolist() or [0] * len(changes)
            expiries = changes.expiries.tolist() or [0] * len(changes)
            columns = zip(changes.kinds, changes.key_list(), changes.value_list(), versions, expiries, strict=True)
            for kind, key, *row in columns:
                if kind == ChangeKind.SET:
                    rows[key] = (row[0], row[1], row[2])
                else:
                    rows.pop(key, None)  # `of` may have removed it, since it had expired

    @classmethod
    def of(cls, store: gpkvs.Store) -> Model:
        """Read all that a store has."""
        model = cls()
        for table in store.open_tables():
            rows = model.tables[table.name] = {}
            model.layouts[table.name] = table.layout
            for piece in store.scan_pieces(table=table.name):
                versions = piece.versions.tolist() or [0] * len(piece)
                columns = zip(piece.key_list(), piece.value_list(), versions, piece.expiry_list(), strict=True)
                rows.update({key: (row[0], row[1], row[2]) for key, *row in columns})
        return model


class History:
    """What a store holds from one moment on, transaction by transaction. Nobody writes while it is made."""

    def __init__(self, store: gpkvs.Store) -> None:
        self._following: Following = store.follow()
        self._at = self._following.position.number
        self._waiting: list[Changes] = []
        self._model = Model.of(store)

    def at(self, number: int) -> Model:
        """Return what the store held behind a transaction."""
        while self._at < number:
            self._waiting = self._waiting or self._following.read(bytes_max=1, timeout=60)  # each by itself
            changes = self._waiting.pop(0)
            self._model.apply(changes)
            self._at = changes.number
        assert self._at == number
        return self._model

    def close(self) -> None:
        self._following.close()


def assert_is(backup: Path, report: BackupReport, wanted: Model) -> None:
    """Fail unless a backup is exactly this."""
    found = held_by(backup)
    assert found.layouts == wanted.layouts
    living = wanted.living(wanted.time_ms)
    for name, rows in found.living(wanted.time_ms).items():
        assert rows == living[name], name
    assert {table.name: table.keys for table in report.tables} == {
        name: len(rows) for name, rows in wanted.tables.items()
    }
    assert report.keys == wanted.keys


def held_by(backup: Path) -> Model:
    """Return all that a backup holds that had not expired when it was made; it must be clean."""
    assert_clean(backup)
    store = Store(backup, StoreConfig(making=Making(1)))  # no time passes in it
    try:
        return Model.of(store)
    finally:
        store.close()


@contextmanager
def writing(store: gpkvs.Store, pick: Random, threads: int = 2) -> Iterator[None]:
    """Have threads write random requests meanwhile."""
    is_over, errors = threading.Event(), []

    def write(seed: int) -> None:
        own = Random(seed)
        try:
            while not is_over.is_set():
                random_request(store, own)
        except BaseException as error:
            errors.append(error)
            raise

    writers = [threading.Thread(target=write, args=(pick.randrange(1 << 32),)) for _ in range(threads)]
    for writer in writers:
        writer.start()
    try:
        yield
    finally:
        is_over.set()
        for writer in writers:
            writer.join()
    assert errors == []


def random_request(store: gpkvs.Store, pick: Random) -> None:
    """Change something, or make or drop a table; what the other threads do may refuse it."""
    table = pick.choice(store.open_tables())
    try:
        match pick.randrange(40):
            case 0 if len(store.open_tables()) < TABLES_MAX:
                layout = pick.choice(["bytes", "u64", "int16[4]"])
                store.create_table(f"t{pick.randrange(TABLES_MAX)}", layout=layout, index_bytes=_INDEX_BYTES)
            case 1 if table.name != "default":
                store.drop_table(table.name)
            case _ if table.layout == "u64":
                _change_numbers(store, table.name, pick)
            case _ if table.layout != "bytes":
                _change_rows(store, table, pick)
            case 2 | 3:
                store.incr(b"count %d" % pick.randrange(5), pick.randrange(100), table=table.name)
            case 4 | 5:
                _transact(store, table.name, pick)
            case _:
                _change_bytes(store, table.name, pick)
    except _OTHERS:
        pass


def _change_numbers(store: gpkvs.Store, table: str, pick: Random) -> None:
    first = pick.randrange(3000)
    numbers = np.arange(first, first + pick.randrange(1, 300), dtype=np.uint64)
    if pick.random() < 0.7:
        store.set_many(numbers, numbers * np.uint64(pick.randrange(9)), table=table)
    else:
        store.delete_many(numbers, table=table)


def _change_rows(store: gpkvs.Store, table: OpenTable, pick: Random) -> None:
    rows, first, count = store.rows(table.layout, table=table.name), pick.randrange(3000), pick.randrange(1, 300)
    keys = np.arange(first, first + count, dtype=np.uint64)
    given = np.full((count, *rows.layout.shape), pick.randrange(1 << 14), rows.layout.dtype)
    match pick.randrange(4):
        case 0:
            rows.delete(keys)
        case 1:
            rows.set(keys, given, ttl=pick.choice([0.02, 1000]))
        case 2:
            rows.add(keys, given)
        case _:
            rows.set(keys, given)


def _transact(store: gpkvs.Store, table: str, pick: Random) -> None:
    """Move a value from one key to another."""
    with store.table(table).transaction() as transaction:
        value = transaction.get(_key(pick))
        transaction.delete(_key(pick))
        transaction.set(_key(pick), value or b"none")


def _change_bytes(store: gpkvs.Store, table: str, pick: Random) -> None:
    with store.table(table).batch() as batch:
        for _ in range(pick.randrange(1, 40)):
            key, value = _key(pick), pick.randbytes(pick.randrange(300))
            match pick.randrange(8):
                case 0 | 1:
                    batch.delete(key)
                case 2:
                    batch.append(key, value[:10])
                case 3:
                    batch.set(key, value, ttl=pick.choice([0.02, 1000]))
                case 4:
                    batch.expire(key, pick.choice([0.02, 1000]))
                case _:
                    batch.set(key, value)


def _key(pick: Random) -> bytes:
    return b"key %d" % pick.randrange(4000)
