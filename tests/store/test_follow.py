"""Whoever follows a store is told every change of it, once, in order, when it is durable."""

from __future__ import annotations

import os
import shutil
import signal
import threading
import time
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
import pytest

import gpkvs
from gpkvs.backends.choose import PAIR, VARIABLE
from gpkvs.batch import Batch, Op
from gpkvs.changes import ChangeKind, Changes, Position
from gpkvs.config import CommitName, Making, StoreConfig
from gpkvs.engine.commit.journal_committer import JournalCommitter
from gpkvs.errors import ChangesLostError, InvalidArgumentError, StoreClosedError
from gpkvs.following import Following
from gpkvs.store import Store
from tests.conftest import SMALL, assert_clean

Row = tuple[bytes, int, int]  # value, version, expiry


@pytest.fixture
def pick() -> Random:
    seed = int(os.environ.get("GPKVS_SEED", Random().randrange(1 << 32)))
    print(f"GPKVS_SEED={seed}")
    return Random(seed)


@pytest.fixture(params=["undo", "journal"])
def commit(request: pytest.FixtureRequest) -> CommitName:
    name: CommitName = request.param
    return name


@pytest.fixture
def store(tmp_path: Path, commit: CommitName) -> Iterator[gpkvs.Store]:
    path = tmp_path / "store"
    with gpkvs.open(path, **SMALL, commit=commit) as opened:
        yield opened
    assert_clean(path)


@dataclass
class Replica:
    """What changes make of an empty store, or of a copy."""

    tables: dict[str, dict[bytes, Row]] = field(default_factory=lambda: {"default": {}})

    def apply(self, changes: Changes) -> None:
        if changes.made:
            assert changes.name not in self.tables
            self.tables[changes.name] = {}
        elif changes.is_dropped:
            del self.tables[changes.name]
        else:
            rows = self.tables[changes.name]
            versions = changes.versions.tolist() or [0] * len(changes)
            expiries = changes.expiries.tolist() or [0] * len(changes)
            columns = zip(changes.kinds, changes.key_list(), changes.value_list(), versions, expiries, strict=True)
            for kind, key, value, version, expiry in columns:
                if kind == ChangeKind.SET:
                    rows[key] = (value, version, expiry)
                else:
                    assert (value, version, expiry) == (b"", 0, 0)
                    del rows[key]  # each effect is one: the key was there

    @classmethod
    def of(cls, store: gpkvs.Store) -> Replica:
        """Read all that a store has."""
        tables: dict[str, dict[bytes, Row]] = {}
        for table in store.open_tables():
            rows = tables[table.name] = {}
            for piece in store.scan_pieces(table=table.name):
                versions = piece.versions.tolist() or [0] * len(piece)
                columns = zip(piece.key_list(), piece.value_list(), versions, piece.expiry_list(), strict=True)
                rows.update({key: row for key, *row in columns})
        return cls({name: {key: tuple(row) for key, row in rows.items()} for name, rows in tables.items()})  # type: ignore[misc]


def read_all(following: Following, **how: Any) -> list[Changes]:
    """Read until the newest."""
    newest, found = following.newest(), []
    while following.position != newest:
        more = following.read(timeout=60, **how)
        assert more
        found += more
    assert following.read() == []
    return found


def told(changes: list[Changes]) -> list[tuple[ChangeKind, bytes, bytes]]:
    return [
        (ChangeKind(kind), key, value)
        for entry in changes
        for kind, key, value in zip(entry.kinds, entry.key_list(), entry.value_list(), strict=True)
    ]


def test_empty_values_are_told(store: gpkvs.Store) -> None:
    with store.follow() as following:
        store.set(b"a", b"")
        store.execute(Batch.of([(Op.SET, b"b", b""), (Op.SET, b"c", b"")]))
        assert sorted(told(read_all(following))) == [(ChangeKind.SET, key, b"") for key in (b"a", b"b", b"c")]


def test_each_effect_is_told_with_what_it_leaves(store: gpkvs.Store) -> None:
    store.set(b"a", b"0")
    with store.follow() as following:
        version = store.set(b"a", b"1")
        store.get(b"a")
        store.delete(b"none")
        store.set(b"b", b"2", ttl=0.2)
        store.append(b"b", b"3")
        store.delete(b"a")
        store.incr(b"n", 5)
        while store.get(b"b") is not None:
            time.sleep(0.01)
        changes = read_all(following)
    assert told(changes) == [
        (ChangeKind.SET, b"a", b"1"),
        (ChangeKind.SET, b"b", b"2"),
        (ChangeKind.SET, b"b", b"23"),
        (ChangeKind.DELETED, b"a", b""),
        (ChangeKind.SET, b"n", b"5"),
        (ChangeKind.EXPIRED, b"b", b""),
    ]
    assert changes[0].versions[0] == version
    assert [entry.time_ms for entry in changes] == sorted(entry.time_ms for entry in changes)


def test_a_transaction_tells_the_last_effect_on_each_key(store: gpkvs.Store) -> None:
    with store.follow() as following:
        with store.batch() as batch:
            batch.set(b"a", b"1")
            batch.set(b"gone", b"1")
            batch.set(b"a", b"2")
            batch.delete(b"gone")
        (changes,) = read_all(following)
    assert told([changes]) == [(ChangeKind.SET, b"a", b"2")]


def test_tables_are_told_as_they_come_and_go(store: gpkvs.Store) -> None:
    with store.follow() as following:
        store.create_table("t", layout="u64", index_bytes=1 << 20)
        store.set_many([1, 2], [10, 20], table="t")
        store.delete_many([1], table="t")
        store.drop_table("t")
        store.create_table("t", index_bytes=1 << 20, index_bytes_max=2 << 20)
        changes = read_all(following)
    first, *effects, dropped, second = changes
    assert first.made
    assert (first.name, first.made.layout, first.made.index_bytes) == ("t", "u64", 1 << 20)
    assert sorted(told(effects)) == [
        (ChangeKind.SET, *(number.to_bytes(8, "little") for number in (1, 10))),
        (ChangeKind.SET, *(number.to_bytes(8, "little") for number in (2, 20))),
        (ChangeKind.DELETED, (1).to_bytes(8, "little"), b""),
    ]
    assert all(entry.name == "t" and not len(entry.versions) for entry in effects)
    assert dropped.is_dropped
    assert dropped.table == first.table
    assert second.made
    assert (second.made.layout, second.made.index_bytes_max) == ("bytes", 2 << 20)
    assert second.table > first.table


def random_request(store: gpkvs.Store, pick: Random, keys: list[bytes]) -> None:
    """Change something, or make or drop a table."""
    table = pick.choice(store.open_tables())
    match pick.randrange(12):
        case 0 if len(store.open_tables()) < 4:
            layout = pick.choice(["bytes", "u64"])
            store.create_table(f"t{pick.randrange(8)}", layout=layout, index_bytes=1 << 20, exist_ok=False)
        case 1 if table.name != "default":
            store.drop_table(table.name)
        case _ if table.layout == "u64":
            numbers = np.array(pick.sample(range(100), pick.randrange(1, 20)), np.uint64)
            if pick.random() < 0.7:
                store.set_many(numbers, numbers * np.uint64(3), table=table.name)
            else:
                store.delete_many(numbers, table=table.name)
        case _:
            with store.table(table.name).batch() as batch:
                for _ in range(pick.randrange(1, 30)):
                    key, value = pick.choice(keys), pick.randbytes(pick.randrange(200))
                    match pick.randrange(6):
                        case 0:
                            batch.delete(key)
                        case 1:
                            batch.append(key, value)
                        case 2:
                            batch.set(key, value, ttl=pick.choice([0.02, 100]))
                        case 3:
                            batch.expire(key, pick.choice([0.02, 100]))
                        case _:
                            batch.set(key, value)


def follow_everything(store: gpkvs.Store, pick: Random, rounds: int) -> None:
    """Run random requests in two threads, and compare what a follower makes of what it is told with the store."""
    keys = [b"key %d" % number for number in range(60)]
    seeds = pick.randrange(1 << 32), pick.randrange(1 << 32)

    def write(seed: int) -> None:
        own = Random(seed)
        for _ in range(rounds):
            try:
                random_request(store, own, keys)
            except InvalidArgumentError:  # the other one has made or dropped that table
                continue

    for table in store.open_tables():
        for key in keys[:20] if table.layout == "bytes" else ():
            store.set(key, b"before", table=table.name)
    replica, following = Replica.of(store), store.follow()
    writers = [threading.Thread(target=write, args=(seed,)) for seed in seeds]
    for writer in writers:
        writer.start()
    while any(writer.is_alive() for writer in writers):
        for changes in following.read(pick.choice([1, 1000, 1 << 20]), timeout=0.01):
            replica.apply(changes)
    found = Replica.of(store)  # it removes what has expired meanwhile, and that is told, too
    for changes in read_all(following):
        replica.apply(changes)
    following.close()
    assert replica.tables == found.tables


def test_a_follower_can_make_the_same_store_of_it(store: gpkvs.Store, pick: Random) -> None:
    follow_everything(store, pick, rounds=150)


def test_so_it_is_where_a_gpu_plans(tmp_path: Path, pick: Random, monkeypatch: pytest.MonkeyPatch) -> None:
    """While somebody follows, the host's threads run what writes."""
    monkeypatch.setenv(VARIABLE, PAIR)
    path = tmp_path / "store"
    with gpkvs.open(path, **SMALL, commit="undo") as store:
        store.create_table("t", layout="u64", index_bytes=1 << 20)
        keys = np.arange(5000, dtype=np.uint64)
        store.set_many(keys, keys, table="t")
        first = store.submit_set_many(keys, keys + np.uint64(1), table="t")  # it is told to nobody
        with store.follow() as following:
            submitted = store.submit_set_many(keys, keys + np.uint64(2), table="t")
            changes = read_all(following)
            assert submitted.done()
            assert sum(map(len, changes)) == len(keys)
            follow_everything(store, pick, rounds=30)
        assert first.result() is None
    assert_clean(path)


def test_a_large_value_is_told_where_only_its_expiry_changes(tmp_path: Path, commit: CommitName) -> None:
    path = tmp_path / "store"
    value = os.urandom(1 << 20)
    with gpkvs.open(path, commit=commit, store_format="4") as store:
        store.set(b"blob", value)
        with store.follow() as following:
            store.expire(b"blob", 1000)
            store.set(b"other", value[::-1])
            changes = read_all(following)
    assert told(changes) == [(ChangeKind.SET, b"blob", value), (ChangeKind.SET, b"other", value[::-1])]
    assert changes[0].expiries[0] > changes[0].time_ms
    assert_clean(path)


def test_a_damaged_value_is_told_to_nobody(tmp_path: Path) -> None:
    path = tmp_path / "store"
    value = os.urandom(1 << 20)
    with gpkvs.open(path, commit="undo", store_format="4") as store:
        store.set(b"blob", value)
    blobs = path / "blobs"
    data = bytearray(blobs.read_bytes())
    data[data.index(value[:64]) + 1000] ^= 1
    blobs.write_bytes(data)
    with gpkvs.open(path) as store, store.follow() as following:
        store.expire(b"blob", 1000)
        with pytest.raises(ChangesLostError, match="begin anew"):
            following.read()


def test_only_what_is_durable_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with gpkvs.open(tmp_path / "store", **SMALL, commit="journal") as store, store.follow() as following:
        with monkeypatch.context() as patch:
            patch.setattr(JournalCommitter, "durable_gate", 0)
            store.set(b"a", b"1")
            assert following.read() == []
            assert not following.position.reaches(following.newest())
        assert told(read_all(following)) == [(ChangeKind.SET, b"a", b"1")]


def test_one_goes_on_from_a_position(store: gpkvs.Store) -> None:
    with store.follow(keep_seconds=60) as following:
        for number in range(10):
            store.set(b"%d" % number, b"")
        first = following.read(bytes_max=1)
    store.set(b"10", b"")
    with store.follow(Position.parse(str(following.position))) as again:
        keys = [key for _, key, _ in told(first) + told(read_all(again))]
    assert keys == [b"%d" % number for number in range(11)]


def test_a_position_of_another_store_is_refused(tmp_path: Path) -> None:
    with gpkvs.open(tmp_path / "first", **SMALL) as store, store.follow() as following:
        store.set(b"a", b"1")
        position = following.newest()
    with gpkvs.open(tmp_path / "second", **SMALL) as store, store.follow():
        store.set(b"a", b"1")
        with pytest.raises(ChangesLostError, match="not of this opening"):
            store.follow(position)
        assert store.follow(None).position.timeline != position.timeline


def test_nothing_is_held_when_nobody_follows(store: gpkvs.Store) -> None:
    changes = store._engine.changes
    store.set(b"a", b"1")
    assert changes.held_bytes == 0
    first, second = store.follow(), store.follow()
    store.set(b"a", b"2")
    position = first.newest()
    first.close()
    first.close()
    store.maintain()
    assert changes.held_bytes > 0
    second.close()
    store.maintain()
    assert changes.held_bytes == 0
    store.set(b"a", b"3")
    with pytest.raises(ChangesLostError, match="no longer held"):
        store.follow(position)
    assert not changes.is_on


def test_a_follower_that_goes_without_a_word_is_none(store: gpkvs.Store) -> None:
    following = store.follow()
    del following
    store.maintain()
    assert not store._engine.changes.is_on


def test_who_reads_too_slowly_hears_of_it_and_nobody_waits(tmp_path: Path) -> None:
    config = StoreConfig(changes_bytes=10_000, **SMALL)
    with Store(tmp_path / "store", config) as store, store.follow() as slow, store.follow() as fast:
        for number in range(100):
            store.set(b"%d" % number, bytes(1000))
            assert len(read_all(fast)) == 1
        assert store._engine.changes.held_bytes <= 10_000
        with pytest.raises(ChangesLostError, match="no longer held, only those behind"):
            slow.read()
        store.set(b"larger than all", bytes(20_000))
        with pytest.raises(ChangesLostError):
            fast.read()
        with store.follow() as anew:
            store.set(b"a", b"1")
            assert len(read_all(anew)) == 1


def test_who_waits_hears_of_what_comes(store: gpkvs.Store) -> None:
    found: list[Changes] = []
    with store.follow() as following:
        waiting = threading.Thread(target=lambda: found.extend(following.read(timeout=None)))
        waiting.start()
        assert following._log.held_bytes == 0
        store.set(b"a", b"1")
        waiting.join(60)
        assert told(found) == [(ChangeKind.SET, b"a", b"1")]
        began = time.monotonic()
        assert following.read(timeout=0.05) == []
        assert time.monotonic() - began >= 0.05


def test_who_waits_hears_of_signals(store: gpkvs.Store) -> None:
    """As of Ctrl-C, however long nothing comes."""

    class SignalledError(Exception):
        pass

    def signalled(*_: object) -> None:
        raise SignalledError

    before = signal.signal(signal.SIGUSR1, signalled)
    try:
        with store.follow() as following:
            threading.Timer(0.1, os.kill, (os.getpid(), signal.SIGUSR1)).start()
            with pytest.raises(SignalledError):
                following.read(timeout=None)
    finally:
        signal.signal(signal.SIGUSR1, before)


def test_the_end_of_a_store_wakes_its_followers(tmp_path: Path, commit: CommitName) -> None:
    store = gpkvs.open(tmp_path / "store", **SMALL, commit=commit)
    following, errors, is_waiting = store.follow(), [], threading.Event()

    def read() -> None:
        is_waiting.set()
        try:
            following.read(timeout=None)
        except StoreClosedError as error:
            errors.append(error)

    waiting = threading.Thread(target=read)
    waiting.start()
    assert is_waiting.wait(60)
    store.close()
    waiting.join(60)
    assert len(errors) == 1


def test_what_was_told_before_the_end_can_be_read_after_it(tmp_path: Path, commit: CommitName) -> None:
    with gpkvs.open(tmp_path / "store", **SMALL, commit=commit) as store:
        following = store.follow()
        store.set(b"a", b"1")
    assert told(following.read()) == [(ChangeKind.SET, b"a", b"1")]
    with pytest.raises(StoreClosedError):
        following.read()
    with pytest.raises(StoreClosedError):
        following.newest()


def test_nothing_is_missing_that_is_durable_when_a_store_is_closed(tmp_path: Path) -> None:
    store = gpkvs.open(tmp_path / "store", **SMALL, commit="journal")
    following, keys = store.follow(), [b"%d" % number for number in range(200)]
    found: list[Changes] = []

    def read() -> None:
        with suppress(StoreClosedError):
            while True:
                found.extend(following.read(timeout=None))

    reading = threading.Thread(target=read)
    reading.start()
    for key in keys:
        store.submit(Batch.of([(Op.SET, key, b"")]))
    store.close()
    reading.join(60)
    assert [key for _, key, _ in told(found)] == keys


def test_who_has_left_is_told_nothing(store: gpkvs.Store) -> None:
    following = store.follow()
    errors: list[StoreClosedError] = []

    def read() -> None:
        try:
            following.read(timeout=None)
        except StoreClosedError as error:
            errors.append(error)

    waiting = threading.Thread(target=read)
    waiting.start()
    following.close()
    waiting.join(60)
    assert "follow again" in str(errors[0])
    with pytest.raises(StoreClosedError, match="follow again"):
        following.read()


def test_many_entries_are_forgotten_at_once(tmp_path: Path) -> None:
    with Store(tmp_path / "store", StoreConfig(changes_bytes=1 << 20, **SMALL)) as store, store.follow() as following:
        for number in range(3000):
            store.set(b"%d" % number, b"")
        assert sum(map(len, read_all(following))) == 3000
        store.set(b"a", bytes(1_000_000))
        assert told(read_all(following)) == [(ChangeKind.SET, b"a", bytes(1_000_000))]
        for number in range(3000):
            store.set(b"%d" % number, b"")
        read_all(following)
    with Store(tmp_path / "store", StoreConfig()) as store:
        assert store.count() == 3001


@pytest.mark.parametrize("text", ["", "17", "00c0ffee00c0ffee-", "00C0FFEE00c0ffee-1", "00c0ffee00c0ffee--1", "x" * 40])
def test_what_is_no_position_is_refused(text: str) -> None:
    with pytest.raises(InvalidArgumentError, match="no position"):
        Position.parse(text)


def test_a_store_in_the_making_takes_versions(tmp_path: Path, commit: CommitName) -> None:
    path = tmp_path / "store"
    given = {b"a": 77, b"b": 1 << 40, b"gone": 5}
    keys = [b"gone", *given]
    batch = Batch(
        np.array([Op.DELETE, *[Op.SET] * 3], np.uint8),
        np.frombuffer(b"".join(keys), np.uint8),
        np.array([len(key) for key in keys], np.uint32),
        np.frombuffer(b"xyz", np.uint8),
        np.ones(3, np.uint32),
        versions=np.array([0, *given.values()], np.uint64),
        expiries=np.array([0, 0, 1 << 42, 1], np.uint64),
    )
    with Store(path, StoreConfig(making=Making(first_version=1 << 41), commit=commit, **SMALL)) as store:
        store.execute(batch)
        piece = next(store.scan_pieces())
        assert dict(zip(piece.key_list(), piece.versions.tolist(), strict=True)) == given
        assert sorted(piece.expiry_list()) == [0, 1, 1 << 42]  # nothing expires in it
        store.end_making(1 << 41)
        with pytest.raises(InvalidArgumentError, match="lower than its first one"):
            store.execute(replace(batch, versions=np.full(4, 1 << 41, np.uint64)))
    del given[b"gone"]
    for _ in range(2):
        with gpkvs.open(path) as store:
            assert store.now_ms >= 1 << 41
            assert store.get(b"gone") is None
            piece = next(store.scan_pieces())
            assert dict(zip(piece.key_list(), piece.versions.tolist(), strict=True)) == given
            assert store.get_with_version(b"a") == (b"x", 77)
            assert store.set(b"new", b"1") >= 1 << 41
            store.delete(b"new")
            with pytest.raises(InvalidArgumentError, match="in the making"):
                store.execute(batch)
        assert_clean(path)


def test_what_a_store_in_the_making_has_is_there_after_a_crash_of_its_disk_cache(tmp_path: Path) -> None:
    """Frames whose batches brought versions are replayed: nobody takes their records for lost ones."""
    path = tmp_path / "store"
    count = 2000
    keys = np.arange(count, dtype=np.uint64)
    batch = Batch(
        np.full(count, Op.SET, np.uint8),
        keys.view(np.uint8),
        np.full(count, 8, np.uint32),
        keys.view(np.uint8),
        np.full(count, 8, np.uint32),
        versions=keys + np.uint64(1),
    )
    store = Store(path, StoreConfig(making=Making(first_version=1 << 41), commit="journal", **SMALL))
    store.execute(batch)
    shutil.copytree(path, tmp_path / "crashed")
    store.close()
    with gpkvs.open(tmp_path / "crashed") as crashed:
        assert crashed.recovery.replayed_batches > 0
        assert crashed.recovery.cut_batches == 0
        assert crashed.count() == count
    assert_clean(tmp_path / "crashed")
