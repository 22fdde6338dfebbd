"""Arrays that persist: made, opened, closed, verified; what is refused, and how that reads."""

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

from gpkvs.errors import (
    BackendError,
    CorruptStoreError,
    ForkedError,
    FormatError,
    InvalidArgumentError,
    NoSpaceError,
    StoreClosedError,
    StoreLockedError,
    StoreMissingError,
)
from gpkvs.gpm import PersistentArray
from gpkvs.gpm.header import PAGE_BYTES


def test_it_is_zeros_then_what_was_stored(memory: Path) -> None:
    path = memory / "a.gpm"
    with PersistentArray.create(path, (4, 3), "f8") as array:
        assert not array.host.any()
        array.host[1:3] = 7.5
        array.persist(1, 3)
    with PersistentArray.open(path) as array:
        assert array.shape == (4, 3)
        assert array.dtype == np.float64
        assert np.array_equal(array.host, [[0] * 3, [7.5] * 3, [7.5] * 3, [0] * 3])
        array.verify()


@pytest.mark.parametrize("shape", [(), 0, (0, 3), 5, (2, 3, 4)])
def test_any_shape(memory: Path, shape: int | tuple[int, ...]) -> None:
    with PersistentArray.create(memory / "a.gpm", shape, "u2") as array:
        array.host[...] = 9
        array.persist()
        assert np.array_equal(array, np.full(shape, 9, "u2"))


def test_structures(memory: Path) -> None:
    kind = np.dtype([("key", "<u8"), ("at", "<f4", (2,)), ("flag", "?")])
    with PersistentArray.create(memory / "a.gpm", 3, kind) as array:
        array.host["at"][1] = (1, 2)
    with PersistentArray.open(memory / "a.gpm") as array:
        assert array.dtype == kind
        assert array.host["at"][1].tolist() == [1, 2]


def test_it_is_an_array_for_others(memory: Path) -> None:
    with PersistentArray.create(memory / "a.gpm", 4, "i4") as array:
        same = np.asarray(array)
        same[2] = 5
        assert array.host[2] == 5
        assert np.array(array, copy=True) is not array.host
        assert np.asarray(array, np.float64).tolist() == [0, 0, 5, 0]
        assert np.from_dlpack(array).tolist() == [0, 0, 5, 0]
        with pytest.raises(ValueError, match="copy"):
            array.__array__(np.float64, copy=False)


@settings(max_examples=30, deadline=None)
@given(data=st.data())
def test_what_is_persisted_is_there_again(tmp_path_factory: pytest.TempPathFactory, data: st.DataObject) -> None:
    path = tmp_path_factory.mktemp("p") / "a.gpm"
    rows = data.draw(st.integers(1, 40))
    model = np.zeros((rows, 3), np.uint32)
    PersistentArray.create(path, (rows, 3), np.uint32).close()
    for _ in range(data.draw(st.integers(1, 4))):
        with PersistentArray.open(path) as array:
            assert np.array_equal(array, model)
            first = data.draw(st.integers(0, rows))
            last = data.draw(st.integers(first, rows))
            array.host[first:last] += 1
            model[first:last] += 1
            array.persist(first, last)


def test_refusals_name_the_file_and_what_to_do(memory: Path, tmp_path: Path) -> None:
    path = memory / "a.gpm"
    with pytest.raises(StoreMissingError, match="create it first"):
        PersistentArray.open(path)
    with pytest.raises(StoreMissingError, match="make it first"):
        PersistentArray.create(memory / "none" / "a.gpm", 3)
    with pytest.raises(InvalidArgumentError, match="objects"):
        PersistentArray.create(path, 3, object)
    with pytest.raises(InvalidArgumentError, match="a part of the shape"):
        PersistentArray.create(path, 3, ("f4", (2,)))
    with pytest.raises(InvalidArgumentError, match="shape: it must be at least 0, not -1"):
        PersistentArray.create(path, (2, -1))
    with pytest.raises(InvalidArgumentError, match="an array of 65 dimensions"):
        PersistentArray.create(path, (1,) * 65)
    overlapping: Any = {"names": ["a", "b"], "formats": ["u4", "u4"], "offsets": [0, 0]}
    for odd in (np.dtype([(("title", "name"), "u4")]), np.dtype(overlapping)):
        with pytest.raises(InvalidArgumentError, match="use a plainer one"):
            PersistentArray.create(path, 3, odd)
    with pytest.raises(InvalidArgumentError, match="there are 'cpu'"):
        PersistentArray.create(path, 3, place="gpu")
    with PersistentArray.create(path, 3) as array:
        with pytest.raises(StoreLockedError):
            PersistentArray.open(path)
        with pytest.raises(StoreLockedError):
            PersistentArray.create(path, 3, replace=True)
    with pytest.raises(StoreClosedError, match="closed"):
        _ = array.host
    with pytest.raises(InvalidArgumentError, match="replace=True"):
        PersistentArray.create(path, 3)
    PersistentArray.create(path, 5, replace=True).close()
    assert sorted(file.name for file in memory.iterdir()) == ["a.gpm"]
    for size in (1 << 50, (1 << 40, 1 << 40)):
        with pytest.raises(NoSpaceError):
            PersistentArray.create(memory / "b.gpm", size)
    with pytest.raises(InvalidArgumentError, match=r"shape: it must be a whole number, not 1000000\.0"):
        PersistentArray.create(memory / "b.gpm", 1e6)  # type: ignore[arg-type]
    with pytest.raises(InvalidArgumentError, match="durability: 'foo': there are auto, "):
        PersistentArray.create(memory / "b.gpm", 3, durability="foo")  # type: ignore[arg-type]
    assert sorted(file.name for file in memory.iterdir()) == ["a.gpm"]
    with PersistentArray.open(path) as array:
        for rows in ((0, 6), (3, 2), (-1, 2)):
            with pytest.raises(InvalidArgumentError, match="there are 5"):
                array.persist(*rows)


def test_only_files_of_its_own_are_replaced(memory: Path) -> None:
    (memory / "notes.txt").write_text("important")
    (memory / "folder").mkdir()
    for name in ("notes.txt", "folder"):
        with pytest.raises(InvalidArgumentError, match="it is not replaced"):
            PersistentArray.create(memory / name, 3, replace=True)
    assert (memory / "notes.txt").read_text() == "important"
    PersistentArray.create(memory / "new.gpm", np.int64(3), replace=True).close()


def test_a_child_of_a_fork_is_refused(memory: Path) -> None:
    with PersistentArray.create(memory / "a.gpm", 3) as array:
        child = os.fork()
        if child == 0:
            try:
                array.persist()
            except ForkedError:
                os._exit(0)
            os._exit(1)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
        array.persist()
        alive, tell = os.pipe()
        child = os.fork()
        if child == 0:
            os.write(tell, b"x")
            time.sleep(60)
            os._exit(0)
        os.read(alive, 1)
    try:
        PersistentArray.open(memory / "a.gpm").close()  # an idle child does not keep it locked
    finally:
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)


def test_read_only(memory: Path) -> None:
    path = memory / "a.gpm"
    PersistentArray.create(path, 3).close()
    with PersistentArray.open(path, readonly=True) as array, PersistentArray.open(path, readonly=True) as other:
        assert other.host.tolist() == [0, 0, 0]
        with pytest.raises(ValueError, match="read-only"):
            array.host[0] = 1
        with pytest.raises(InvalidArgumentError, match="readonly"):
            array.persist()
        with pytest.raises(StoreLockedError):
            PersistentArray.open(path)


def test_damage_is_refused(memory: Path) -> None:
    path = memory / "a.gpm"
    PersistentArray.create(path, 3).close()
    good = path.read_bytes()
    path.write_bytes(b"something else" * 1000)
    with pytest.raises(FormatError, match=r"no file of gpkvs\.gpm"):
        PersistentArray.open(path)
    for at in (9, 17, 25, 33, 41, 64, 80, PAGE_BYTES - 1):
        path.write_bytes(good[:at] + bytes([good[at] ^ 1]) + good[at + 1 :])
        with pytest.raises((CorruptStoreError, FormatError)):
            PersistentArray.open(path)
    path.write_bytes(good[:-1])
    with pytest.raises(CorruptStoreError, match="gpm-size"):
        PersistentArray.open(path)
    path.write_bytes(good)
    PersistentArray.open(path).close()


KILLED = """
import os, signal, sys
from gpkvs.gpm import PersistentArray
array = PersistentArray.create(sys.argv[1], 3, "u8", replace=True)
array.host[:] = 7
array.persist()
os.kill(os.getpid(), signal.SIGKILL)
"""


def test_a_killed_process_keeps_what_it_persisted(memory: Path) -> None:
    path = memory / "a.gpm"
    for _ in range(2):
        done = subprocess.run([sys.executable, "-c", KILLED, str(path)], check=False)
        assert done.returncode == -signal.SIGKILL
        with PersistentArray.open(path) as array:
            assert array.host.tolist() == [7, 7, 7]


def test_on_a_disk_it_is_synced(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with PersistentArray.create(tmp_path / "a.gpm", 3, durability="msync") as array:
        synced: list[int] = []
        monkeypatch.setattr(os, "fdatasync", synced.append)
        array.host[0] = 1
        array.persist(0, 1)
        assert len(synced) == 1
        with pytest.raises(BackendError, match="ordinary disk"):
            array.kernel_address(array.place)
