"""A backup that cannot be made says why and what to do, leaves its source as it was, and nothing where it was to be."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

import gpkvs
from gpkvs.backup import place
from gpkvs.backup.place import claimed
from gpkvs.config import StoreConfig
from gpkvs.errors import (
    ChangesLostError,
    CorruptRecordError,
    InvalidArgumentError,
    StoreAccessError,
    StoreClosedError,
    StoreError,
    StoreLockedError,
)
from gpkvs.recovery.startup.check import check
from gpkvs.store import Store
from tests.backup.steps import at_step
from tests.conftest import SMALL, assert_clean
from tests.faults.conftest import ROOT
from tests.serving import WITHOUT_ROOT_RIGHTS


@pytest.fixture
def store(tmp_path: Path) -> Iterator[gpkvs.Store]:
    with gpkvs.open(tmp_path / "store", **SMALL) as opened:
        opened.set(b"key", b"value")
        yield opened
    assert_clean(tmp_path / "store")


def names(folder: Path) -> list[str]:
    return sorted(entry.name for entry in folder.iterdir())


def test_what_is_there_stays(store: gpkvs.Store, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("precious")
    (tmp_path / "empty").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "nowhere")
    store.backup(tmp_path / "backup")
    before = names(tmp_path)
    for name in ("file", "empty", "link", "backup"):
        with pytest.raises(StoreError, match=f"{name} is there already: .* name another one"):
            store.backup(tmp_path / name)
    assert names(tmp_path) == before
    assert (tmp_path / "file").read_text() == "precious"
    assert_clean(tmp_path / "backup")


def test_what_somebody_makes_meanwhile_stays(store: gpkvs.Store, tmp_path: Path) -> None:
    def make() -> None:
        (tmp_path / "backup").mkdir()
        (tmp_path / "backup" / "mine").write_text("precious")

    with at_step("before_backup_rename", make), pytest.raises(StoreError, match="is there already"):
        store.backup(tmp_path / "backup")
    assert names(tmp_path) == ["backup", "store"]
    assert names(tmp_path / "backup") == ["mine"]


def test_no_backup_lies_in_its_source(store: gpkvs.Store, tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to(tmp_path / "store")
    for name in ("store", "store/backup", "link/a/b"):
        with pytest.raises(InvalidArgumentError, match="lies in the store: name another one"):
            store.backup(tmp_path / name)


def test_what_no_backup_has_made_is_not_removed(store: gpkvs.Store, tmp_path: Path) -> None:
    (tmp_path / "backup.partial" / "store").mkdir(parents=True)
    (tmp_path / "backup.partial" / "mine").write_text("precious")
    with pytest.raises(StoreError, match="'mine', which no backup has made: move it away"):
        store.backup(tmp_path / "backup")
    assert names(tmp_path / "backup.partial") == ["mine", "store"]
    (tmp_path / "other.partial").write_text("precious")
    with pytest.raises(StoreAccessError, match=r"other\.partial: Not a directory"):
        store.backup(tmp_path / "other")


@pytest.mark.parametrize("path", [".", "", "/", ".."])
def test_a_directory_without_a_name_of_its_own_is_there(
    tmp_path: Path, path: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with gpkvs.open(tmp_path / "store", **SMALL) as store, pytest.raises(StoreError, match="is there already"):
        store.backup(path)


def test_one_backup_at_a_time_has_a_name(store: gpkvs.Store, tmp_path: Path) -> None:
    def another() -> None:
        with pytest.raises(StoreLockedError, match=r"backup\.partial is in use by another process"):
            store.backup(tmp_path / "backup")

    with at_step("mid_backup_scan", another):
        store.backup(tmp_path / "backup")
    assert_clean(tmp_path / "backup")
    with claimed(tmp_path / "next"), pytest.raises(StoreLockedError):
        store.backup(tmp_path / "next")
    assert names(tmp_path) == ["backup", "store"]


def test_records_that_are_damaged(tmp_path: Path) -> None:
    with gpkvs.open(tmp_path / "store", **SMALL, commit="undo", store_format="3") as store:
        store.create_table("t", index_bytes=1 << 20)
        store.set(b"key", b"the value that rots", table="t")
        store.set(b"key", b"sound")
    heap = tmp_path / "store" / "heap"
    heap.write_bytes(heap.read_bytes().replace(b"the value that rots", b"the value that rott"))
    with gpkvs.open(tmp_path / "store") as store:
        with pytest.raises(CorruptRecordError, match=r"table 't' of .*store holds records that fail .*runbook"):
            store.backup(tmp_path / "backup")
        assert store.get(b"key") == b"sound"
    assert names(tmp_path) == ["store"]


def test_a_source_that_closes(tmp_path: Path) -> None:
    store = gpkvs.open(tmp_path / "store", **SMALL)
    for key in range(100):
        store.set(b"%d" % key, b"value")
    with at_step("mid_backup_scan", store.close), pytest.raises(StoreClosedError, match="is closed"):
        store.backup(tmp_path / "backup")
    with pytest.raises(StoreClosedError):
        store.backup(tmp_path / "backup")
    assert names(tmp_path) == ["store"]
    assert_clean(tmp_path / "store")


def test_a_source_that_changes_faster_than_it_is_read(tmp_path: Path) -> None:
    config = StoreConfig(**SMALL, changes_bytes=1 << 16)
    with Store(tmp_path / "store", config) as store:
        store.set(b"key", b"value")

        def outrun() -> None:
            store.set(b"large", bytes(1 << 17))

        with at_step("mid_backup_scan", outrun), pytest.raises(ChangesLostError, match="no longer held"):
            store.backup(tmp_path / "backup")
        store.backup(tmp_path / "backup")
    assert names(tmp_path) == ["backup", "store"]


def test_changes_that_rot_in_their_file(store: gpkvs.Store, tmp_path: Path) -> None:
    def rot() -> None:
        path = tmp_path / "backup.partial" / "changes"
        path.write_bytes(path.read_bytes().replace(b"later", b"latex"))

    def change() -> None:
        store.set(b"key", b"later")

    with at_step("before_backup_apply", rot), pytest.raises(StoreError, match="not what was written"):
        store.backup(tmp_path / "backup", on_progress=lambda step, _: change() if "scanning" in step else None)
    assert names(tmp_path) == ["store"]


def test_a_new_store_that_rots(store: gpkvs.Store, tmp_path: Path) -> None:
    def rot() -> None:
        for name in ("heap", "data"):
            path = tmp_path / "backup.partial" / "store" / name
            if path.exists():
                path.write_bytes(path.read_bytes().replace(b"value", b"vague"))

    with at_step("before_backup_check", rot), pytest.raises(StoreError, match=r"not as it was written.*Check the disk"):
        store.backup(tmp_path / "backup")
    assert names(tmp_path) == ["store"]


def test_a_store_that_is_filled_is_refused_by_whoever_opens_it(store: gpkvs.Store, tmp_path: Path) -> None:
    unfinished = tmp_path / "backup.partial" / "store"

    def copy() -> None:
        subprocess.run(["cp", "-r", unfinished, tmp_path / "copy"], check=True)

    with at_step("before_backup_apply", copy):
        store.backup(tmp_path / "backup")
    for use in (gpkvs.open, check):
        with pytest.raises(StoreError, match="holds a backup that was not finished: take another one"):
            use(tmp_path / "copy")


def test_interrupts(store: gpkvs.Store, tmp_path: Path) -> None:
    steps: list[str] = []
    store.backup(tmp_path / "whole", on_progress=lambda step, _: steps.append(step))
    for last in dict.fromkeys(steps):  # on a busy machine, one may be told several times

        def interrupt(step: str, _share: float, last: str = last) -> None:
            if step == last:
                raise KeyboardInterrupt

        with pytest.raises(KeyboardInterrupt):
            store.backup(tmp_path / "backup", on_progress=interrupt)
        assert names(tmp_path) == [*["backup"] * (last == "backed up"), "store", "whole"]
    assert_clean(tmp_path / "backup")


@pytest.mark.parametrize("step", ["make_directory", "_is_still"])
def test_an_interrupt_before_there_is_anything(
    store: gpkvs.Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, step: str
) -> None:
    done: Callable[..., object] = getattr(place, step)

    def interrupt(*arguments: object) -> object:
        monkeypatch.setattr(place, step, done)
        done(*arguments)
        raise KeyboardInterrupt

    monkeypatch.setattr(place, step, interrupt)
    with pytest.raises(KeyboardInterrupt):
        store.backup(tmp_path / "backup")
    assert names(tmp_path) == ["store"]


# Root may write anywhere, and space is one's own in a file system of one's own.
NOT_WRITABLE = """
import sys, gpkvs
from gpkvs.errors import StoreAccessError
with gpkvs.open(sys.argv[1]) as store:
    try:
        store.backup(sys.argv[2])
    except StoreAccessError as error:
        print(error)
"""


def test_a_folder_that_is_not_writable(store: gpkvs.Store, tmp_path: Path) -> None:
    (tmp_path / "theirs").mkdir(mode=0o500)
    store.backup(tmp_path / "source")
    command = [sys.executable, "-c", WITHOUT_ROOT_RIGHTS, sys.executable, "-c", NOT_WRITABLE]
    done = subprocess.run(
        [*command, tmp_path / "source", tmp_path / "theirs" / "backup"], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    assert "Permission denied: give this user read and write permission" in done.stdout


FULL = """
import os, sys, gpkvs
from pathlib import Path
from gpkvs.process import failpoint
from gpkvs.errors import NoSpaceError
from gpkvs.recovery.startup.check import check

disk, place = map(Path, sys.argv[1:])
with gpkvs.open(place / "store", index_bytes=1 << 20, heap_bytes=64 << 20, commit="undo") as store:
    for key in range(100):
        store.set(b"%d" % key, os.urandom(100_000))
    if sys.argv[2].endswith("changes"):
        for key in range(100):
            store.delete(b"%d" % key)
        failpoint.stop_instead(lambda: [store.set(b"%d" % key, os.urandom(100_000)) for key in range(200)])
        store.set(b"key", b"value")
        failpoint.arm("mid_backup_scan")
    try:
        store.backup(disk / "backup")
    except NoSpaceError as error:
        assert error.resource == "disk", error
        print("refused:", error)
    assert os.listdir(disk) == [], os.listdir(disk)
    store.set(b"7", b"new")
assert check(place / "store").is_clean
"""


@pytest.mark.parametrize(("megabytes", "name"), [(1, "new"), (8, "new"), (12, "new"), (20, "changes")])
def test_a_disk_that_is_full(tmp_path: Path, megabytes: int, name: str) -> None:
    """It is full when the new store is made, while it is filled, or while the changes are written."""
    disk, place = tmp_path / "disk", tmp_path / name
    disk.mkdir()
    place.mkdir()
    unshare = ["unshare", "--mount", *([] if os.geteuid() == 0 else ["--map-root-user"])]
    script = f'mount -t tmpfs -o size={megabytes}M tmpfs "$1" || exit 99; exec "$2" -c "$3" "$1" "$4"'
    done = subprocess.run(
        [*unshare, "sh", "-c", script, "sh", disk, sys.executable, FULL, place],
        capture_output=True,
        text=True,
        check=False,
        cwd=ROOT,
    )
    if "unshare:" in done.stderr or done.returncode == 99:
        pytest.skip(f"no file system of its own may be mounted here: {done.stderr}")
    assert done.returncode == 0, done.stderr
    assert "refused: disk full: " in done.stdout
    assert ("changes: No space left" if name == "changes" else "make room, or take another disk") in done.stdout
