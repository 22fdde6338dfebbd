"""A store's files have one name each, and one process: whatever leads to them."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

import gpkvs
from gpkvs.errors import NoSpaceError, StoreAccessError, StoreError, StoreLockedError, StoreMissingError
from gpkvs.recovery.copy.copy import CopySizes, copy_store
from gpkvs.recovery.startup.check import check
from tests.conftest import SMALL

Make = Callable[[Path, Path], None]


def hard_links(old: Path, new: Path) -> None:
    subprocess.run(["cp", "-al", old, new], check=True)


def symbolic_links(old: Path, new: Path) -> None:
    new.mkdir()
    for file in old.iterdir():
        (new / file.name).symlink_to(file)


def copy(old: Path, new: Path | None = None) -> None:
    copy_store(old, new or old.with_name("copied"), CopySizes(), lambda _step, _share: None)


OPENINGS: dict[str, Callable[[Path], object]] = {
    "open": lambda path: gpkvs.open(path).close(),
    "open there": lambda path: gpkvs.open(path, create=False).close(),
    "recover": lambda path: gpkvs.open(path, create=False, accept_loss=True).close(),
    "check": check,
    "copy": copy,
}
every_link = pytest.mark.parametrize("make", [hard_links, symbolic_links])
both_commits = pytest.mark.parametrize("commit", ["journal", "undo"])


@both_commits
@every_link
def test_an_open_store_is_in_use_under_every_name(tmp_path: Path, make: Make, commit: str) -> None:
    old, new = tmp_path / "old", tmp_path / "new"
    with gpkvs.open(old, commit=commit, **SMALL) as store:
        store.set(b"k", b"v")
        make(old, new)
        for opening in OPENINGS.values():
            with pytest.raises(StoreLockedError, match=f"{new} is open in this process already: share that store"):
                opening(new)
        assert store.get(b"k") == b"v"
    assert not (tmp_path / "copied").exists()


@every_link
def test_a_store_that_shares_its_files_is_refused_until_it_is_copied(tmp_path: Path, make: Make) -> None:
    old, new, real = tmp_path / "old", tmp_path / "new", tmp_path / "real"
    with gpkvs.open(old, **SMALL) as store:
        store.set(b"k", b"v")
    make(old, new)
    before = {file.name: file.read_bytes() for file in new.iterdir()}
    for opening in OPENINGS.values():
        with pytest.raises(StoreError, match=r"root (has 2 names \(hard links\)|is a symbolic link): .*") as refused:
            opening(new)
    assert {file.name: file.read_bytes() for file in new.iterdir()} == before
    assert {file.name for file in old.iterdir()} == set(before)

    command = str(refused.value).rpartition("use the copy: ")[2].replace(" NEW", f" {real}")
    subprocess.run(command.split(), check=True)
    shutil.rmtree(new)
    for opening in OPENINGS.values():
        opening(real)
    with gpkvs.open(real) as store:
        assert store.get(b"k") == b"v"
        store.set(b"k", b"other")
    with gpkvs.open(old) as store:
        assert store.get(b"k") == b"v"


@both_commits
def test_any_file_that_is_shared_is_refused(tmp_path: Path, commit: str) -> None:
    """One link is enough: to the table of numbers, say, of a store whose root is its own."""
    path, elsewhere = tmp_path / "store", tmp_path / "elsewhere"
    with gpkvs.open(path, commit=commit, **SMALL) as store:
        store.create_table("more", index_bytes=1 << 16)
    names = sorted(file.name for file in path.iterdir())
    assert {"LOCK", "root", "index-0-0", "index-1-0", "recovery.json"} < set(names)
    for name in names:
        os.link(path / name, elsewhere)
        with pytest.raises(StoreError, match=rf"{path / name} has 2 names"):
            gpkvs.open(path)
        elsewhere.unlink()
        shutil.move(path / name, elsewhere)
        (path / name).symlink_to(elsewhere)
        with pytest.raises(StoreError, match=rf"{path / name} is a symbolic link"):
            gpkvs.open(path)
        (path / name).unlink()
        shutil.move(elsewhere, path / name)
    gpkvs.open(path).close()


def test_a_link_that_is_no_file_of_the_store_does_not_hinder(tmp_path: Path) -> None:
    gpkvs.open(tmp_path / "store", **SMALL).close()
    (tmp_path / "store" / "README").symlink_to("/etc/hostname")
    gpkvs.open(tmp_path / "store").close()


def test_the_process_is_not_written_to_what_a_link_leads_to(tmp_path: Path) -> None:
    path, notes = tmp_path / "store", tmp_path / "notes"
    notes.write_text("do not lose")
    path.mkdir()
    (path / "LOCK").symlink_to(notes)
    with pytest.raises(StoreError, match="is a symbolic link"):
        gpkvs.open(path)
    assert notes.read_text() == "do not lose"
    assert [file.name for file in path.iterdir()] == ["LOCK"]


def test_the_directory_may_be_reached_through_a_link(tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to(tmp_path / "disk")
    (tmp_path / "disk").mkdir()
    with gpkvs.open(tmp_path / "link", **SMALL) as store:
        store.set(b"k", b"v")
        with pytest.raises(StoreLockedError):
            gpkvs.open(tmp_path / "disk")
    assert check(tmp_path / "link").is_clean
    copy(tmp_path / "link")


def test_a_directory_in_place_of_the_root_is_no_store(tmp_path: Path) -> None:
    (tmp_path / "root").mkdir()
    for opening in OPENINGS.values():
        with pytest.raises(StoreError, match="root is not a regular file"):
            opening(tmp_path)


def test_nobody_gets_a_store_that_is_being_created(tmp_path: Path) -> None:
    """Neither before its root is there nor after, and nobody says that there is none."""
    path, steps = tmp_path / "store", []

    def intrude(step: str, _share: float) -> None:
        steps.append(step)
        for opening in OPENINGS.values():
            with pytest.raises(StoreLockedError):
                opening(path)

    gpkvs.open(path, **SMALL, on_progress=intrude).close()
    assert {"reserving the heap", "created"} < set(steps)


def test_readers_of_a_store_need_no_right_to_write(tmp_path: Path) -> None:
    gpkvs.open(tmp_path / "store", **SMALL).close()
    opened, real = [], os.open

    def watch(file: Path, flags: int, *arguments: int, **named: int) -> int:
        opened.append((file, flags & (os.O_WRONLY | os.O_RDWR)))
        return real(file, flags, *arguments, **named)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "open", watch)
        assert check(tmp_path / "store").is_clean
    assert {name for name, writes in opened if writes} == set()
    assert (tmp_path / "store" / "root", 0) in opened


def test_no_store(tmp_path: Path) -> None:
    for name in ("open there", "recover", "check", "copy"):
        with pytest.raises(StoreMissingError):
            OPENINGS[name](tmp_path / "missing")
    assert not list(tmp_path.iterdir())


@both_commits
def test_a_store_that_is_moved_while_it_is_open_touches_no_other_one(tmp_path: Path, commit: str) -> None:
    """Files are made, extended, removed and given back by name, and the name may be another store's by then."""
    path, moved, numbers = tmp_path / "store", tmp_path / "moved", np.arange(1000, dtype=np.uint64)
    sizes = {"index_bytes": 1 << 18, "heap_bytes": 1 << 20, "heap_bytes_max": 1 << 30, "log_bytes": 1 << 17}
    store = gpkvs.open(path, commit=commit, **sizes)
    store.create_table("dropped", index_bytes=1 << 16)
    store.create_table("numbers", layout="u64", index_bytes=1 << 16)
    store.set(b"k", b"v")
    path.rename(moved)
    with pytest.raises(StoreAccessError, match="was moved or removed: close the store, and open it where it is now"):
        store.create_table("more", index_bytes=1 << 16)

    with gpkvs.open(path, commit=commit, **sizes) as other:
        other.create_table("own", index_bytes=1 << 16)
        other.set(b"k", b"other")
    before = {file.name: (file.read_bytes(), file.stat().st_blocks) for file in path.iterdir()}
    for change in (
        lambda: store.create_table("more", index_bytes=1 << 16),
        lambda: store.drop_table("dropped"),
        lambda: [store.set(b"%d" % number, bytes(60_000)) for number in range(100)],
        lambda: [store.set_many(numbers + at, numbers, table="numbers") for at in range(0, 9000, 1000)],
    ):
        with pytest.raises((StoreAccessError, NoSpaceError), match="was moved or removed"):
            change()
    assert store.get(b"k") == b"v"
    store.close()
    assert {file.name: (file.read_bytes(), file.stat().st_blocks) for file in path.iterdir()} == before
    for name, value in ((moved, b"v"), (path, b"other")):
        assert check(name).is_clean
        with gpkvs.open(name) as found:
            assert found.get(b"k") == value
            found.create_table("more", index_bytes=1 << 16)
