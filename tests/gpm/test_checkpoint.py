"""Checkpoints: beside a plain model, on memory and on disks, killed in the middle, damaged."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gpkvs.errors import CorruptStoreError, InvalidArgumentError, NoSpaceError, StoreAccessError, StoreLockedError
from gpkvs.gpm import Checkpoint, Kernels, Place, Versions
from gpkvs.gpm.blocks import BLOCK_BYTES
from gpkvs.gpm.direct_file import DirectFile
from gpkvs.gpm.header import STATE_BYTES
from gpkvs.gpm.helpers import Helpers
from gpkvs.pm.region import Region
from tests.gpm.conftest import require_disk

ROOT = Path(__file__).parents[2]


@pytest.fixture(params=["memory", "disk"])
def folder(request: pytest.FixtureRequest, memory: Path, tmp_path: Path) -> Path:
    """Return a directory in memory, and one where temporary files go, mostly a disk."""
    return memory if request.param == "memory" else tmp_path


def arrays_of(place: Place, seed: int) -> dict[str, Any]:
    random = np.random.default_rng(seed)
    host = {
        "weights": random.random((300, 301), np.float32),
        "bias": random.random(7),
        "step": np.array(seed, np.int64),
        "flags": random.random(BLOCK_BYTES + 3) < 0.5,
        "empty": np.empty((0, 4), np.float32),
    }
    return {name: place.xp.asarray(array) for name, array in host.items()}


def same(place: Place, first: dict[str, Any], second: dict[str, Any]) -> bool:
    return first.keys() == second.keys() and all(
        np.array_equal(place.to_host(first[name]), place.to_host(second[name])) for name in first
    )


def test_saved_and_restored(folder: Path, place: Place) -> None:
    path, first, second = folder / "c.gpm", arrays_of(place, 1), arrays_of(place, 2)
    with Checkpoint.create(path, {"model": first, "other": {"x": (3, "u2")}}, place=place) as checkpoint:
        assert checkpoint.number("model") == 0
        with pytest.raises(InvalidArgumentError, match="nothing was saved"):
            checkpoint.load("model")
        assert checkpoint.save("model", first) == 1
        assert same(place, checkpoint.load("model"), first)
        assert checkpoint.save("model", second, wait=False) == 2
        checkpoint.wait()
        assert checkpoint.number("model") == 2
        assert checkpoint.number("other") == 0
        checkpoint.verify()
    with Checkpoint.open(path, place=place) as checkpoint:
        assert checkpoint.groups["model"]["weights"] == ((300, 301), np.float32)
        into = arrays_of(place, 3)
        assert checkpoint.restore("model", into) == 2
        assert same(place, into, second)
        checkpoint.verify()
    with Checkpoint.open(path, readonly=True) as checkpoint:
        assert np.array_equal(checkpoint.load("model")["bias"], place.to_host(second["bias"]))
        with pytest.raises(InvalidArgumentError, match="readonly"):
            checkpoint.save("model", second)


def test_what_did_not_change_is_not_written(folder: Path, place: Place) -> None:
    array = place.xp.zeros(5 * BLOCK_BYTES + 100, np.uint8)
    with Checkpoint.create(folder / "c.gpm", {"g": {"a": array}}, place=place) as checkpoint:
        for number, wanted in ((1, len(array)), (2, len(array)), (3, 0)):
            assert checkpoint.save("g", {"a": array}) == number
            assert checkpoint.last_bytes == wanted
        array[3 * BLOCK_BYTES + 5] = 1
        array[-1] = 9  # in the last word, which is not whole
        for _ in range(2):
            checkpoint.save("g", {"a": array})
            assert checkpoint.last_bytes == BLOCK_BYTES + 100
            assert same(place, checkpoint.load("g"), {"a": array})
        checkpoint.save("g", {"a": array})
        assert checkpoint.last_bytes == 0


_NEAR_BLOCKS = st.integers(0, 2).flatmap(
    lambda blocks: st.integers(-17, 17).map(lambda off: blocks * BLOCK_BYTES + off)
)


@settings(max_examples=25, deadline=None)
@given(data=st.data())
def test_only_what_differs_is_stored(
    tmp_path_factory: pytest.TempPathFactory, place: Place, data: st.DataObject
) -> None:
    """Beside a plain model: what each copy holds, block by block, and whether this process knows it."""
    on_disk = data.draw(st.booleans(), "on a disk")
    folder = tmp_path_factory.mktemp("c") if on_disk else Path("/dev/shm") / tmp_path_factory.mktemp("m").name
    folder.mkdir(exist_ok=True)
    sizes = data.draw(
        st.lists(st.one_of(st.integers(0, 40), _NEAR_BLOCKS.filter(lambda size: size >= 0)), min_size=1, max_size=4)
    )
    random = np.random.default_rng(data.draw(st.integers(0, 1 << 32), "seed"))
    shifts = [data.draw(st.integers(0, 16), "begins at") for _ in sizes]  # kernels take arrays that begin anywhere
    arrays = {
        f"a{n}": place.xp.asarray(random.integers(0, 4, shift + size, np.uint8))[shift:]
        for n, (size, shift) in enumerate(zip(sizes, shifts, strict=True))
    }
    checkpoint = Checkpoint.create(folder / "c.gpm", {"g": arrays}, place=place)
    held: list[dict[str, bytes] | None] = [None, None]
    try:
        for number in range(1, data.draw(st.integers(1, 6), "saves") + 1):
            if data.draw(st.booleans(), "opened again"):
                checkpoint.close()
                checkpoint = Checkpoint.open(folder / "c.gpm", place=place)
                held = [None, None]
            for array in arrays.values():
                for _ in range(data.draw(st.integers(0, 2), "changes") if len(array) else 0):
                    array[int(random.integers(len(array)))] ^= 1
            checkpoint.save("g", arrays, wait=data.draw(st.booleans(), "waits"))
            checkpoint.wait()
            now, before = (
                {name: place.to_host(array).tobytes() for name, array in arrays.items()},
                held[(number - 1) % 2],
            )
            assert checkpoint.last_bytes == sum(
                len(block) for name in now for block, old in _pairs(now[name], before and before[name]) if block != old
            )
            held[(number - 1) % 2] = now
            group = checkpoint._groups["g"]
            for copy, wanted in enumerate(held):
                for array in group.arrays if wanted else ():
                    at = checkpoint._file.data_at + group.copy_at(copy) + array.at
                    assert checkpoint._file.region.read(at, array.bytes) == wanted[array.name]
            assert same(place, checkpoint.load("g"), arrays)
        checkpoint.verify()
    finally:
        checkpoint.close()
        (folder / "c.gpm").unlink()
        folder.rmdir()


def _pairs(now: bytes, before: bytes | None) -> list[tuple[bytes, bytes | None]]:
    """Return the blocks of an array, each with what a copy held in its place."""
    places = [slice(at, at + BLOCK_BYTES) for at in range(0, len(now), BLOCK_BYTES)]
    return [(now[place], None if before is None else before[place]) for place in places]


def test_arrays_may_change_while_they_are_saved(folder: Path, place: Place) -> None:
    array = place.xp.arange(1 << 20, dtype="u4")
    with Checkpoint.create(folder / "c.gpm", {"g": {"a": array}}, place=place) as checkpoint:
        for _ in range(5):
            before = array.copy()
            checkpoint.save("g", {"a": array}, wait=False)
            array *= 3
            array += 1
            checkpoint.wait()
            assert same(place, checkpoint.load("g"), {"a": before})


@settings(max_examples=15, deadline=None)
@given(data=st.data())
def test_as_a_dictionary(tmp_path_factory: pytest.TempPathFactory, place: Place, data: st.DataObject) -> None:
    on_disk = data.draw(st.booleans())
    folder = tmp_path_factory.mktemp("c") if on_disk else Path("/dev/shm") / tmp_path_factory.mktemp("m").name
    folder.mkdir(exist_ok=True)
    path = folder / "c.gpm"
    sizes = data.draw(st.lists(st.integers(0, 3 * BLOCK_BYTES), min_size=1, max_size=3))
    groups = {f"g{n}": {"a": place.xp.zeros(size, "u1"), "b": place.xp.zeros(3, "f8")} for n, size in enumerate(sizes)}
    saved: dict[str, dict[str, Any]] = {}
    checkpoint = Checkpoint.create(path, groups, place=place)
    try:
        for step in range(data.draw(st.integers(1, 6))):
            if data.draw(st.booleans()):
                checkpoint.close()
                checkpoint = Checkpoint.open(path, place=place)
            name = data.draw(st.sampled_from(sorted(groups)))
            arrays = groups[name]
            if len(arrays["a"]):
                arrays["a"][data.draw(st.integers(0, len(arrays["a"]) - 1))] += 1
            arrays["b"][:] = step
            checkpoint.save(name, arrays, wait=data.draw(st.booleans()))
            saved[name] = {key: array.copy() for key, array in arrays.items()}
            for key, wanted in saved.items():
                assert same(place, checkpoint.load(key), wanted)
        checkpoint.verify()
    finally:
        checkpoint.close()
        path.unlink()
        folder.rmdir()


def test_kernels_of_the_caller_run_beside_a_save(memory: Path) -> None:
    """Each thread has native threads of its own: a pool runs one kernel at a time."""
    kernels = Kernels("""
        #include "gpm.cuh"
        #define ADVANCE_ARGS(F) F(const u64*, from) F(u64*, to)
        GPM_KERNEL(advance, ADVANCE_ARGS) { a.to[i] = a.from[i] + 1; }
    """)
    old, new = np.zeros(1 << 16, "u8"), np.zeros(1 << 16, "u8")
    array = np.zeros(8 << 20, "u1")
    with Checkpoint.create(memory / "c.gpm", {"g": {"a": array}}) as checkpoint:
        for number in range(1, 11):
            array += 1
            checkpoint.save("g", {"a": array}, wait=False)
            for step in range(20):
                kernels.launch("advance", len(old), **{"from": old, "to": new})
                old, new = new, old
                assert (old == (number - 1) * 20 + step + 1).all()
            checkpoint.wait()
            assert (checkpoint.load("g")["a"] == number).all()


def test_without_memory_for_a_copy_a_save_waits(folder: Path, place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    with Checkpoint.create(folder / "c.gpm", {"g": {"a": (1000, "u1")}}, place=place) as checkpoint:
        array = place.xp.ones(1000, "u1")
        monkeypatch.setattr(type(place), "snapshot", lambda *_: None)
        checkpoint.save("g", {"a": array}, wait=False)
        array[:] = 2
        assert checkpoint.number("g") == 1
        assert same(place, checkpoint.load("g"), {"a": place.xp.ones(1000, "u1")})


def test_after_a_failed_sync_only_opening_helps(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The system takes for clean what it could not write: a second sync would succeed and prove nothing."""
    path = folder / "c.gpm"
    for at in (1, 2):  # that of the data, and that of the word
        with Checkpoint.create(path, {"g": {"a": (1000, "u1")}}, replace=True) as checkpoint:
            checkpoint.save("g", {"a": np.ones(1000, "u1")})
            persists = []

            def persist(_: Region, persists: list[int] = persists, at: int = at) -> None:
                persists.append(1)
                if len(persists) == at:
                    raise OSError(5, "no disk")

            monkeypatch.setattr(Region, "persist", persist)
            checkpoint.save("g", {"a": np.full(1000, 2, "u1")}, wait=False)
            with pytest.raises(OSError, match="no disk"):
                checkpoint.wait()
            monkeypatch.undo()
            with pytest.raises(StoreAccessError, match="open it again"):
                checkpoint.save("g", {"a": np.full(1000, 3, "u1")})
        with Checkpoint.open(path) as checkpoint:
            checkpoint.verify()
            assert (checkpoint.load("g")["a"] == checkpoint.number("g")).all()
            assert checkpoint.number("g") == at
            checkpoint.save("g", {"a": np.full(1000, 3, "u1")})


def test_opening_makes_durable_what_counts(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A process may have died between the store of a word and its sync: the next save writes over the copy before."""
    path = folder / "c.gpm"
    with Checkpoint.create(path, {"g": {"a": (1000, "u1")}}) as checkpoint:
        checkpoint.save("g", {"a": np.ones(1000, "u1")})
        state_at = checkpoint._file.state_at
    did: list[Any] = []
    redirty, fsync = Region.redirty, Region.fsync
    monkeypatch.setattr(Region, "redirty", lambda *args: (did.append(args[1:]), redirty(*args)))
    monkeypatch.setattr(Region, "fsync", lambda region: (did.append("fsync"), fsync(region)))
    Checkpoint.open(path, readonly=True).close()
    assert did == []
    Checkpoint.open(path).close()
    assert did == [(state_at, STATE_BYTES), "fsync"]


LIFE = """
import os, random, signal, sys, threading, time
import numpy as np
from gpkvs.gpm import Checkpoint
path, seed, place = sys.argv[1], int(sys.argv[2]), sys.argv[3]
random.seed(seed)
with Checkpoint.open(path, place=place) as checkpoint:
    number = checkpoint.number("g")
    arrays = checkpoint.load("g")
    assert int(arrays["n"]) == number and bool((arrays["a"] == number % 251).all()), (number, arrays)
    threading.Thread(target=lambda: (time.sleep(random.random() / 20), os.kill(os.getpid(), signal.SIGKILL))).start()
    while True:
        number += 1
        arrays["a"][:] = number % 251
        arrays["n"][...] = number
        assert checkpoint.save("g", arrays, wait=random.random() < 0.5) == number
"""


def test_killed_again_and_again(folder: Path, place: Place) -> None:
    path = folder / "c.gpm"
    with Checkpoint.create(path, {"g": {"a": (1 << 20, "u1"), "n": ((), "i8")}}) as checkpoint:
        checkpoint.save("g", {"a": np.ones(1 << 20, "u1"), "n": np.array(1)})
    seed = int(np.random.default_rng().integers(1 << 30))
    print(f"seed {seed}")
    numbers = []
    for life in range(3):
        arguments = [sys.executable, "-c", LIFE, str(path), str(seed + life), place.name]
        done = subprocess.run(arguments, capture_output=True, text=True, check=False, cwd=ROOT)
        assert done.returncode == -signal.SIGKILL, done.stderr
        with Checkpoint.open(path) as checkpoint:
            checkpoint.verify()
            numbers.append(checkpoint.number("g"))
    assert numbers == sorted(numbers)


def test_wrong_arrays_are_named(memory: Path, place: Place) -> None:
    good = arrays_of(place, 1)
    with pytest.raises(InvalidArgumentError, match="0 groups"):
        Checkpoint.create(memory / "c.gpm", {})
    with pytest.raises(InvalidArgumentError, match="objects"):
        Checkpoint.create(memory / "c.gpm", {"g": {"a": (3, object)}})
    with pytest.raises(InvalidArgumentError, match="a list"):
        Checkpoint.create(memory / "c.gpm", {"g": {"a": [1, 2]}})
    with Checkpoint.create(memory / "c.gpm", {"g": good}, place=place) as checkpoint:
        for change, words in (
            ({"weights": good["bias"]}, "g/weights is"),
            ({"bias": good["bias"].astype("f4")}, "float32; the file has room"),
            ({"more": good["bias"]}, "has no more"),
        ):
            with pytest.raises(InvalidArgumentError, match=words):
                checkpoint.save("g", {**good, **change})
        with pytest.raises(InvalidArgumentError, match="step is missing"):
            checkpoint.save("g", {name: array for name, array in good.items() if name != "step"})
        with pytest.raises(InvalidArgumentError, match="no group 'h'"):
            checkpoint.number("h")
        with pytest.raises(StoreLockedError):
            Checkpoint.open(memory / "c.gpm")
        checkpoint.save("g", good)
        with pytest.raises(InvalidArgumentError, match="not contiguous"):
            checkpoint.restore("g", {**good, "weights": place.xp.zeros((300, 602), "f4")[:, ::2]})
        checkpoint.save("g", {**good, "weights": place.xp.zeros((300, 602), "f4")[:, ::2]})
        assert not checkpoint.load("g")["weights"].any()


@pytest.mark.filterwarnings("ignore::PendingDeprecationWarning")  # numpy.matrix is old, and there
def test_arrays_of_other_kinds(memory: Path) -> None:
    """A matrix is saved whole. What a masked array masks would be lost."""
    matrix = np.matrix([[1.0, 2.0], [3.0, 4.0]])
    with Checkpoint.create(memory / "c.gpm", {"g": {"a": ((2, 2), "f8")}}) as checkpoint:
        checkpoint.save("g", {"a": matrix})
        assert checkpoint.load("g")["a"].tolist() == [[1, 2], [3, 4]]
        restored = np.matrix(np.zeros((2, 2)))
        checkpoint.restore("g", {"a": restored})
        assert (restored == matrix).all()
        with pytest.raises(InvalidArgumentError, match="g/a is a masked array"):
            checkpoint.save("g", {"a": np.ma.masked_greater(np.ones((2, 2)), 0)})


@pytest.mark.parametrize("wait", [True, False])
def test_without_threads_the_caller_saves(
    memory: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, wait: bool
) -> None:
    def refuse(_: object) -> None:
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr("threading.Thread.start", refuse)
    for folder in (memory, tmp_path):
        with Checkpoint.create(folder / "c.gpm", {"g": {"a": np.zeros(3 << 20)}}) as checkpoint:
            for number in range(1, 4):
                assert checkpoint.save("g", {"a": np.full(3 << 20, float(number))}, wait=wait) == number
                assert (checkpoint.load("g")["a"] == number).all()
            checkpoint.verify()
        with Versions.create(folder / "v.gpm", {"t": (9, "f8")}) as versions:
            versions.next["t"][:] = 7
            versions.flush_ahead("t", 0, 9)
            versions.commit()


def test_a_fork_after_a_save_in_the_background(memory: Path) -> None:
    """The child had no native threads of the thread that saved, and waited for them for ever."""
    program = (
        "import os, sys, numpy, gc; from gpkvs.gpm import Checkpoint\n"
        "array = numpy.ones(3 << 20)\n"
        "checkpoint = Checkpoint.create(sys.argv[1], {'g': {'a': array}})\n"
        "checkpoint.save('g', {'a': array}, wait=False)\n"
        "child = os.fork()\n"
        "gc.collect()\n"
        "if child: sys.exit(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))\n"
    )
    for _ in range(3):
        path = memory / "c.gpm"
        done = subprocess.run([sys.executable, "-c", program, str(path)], cwd=ROOT, check=False, timeout=60)
        assert done.returncode == 0
        path.unlink()


def test_a_group_has_arrays_by_name(memory: Path) -> None:
    for groups in ({1: {"a": np.zeros(3)}}, {"g": {("a", 1): np.zeros(3)}}):
        with pytest.raises(InvalidArgumentError, match="a text is needed"):
            Checkpoint.create(memory / "c.gpm", groups)  # type: ignore[arg-type]
    with pytest.raises(InvalidArgumentError, match="'w' is a ndarray: a group has arrays by name"):
        Checkpoint.create(memory / "c.gpm", {"w": np.zeros(3)})  # type: ignore[dict-item]


def test_damage_is_refused(folder: Path, place: Place) -> None:
    path, arrays = folder / "c.gpm", arrays_of(place, 1)
    with Checkpoint.create(path, {"g": arrays}, place=place) as checkpoint:
        checkpoint.save("g", arrays)
        group = checkpoint._groups["g"]
        state_at, data_at = checkpoint._file.state_at, checkpoint._file.data_at
    good = path.read_bytes()
    word = int.from_bytes(good[state_at : state_at + 8], "little")
    for damaged in (0, *(word ^ 1 << bit for bit in range(64))):
        path.write_bytes(good[:state_at] + damaged.to_bytes(8, "little") + good[state_at + 8 :])
        with pytest.raises(CorruptStoreError, match="gpm-current"):
            Checkpoint.open(path, place=place)
    for array in group.arrays:
        if array.bytes:
            at = data_at + array.at + array.bytes - 1
            path.write_bytes(good[:at] + bytes([good[at] ^ 1]) + good[at + 1 :])
            with Checkpoint.open(path, place=place) as checkpoint:
                for check in (checkpoint.verify, lambda: checkpoint.load("g")):
                    with pytest.raises(CorruptStoreError, match=f"g/{array.name}"):
                        check()


@pytest.mark.parametrize("again", [1, 3])  # what the copy held before, and what was to be written
def test_a_failed_save_wrote_nobody_knows_what(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, again: float) -> None:
    def filled(number: float) -> dict[str, Any]:
        return {"a": np.full(1000, number), "b": np.full(1000, number)}

    with Checkpoint.create(tmp_path / "c.gpm", {"g": filled(0)}, durability="msync") as checkpoint:
        checkpoint.save("g", filled(1))
        checkpoint.save("g", filled(2))
        write, written = os.pwrite, []

        def fail_the_second(*arguments: Any) -> int:
            if written:
                raise OSError(28, "No space left on device")
            written.append(write(*arguments))
            return written[0]

        monkeypatch.setattr(os, "pwrite", fail_the_second)
        with pytest.raises(NoSpaceError):
            checkpoint.save("g", filled(3))
        monkeypatch.undo()
        checkpoint.save("g", filled(again))
        assert checkpoint.last_bytes == 16_000
        loaded = checkpoint.load("g")
        assert all((loaded[name] == again).all() for name in "ab")


def test_a_disk_that_fails_keeps_the_last_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with Checkpoint.create(tmp_path / "c.gpm", {"g": {"a": (1000, "f8")}}, durability="msync") as checkpoint:
        checkpoint.save("g", {"a": np.ones(1000)})

        def full(*_: Any) -> int:
            raise OSError(28, "No space left on device")

        monkeypatch.setattr(os, "pwrite", full)
        with pytest.raises(NoSpaceError, match="could not be written"):
            checkpoint.save("g", {"a": np.zeros(1000)})
        monkeypatch.undo()
        assert checkpoint.number("g") == 1
        assert checkpoint.load("g")["a"].all()
        checkpoint.save("g", {"a": np.zeros(1000)})
        assert not checkpoint.load("g")["a"].any()


def test_nothing_can_be_saved(memory: Path, place: Place) -> None:
    for arrays in ({}, {"a": place.xp.zeros(0)}, {"a": place.xp.zeros((0, 3)), "b": place.xp.ones(4)}):
        with Checkpoint.create(memory / "c.gpm", {"g": arrays}, place=place, replace=True) as checkpoint:
            assert checkpoint.save("g", arrays) == 1
            checkpoint.verify()
            assert same(place, checkpoint.load("g"), arrays)


def test_verifying_leaves_no_threads(memory: Path) -> None:
    with Checkpoint.create(memory / "c.gpm", {"g": {"a": np.zeros(3)}}) as checkpoint:
        checkpoint.verify()
        before = len(list(Path("/proc/self/task").iterdir()))
        for _ in range(5):
            checkpoint.verify()
        assert len(list(Path("/proc/self/task").iterdir())) <= before


def test_each_group_is_verified(memory: Path) -> None:
    groups = {name: {"a": np.full(1000, number)} for number, name in enumerate("gh")}
    with Checkpoint.create(memory / "c.gpm", groups) as checkpoint:
        for name, arrays in groups.items():
            checkpoint.save(name, arrays)
        second = checkpoint._groups["h"]
        at = checkpoint._file.data_at + second.copy_at(second.current.copy) + second.arrays[0].at
        checkpoint._file.region.store(at, (7).to_bytes(8, "little"))
        with pytest.raises(CorruptStoreError, match="h/a"):
            checkpoint.verify()
        checkpoint.load("g")


def test_nobody_writes_after_a_piece_has_failed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    array, under_way, real = np.ones(5 << 20), [0], DirectFile._write_piece

    def piece(self: DirectFile, buffer: Any, count: int, at: int) -> None:
        if at < 1 << 20:
            raise NoSpaceError("disk", "full")
        time.sleep(0.1)
        real(self, buffer, count, at)
        under_way[0] -= 1

    def begin(self: Helpers, work: Any, *arguments: Any) -> Any:
        under_way[0] += 1
        return really(self, work, *arguments)

    really = Helpers.begin
    monkeypatch.setattr(DirectFile, "_write_piece", piece)
    monkeypatch.setattr(Helpers, "begin", begin)
    with Checkpoint.create(tmp_path / "c.gpm", {"g": {"a": array}}) as checkpoint:
        require_disk(checkpoint)
        with pytest.raises(NoSpaceError):
            checkpoint.save("g", {"a": array})
        assert under_way[0] == 1  # the piece that failed
