"""What is damaged, missing or never archived is refused, with its place and with what can be restored instead."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

import gpkvs
from gpkvs.archive.archiver import ArchiveConfig, Archiver, remove_unneeded
from gpkvs.archive.contents import read_contents
from gpkvs.archive.moment import parse_moment
from gpkvs.archive.recorder import SegmentBounds
from gpkvs.archive.restore import restore
from gpkvs.archive.segment import read_segment
from gpkvs.backup.frames import HEAD
from gpkvs.backup.manifest import MANIFEST_FILE
from gpkvs.backup.source import Source
from gpkvs.changes import Position
from gpkvs.client.errors import DeadlineError
from gpkvs.config import StoreConfig
from gpkvs.errors import GpkvsError, InvalidArgumentError, StoreError, StoreLockedError
from gpkvs.following import Following
from gpkvs.store import Store
from tests.archive.told import archiving, bases, read_all, restored, segments, take_base, wait_for
from tests.backup.writers import Model, held_by
from tests.conftest import SMALL, assert_clean
from tests.faults.conftest import ROOT

OF_FEW = ArchiveConfig(1000, bounds=SegmentBounds(size=600, sync_seconds=0.0))


@pytest.fixture
def store(tmp_path: Path) -> Iterator[gpkvs.Store]:
    with gpkvs.open(tmp_path / "store", **SMALL) as opened:
        yield opened
    assert_clean(tmp_path / "store")


def set_one_by_one(store: gpkvs.Store, count: int) -> None:
    for at in range(count):
        store.set(b"%d" % at, b"value")
        time.sleep(0.002)  # each has a time of its own


@pytest.fixture
def folder(store: gpkvs.Store, tmp_path: Path) -> Path:
    """Return an archive of a few segments."""
    folder = tmp_path / "archive"
    with archiving(store, folder, OF_FEW) as archiver:
        for _ in range(4):
            set_one_by_one(store, 3)
            wait_for(archiver, store)
    assert len(segments(folder)) > 2
    return folder


def frames_of(segment: Path) -> list[tuple[int, int]]:
    """Return where each frame begins and ends."""
    data, at, found = segment.read_bytes(), 0, []
    while at < len(data):
        end = at + HEAD.size + HEAD.unpack_from(data, at)[2]
        found.append((at, end))
        at = end
    return found


def assert_seen(folder: Path, whole: list[bytes], segment: Path) -> None:
    """Fail unless a damage is refused with its file, or ends what can be restored and the list says where."""
    refused = ""
    try:
        found = read_all(folder)
    except StoreError as error:
        refused = str(error)
    if refused:
        assert re.search(rf"{segment.name} at byte \d|a segment is missing before|up to .* is not there", refused)
        return
    last = read_contents(folder).runs[-1].segments[-1]
    if found != whole:
        assert found == whole[: len(found)]
        assert not last.is_sealed  # gpkvs restore --list says up to where it is read
        assert last.path == segment
    else:
        assert not read_segment(segment).is_sealed  # the end alone was hurt


def mistakes(segment: Path) -> Iterator[tuple[str, bytes]]:
    """Yield what may become of each frame of a segment."""
    data, frames = segment.read_bytes(), frames_of(segment)
    for at, (begin, end) in enumerate(frames):
        for place in (*range(begin, begin + HEAD.size, 5), (begin + HEAD.size + end) // 2, end - 1):
            yield f"{at} flipped at {place}", data[:place] + bytes([data[place] ^ 0x10]) + data[place + 1 :]
        yield f"{at} missing", data[:begin] + data[end:]
        yield f"{at} twice", data[:end] + data[begin:]
        yield f"cut at {at}", data[:begin]
        yield f"cut in {at}", data[: end - 4]
        if at + 1 < len(frames):
            later = frames[at + 1][1]
            yield f"{at} swapped", data[:begin] + data[end:later] + data[begin:end] + data[later:]


@pytest.mark.parametrize("is_sealed", [True, False])
def test_every_frame_that_is_not_what_was_written(folder: Path, is_sealed: bool) -> None:
    if not is_sealed:  # as if the archiver had been killed
        last = segments(folder)[-1]
        last.write_bytes(last.read_bytes()[: frames_of(last)[-1][0]])
    whole = read_all(folder)
    for segment in segments(folder):
        kept = segment.read_bytes()
        for what, data in mistakes(segment):
            segment.write_bytes(data)
            print(segment.name, what)
            assert_seen(folder, whole, segment)
        segment.write_bytes(kept)
    assert read_all(folder) == whole


def test_segments_that_are_missing_or_foreign(store: gpkvs.Store, folder: Path, tmp_path: Path) -> None:
    whole = read_all(folder)
    paths = segments(folder)
    for at, segment in enumerate(paths[:-1]):
        segment.rename(tmp_path / "aside")
        if at:
            with pytest.raises(StoreError, match="a segment is missing before"):
                restored(folder, tmp_path / "new")
        else:  # the base's, too: its own moment is left
            with pytest.raises(GpkvsError, match=r"no base that is whole|a segment is missing|is not there"):
                restored(folder, tmp_path / "new")
        (tmp_path / "aside").rename(segment)
    other = tmp_path / "other"
    with archiving(store, other, OF_FEW):
        store.set(b"foreign", b"value")
    for name in (paths[1].name, paths[2].name):
        kept = (folder / name).read_bytes()
        shutil.copy(segments(other)[0], folder / name)
        with pytest.raises(StoreError, match=rf"{name} at byte 0: it is the segment 00000001-"):
            restored(folder, tmp_path / "new")
        (folder / name).write_bytes(kept)
    assert read_all(folder) == whole
    assert not (tmp_path / "new").exists()


def test_segments_that_are_swapped_or_repeated(folder: Path, tmp_path: Path) -> None:
    whole, paths = read_all(folder), segments(folder)
    kept = {path: path.read_bytes() for path in paths}
    for at, path in enumerate(paths):
        for other in paths[:at]:
            for swap in (True, False):
                path.write_bytes(kept[other])
                other.write_bytes(kept[path] if swap else kept[other])
                with pytest.raises(GpkvsError):
                    restored(folder, tmp_path / "new")
                path.write_bytes(kept[path])
                other.write_bytes(kept[other])
    first, last = paths[0].name, paths[-1].name
    again = folder / f"{int(last[:8]) + 1:08}{first[8:]}"  # as the next one
    again.write_bytes(kept[paths[0]])
    with pytest.raises(StoreError, match=rf"{again.name} at byte 0: it is the segment {first[:8]}-"):
        restored(folder, tmp_path / "new")
    again.unlink()
    assert read_all(folder) == whole
    assert not (tmp_path / "new").exists()


def test_a_damage_leaves_the_moments_that_do_not_need_it(store: gpkvs.Store, folder: Path, tmp_path: Path) -> None:
    """Another run has moments, too; those of the damaged one are refused with its place."""
    with gpkvs.open(tmp_path / "later", **SMALL) as second, archiving(second, folder, OF_FEW):
        set_one_by_one(second, 3)
    first, other = read_contents(folder).runs
    hurt = segments(folder)[0]
    begin, end = frames_of(hurt)[1]
    data = hurt.read_bytes()
    hurt.write_bytes(data[: end - 1] + bytes([data[end - 1] ^ 1]) + data[end:])
    with pytest.raises(InvalidArgumentError, match=rf"{hurt.name} at byte {begin}: it is not what was written there"):
        restored(folder, tmp_path / "new", first.last_ms)
    assert restored(folder, tmp_path / "new", other.last_ms).position == other.end
    assert restored(folder, tmp_path / "base", first.bases[0].position).keys == first.bases[0].keys
    del store


def test_bases_that_are_damaged(store: gpkvs.Store, folder: Path, tmp_path: Path) -> None:
    [base] = bases(folder)
    manifest = base / MANIFEST_FILE
    kept = manifest.read_bytes()
    number = read_contents(folder).bases[0].position.number
    manifest.write_bytes(kept.replace(b'-%d"' % number, b'-%d"' % (number + 2)))
    assert manifest.read_bytes() != kept
    with pytest.raises(StoreError, match=r"BACKUP\.json at byte 0"):
        restored(folder, tmp_path / "new")
    manifest.write_bytes(kept)
    with gpkvs.open(base) as opened:
        opened.set(b"own", b"value")
        opened.delete(b"own")
    with pytest.raises(StoreError, match="somebody has written to it"):
        restored(folder, tmp_path / "new")
    root = base / "root"
    root.write_bytes(bytes(len(root.read_bytes())))
    with pytest.raises(GpkvsError, match=str(base)):
        restored(folder, tmp_path / "new")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["archive", "store"]
    del store


def test_moments_that_are_not_archived(store: gpkvs.Store, folder: Path, tmp_path: Path) -> None:
    [run] = read_contents(folder).runs
    timeline = run.first.timeline
    refused = {
        0: "the nearest after it is",
        run.first_ms - 1: "the nearest after it is",
        run.last_ms + 1: "the nearest moment before it is",
        Position(timeline, 0): "the nearest after it is",
        Position(timeline, run.end.number + 1): f"the nearest position before it is {run.end}",
        Position(timeline ^ 1, run.end.number): "nothing near it can be",
    }
    for moment, why in refused.items():
        with pytest.raises(InvalidArgumentError, match=rf"{why}.*; see gpkvs restore --list"):
            restored(folder, tmp_path / "new", moment)
    (tmp_path / "there").mkdir()
    with pytest.raises(StoreError, match="there is there already"):
        restored(folder, tmp_path / "there")
    with pytest.raises(StoreError, match="is no archive"):
        restored(tmp_path / "there", tmp_path / "new")
    assert not (tmp_path / "new").exists()
    del store


@pytest.mark.parametrize("text", ["", "yesterday", "2026-11-29T10:00:00", "2026-13-01T00:00:00Z", "-5"])
def test_what_is_no_moment(text: str) -> None:
    with pytest.raises(InvalidArgumentError, match=r"is no moment|says no time zone"):
        parse_moment(text)


def test_moments_as_they_are_written() -> None:
    assert parse_moment("1970-01-01T01:00:00.5+01:00") == 500
    assert parse_moment("500") == 500
    assert parse_moment("000000000000005f-17") == Position(0x5F, 17)


def test_a_hole_is_no_moment(tmp_path: Path) -> None:
    """The store is opened anew between two parts of an archive: what came between is in neither."""
    folder = tmp_path / "archive"
    for at in range(2):
        with gpkvs.open(tmp_path / "store", **SMALL) as store, archiving(store, folder):
            set_one_by_one(store, 3)
        with gpkvs.open(tmp_path / "store") as store:
            time.sleep(0.01)
            store.set(b"between", b"%d" % at)
            time.sleep(0.01)
    first, second = read_contents(folder).runs
    for moment in (first.last_ms + 1, second.first_ms - 1):
        with pytest.raises(
            InvalidArgumentError, match=r"the nearest moment before it is .* and the nearest after it is"
        ):
            restored(folder, tmp_path / "new", moment)
    for at, (moment, run) in enumerate([(first.last_ms, first), (second.first_ms, second), (None, second)]):
        report = restored(folder, tmp_path / f"{at}", moment)
        assert report.position
        assert report.position.timeline == run.first.timeline
        assert (b"between" in held_by(tmp_path / f"{at}").tables["default"]) == (run is second)


def test_an_archive_that_falls_behind_begins_anew(tmp_path: Path) -> None:
    folder, said = tmp_path / "archive", list[str]()
    with Store(tmp_path / "store", StoreConfig(**SMALL, changes_bytes=1 << 16)) as store:
        with archiving(store, folder, OF_FEW, say=said.append) as archiver:
            for _ in range(2):
                store.set(b"large", bytes(1 << 17))  # more than is held
            while "begins anew" not in "".join(said):
                store.set(b"large", bytes(1 << 17))
            take_base(archiver, folder)
            store.set(b"key", b"value")
            wanted = Model.of(store)
        runs = read_contents(folder).runs
        assert len(runs) > 1
        assert restored(folder, tmp_path / "new").position == runs[-1].end
    assert held_by(tmp_path / "new").tables == wanted.tables


def test_a_server_that_is_slow_is_asked_again(store: gpkvs.Store, tmp_path: Path) -> None:
    """A deadline that has passed is an error of the operating system, too, and none of the archive's disk."""
    said, failures = list[str](), [DeadlineError("the deadline of the call has passed")]

    def follow(since: Position | None) -> Following:
        if failures:
            raise failures.pop()
        return store.follow(since)

    folder = tmp_path / "archive"
    with Archiver(folder, Source("source", store, store.follow), follow, OF_FEW, said.append) as archiver:
        take_base(archiver, folder)
    assert said[0] == "nothing is archived until the server is there: the deadline of the call has passed"


def test_one_archiver_at_a_time(store: gpkvs.Store, tmp_path: Path) -> None:
    with archiving(store, tmp_path / "archive"):
        with (
            pytest.raises(StoreLockedError, match="archive is in use by another process"),
            archiving(store, tmp_path / "archive"),
        ):
            pass
        store.set(b"key", b"value")
    assert restored(tmp_path / "archive", tmp_path / "new").keys == 1


def test_what_no_restore_needs_is_removed(store: gpkvs.Store, tmp_path: Path) -> None:
    folder = tmp_path / "archive"
    with archiving(store, folder, OF_FEW) as archiver:
        for _ in range(3):
            set_one_by_one(store, 6)
            wait_for(archiver, store)
            archiver._next_at = 0.0
            take_base(archiver, folder)
        set_one_by_one(store, 6)
        wanted = Model.of(store)
        wait_for(archiver, store)
        remove_unneeded(folder, 1, print)  # all is of today
        assert len(bases(folder)) == 4
        before, moments = len(segments(folder)), read_contents(folder).bases
        age_days = (time.time() * 1000 - moments[2].time_ms - 1) / 86_400_000
        remove_unneeded(folder, age_days, print)
        assert bases(folder) == [base.directory for base in moments[2:]]
        assert 2 < len(segments(folder)) < before
        for at, moment in enumerate((moments[2].position, read_contents(folder).runs[0].first_ms)):
            assert restored(folder, tmp_path / f"old {at}", moment).keys == 6
        with pytest.raises(InvalidArgumentError, match="the nearest after it is"):
            restored(folder, tmp_path / "new", moments[1].position)
        remove_unneeded(folder, 0, print)
        assert bases(folder) == [moments[3].directory]
    restored(folder, tmp_path / "new")
    assert held_by(tmp_path / "new").tables == wanted.tables


FULL = """
import os, sys, time
from pathlib import Path
import gpkvs
from gpkvs.archive.contents import read_contents
from gpkvs.following import Following
from gpkvs.store import Store
from gpkvs.config import StoreConfig
from tests.archive.test_refusals import OF_FEW
from tests.archive.told import archiving, restored, take_base, wait_for
from tests.backup.writers import Model, held_by

disk, place = map(Path, sys.argv[1:3])
falls_behind = sys.argv[3] == "behind"
said = []
config = StoreConfig(index_bytes=1 << 20, heap_bytes=64 << 20, changes_bytes=(1 << 17) if falls_behind else 64 << 20)

def tell(text):
    print(text, flush=True)
    said.append(text)

with Store(place / "store", config) as store:
    with archiving(store, disk / "archive", OF_FEW, say=tell) as archiver:
        store.set(b"first", b"value")
        wait_for(archiver, store)
        filler = disk / "filler"
        with filler.open("wb") as file:
            try:
                while True:
                    file.write(bytes(1 << 16))
                    file.flush()
            except OSError:
                pass
        for at in range(10):
            store.set(b"%d" % at, os.urandom(100_000))
        while not any("until there is room" in text for text in said):
            time.sleep(0.01)
        runs = read_contents(disk / "archive").runs
        assert len(runs) == 1, runs
        filler.unlink()
        if falls_behind:
            take_base(archiver, disk / "archive")
        store.set(b"last", b"value")
        wanted = Model.of(store)
    assert len(read_contents(disk / "archive").runs) == 1 + falls_behind
    restored(disk / "archive", place / "new")
    assert held_by(place / "new").tables == wanted.tables
"""


@pytest.mark.parametrize("how", ["holds", "behind"])
def test_a_disk_that_is_full(tmp_path: Path, how: str) -> None:
    disk = tmp_path / "disk"
    disk.mkdir()
    unshare = ["unshare", "--mount", *([] if os.geteuid() == 0 else ["--map-root-user"])]
    script = 'mount -t tmpfs -o size=32M tmpfs "$1" || exit 99; exec "$2" -c "$3" "$1" "$4" "$5"'
    done = subprocess.run(
        [*unshare, "sh", "-c", script, "sh", disk, sys.executable, FULL, tmp_path, how],
        capture_output=True,
        text=True,
        check=False,
        cwd=ROOT,
        timeout=300,
    )
    if "unshare:" in done.stderr or done.returncode == 99:
        pytest.skip(f"no file system of its own may be mounted here: {done.stderr}")
    assert done.returncode == 0, done.stdout + done.stderr
    assert_clean(tmp_path / "store")


def test_a_restore_that_fails_leaves_nothing(store: gpkvs.Store, tmp_path: Path) -> None:
    """The changes are gone under it."""
    folder = tmp_path / "archive"
    with archiving(store, folder, OF_FEW):
        set_one_by_one(store, 9)

    def act(step: str, _share: float) -> None:
        if "copied" in step:
            segments(folder)[0].unlink()

    with pytest.raises(GpkvsError):
        restore(folder, tmp_path / "new", None, act)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["archive", "store"]
