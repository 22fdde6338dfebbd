"""A store is restored to any moment of an archive: it is what a dictionary made of the same changes is."""

from __future__ import annotations

import errno
import os
import time
from collections.abc import Iterator
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
import pytest

import gpkvs
from gpkvs.archive.archiver import Archiver, remove_unneeded
from gpkvs.archive.contents import read_contents
from gpkvs.archive.recorder import SegmentBounds
from gpkvs.archive.segment import Header, SegmentWriter, read_segment
from gpkvs.backup.source import Source
from gpkvs.batch import Op
from gpkvs.changes import Position
from gpkvs.client.retry import RetryPolicy
from gpkvs.errors import InvalidArgumentError
from tests.archive.told import (
    SMALL_SEGMENTS,
    Remote,
    Told,
    archived_numbers,
    archiving,
    assert_holds,
    bases,
    restored,
    segments,
    take_base,
    wait_for,
)
from tests.backup.steps import at_step
from tests.backup.writers import Model, held_by, writing
from tests.conftest import SMALL, assert_clean
from tests.serving import Server

WRITING_SECONDS, BASES, MOMENTS = 0.5, 2, 2


@pytest.fixture
def pick() -> Random:
    seed = int(os.environ.get("GPKVS_SEED", Random().randrange(1 << 32)))
    print(f"GPKVS_SEED={seed}")
    return Random(seed)


@pytest.fixture(params=["store", "server"])
def source(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Any]:
    """Return a store of this process, and a client of a server."""
    if request.param == "store":
        with gpkvs.open(tmp_path / "store", **SMALL) as store:
            yield store
    else:
        server = Server(tmp_path / "store", tmp_path)
        try:
            with Remote(server.target) as client:
                yield client
            server.stop()
        finally:
            server.kill()
    assert_clean(tmp_path / "store")


@pytest.fixture
def store(tmp_path: Path) -> Iterator[gpkvs.Store]:
    with gpkvs.open(tmp_path / "store", **SMALL) as opened:
        yield opened
    assert_clean(tmp_path / "store")


def test_any_moment_is_restored(source: Any, tmp_path: Path, pick: Random) -> None:
    told, folder = Told(source), tmp_path / "archive"
    with archiving(source, folder) as archiver, writing(source, pick):
        for _ in range(BASES):
            time.sleep(WRITING_SECONDS * pick.random())
            archiver._next_at = 0.0
            take_base(archiver, folder)
        time.sleep(WRITING_SECONDS * pick.random())
    told.finish()
    contents = read_contents(folder)
    [run] = contents.runs
    assert len(run.bases) == 1 + BASES
    assert len(run.segments) > 1
    numbers = {entry.number for entry in told.entries} & set(archived_numbers(folder))
    assert numbers
    moments: list[Any] = [pick.randint(run.first_ms, run.last_ms) for _ in range(MOMENTS)]
    moments += [
        Position(run.first.timeline, number) for number in pick.sample(sorted(numbers), min(MOMENTS, len(numbers)))
    ]
    moments += [run.first_ms, run.last_ms, run.end, None]
    # What was told together here may have been told apart there: nobody knows what lies between.
    moments += [base.position for base in run.bases[-1:] if base.position.number in numbers]
    for at, moment in enumerate(moments):
        report = restored(folder, tmp_path / f"new {at}", moment)
        print(at, moment, report.position, report.entries)
        assert report.position
        assert_holds(tmp_path / f"new {at}", report, told.at(report.position if moment is None else moment))


def test_rows_at_any_moment(store: gpkvs.Store, tmp_path: Path) -> None:
    """Whoever reads rows of a restored store reads the arrays of that moment."""
    layout, folder, keys = "float64[3]", tmp_path / "archive", np.arange(500)
    store.create_table("rows", layout=layout, index_bytes=1 << 20)
    rows = store.rows(layout, table="rows")
    rows.set(keys, np.ones((500, 3)))
    held, positions = [], []
    with archiving(store, folder):
        for step in range(4):
            rows.add(keys[step::2], np.full((len(keys[step::2]), 3), 0.1 * step))
            rows.delete([step])
            with closing(store.follow()) as following:
                positions.append(following.position)
            held.append(rows.get(keys))
        store.drop_table("rows")
        store.create_table("rows", layout="int8[1]", index_bytes=1 << 16)
        store.rows("int8[1]", table="rows").set([1], [[7]])
    for step, position in enumerate(positions):
        restored(folder, tmp_path / f"new {step}", position)
        with gpkvs.open(tmp_path / f"new {step}") as new:
            found = new.rows(layout, table="rows").get(keys)
            assert [column.tolist() for column in found] == [column.tolist() for column in held[step]]
    restored(folder, tmp_path / "last")
    with gpkvs.open(tmp_path / "last") as new:
        assert new.rows("int8[1]", table="rows").get([1, 2])[0].tolist() == [[7], [0]]


def test_what_changes_before_the_base_follows_is_in_the_archive(store: gpkvs.Store, tmp_path: Path) -> None:
    """The archive follows first: an entry that a base's reader was told is in a segment, too."""
    folder = tmp_path / "archive"
    with archiving(store, folder) as archiver:
        store.set(b"key", b"value")
        assert archiver.recorder.begin
    [run] = read_contents(folder).runs
    [base] = run.bases
    assert run.first.number <= base.position.number
    assert restored(folder, tmp_path / "new").entries > 0


def test_changes_of_one_time_are_all_in_it_or_none(store: gpkvs.Store, tmp_path: Path) -> None:
    """Several transactions may be of one millisecond; here all but the first and the last are."""
    folder = tmp_path / "archive"
    store.set(b"before", b"value")
    with archiving(store, folder):
        pass
    told = Told(store)
    for at in range(6):
        store.set(b"key", b"%d" % at)
        time.sleep(0.002)  # else they may be told as one
    told.finish()
    first_ms = told.entries[0].time_ms
    told.entries = [
        replace(entry, time_ms=first_ms + time_ms)
        for entry, time_ms in zip(told.entries, (0, 5, 5, 5, 5, 9), strict=True)
    ]
    with SegmentWriter(folder, Header(2, read_contents(folder).runs[0].end, True, first_ms, "source")) as writer:
        writer.append(told.entries)
        writer.seal()
    for after_ms, last in ((0, 0), (4, 0), (5, 4), (6, 4), (9, 5)):
        report = restored(folder, tmp_path / f"{after_ms}", first_ms + after_ms)
        assert_holds(tmp_path / f"{after_ms}", report, told.at(first_ms + after_ms))
        assert held_by(tmp_path / f"{after_ms}").tables["default"][b"key"][0] == b"%d" % last


def test_an_entry_of_many_parts_is_whole(tmp_path: Path) -> None:
    """A server cuts a long entry; the archive has all of it or none."""
    server = Server(tmp_path / "store", tmp_path)
    folder = tmp_path / "archive"
    try:
        with Remote(server.target) as client, archiving(client, folder):
            told = Told(client)
            client.set(b"before", b"")
            time.sleep(0.01)
            client.batch([(Op.SET, b"%d" % at, bytes(20_000)) for at in range(100)])
            told.finish()
        server.stop()
    finally:
        server.kill()
    assert any(not entry.is_whole for entry in read_contents(folder).runs[0].entries(0, 1 << 40))
    for at, number in enumerate(archived_numbers(folder)):
        moment = Position(read_contents(folder).runs[0].first.timeline, number)
        assert_holds(tmp_path / f"{at}", restored(folder, tmp_path / f"{at}", moment), told.at(moment))


def test_two_archives_of_one_store(store: gpkvs.Store, tmp_path: Path) -> None:
    folders = tmp_path / "one", tmp_path / "other"
    with archiving(store, folders[0]):
        store.set(b"before", b"value")
        with archiving(store, folders[1]):
            store.set(b"key", b"value")
            wanted = Model.of(store)
    for folder in folders:
        restored(folder, tmp_path / f"new {folder.name}")
        assert held_by(tmp_path / f"new {folder.name}").tables == wanted.tables


def test_a_base_alone(store: gpkvs.Store, tmp_path: Path) -> None:
    """Nothing has changed since: the newest moment is the base's, and no time says when it was."""
    store.set(b"key", b"value")
    folder, wanted = tmp_path / "archive", Model.of(store)
    with archiving(store, folder):
        pass
    report = restored(folder, tmp_path / "new")
    assert_holds(tmp_path / "new", report, wanted)
    assert report.position == read_contents(folder).bases[0].position
    with pytest.raises(InvalidArgumentError, match="cannot be restored"):
        restored(folder, tmp_path / "other", int(time.time() * 1000))
    assert not (tmp_path / "other").exists()


def test_a_backup_is_restored_as_it_is_copied(store: gpkvs.Store, tmp_path: Path) -> None:
    store.create_table("numbers", layout="u64", index_bytes=1 << 20)
    store.set_many([1, 2], [3, 4], table="numbers")
    store.set(b"key", b"value", ttl=1000)
    wanted = Model.of(store)
    store.backup(tmp_path / "backup")
    assert_holds(tmp_path / "new", restored(tmp_path / "backup", tmp_path / "new"), wanted)
    with pytest.raises(InvalidArgumentError, match="is a backup, and no archive"):
        restored(tmp_path / "backup", tmp_path / "other", 1)


def test_an_archive_goes_on_where_it_ended(store: gpkvs.Store, tmp_path: Path) -> None:
    folder, told = tmp_path / "archive", Told(store)
    for at in range(3):
        with archiving(store, folder, has_base=at > 0):
            store.set(b"key", b"%d" % at)
        store.set(b"meanwhile", b"%d" % at)
    with archiving(store, folder, has_base=True):
        pass
    told.finish()
    [run] = read_contents(folder).runs
    assert len(run.bases) == 1  # none is due
    report = restored(folder, tmp_path / "new")
    assert_holds(tmp_path / "new", report, told.at(run.end))
    assert told.at(run.end).tables["default"][b"meanwhile"][0] == b"2"
    assert len(segments(folder)) == 4
    assert len(bases(folder)) == 1


def test_a_base_comes_behind_where_the_archive_follows(store: gpkvs.Store, tmp_path: Path) -> None:
    """What changes when the first base is whole is behind its position, and in a segment."""
    folder = tmp_path / "archive"
    source = Source("source", store, store.follow)
    with (
        at_step("after_backup_rename", lambda: store.set(b"key", b"value")),
        Archiver(folder, source, store.follow, SMALL_SEGMENTS, print) as archiver,
    ):
        while not bases(folder):
            archiver.keep_up()
        store.set(b"last", b"value")
        wait_for(archiver, store)
    restored(folder, tmp_path / "new")
    assert set(held_by(tmp_path / "new").tables["default"]) == {b"key", b"last"}


@pytest.mark.parametrize("is_sealed", [True, False])
def test_a_segment_ends_behind_a_whole_entry(store: gpkvs.Store, tmp_path: Path, is_sealed: bool) -> None:
    with store.follow() as following:
        store.set(b"first", b"value")
        store.set(b"second", b"value", ttl=1000)
        position, entries = following.position, following.read(bytes_max=1) + following.read(bytes_max=1)
    if len(entries) == 1:  # they came in one millisecond
        entries *= 2
        entries[0] = replace(entries[0], number=entries[0].number - 1)
    first, second = entries
    with SegmentWriter(tmp_path, Header(7, position, False, 0, "source")) as writer:
        writer.append([first, replace(second, is_whole=False)])
        if is_sealed:
            writer.seal()
    found = read_segment(writer.path)
    assert found.is_sealed == is_sealed
    assert found.last == writer.last == first.number
    assert [entry.number for entry in found.entries()] == [first.number]
    if not is_sealed:
        assert found.bytes_whole < writer.path.stat().st_size


def test_an_archive_goes_on_where_its_server_was_started_again(tmp_path: Path) -> None:
    """There is no hole, and positions of each opening can be restored, of a base of any of them."""
    folder, path = tmp_path / "archive", tmp_path / "store"
    server = Server(path, tmp_path, "--format", "4")
    moments: list[tuple[Position, int]] = []
    patient = RetryPolicy(attempts_max=100, delay_ms_first=10, delay_ms_max=50)
    with Remote(server.target, retry=patient) as client, archiving(client, folder) as archiver:
        for number in range(6):
            client.set(b"key", b"%d" % number)
            wait_for(archiver, client)
            assert archiver.recorder.position
            moments.append((archiver.recorder.position, number))
            if number % 2:
                server.stop()
                server = Server(path, tmp_path, "--listen", server.target)
        client.set(b"key", b"last")
        wait_for(archiver, client)
        archiver._next_at = 0
        take_base(archiver, folder)
        client.set(b"other", b"behind the second base")
    server.stop()
    [run] = read_contents(folder).runs
    assert len({segment.header.first.timeline for segment in run.segments}) == 4
    assert len(run.bases) == 2
    for at, (position, value) in enumerate(moments):
        report = restored(folder, tmp_path / f"{at}", position)
        assert report.position == position
        assert held_by(tmp_path / f"{at}").tables["default"][b"key"][0] == b"%d" % value
    report = restored(folder, tmp_path / "newest")
    assert report.base == run.bases[1].directory
    assert {key: row[0] for key, row in held_by(tmp_path / "newest").tables["default"].items()} == {
        b"key": b"last",
        b"other": b"behind the second base",
    }


def test_what_a_full_disk_has_not_kept_is_archived_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The disk says so only when the segment is sealed, and has room for the next one."""
    folder, said = tmp_path / "archive", list[str]()
    seal, is_full = SegmentWriter.seal, [True]

    def fill(writer: SegmentWriter) -> None:
        if is_full and writer.has_entries:
            is_full.clear()
            writer._take_back(writer._durable)
            raise OSError(errno.ENOSPC, "No space left on device")
        seal(writer)

    monkeypatch.setattr(SegmentWriter, "seal", fill)
    never = SegmentBounds(size=1000, sync_seconds=3600.0)
    with gpkvs.open(tmp_path / "store", **SMALL) as store:
        with archiving(store, folder, replace(SMALL_SEGMENTS, bounds=never), say=said.append):
            for number in range(30):
                store.set(b"%d" % number, bytes(100))
        position = store.newest_change
    assert not is_full
    assert any("has not kept" in line for line in said)
    assert read_contents(folder).runs[-1].end == position
    restored(folder, tmp_path / "new")
    assert len(held_by(tmp_path / "new").tables["default"]) == 30


def test_a_base_where_an_opening_ended_is_the_next_one_s_too(tmp_path: Path) -> None:
    folder, path = tmp_path / "archive", tmp_path / "store"
    server = Server(path, tmp_path, "--format", "4")
    patient = RetryPolicy(attempts_max=100, delay_ms_first=10, delay_ms_max=50)
    with Remote(server.target, retry=patient) as client, archiving(client, folder) as archiver:
        client.set(b"key", b"before")
        wait_for(archiver, client)
        archiver._next_at = 0
        take_base(archiver, folder)
        server.stop()
        server = Server(path, tmp_path, "--listen", server.target)
        client.set(b"key", b"behind")
        wait_for(archiver, client)
        remove_unneeded(folder, 0, print)
        assert len(bases(folder)) == 1
    server.stop()
    assert read_contents(folder).runs[0].bases
    restored(folder, tmp_path / "new")
    assert held_by(tmp_path / "new").tables["default"][b"key"][0] == b"behind"


def test_a_clock_that_goes_back_between_two_openings(tmp_path: Path) -> None:
    """A time is looked for in each opening: one that was in two of them is refused, and positions tell them apart."""
    folder = tmp_path / "archive"
    with gpkvs.open(tmp_path / "store", **SMALL) as store, archiving(store, folder):
        for number in range(2):
            store.set(b"key", b"%d" % number)
            time.sleep(0.01)
    [run] = read_contents(folder).runs
    first, last = [entry for segment in run.segments for entry in segment.entries()][-2:]
    number, serial = last.number, len(run.segments)

    def open_anew(timeline: int, *times_ms: int) -> None:
        nonlocal number, serial
        serial += 1
        header = Header(serial, Position(timeline, number), True, 0, "source")
        with SegmentWriter(folder, header) as writer:
            for time_ms in times_ms:
                number += 1
                writer.append([replace(last, number=number, time_ms=time_ms)])
            writer.seal()

    open_anew(98, first.time_ms - 1000, first.time_ms - 900)
    assert restored(folder, tmp_path / "0", first.time_ms).position == run.position(first.number)
    assert restored(folder, tmp_path / "1", last.time_ms).position == run.end
    assert restored(folder, tmp_path / "2", first.time_ms - 950).position == Position(98, last.number + 1)
    open_anew(99, last.time_ms)
    with pytest.raises(InvalidArgumentError, match="more than once") as refused:
        restored(folder, tmp_path / "3", last.time_ms)
    assert str(run.end) in str(refused.value)
    assert str(Position(99, number)) in str(refused.value)
