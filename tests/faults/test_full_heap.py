"""The heap grows until the disk is full: what needs no new space goes on, and when there is room again, all does."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.faults.conftest import ROOT

MEGABYTES = 24

# Runs in a file system of its own.
_LIFE = """
import os, sys, time
from pathlib import Path
import gpkvs
from gpkvs.batch import Batch, Op, Status
from gpkvs.engine.state import refused
from gpkvs.errors import NoSpaceError
from gpkvs.recovery.startup.check import check

refused.MEMORY_SPARE_BYTES = 0
path, filler, commit = sys.argv[1] + "/store", sys.argv[1] + "/filler", sys.argv[2]
SIZES = dict(index_bytes=1 << 20, heap_bytes=1 << 20, heap_bytes_max=1 << 30, journal_bytes=2 << 20, log_bytes=1 << 20)
expected = {}


def write(store, first, last, value):
    batch = Batch.of([(Op.SET, b"%d" % key, b"%d " % key + value) for key in range(first, last)])
    store.execute(batch)
    expected.update({b"%d" % key: b"%d " % key + value for key in range(first, last)})


def see(store):
    for key, value in expected.items():
        assert store.get(key) == value, key


def free():
    found = os.statvfs(sys.argv[1])
    return found.f_bavail * found.f_frsize


def fill(leave):
    with open(filler, "ab", buffering=0) as file:
        while free() > leave:
            try:
                file.write(bytes(min(1 << 16, free() - leave)))
            except OSError:
                break
        os.fsync(file.fileno())


with gpkvs.open(path, commit=commit, durability="msync", **SIZES) as store:
    store.create_table("extra", index_bytes=1 << 20)
    store.create_table("spare", layout="u64", index_bytes=4 << 20)
    store.set(b"x", b"y", table="extra")
    write(store, 0, 100, bytes(4000))
    fill(leave=3 << 20)
    refusal, last = None, 100
    while not refusal:
        try:
            write(store, last, last + 50, bytes(4000))
            last += 50
        except NoSpaceError as error:
            if "it grows" not in str(error):  # a disk that is nearly full gives a little now and then
                refusal = error
    assert refusal.resource == "heap" and "bytes free" in str(refusal) and "asked for" in str(refusal), refusal
    print(refusal)
    assert last > 600, last  # all that the disk had was used: 1 MiB at first, 3 MiB left of the disk
    assert "the disk has" in store.info().heap_growth_waits
    see(store)
    # What needs no new space goes on.
    for key in range(0, last, 2):
        del expected[b"%d" % key]
    deleted = store.execute(Batch.of([(Op.DELETE, b"%d" % key) for key in range(0, last, 2)]))
    assert (deleted.status == Status.OK).all()
    assert store.delete(b"1")
    del expected[b"1"]
    store.drop_table("extra")
    see(store)
    with_room = store.info().heap_bytes
    # It works again by itself.
    os.remove(filler)
    store.drop_table("spare")
    deadline = time.monotonic() + 60
    while True:
        try:
            write(store, last, last + 200, bytes(4000))
            break
        except NoSpaceError:
            assert time.monotonic() < deadline
            time.sleep(0.1)
    write(store, last + 200, last + 1000, bytes(4000))
    assert store.info().heap_bytes > with_room
    assert not store.info().heap_growth_waits
    see(store)
    fill(leave=0)  # and again
    last += 1000
    while True:
        try:
            write(store, last, last + 100, bytes(4000))
            last += 100
        except NoSpaceError as error:
            assert error.resource == "heap", error
            break
    see(store)
    print(store.info().heap_growth_waits)
with gpkvs.open(path, durability="msync") as store:  # on the full disk
    see(store)
    store.delete(b"101")
    expected.pop(b"101", None)
    see(store)
assert check(Path(path)).is_clean
print("done")
"""

_MOUNTS = {
    "tmpfs": f'mount -t tmpfs -o size={MEGABYTES}m none "$1"',
    "ext4": f'truncate -s {MEGABYTES}M "$5" && mkfs.ext4 -q -m 0 "$5" && mount -o loop "$5" "$1"',
}


@pytest.mark.parametrize(
    ("kind", "commit"), [pytest.param("ext4", "journal", marks=pytest.mark.machine), ("tmpfs", "undo")]
)
def test_a_heap_that_fills_the_disk(tmp_path: Path, kind: str, commit: str) -> None:
    if kind == "ext4" and (os.geteuid() or not shutil.which("mkfs.ext4")):
        pytest.skip("only root mounts an ext4 file system of its own, made by mkfs.ext4")
    place = tmp_path / "disk"
    place.mkdir()
    unshare = ["unshare", "--mount", *([] if os.geteuid() == 0 else ["--map-root-user"])]
    script = f'{{ {_MOUNTS[kind]}; }} || exit 99; "$2" -c "$3" "$1" "$4"'
    arguments = ["sh", str(place), sys.executable, _LIFE, commit, str(tmp_path / "image")]
    done = subprocess.run(
        [*unshare, "sh", "-c", script, *arguments], capture_output=True, text=True, check=False, cwd=ROOT
    )
    if "unshare:" in done.stderr or done.returncode == 99:
        pytest.skip(f"no file system of its own may be mounted here: {done.stderr}")
    *said, last = done.stdout.splitlines() or [""]
    assert last == "done", done.stdout + done.stderr
    print(*said, sep="\n")
