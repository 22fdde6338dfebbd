"""What other tools make of a store's files: of a store that no process has open, and of one that is in use.

A copy of a closed store is a backup. Links are none, and are refused. Of a store in use, only what has all files at one
moment is worth anything: it is as after a crash.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

import gpkvs
from gpkvs.batch import Op
from gpkvs.client import Client
from gpkvs.config import CommitName
from gpkvs.errors import StoreError
from gpkvs.recovery.startup.check import check
from tests.backup.writers import Model
from tests.conftest import SMALL, assert_clean
from tests.programs import needs
from tests.serving import Server, run_gpkvs

ROOT = Path(__file__).parents[2]
COPIES = {
    "cp": ("cp", "--archive"),
    "cp without holes": ("cp", "--archive", "--sparse=never"),
    "cp with holes": ("cp", "--archive", "--sparse=always"),
    "cp with shared blocks": ("cp", "--archive", "--reflink=auto"),
}
RSYNC = ("rsync", "-a")
both_commits = pytest.mark.parametrize("commit", ["journal", "undo"])


def run(*command: str | Path) -> None:
    subprocess.run(command, check=True)


def close_one(path: Path, commit: CommitName = "journal") -> None:
    """Make a store and close it."""
    with gpkvs.open(path, commit=commit, **SMALL) as store:
        store.create_table("numbers", layout="u64", index_bytes=1 << 20)
        store.set_many([1, 2], [3, 4], table="numbers")
        for number in range(100):
            store.set(b"%d" % number, b"value")
        store.set(b"large", bytes(300_000))


def assert_like(copy: Path, old: Path) -> None:
    """Fail unless two stores hold the same, and neither sees what the other one writes."""
    assert_clean(copy)
    with gpkvs.open(copy) as one, gpkvs.open(old) as other:
        assert Model.of(one) == Model.of(other)
        one.set(b"of the copy", b"value")
        other.set(b"of the old one", b"value")
        assert (one.get(b"of the old one"), other.get(b"of the copy")) == (None, None)
    assert_clean(copy)
    assert_clean(old)


@both_commits
@pytest.mark.parametrize("tool", [*COPIES, pytest.param("rsync", marks=needs("rsync"))])
def test_a_copy_of_a_closed_store_is_a_store(tmp_path: Path, tool: str, commit: CommitName) -> None:
    close_one(tmp_path / "store", commit)
    run(*COPIES.get(tool, RSYNC), f"{tmp_path / 'store'}/.", tmp_path / "copy")
    assert_like(tmp_path / "copy", tmp_path / "store")


def hard_links(old: Path, new: Path) -> None:
    run("cp", "-al", old, new)


def snapshot_of_rsync(old: Path, new: Path) -> None:
    """Share what has not changed with the directory of another day, which here is the store itself."""
    run("rsync", "-a", f"--link-dest={old}", f"{old}/", new)


@pytest.mark.parametrize("link", [hard_links, pytest.param(snapshot_of_rsync, marks=needs("rsync"))])
def test_links_are_refused_on_both_sides_until_one_is_gone(tmp_path: Path, link: object) -> None:
    assert callable(link)
    old, new, real = tmp_path / "store", tmp_path / "links", tmp_path / "copy"
    close_one(old)
    link(old, new)
    for path in (new, old):
        with pytest.raises(StoreError, match=r"2 names \(hard links\): .*cp --archive --dereference --reflink=auto"):
            gpkvs.open(path)
        with pytest.raises(StoreError, match="2 names"):
            check(path)
    run("cp", "--archive", "--dereference", "--reflink=auto", new, real)  # as the message says
    shutil.rmtree(new)
    assert_like(real, old)


@needs("rsync")
@both_commits
def test_a_copy_that_is_there_is_brought_up_to_date(tmp_path: Path, commit: CommitName) -> None:
    """Files of a store keep their size, and rsync compares times by the second: it must compare what is in them."""
    store, copy = tmp_path / "store", tmp_path / "copy"
    close_one(store, commit)
    run("rsync", "-a", f"{store}/", copy)
    with gpkvs.open(store, create=False) as opened:
        opened.set(b"7", b"later")
    for file in copy.iterdir():
        os.utime(store / file.name, ns=(0, file.stat().st_mtime_ns))
    run("rsync", "-a", "--checksum", "--delete", f"{store}/", copy)
    assert_like(copy, store)


@needs("rsync")
def test_backups_that_share_files_are_refused_until_one_is_copied(tmp_path: Path) -> None:
    """rsync --link-dest, as rsnapshot and many scripts call it, of a store that is closed each night."""
    store, first, second = (tmp_path / name for name in ("store", "first", "second"))
    close_one(store)
    run("rsync", "-a", f"{store}/", first)
    with gpkvs.open(store, create=False) as opened:
        opened.set(b"7", b"later")
    run("rsync", "-a", "--checksum", f"--link-dest={first}", f"{store}/", second)
    assert any(file.stat().st_nlink > 1 for file in second.iterdir())
    for backup in (first, second):
        with pytest.raises(StoreError, match="has 2 names"):
            gpkvs.open(backup)
    run("cp", "--archive", "--dereference", "--reflink=auto", second, tmp_path / "copy")
    assert_like(tmp_path / "copy", store)


def test_links_to_a_store_that_is_served(tmp_path: Path) -> None:
    """It serves on and stops in order; nobody else may open the links; and it starts again when they are gone."""
    store, links = tmp_path / "store", tmp_path / "links"
    server = Server(store, tmp_path)
    try:
        with Client(server.target) as client:
            client.set(b"key", b"value")
            hard_links(store, links)
            second = run_gpkvs("serve", "--data", str(links), "--listen", "127.0.0.1:0", "--metrics", "127.0.0.1:0")
            assert second.returncode == 3
            assert b"is in use by process" in second.stderr
            client.set(b"key", b"other")
            client.create_table("more", index_bytes=1 << 20)
        server.stop()
    finally:
        server.kill()
    again = run_gpkvs("serve", "--data", str(store), "--listen", "127.0.0.1:0", "--metrics", "127.0.0.1:0")
    assert again.returncode == 1
    assert b"(hard links)" in again.stderr
    shutil.rmtree(links)
    assert_clean(store)
    with gpkvs.open(store) as opened:
        assert opened.get(b"key") == b"other"


@both_commits
def test_a_copy_file_by_file_of_a_store_in_use_is_worth_nothing(tmp_path: Path, commit: CommitName) -> None:
    """Here the records are read first, then something is written, then the rest is read."""
    path, copy = tmp_path / "store", tmp_path / "copy"
    copy.mkdir()
    with gpkvs.open(path, commit=commit, **SMALL) as store:
        store.set(b"key", b"value")
        names = sorted((file.name for file in path.iterdir()), key=lambda name: name not in ("heap", "data"))
        for at, name in enumerate(names):
            if at == 1:
                for number in range(1000):
                    store.set(b"%d" % number, b"value")
            shutil.copy2(path / name, copy / name)
    try:
        report = check(copy)
    except StoreError:
        return
    assert not report.is_clean or report.records < 1001


@contextmanager
def pairs_written(target: str) -> Iterator[list[int]]:
    """Have pairs of keys written meanwhile; the list has the number of the last one that was acknowledged."""
    written, is_over = [0], threading.Event()

    def write() -> None:
        with Client(target) as client:
            while not is_over.is_set():
                value = b"%d" % (written[0] + 1)
                client.batch([(Op.SET, b"left", value), (Op.SET, value, bytes(200)), (Op.SET, b"right", value)])
                written[0] += 1

    writer = threading.Thread(target=write)
    writer.start()
    try:
        yield written
    finally:
        is_over.set()
        writer.join()


def assert_has_whole_pairs(path: Path, acknowledged: int) -> None:
    """Fail unless all that was acknowledged is in a store, and no half of a transaction."""
    with gpkvs.open(path) as store:
        left, right = store.get(b"left"), store.get(b"right")
        assert left == right
        last = int(left or 0)
        assert last >= acknowledged
        assert all(store.get(b"%d" % number) == bytes(200) for number in range(1, last + 1))
    assert_clean(path)


@both_commits
def test_a_copy_of_a_server_that_stands_still_is_as_after_a_crash(tmp_path: Path, commit: CommitName) -> None:
    server = Server(tmp_path / "store", tmp_path, "--commit", commit)
    try:
        with pairs_written(server.target) as written:
            for number in range(3):
                while written[0] < 50 * (number + 1):
                    time.sleep(0.001)
                server.freeze()
                acknowledged = written[0]
                copy = tmp_path / f"copy {number}"
                run("cp", "--archive", server.data, copy)
                server.thaw()
                assert_has_whole_pairs(copy, acknowledged)
        server.stop()
    finally:
        server.kill()


# Runs in a mount namespace of its own, with a Btrfs at argv[1].
SNAPSHOTS = """
import subprocess, sys, time
from pathlib import Path
from tests.backup.test_copies_of_files import assert_has_whole_pairs, assert_like, close_one, pairs_written
from tests.serving import Server

disk, commit = Path(sys.argv[1]), sys.argv[2]
subprocess.run(["btrfs", "-q", "subvolume", "create", disk / "live"], check=True)
server = Server(disk / "live" / "store", disk, "--commit", commit)
try:
    with pairs_written(server.target) as written:
        for number in range(2):
            while written[0] < 50 * (number + 1):
                time.sleep(0.001)
            acknowledged, snapshot = written[0], disk / f"snapshot {number}"
            subprocess.run(["btrfs", "-q", "subvolume", "snapshot", disk / "live", snapshot], check=True)
            assert_has_whole_pairs(snapshot / "store", acknowledged)
    server.stop()
finally:
    server.kill()
close_one(disk / "closed", commit)
subprocess.run(["cp", "--archive", "--reflink=always", disk / "closed", disk / "shared"], check=True)
assert_like(disk / "shared", disk / "closed")
print("done")
"""


@pytest.mark.machine
@both_commits
def test_a_snapshot_of_a_file_system_is_as_after_a_crash(tmp_path: Path, commit: CommitName) -> None:
    """Of a store that is served; and of one that is closed, a copy that shares blocks is a store."""
    if os.geteuid() or not shutil.which("mkfs.btrfs"):
        pytest.skip("only root mounts a Btrfs of its own, made by mkfs.btrfs")
    disk = tmp_path / "disk"
    disk.mkdir()
    made = 'truncate -s 400M "$4" && mkfs.btrfs -q "$4" && mount -o loop "$4" "$1"'
    script = f'{{ {made}; }} || exit 99; exec "$2" -c "$3" "$1" "$5"'
    arguments = ["sh", str(disk), sys.executable, SNAPSHOTS, str(tmp_path / "image"), commit]
    done = subprocess.run(
        ["unshare", "--mount", "sh", "-c", script, *arguments], capture_output=True, text=True, check=False, cwd=ROOT
    )
    if done.returncode == 99:
        pytest.skip(f"no file system of its own may be mounted here: {done.stderr}")
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.endswith("done\n")
