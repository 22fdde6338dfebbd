"""The heap gave space back, and then the disk is full: nobody stores to a hole, and what needs no space goes on."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.faults.conftest import ROOT

MEGABYTES = 32

# The first life ends by SIGKILL, the second one recovers on the full disk. Each runs in a file system of its own.
_LIVES = """
import os, signal, sys, time
from pathlib import Path
import numpy as np
import gpkvs
from gpkvs.batch import Batch, Op
from gpkvs.engine.space import given_space
from gpkvs.engine.space import heap_growth
from gpkvs.engine.state import refused
from gpkvs.errors import NoSpaceError
from gpkvs.recovery.startup.check import check

refused.MEMORY_SPARE_BYTES = 0
heap_growth.pace_of = lambda *_: heap_growth.Pace(2, 256 << 10, 256 << 10, 4, 64 << 20)
clock = [1000.0]
given_space.now = lambda: clock[0]
path, filler, commit = sys.argv[1] + "/store", sys.argv[1] + "/filler", sys.argv[2]
SIZES = dict(index_bytes=256 << 10, heap_bytes=128 << 10, heap_bytes_max=1 << 20, log_bytes=1 << 20)
COUNT = 1600


def value(key, generation):
    return b"%d of %d " % (generation, key) * 300


def write(store, keys, generation, table="default"):
    keys = list(keys)
    for first in range(0, len(keys), 50):
        part = keys[first : first + 50]
        store.execute(Batch.of([(Op.SET, b"%d" % key, value(key, generation)) for key in part]), table=table)


def delete(store, keys):
    store.execute(Batch.of([(Op.DELETE, b"%d" % key) for key in keys]))


def see(store, keys, generation):
    for key in range(COUNT):
        expected = value(key, generation) if key in keys else None
        assert store.get(b"%d" % key) == expected, key


def refusal(call):
    try:
        call()
    except NoSpaceError as error:
        return error
    raise AssertionError("it was not refused")


def fill():
    with open(filler, "ab", buffering=0) as file:
        for size in (65536, 4096, 512, 1):
            try:
                while True:
                    file.write(bytes(size))
            except OSError:
                pass
        os.fsync(file.fileno())


def write_more(store):
    for key in range(100_000, 200_000, 50):
        write(store, range(key, key + 50), 0)


def remove_more(store):
    for key in range(100_000, 104_000, 200):
        delete(store, range(key, key + 200))


LEFT = set(range(0, COUNT, 10))
numbers = np.arange(10_000, dtype=np.uint64).reshape(100, 100)


def on_the_full_disk(store, generation):
    error = refusal(lambda: write_more(store))
    print(error)
    assert error.resource == "heap" and "bytes free" in str(error), error
    assert "the disk has" in store.info().heap_growth_waits
    remove_more(store)
    for number in range(12):  # overwrites need no new space: the heap is compacted
        write(store, LEFT, generation + number)
    see(store, LEFT, generation + 11)
    error = refusal(lambda: store.create_table("more%d" % generation, index_bytes=4 << 20))
    assert error.resource == "disk", error
    # The index cannot grow; keys that it has are written and deleted as ever.
    error = refusal(lambda: [store.set_many(part, part, table="numbers") for part in numbers])
    assert error.resource == "index" and "the disk has no room" in str(error), error
    store.set_many(numbers[0], numbers[1], table="numbers")
    assert store.delete_many(numbers[0], table="numbers").all()
    for part in numbers:
        store.delete_many(part, table="numbers")
    store.drop_table("extra%d" % generation)
    fill()


def first_life():
    gpkvs.open(path, commit=commit, durability="msync", journal_bytes=2 << 20, **SIZES).close()
    store = gpkvs.open(path, durability="msync", heap_bytes_max=1 << 30)
    for generation in (1, 20):
        store.create_table("extra%d" % generation, index_bytes=64 << 10)
        store.set(b"x", b"y", table="extra%d" % generation)
    store.create_table("numbers", layout="u64", index_bytes=64 << 10)
    write(store, range(COUNT), 0)
    for first in range(0, COUNT, 200):
        delete(store, [key for key in range(first, first + 200) if key not in LEFT])
    growth, given, deadline = store._engine._heap_growth, 0, time.monotonic() + 20
    while time.monotonic() < deadline:  # nothing is given back while a thread still makes the heap longer
        for _ in range(30):
            while store.maintain():
                pass
            store._engine.committer.release_waiting()
            clock[0] += 5
            store.maintain()
            if growth._giver:
                growth._giver.join()
        given = store.info().heap_given_bytes
        if given > 2 << 20:
            break
        time.sleep(0.1)
    assert given > 2 << 20, (given, growth.waits, growth._given.can_punch)
    fill()
    see(store, LEFT, 0)
    on_the_full_disk(store, 1)
    assert store.info().heap_given_bytes > 1 << 20
    os.kill(os.getpid(), signal.SIGKILL)


def second_life():
    with gpkvs.open(path, durability="msync") as store:
        assert store.info().heap_given_bytes > 1 << 20
        see(store, LEFT, 12)
        on_the_full_disk(store, 20)
    with gpkvs.open(path, durability="msync") as store:
        see(store, LEFT, 31)
        assert "the disk has" in str(refusal(lambda: write_more(store)))
        os.remove(filler)
        deadline = time.monotonic() + 60
        while store.info().heap_growth_waits:  # it works again by itself
            assert time.monotonic() < deadline
            time.sleep(0.05)
        remove_more(store)
        write(store, range(COUNT), 32)
        for part in numbers:
            store.set_many(part, part, table="numbers")
        see(store, set(range(COUNT)), 32)
    assert check(Path(path)).is_clean
    print("done")


first_life() if sys.argv[3] == "first" else second_life()
"""

_MOUNTS = {
    "tmpfs": f'mount -t tmpfs -o size={MEGABYTES}m none "$1"',
    "ext4": f'truncate -s {MEGABYTES}M "$5" && mkfs.ext4 -q -m 0 "$5" && mount -o loop "$5" "$1"',
}
_BOTH_LIVES = '; "$2" -c "$3" "$1" "$4" first; [ $? = 137 ] && "$2" -c "$3" "$1" "$4" second'


@pytest.mark.format3
@pytest.mark.parametrize(
    ("kind", "commit"),
    [pytest.param("ext4", "undo", marks=pytest.mark.machine), ("tmpfs", "undo"), ("tmpfs", "journal")],
)
def test_what_gave_space_back_goes_on_without_it(tmp_path: Path, kind: str, commit: str) -> None:
    if kind == "ext4" and (os.geteuid() or not shutil.which("mkfs.ext4")):
        pytest.skip("only root mounts an ext4 file system of its own, made by mkfs.ext4")
    place = tmp_path / "disk"
    place.mkdir()
    unshare = ["unshare", "--mount", *([] if os.geteuid() == 0 else ["--map-root-user"])]
    script = f"{{ {_MOUNTS[kind]}; }} || exit 99{_BOTH_LIVES}"
    arguments = ["sh", str(place), sys.executable, _LIVES, commit, str(tmp_path / "image")]
    done = subprocess.run(
        [*unshare, "sh", "-c", script, *arguments], capture_output=True, text=True, check=False, cwd=ROOT
    )
    if "unshare:" in done.stderr or done.returncode == 99:
        pytest.skip(f"no file system of its own may be mounted here: {done.stderr}")
    *said, last = done.stdout.splitlines() or [""]
    assert last == "done", done.stdout + done.stderr
    print(*said, sep="\n")
