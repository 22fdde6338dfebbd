"""A position in the changes of a store means the same after its next opening, or is refused."""

from __future__ import annotations

import shutil
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest

import gpkvs
from gpkvs.batch import Batch, Op
from gpkvs.changes import Position
from gpkvs.config import CommitName
from gpkvs.errors import ChangesLostError, StoreClosedError
from gpkvs.following import Following
from gpkvs.media.layout import ENDED_MAX, NEVER_OPENED, Opened
from tests.conftest import SMALL, assert_clean

_DYING = """
import os, signal, sys
import gpkvs
from gpkvs.changes import Position
with gpkvs.open(sys.argv[1]) as store:
    following = store.follow()
    store.set(b"key", b"before the end")
    [entry] = following.read(timeout=60)
    print(following.position, flush=True)
    if len(sys.argv) > 2:
        store.set(b"key", b"and nobody reads it")
    os.kill(os.getpid(), signal.SIGKILL)
"""


@pytest.fixture(params=["undo", "journal"])
def commit(request: pytest.FixtureRequest) -> CommitName:
    name: CommitName = request.param
    return name


def opened(path: Path, commit: CommitName, **more: Any) -> gpkvs.Store:
    return gpkvs.open(path, **{**SMALL, "commit": commit, "store_format": "4", **more})


def keys(following: Following) -> list[bytes]:
    return [key for entry in following.read() for key in entry.key_list()]


def set_and_follow(path: Path, commit: CommitName) -> Position:
    with opened(path, commit) as store, store.follow() as following:
        store.set(b"first", b"")
        assert keys(following) == [b"first"]
        return following.position


def test_a_position_is_a_version(tmp_path: Path, commit: CommitName) -> None:
    with opened(tmp_path / "store", commit) as store, store.follow() as following:
        for what in ("set", "make", "set", "delete", "drop"):
            match what:
                case "set":
                    store.set(b"key", what.encode())
                case "make":
                    store.create_table("table")
                case "delete":
                    store.delete(b"key")
                case "drop":
                    store.drop_table("table")
            [entry] = following.read()
            assert entry.number == following.position.number == store.info().next_version
    assert_clean(tmp_path / "store")


def test_who_has_read_all_goes_on_after_an_opening(tmp_path: Path, commit: CommitName) -> None:
    path = tmp_path / "store"
    position = set_and_follow(path, commit)
    for _ in range(2):
        with opened(path, commit):
            pass
    with opened(path, commit) as store:
        store.set(b"second", b"")  # what comes is held for those who followed before
        with store.follow(position) as following:
            assert keys(following) == [b"second"]
            assert following.position.timeline != position.timeline
    assert_clean(path)


def test_a_transaction_that_leaves_nothing_has_a_position(tmp_path: Path, commit: CommitName) -> None:
    path = tmp_path / "store"
    with opened(path, commit) as store, store.follow() as following, store.watch() as watch:
        store.execute(Batch.of([(Op.SET, b"key", b""), (Op.DELETE, b"key")]))
        [entry] = following.read()
        assert not len(entry)
        position = following.position
        assert position.number == entry.number == store.info().next_version
        store.set(b"next", b"")
        assert next(watch).key == b"next"
        keys(following)
        last = following.position
    with opened(path, commit) as store, store.follow(last):
        store.execute(Batch.of([(Op.SET, b"key", b""), (Op.DELETE, b"key")]))
        position = store.newest_change
    with opened(path, commit) as store:
        store.follow(position).close()
    assert_clean(path)


def test_a_watch_knows_how_far_it_is_though_it_wants_little(tmp_path: Path, commit: CommitName) -> None:
    path = tmp_path / "store"
    store = opened(path, commit)
    with store.watch(b"mine") as watch:
        for number in range(10):
            store.set(b"%d" % number, b"")
        store.close()
        with pytest.raises(StoreClosedError):
            next(watch)
    with opened(path, commit) as store, store.watch(b"mine", since=watch.position) as watch:
        store.set(b"mine", b"")
        assert next(watch).key == b"mine"
        assert watch.position.timeline == store.newest_change.timeline


def test_who_has_not_read_all_hears_of_it(tmp_path: Path, commit: CommitName) -> None:
    path = tmp_path / "store"
    with opened(path, commit) as store, store.follow() as following:
        position = following.position
        store.set(b"key", b"")
    with opened(path, commit) as store:
        with pytest.raises(ChangesLostError, match="begin anew"):
            store.follow(position)
        store.set(b"other", b"")
    with opened(path, commit) as store, pytest.raises(ChangesLostError):
        store.follow(position)


@pytest.mark.parametrize("reads_all", [True, False])
def test_after_a_kill(tmp_path: Path, commit: CommitName, reads_all: bool) -> None:
    path = tmp_path / "store"
    with opened(path, commit):
        pass
    arguments = [sys.executable, "-c", _DYING, str(path), *(() if reads_all else ("more",))]
    died = subprocess.run(arguments, stdout=subprocess.PIPE, text=True, check=False)
    assert died.returncode == -signal.SIGKILL
    position = Position.parse(died.stdout.strip())
    with opened(path, commit) as store:
        if reads_all:
            with store.follow(position) as following:
                store.set(b"next", b"")
                assert keys(following) == [b"next"]
        else:
            with pytest.raises(ChangesLostError):
                store.follow(position)
    assert_clean(path)


def test_tables_that_came_unseen_are_seen_in_the_position(tmp_path: Path, commit: CommitName) -> None:
    path = tmp_path / "store"
    position = set_and_follow(path, commit)
    with opened(path, commit) as store:
        store.create_table("table")
    with opened(path, commit) as store, pytest.raises(ChangesLostError):
        store.follow(position)
    assert_clean(path)


def test_copies_of_the_files_refuse_each_others_positions(tmp_path: Path, commit: CommitName) -> None:
    first, second = tmp_path / "first", tmp_path / "second"
    position = set_and_follow(first, commit)
    shutil.copytree(first, second)
    later = []
    for path in (first, second):
        with opened(path, commit) as store, store.follow(position) as following:
            store.set(path.name.encode(), b"")
            assert keys(following) == [path.name.encode()]
            later.append(following.position)
    assert later[0].number == later[1].number
    for path, other in ((first, later[1]), (second, later[0])):
        with opened(path, commit) as store, pytest.raises(ChangesLostError):
            store.follow(other)


def test_what_the_store_has_lost_is_no_position(tmp_path: Path, commit: CommitName) -> None:
    """As after a power failure where the store survives processes alone: it was told, and is gone."""
    path, before = tmp_path / "store", tmp_path / "before"
    with opened(path, commit) as store, store.follow() as following:
        store.set(b"first", b"")
        shutil.copytree(path, before, ignore=shutil.ignore_patterns("LOCK"))
        store.set(b"second", b"")
        assert keys(following) == [b"first", b"second"]
        position = following.position
    with opened(before, commit) as store:
        store.set(b"another", b"")
        store.set(b"one more", b"")
        with pytest.raises(ChangesLostError):
            store.follow(position)


def test_a_number_that_was_taken_for_nothing_is_no_change(tmp_path: Path, commit: CommitName) -> None:
    """Who begins behind it stands where the opening began, and may go on in a copy of the files from before it."""
    path, before = tmp_path / "store", tmp_path / "before"
    set_and_follow(path, commit)
    with opened(path, commit) as store, store.follow() as first:
        shutil.copytree(path, before, ignore=shutil.ignore_patterns("LOCK"))
        begun = store.info().next_version
        with patch("gpkvs.store.create_table", side_effect=MemoryError), pytest.raises(MemoryError):
            store.create_table("table")
        assert store.info().next_version == begun + 1
        with store.follow() as following:
            position = following.position
        assert position == first.position == Position(position.timeline, begun)
    with opened(before, commit) as store, store.follow(position) as following:
        store.set(b"next", b"")
        assert keys(following) == [b"next"]
    assert_clean(before)


def test_what_nobody_followed_is_lost(tmp_path: Path, commit: CommitName) -> None:
    with opened(tmp_path / "store", commit) as store:
        with store.follow() as following:
            pass
        store.follow(following.position).close()  # nothing has happened
        store.set(b"key", b"")
        with pytest.raises(ChangesLostError, match="nobody followed"):
            store.follow(following.position)


def test_format_3_knows_no_earlier_opening(tmp_path: Path, commit: CommitName) -> None:
    path = tmp_path / "store"
    with opened(path, commit, store_format="3") as store, store.follow() as following:
        position = following.position
    with opened(path, commit, store_format="3") as store, pytest.raises(ChangesLostError):
        store.follow(position)


def test_what_was_lost_without_a_log_is_not_gone_on_from(tmp_path: Path) -> None:
    path = tmp_path / "store"
    with opened(path, "undo", durability="none") as store:
        following = store.follow()
        store.set(b"key", b"")
        following.read()
        position = following.position
        shutil.copytree(path, tmp_path / "killed", ignore=shutil.ignore_patterns("LOCK"))
    with (
        opened(tmp_path / "killed", "undo", durability="none", accept_loss=True) as store,
        pytest.raises(ChangesLostError),
    ):
        store.follow(position)
    with opened(path, "undo") as store:
        store.follow(position).close()


def test_so_many_openings_without_a_change() -> None:
    opened = NEVER_OPENED
    for timeline in range(1, ENDED_MAX + 3):
        opened = opened.again(7)._replace(timeline=timeline)
    assert opened == Opened(7, 5, (4, 3, 2))
    assert opened.again(7) == Opened(7, 0, (5, 4, 3))
    assert opened.again(8) == Opened(8, 0, (5,))
    assert opened._replace(timeline=0).again(8) == Opened(8, 0, ())


def test_large_numbers_are_whole(tmp_path: Path, commit: CommitName) -> None:
    """A store that was restored begins its versions above 2**40: numbers are of 64 bits, of each kind of entry."""
    with opened(tmp_path / "old", commit) as store:
        store.backup(tmp_path / "store")
    with gpkvs.open(tmp_path / "store") as store, store.follow() as following:
        begin = following.position
        assert begin.number > 1 << 40
        store.set(b"first", b"")
        assert keys(following) == [b"first"]
        store.create_table("t", index_bytes=1 << 16)
        store.set(b"second", b"")
        assert [entry.number - begin.number for entry in following.read()] == [2, 3]
        with store.follow(begin) as again:
            assert keys(again) == [b"first", b"second"]
