"""A file system without a byte left, under a store with a journal: what needs no room goes on, what does is refused."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.faults.conftest import ROOT

MEGABYTES = 24

# The first life ends by SIGKILL, the second one recovers on the full disk. Each runs in a file system of its own.
_LIVES = """
import errno, os, signal, sys
from pathlib import Path
import numpy as np
import gpkvs
from gpkvs.batch import Batch, Op
from gpkvs.errors import NoSpaceError
from gpkvs.recovery.startup.check import check

path, filler = sys.argv[1] + "/store", sys.argv[1] + "/filler"
SIZES = dict(index_bytes=1 << 20, heap_bytes=8 << 20, journal_bytes=1 << 20, commit="journal", durability="msync")
numbers = np.arange(2000, dtype=np.uint64)


def value(key, generation):
    return b"%d of %d" % (generation, key) + bytes(100)


def write(store, generation):
    keys = range(1000)
    store.execute(Batch.of([(Op.SET, b"%d" % key, value(key, generation)) for key in keys]))
    store.execute(Batch.of([(Op.DELETE, b"%d" % key) for key in keys if key % 10 == generation % 10]))
    store.set_many(numbers, numbers + np.uint64(generation), table="numbers")


def see(store, generation):
    for key in range(1000):
        expected = None if key % 10 == generation % 10 else value(key, generation)
        assert store.get(b"%d" % key) == expected, key
    values, found = store.get_many(numbers, table="numbers")
    assert found.all() and (values == numbers + np.uint64(generation)).all()


def checkpoints(store):
    return store.info().journal.checkpoints


def is_refused(store):
    try:
        store.create_table("more", index_bytes=2 << 20)
    except NoSpaceError as error:
        assert error.resource == "disk", error
        print(error, flush=True)  # the first life is killed
        return True
    return False


def fill():
    with open(filler, "wb", buffering=0) as file:
        for size in (65536, 4096, 512, 1):
            try:
                while True:
                    file.write(bytes(size))
            except OSError as error:
                assert error.errno == errno.ENOSPC
        os.fsync(file.fileno())


def first_life():
    store = gpkvs.open(path, **SIZES)
    for name, layout in (("numbers", "u64"), ("extra", "bytes"), ("spare", "bytes")):
        store.create_table(name, layout=layout, index_bytes=1 << 20)
    store.set(b"x", b"y", table="extra")
    write(store, 0)
    fill()
    before = checkpoints(store)
    for generation in range(1, 31):  # the heap is used several times over, the journal too
        write(store, generation)
    see(store, 30)
    assert checkpoints(store) > before
    assert is_refused(store)
    store.drop_table("extra")  # gives room back
    fill_again = open(filler, "ab", buffering=0)
    try:
        while True:
            fill_again.write(bytes(4096))
    except OSError as error:
        assert error.errno == errno.ENOSPC
    write(store, 31)
    assert is_refused(store)
    os.kill(os.getpid(), signal.SIGKILL)


def second_life():
    with gpkvs.open(path, durability="msync") as store:
        assert store.info().recovery.replayed_batches > 0
        see(store, 31)
        for generation in range(32, 52):
            write(store, generation)
        assert is_refused(store)
        store.drop_table("spare")
        see(store, 51)
    with gpkvs.open(path, durability="msync") as store:
        see(store, 51)
        os.remove(filler)
        store.create_table("more", index_bytes=2 << 20)
        store.set(b"k", b"v", table="more")
        write(store, 52)
    with gpkvs.open(path) as store:
        see(store, 52)
        assert store.get(b"k", table="more") == b"v"
    assert check(Path(path)).is_clean
    print("done")


first_life() if sys.argv[2] == "first" else second_life()
"""

_MOUNTS = {
    "tmpfs": f'mount -t tmpfs -o size={MEGABYTES}m none "$1"',
    "ext4": f'truncate -s {MEGABYTES}M "$4" && mkfs.ext4 -q -m 0 "$4" && mount -o loop "$4" "$1"',
}
_BOTH_LIVES = '; "$2" -c "$3" "$1" first; [ $? = 137 ] && "$2" -c "$3" "$1" second'


@pytest.mark.parametrize("kind", [pytest.param("ext4", marks=pytest.mark.machine), "tmpfs"])
def test_a_journal_goes_on_without_a_byte(tmp_path: Path, kind: str) -> None:
    if kind == "ext4" and (os.geteuid() or not shutil.which("mkfs.ext4")):
        pytest.skip("only root mounts an ext4 file system of its own, made by mkfs.ext4")
    place = tmp_path / "disk"
    place.mkdir()
    unshare = ["unshare", "--mount", *([] if os.geteuid() == 0 else ["--map-root-user"])]
    script = f"{{ {_MOUNTS[kind]}; }} || exit 99{_BOTH_LIVES}"
    arguments = ["sh", str(place), sys.executable, _LIVES, str(tmp_path / "image")]
    done = subprocess.run(
        [*unshare, "sh", "-c", script, *arguments], capture_output=True, text=True, check=False, cwd=ROOT
    )
    if "unshare:" in done.stderr or done.returncode == 99:
        pytest.skip(f"no file system of its own may be mounted here: {done.stderr}")
    *refusals, last = done.stdout.splitlines() or [""]
    assert last == "done", done.stderr
    assert len(refusals) == 3
    assert all("disk" in line for line in refusals), refusals
    print(refusals[0])
