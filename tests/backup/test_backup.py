"""A backup is what its source was at one position: each table, key, value, version and expiry, and nothing else."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, replace
from itertools import count
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

import gpkvs
from gpkvs.backends.choose import PAIR, VARIABLE
from gpkvs.backup.copier import back_up
from gpkvs.backup.manifest import BackupReport
from gpkvs.backup.reader import ChangesReader
from gpkvs.backup.source import Source
from gpkvs.backup.spill import SpillWriter, read_spill
from gpkvs.batch import Batch, Op
from gpkvs.changes import ChangeKind, Changes, MadeTable, Position
from gpkvs.columns.row_layout import row_layout_of
from gpkvs.config import CommitName, FormatName
from gpkvs.engine.seam import counted_time
from gpkvs.errors import StoreError
from gpkvs.following import Following
from gpkvs.process import failpoint
from gpkvs.store import Store
from tests.backup.steps import at_step, back_up_while
from tests.backup.writers import History, assert_is, held_by, random_request, writing
from tests.conftest import SMALL, assert_clean

FAR = 1 << 40
ROWS = "float32[2,3]"


@pytest.fixture
def pick() -> Random:
    seed = int(os.environ.get("GPKVS_SEED", Random().randrange(1 << 32)))
    print(f"GPKVS_SEED={seed}")
    return Random(seed)


@pytest.fixture
def small_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let a scan have many pieces: writers come between."""
    monkeypatch.setattr("gpkvs.store.PIECE_KEYS_MAX", 40)


def back_up_beside_writers(store: gpkvs.Store, directory: Path, pick: Random) -> BackupReport:
    """Make a backup beside writers; fail unless it is what the store was at its position."""
    for _ in range(100):
        random_request(store, pick)
    history = History(store)
    with writing(store, pick):
        report = store.backup(directory)
    assert_is(directory, report, history.at(report.position.number))
    history.close()
    return report


@pytest.mark.parametrize("commit", ["undo", "journal"])
@pytest.mark.parametrize("store_format", ["3", "4"])
@pytest.mark.usefixtures("small_pieces")
def test_a_backup_is_what_the_store_was_at_its_position(
    tmp_path: Path, commit: CommitName, store_format: FormatName, pick: Random
) -> None:
    with gpkvs.open(tmp_path / "store", commit=commit, store_format=store_format, index_bytes=1 << 20) as store:
        for number in range(2):
            report = back_up_beside_writers(store, tmp_path / f"backup{number}", pick)
            assert report.changes > 0
        next_version = store.info().next_version
    assert_clean(tmp_path / "store")
    with gpkvs.open(tmp_path / "backup1") as backup:
        assert backup.info().next_version > next_version + FAR // 2
        assert backup.info().store_format[0] == store_format
        assert backup.set(b"key", b"value") > FAR


def test_a_store_of_a_gpu_becomes_one_of_the_host(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, pick: Random
) -> None:
    monkeypatch.setenv(VARIABLE, PAIR)
    with gpkvs.open(tmp_path / "store", **SMALL, commit="undo") as store:
        assert store.info().backend != "cpu"
        store.create_table("zahlen", layout="u64", index_bytes=1 << 20)
        numbers = np.arange(5000, dtype=np.uint64)
        store.set_many(numbers, numbers, table="zahlen")
        back_up_beside_writers(store, tmp_path / "backup", pick)


@pytest.fixture
def store(tmp_path: Path) -> Iterator[gpkvs.Store]:
    """Return a store with a table of each kind, each of several pieces of a scan."""
    with gpkvs.open(tmp_path / "store", **SMALL) as opened:
        opened.create_table("t", index_bytes=1 << 20)
        opened.create_table("zahlen", layout="u64", index_bytes=1 << 20)
        for table in ("default", "t"):
            fill(opened, table)
        numbers = np.arange(1000, dtype=np.uint64)
        opened.set_many(numbers, numbers, table="zahlen")
        opened.create_table("zeilen", layout=ROWS, index_bytes=1 << 20)
        opened.rows(ROWS, table="zeilen").set(numbers, rows_of(numbers))
        yield opened
    assert_clean(tmp_path / "store")


def fill(store: gpkvs.Store, table: str, first: int = 0, value: bytes = b"first") -> None:
    store.execute(Batch.of([(Op.SET, b"%d" % key, value) for key in range(first, first + 200)]), table=table)


def drop(store: gpkvs.Store) -> None:
    store.drop_table("t")


def make_anew(store: gpkvs.Store) -> None:
    fill(store, "t", value=b"before it goes")
    store.drop_table("t")
    store.create_table("t", index_bytes=1 << 20)
    fill(store, "t", first=100, value=b"second")


def make_anew_with_numbers(store: gpkvs.Store) -> None:
    store.drop_table("t")
    store.create_table("t", layout="u64", index_bytes=1 << 20)
    store.set_many([1, 2], [3, 4], table="t")


def make_anew_with_bytes(store: gpkvs.Store) -> None:
    store.drop_table("zahlen")
    store.create_table("zahlen", index_bytes=1 << 20)
    fill(store, "zahlen")


def rows_of(numbers: NDArray[Any]) -> NDArray[np.float32]:
    return np.repeat(numbers.astype(np.float32), 6).reshape(-1, 2, 3)


def make_anew_with_rows(store: gpkvs.Store) -> None:
    store.drop_table("t")
    store.create_table("t", layout=ROWS, index_bytes=1 << 20)
    store.rows(ROWS, table="t").set([1, 2], rows_of(np.array([3, 4])))


def make_rows_anew(store: gpkvs.Store, layout: str) -> None:
    store.drop_table("zeilen")
    store.create_table("zeilen", layout=layout, index_bytes=1 << 20)


def make_rows_anew_with_bytes(store: gpkvs.Store) -> None:
    make_rows_anew(store, "bytes")
    fill(store, "zeilen")


def make_rows_anew_with_others(store: gpkvs.Store) -> None:
    make_rows_anew(store, "int8[3]")
    store.rows("int8[3]", table="zeilen").set(range(500), np.full((500, 3), 7, np.int8))


def make_another(store: gpkvs.Store) -> None:
    store.create_table("a", index_bytes=1 << 20, index_bytes_max=2 << 20)
    fill(store, "a")


def make_and_drop(store: gpkvs.Store) -> None:
    make_another(store)
    store.drop_table("a")


def grow(store: gpkvs.Store) -> None:
    for number in range(60):
        fill(store, "t", first=200 * number, value=b"many")


def change(store: gpkvs.Store) -> None:
    store.delete(b"7")
    store.expire(b"8", 1000)
    store.incr(b"n", 7)
    store.set_many([1], [8], table="zahlen")
    store.delete_many([2], table="zahlen")
    rows = store.rows(ROWS, table="zeilen")
    rows.add([1, 1, 5000], rows_of(np.array([8, 8, 9])))
    rows.delete([2])


def change_nothing(store: gpkvs.Store) -> None:
    """Set keys that are not there and delete them again: transactions that take numbers and leave all as it was."""
    for table in ("default", "t", "zahlen", "zeilen"):
        key, value = (
            (bytes(7) + b"x", bytes(8 if table == "zahlen" else 24)) if table[0] == "z" else (b"gone", b"value")
        )
        store.execute(Batch.of([(Op.SET, key, value), (Op.DELETE, key)]), table=table)


class Lagging:
    """Reads nothing before the scan is over."""

    def __init__(self, following: Following) -> None:
        self._following = following
        self._is_scanned = False

    @property
    def position(self) -> Position:
        return self._following.position

    def newest(self) -> Position:
        self._is_scanned = True
        return self._following.newest()

    def read(self, bytes_max: int, timeout: float) -> list[Changes]:
        return self._following.read(1, timeout) if self._is_scanned else []

    def close(self) -> None:
        self._following.close()


# The scan has 5 pieces of `default`, 5 of `t`, 25 of `zahlen`, 25 of `zeilen`.
POINTS = ["mid_backup_scan:1", "mid_backup_scan:7", "mid_backup_scan:12", "mid_backup_scan:40", "before_backup_apply"]


@pytest.mark.parametrize("turn", range(2 if os.environ.get("CI") else len(POINTS)))
@pytest.mark.parametrize(
    "act",
    [
        *(drop, make_anew, make_anew_with_numbers, make_anew_with_bytes, make_another, make_and_drop, grow, change),
        *(make_anew_with_rows, make_rows_anew_with_bytes, make_rows_anew_with_others, change_nothing),
    ],
)
@pytest.mark.usefixtures("small_pieces")
def test_tables_come_and_go_meanwhile(
    store: gpkvs.Store, tmp_path: Path, act: Callable[[gpkvs.Store], None], turn: int, pick: Random
) -> None:
    """At each point; in CI at two of them, others in each run."""
    point = pick.choice((POINTS[:2], POINTS[2:])[turn]) if os.environ.get("CI") else POINTS[turn]
    print(point)
    back_up_while(store, tmp_path / "backup", lambda: act(store), point)


@pytest.mark.usefixtures("small_pieces")
def test_rows_are_those_of_the_source(store: gpkvs.Store, tmp_path: Path) -> None:
    """Whoever reads rows of a backup reads arrays, and adds to them."""
    rows = store.rows(ROWS, table="zeilen")
    rows.set([7], rows_of(np.array([-7])), ttl=1000)
    report = back_up_while(
        store, tmp_path / "backup", lambda: rows.add([8], rows_of(np.array([0.5]))), "mid_backup_scan:40"
    )
    assert {table.name: table.layout for table in report.tables}["zeilen"] == ROWS
    with gpkvs.open(tmp_path / "backup") as backup:
        copied, keys = backup.rows(ROWS, table="zeilen"), np.arange(1001)
        (there, there_found), (found, found_found) = rows.get(keys), copied.get(keys)
        assert np.array_equal(there, found)
        assert there_found.tolist() == found_found.tolist() == [True] * 1000 + [False]
        assert backup.ttl((7).to_bytes(8, "little"), table="zeilen")
        copied.add([8], rows_of(np.array([0.25])))
        assert copied.get([8])[0].ravel().tolist() == [8.75] * 6


def test_a_table_that_is_listed_is_made_by_a_later_entry(store: gpkvs.Store, tmp_path: Path) -> None:
    """It was made, dropped and made anew, of another layout, between the position and the list."""
    history = History(store)

    def follow() -> Following:
        following = store.follow()
        make_another(store)
        many = [(Op.SET, b"%d" % key, b"") for key in range(20_000)]  # more than wait for a request
        store.execute(Batch.of(many), table="a")
        store.drop_table("a")
        store.create_table("a", layout="u64", index_bytes=1 << 20)
        store.set_many([1, 2], [3, 4], table="a")
        return following

    report = back_up(Source("here", store, follow), tmp_path / "backup", Store, lambda *_: None)
    assert_is(tmp_path / "backup", report, history.at(report.position.number))
    history.close()


@pytest.mark.parametrize(
    ("name", "layout"),
    [("zahlen", "bytes"), ("t", "u64"), ("zahlen", ROWS), ("t", ROWS), ("zeilen", "bytes"), ("zeilen", "int8[3]")],
)
def test_a_table_that_is_listed_was_another_one_before(
    store: gpkvs.Store, tmp_path: Path, name: str, layout: str
) -> None:
    """It was changed, dropped and made anew, of another layout, between the position and the list."""
    history = History(store)

    def follow() -> Following:
        following = store.follow()
        many = np.arange(20_000)  # more than wait for a request
        if name == "zahlen":
            store.set_many(many, many, table=name)
        elif name == "zeilen":
            store.rows(ROWS, table=name).set(many, rows_of(many))
        else:
            store.execute(Batch.of([(Op.SET, b"%d" % key, b"") for key in many]), table=name)
        store.drop_table(name)
        store.create_table(name, layout=layout, index_bytes=1 << 20)
        if layout == "bytes":
            fill(store, name)
        elif rows := row_layout_of(layout):
            store.rows(layout, table=name).set([1, 2], np.ones((2, *rows.shape), rows.dtype))
        else:
            store.set_many([1, 2], [3, 4], table=name)
        return following

    report = back_up(Source("here", store, follow), tmp_path / "backup", Store, lambda *_: None)
    assert_is(tmp_path / "backup", report, history.at(report.position.number))
    history.close()


class WithoutChanges(Lagging):
    """Tells of nothing."""

    def read(self, bytes_max: int, timeout: float) -> list[Changes]:
        self._following.read(1, timeout)
        return []


@pytest.mark.usefixtures("small_pieces")
def test_a_table_that_nobody_has_dropped_may_not_be_missing(store: gpkvs.Store, tmp_path: Path) -> None:
    source = Source("here", store, lambda: WithoutChanges(store.follow()))
    with (
        at_step("mid_backup_scan:7", lambda: drop(store)),
        pytest.raises(StoreError, match="table 't' was dropped meanwhile, and no change says so"),
    ):
        back_up(source, tmp_path / "backup", Store, lambda *_: None)
    assert [entry.name for entry in tmp_path.iterdir()] == ["store"]


@pytest.mark.usefixtures("small_pieces")
@pytest.mark.parametrize("act", [make_anew_with_rows, make_rows_anew_with_bytes, make_rows_anew_with_others])
def test_a_table_of_another_layout_must_have_been_dropped(
    store: gpkvs.Store, tmp_path: Path, act: Callable[[gpkvs.Store], None]
) -> None:
    source = Source("here", store, lambda: WithoutChanges(store.follow()))
    with (
        at_step("mid_backup_scan:1", lambda: act(store)),
        pytest.raises(StoreError, match="was dropped meanwhile, and no change says so"),
    ):
        back_up(source, tmp_path / "backup", Store, lambda *_: None)


class WithoutTables(Lagging):
    """Tells of keys alone."""

    def read(self, bytes_max: int, timeout: float) -> list[Changes]:
        return [entry for entry in super().read(bytes_max, timeout) if not entry.made and not entry.is_dropped]


def test_what_is_no_row_was_of_a_table_that_was_dropped(store: gpkvs.Store, tmp_path: Path) -> None:
    def follow() -> Lagging:
        following = WithoutTables(store.follow())
        fill(store, "t")
        make_anew_with_rows(store)
        return following

    with pytest.raises(StoreError, match="table 't' was dropped meanwhile, and no change says so"):
        back_up(Source("here", store, follow), tmp_path / "backup", Store, lambda *_: None)


def test_tables_keep_what_they_are(store: gpkvs.Store, tmp_path: Path) -> None:
    make_another(store)
    store.backup(tmp_path / "backup")
    with gpkvs.open(tmp_path / "backup") as backup:
        for wanted, found in zip(store.list_tables(), backup.list_tables(), strict=True):
            assert (found.name, found.layout, found.records) == (wanted.name, wanted.layout, wanted.records)
            assert (found.index_bytes, found.index_bytes_max) == (wanted.index_bytes, wanted.index_bytes_max)


def test_conditions_on_versions_hold_in_a_backup(store: gpkvs.Store, tmp_path: Path) -> None:
    version = store.set(b"key", b"value")
    store.backup(tmp_path / "backup")
    with gpkvs.open(tmp_path / "backup") as backup:
        assert backup.get_with_version(b"key") == (b"value", version)
        assert backup.set(b"key", b"new", if_version=version) > FAR


@pytest.mark.usefixtures("small_pieces")
def test_keys_expire_meanwhile(store: gpkvs.Store, tmp_path: Path) -> None:
    """They go when their source says so, and others stay, whatever the clock says where the backup is made."""
    for key in range(50):
        store.expire(b"%d" % key, 0.2)
    store.expire(b"60", 1000)

    def wait() -> None:
        store.set(b"70", b"soon", ttl=0.01)
        time.sleep(0.3)
        assert store.get(b"7") is None

    back_up_while(store, tmp_path / "backup", wait)
    assert b"60" in held_by(tmp_path / "backup").tables["default"]


def test_no_key_expires_by_the_clock_of_who_makes_the_backup(
    store: gpkvs.Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store.expire(b"7", 1000)
    in_a_year = (time.time_ns() // 10**6) + 365 * 86_400_000
    with monkeypatch.context() as patch:
        patch.setattr(counted_time, "MACHINE", counted_time.clocks_set_by(lambda: in_a_year))
        back_up_while(store, tmp_path / "backup", lambda: store.set(b"8", b"new", ttl=1000))
    with gpkvs.open(tmp_path / "backup") as backup:
        assert backup.get(b"7") == b"first"
        assert 900 < (backup.ttl(b"8") or 0) <= 1000


@pytest.mark.parametrize("commit", ["undo", "journal"])
def test_large_values(tmp_path: Path, commit: CommitName) -> None:
    values = {b"%d" % size: os.urandom(size) for size in (100_000, 1 << 20, 5_000_000)}
    with gpkvs.open(tmp_path / "store", commit=commit, store_format="4") as store:
        for key, value in values.items():
            store.set(key, value)

        def change() -> None:
            store.expire(b"1048576", 1000)
            store.set(b"new", values[b"5000000"][::-1])

        back_up_while(
            store, tmp_path / "backup", change, "before_backup_apply" if commit == "undo" else "mid_backup_scan:1"
        )
    with gpkvs.open(tmp_path / "backup") as backup:
        assert backup.info().blobs_live_bytes > 6_000_000
        assert {key: backup.get(key) for key in values} == values


@pytest.mark.format3
def test_a_heap_that_is_nearly_full_becomes_another_one_like_it(tmp_path: Path) -> None:
    """While it is filled, the backup holds keys that are gone beside those that came."""
    value = os.urandom(1000)
    with gpkvs.open(tmp_path / "store", index_bytes=1 << 20, heap_bytes=16 << 20, store_format="3") as store:
        live = int(0.8 * store.info().heap_charged_bytes_max / 1056)
        keys = [b"%d" % number for number in range(3 * live)]

        def replace_all() -> None:
            for first in range(live, len(keys), 100):
                with store.batch() as batch:
                    for new in range(first, min(first + 100, len(keys))):
                        batch.delete(keys[new - live])
                        batch.set(keys[new], value)

        for first in range(0, live, 100):
            store.execute(Batch.of([(Op.SET, key, value) for key in keys[first : min(first + 100, live)]]))

        back_up_while(store, tmp_path / "backup", replace_all, "mid_backup_scan:1")
        wanted = store.info().heap_bytes_max
    with gpkvs.open(tmp_path / "backup") as backup:
        assert backup.info().heap_bytes_max >= wanted
        assert backup.info().heap_segments >= 8
        backup.set(b"one more", value)


@pytest.mark.usefixtures("small_pieces")
def test_what_changes_right_before_the_first_position_is_scanned(store: gpkvs.Store, tmp_path: Path) -> None:
    times = count()

    def follow() -> Following:
        fill(store, "default", value=b"at the last moment, %d" % next(times))
        return store.follow()

    report = back_up(Source("here", store, follow), tmp_path / "backup", Store, lambda *_: None)
    assert report.changes == 0
    rows = held_by(tmp_path / "backup").tables["default"]
    assert {row[0] for row in rows.values()} == {b"at the last moment, %d" % (next(times) - 1)}


@pytest.mark.usefixtures("small_pieces")
def test_whatever_the_scan_has_seen_is_in_it_with_what_came_before(store: gpkvs.Store, tmp_path: Path) -> None:
    """A transaction changes a key that the scan has passed, and one that it has not."""
    piece = next(store.scan_pieces(limit=40))
    keys = piece.key_list()
    before, behind = keys[0], next(b"%d" % key for key in range(200) if b"%d" % key not in keys)
    history = History(store)

    def change() -> None:
        with store.batch() as batch:
            for key in (before, behind):
                batch.set(key, b"of one transaction")

    source = Source("here", store, lambda: Lagging(store.follow()))
    with at_step("mid_backup_scan:2", change):
        report = back_up(source, tmp_path / "backup", Store, lambda *_: None)
    assert_is(tmp_path / "backup", report, history.at(report.position.number))
    assert report.changes > 0
    history.close()


def test_two_backups_at_once_are_alike(store: gpkvs.Store, tmp_path: Path) -> None:
    def another() -> None:
        failpoint.arm("")
        store.backup(tmp_path / "second")

    back_up_while(store, tmp_path / "first", another)
    assert held_by(tmp_path / "first").tables == held_by(tmp_path / "second").tables


def test_who_follows_no_longer_leaves_nothing_behind(store: gpkvs.Store, tmp_path: Path) -> None:
    store.backup(tmp_path / "backup")
    store.maintain()
    assert not store._engine.changes.is_on


class Cutting:
    """Brings whole entries, and behind them a part of the next one."""

    def __init__(self) -> None:
        self.position = Position(1, 8)

    def newest(self) -> Position:
        return Position(1, 10)

    def read(self, bytes_max: int, timeout: float) -> list[Changes]:
        del bytes_max, timeout
        if self.position.number == 10:
            return []
        nothing: Any = np.empty(0, np.uint8)
        none4, none8 = np.empty(0, np.uint32), np.empty(0, np.uint64)
        dropped = Changes(9, 2, 3, "t", nothing, nothing, none4, nothing, none4, none8, none8, is_dropped=True)
        self.position = Position(1, 10)
        return [
            dropped,
            replace(dropped, number=10),
            replace(dropped, number=11, is_whole=False),
            replace(dropped, number=11, is_whole=False),
        ]

    def close(self) -> None:
        """Do nothing."""


def test_a_part_of_an_entry_is_not_applied(tmp_path: Path) -> None:
    with ChangesReader(Cutting(), tmp_path / "changes") as reader:
        told = reader.finish()
    assert (told.position.number, told.entries) == (10, 2)


def test_entries_wait_in_a_file_as_they_are(tmp_path: Path) -> None:
    nothing: Any = np.empty(0, np.uint8)
    none4, none8 = np.empty(0, np.uint32), np.empty(0, np.uint64)
    entries = [
        Changes(
            1, 2, 3, "t", nothing, nothing, none4, nothing, none4, none8, none8, MadeTable("u64", 1 << 20, 2 << 20)
        ),
        Changes(
            5,
            6,
            7,
            "ä",
            np.array([ChangeKind.SET, ChangeKind.DELETED], np.uint8),
            np.frombuffer(b"keyother", np.uint8),
            np.array([3, 5], np.uint32),
            np.frombuffer(b"value", np.uint8),
            np.array([5, 0], np.uint32),
            np.array([1 << 59, 0], np.uint64),
            np.array([0, 1 << 42], np.uint64),
            is_whole=False,
        ),
        Changes(8, 9, 3, "t", nothing, nothing, none4, nothing, none4, none8, none8, is_dropped=True),
    ]
    path = tmp_path / "changes"
    with SpillWriter(path) as spill:
        spill.append(entries[:1])
        spill.append(entries[1:])
        assert spill.count == 3
    for wanted, found in zip(entries, read_spill(path, 3), strict=True):
        np.testing.assert_equal(asdict(found), asdict(wanted))
    whole = path.read_bytes()
    for at in range(len(whole)):
        path.write_bytes(whole[:at])
        with pytest.raises(StoreError, match="not what was written"):
            list(read_spill(path, 3))
        path.write_bytes(whole[:at] + bytes([whole[at] ^ 4]) + whole[at + 1 :])
        with pytest.raises(StoreError, match="not what was written"):
            list(read_spill(path, 3))
