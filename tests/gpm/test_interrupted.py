"""Ctrl-C while something becomes durable: no later save is stored over what counts, and nothing is torn."""

from __future__ import annotations

import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from gpkvs.errors import StoreAccessError
from gpkvs.gpm import Checkpoint, CoalescedLog, Versions
from gpkvs.gpm.direct_file import DirectFile
from gpkvs.pm.region import Region
from tests.gpm.conftest import require_disk

ROOT = Path(__file__).parents[2]


def interrupt(*_: object) -> None:
    raise KeyboardInterrupt


@pytest.fixture
def interrupted(monkeypatch: pytest.MonkeyPatch) -> Callable[[int], Any]:
    """Return a block in which the main thread is interrupted just after the n-th persist of a region."""

    @contextmanager
    def at(number: int) -> Iterator[None]:
        real, left = Region.persist, [number]

        def persist(region: Region) -> None:
            real(region)
            left[0] -= 1
            if left[0] == 0 and threading.current_thread() is threading.main_thread():
                raise KeyboardInterrupt

        with monkeypatch.context() as patched:
            patched.setattr(Region, "persist", persist)
            yield

    return at


@pytest.mark.parametrize("number", [1, 2])
@pytest.mark.parametrize("where", ["memory", "disk"])
def test_a_checkpoint(memory: Path, tmp_path: Path, interrupted: Callable[[int], Any], number: int, where: str) -> None:
    path, array = (memory if where == "memory" else tmp_path) / "c.gpm", np.zeros(200_000)
    with Checkpoint.create(path, {"g": {"a": array}}) as checkpoint:
        checkpoint.save("g", {"a": array + 1})
        with pytest.raises(KeyboardInterrupt), interrupted(number):
            checkpoint.save("g", {"a": array + 2})
        with pytest.raises(StoreAccessError, match="KeyboardInterrupt"):
            checkpoint.save("g", {"a": array + 3})
    with Checkpoint.open(path) as checkpoint:
        counts = checkpoint.number("g")
        assert counts == number  # the second persist is that of the word that says so
        assert (checkpoint.load("g")["a"] == counts).all()
        assert checkpoint.save("g", {"a": array + 9}) == counts + 1
        assert (checkpoint.load("g")["a"] == 9).all()
        checkpoint.verify()


def test_a_wait_for_a_save_in_the_background(memory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The save goes on, and the next one waits for it."""
    array, go_on = np.zeros(1000), threading.Event()
    real = Checkpoint._save

    def slow(self: Checkpoint, *arguments: Any) -> None:
        go_on.wait(30)
        real(self, *arguments)

    with Checkpoint.create(memory / "c.gpm", {"g": {"a": array}}) as checkpoint:
        monkeypatch.setattr(Checkpoint, "_save", slow)
        checkpoint.save("g", {"a": array + 1}, wait=False)
        pending = checkpoint._pending
        assert pending
        with monkeypatch.context() as patched:
            patched.setattr(pending, "result", interrupt)
            with pytest.raises(KeyboardInterrupt):
                checkpoint.wait()
        assert checkpoint._pending is pending
        threading.Timer(0.1, go_on.set).start()
        assert checkpoint.save("g", {"a": array + 2}) == 2
        assert pending.done()
        assert (checkpoint.load("g")["a"] == 2).all()
        checkpoint.verify()


def test_versions(memory: Path, tmp_path: Path, interrupted: Callable[[int], Any]) -> None:
    for folder in (memory, tmp_path):
        with Versions.create(folder / "v.gpm", {"t": ((1000,), "f8")}) as versions:
            versions.next["t"][:] = 1
            versions.commit()
            versions.next["t"][:] = 2
            with pytest.raises(KeyboardInterrupt), interrupted(2):
                versions.commit()
            with pytest.raises(StoreAccessError, match="KeyboardInterrupt"):
                versions.commit()
        with Versions.open(folder / "v.gpm", readonly=True) as versions:
            assert versions.number == 2
            assert (versions.current["t"] == 2).all()


def test_the_end_of_a_transaction(memory: Path, interrupted: Callable[[int], Any]) -> None:
    """IDLE is durable, so the transaction counts; nobody undoes it."""
    with CoalescedLog.create(memory / "l.gpm", 4, 8) as log:
        log.insert(np.arange(4, dtype=np.uint64))
        with pytest.raises(KeyboardInterrupt), interrupted(1):
            log.clear()
        with pytest.raises(StoreAccessError, match="KeyboardInterrupt"):
            log.clear()
    with CoalescedLog.open(memory / "l.gpm") as log:
        assert not log.is_active
        assert not log.counts().any()


def test_between_the_flag_and_what_kernels_know(memory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Kernels would insert entries of an epoch that is over, and nobody would undo them."""
    for action in (lambda log: log.clear(), lambda log: log.transaction().__enter__()):
        with CoalescedLog.create(memory / "l.gpm", 4, 8, replace=True) as log:
            with monkeypatch.context() as patched:
                patched.setattr(CoalescedLog, "_hand_over", interrupt)
                with pytest.raises(KeyboardInterrupt):
                    action(log)
            with pytest.raises(StoreAccessError, match="KeyboardInterrupt"):
                log.insert(np.arange(4, dtype=np.uint64))
        with CoalescedLog.open(memory / "l.gpm") as log:
            log.recover(lambda log: None)
            log.insert(np.arange(4, dtype=np.uint64))
            assert (log.counts() == 1).all()


def test_a_save_in_the_background_that_was_begun(memory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """No other save runs beside it, and the file is closed when it is done."""
    array, real = np.zeros(1000), Checkpoint._begin

    def begin(self: Checkpoint, save: Callable[[], None]) -> None:
        real(self, lambda: (time.sleep(0.2), save())[-1])
        self._pending = None
        raise KeyboardInterrupt

    with Checkpoint.create(memory / "c.gpm", {"g": {"a": array}}) as checkpoint:
        monkeypatch.setattr(Checkpoint, "_begin", begin)
        with pytest.raises(KeyboardInterrupt):
            checkpoint.save("g", {"a": array + 1}, wait=False)
        with pytest.raises(StoreAccessError, match="KeyboardInterrupt"):
            checkpoint.save("g", {"a": array + 2})
    with Checkpoint.open(memory / "c.gpm") as checkpoint:
        assert checkpoint.number("g") == 0  # it could not tell, so it does not count
        checkpoint.save("g", {"a": array + 3})
        assert (checkpoint.load("g")["a"] == 3).all()


def test_restoring_from_a_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nobody stores to the caller's array when the call has ended."""
    array, real = np.ones(5 << 20), DirectFile._read_piece

    def slow(self: DirectFile, *arguments: Any) -> None:
        time.sleep(0.05)
        real(self, *arguments)

    with Checkpoint.create(tmp_path / "c.gpm", {"g": {"a": array}}) as checkpoint:
        require_disk(checkpoint)
        checkpoint.save("g", {"a": array})
        into = np.zeros_like(array)
        with monkeypatch.context() as patched:
            patched.setattr(DirectFile, "_read_piece", slow)
            patched.setattr("concurrent.futures.Future.exception", interrupt)
            with pytest.raises(KeyboardInterrupt):
                checkpoint.restore("g", {"a": into})
        before = into.copy()
        time.sleep(0.2)
        assert np.array_equal(into, before)
        checkpoint.restore("g", {"a": into})
        assert (into == 1).all()


def test_nobody_writes_to_a_disk_when_a_file_is_closed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A save that is interrupted leaves pieces under way: they must not fall on what the next process saves."""
    array, begun, written = np.ones(4 << 20), threading.Event(), []
    real = DirectFile._write_piece

    def slow(self: DirectFile, *arguments: Any) -> None:
        begun.wait(0.2)
        real(self, *arguments)
        written.append(1)

    class Interrupted(DirectFile):
        def write(self, at: int, data: Iterator[tuple[int, memoryview]]) -> None:
            monkeypatch.setattr("concurrent.futures.Future.exception", interrupt)
            super().write(at, data)

    with Checkpoint.create(tmp_path / "c.gpm", {"g": {"a": array}}) as checkpoint:
        monkeypatch.setattr(DirectFile, "_write_piece", slow)
        require_disk(checkpoint)
        assert checkpoint._disk
        checkpoint._disk.__class__ = Interrupted
        with pytest.raises(KeyboardInterrupt):
            checkpoint.save("g", {"a": array})
        monkeypatch.undo()
        with pytest.raises(StoreAccessError, match="KeyboardInterrupt"):
            checkpoint.save("g", {"a": array})
    assert len(written) == array.nbytes // (8 << 20)
    with Checkpoint.open(tmp_path / "c.gpm") as checkpoint:
        assert checkpoint.number("g") == 0


@pytest.mark.parametrize("where", ["memory", "disk"])
def test_a_save_that_nobody_waited_for_is_there_when_the_program_ends(memory: Path, tmp_path: Path, where: str) -> None:
    path = (memory if where == "memory" else tmp_path) / "c.gpm"
    program = (
        "import sys, numpy; from gpkvs.gpm import Checkpoint\n"
        "array = numpy.ones(3 << 20)\n"
        "checkpoint = Checkpoint.create(sys.argv[1], {'g': {'a': array}})\n"
        "checkpoint.save('g', {'a': array}, wait=False)\n"
    )
    done = subprocess.run([sys.executable, "-c", program, str(path)], cwd=ROOT, capture_output=True, check=False)
    assert done.returncode == 0, done.stderr.decode()
    assert not done.stderr
    with Checkpoint.open(path) as checkpoint:
        assert checkpoint.number("g") == 1
        assert (checkpoint.load("g")["a"] == 1).all()
