"""In-place versions: what is committed stays whole while the next version is written."""

from __future__ import annotations

import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from gpkvs.errors import CorruptStoreError, InvalidArgumentError, StoreAccessError, StoreClosedError
from gpkvs.gpm import Place, Versions
from gpkvs.gpm import versions as module
from gpkvs.gpm.current_word import store_current
from gpkvs.pm.region import Region

ROOT = Path(__file__).parents[2]


def test_current_stays_while_next_is_written(memory: Path, place: Place) -> None:
    path = memory / "v.gpm"
    with Versions.create(path, {"t": ((40, 50), "f4"), "n": (3, "i8")}, place=place) as versions:
        assert versions.number == 0
        for number in range(1, 6):
            versions.next["t"][...] = number
            versions.flush_ahead("t", 10, 20)
            versions.flush_ahead("t", 0, 5)
            versions.next["n"][...] = -number
            place.settle()
            assert (place.to_host(versions.current["t"]) == number - 1).all()
            assert versions.commit() == versions.number == number
            assert (place.to_host(versions.current["t"]) == number).all()
            assert (place.to_host(versions.current["n"]) == -number).all()
        versions.next["t"][...] = 99
        with pytest.raises(InvalidArgumentError, match="which has 40"):
            versions.flush_ahead("t", 0, 41)
        with pytest.raises(InvalidArgumentError, match="there are t, n"):
            versions.flush_ahead("x", 0, 1)
    with pytest.raises(StoreClosedError):
        versions.commit()
    with Versions.open(path, place=place) as versions:
        assert versions.number == 5
        if not place.is_gpu:
            with pytest.raises(ValueError, match="read-only"):
                versions.current["t"][0] = 6
        assert (place.to_host(versions.current["t"]) == 5).all()
        versions.verify()
        state_at = versions._file.state_at
    data = bytearray(path.read_bytes())
    data[state_at + 2] ^= 1  # which version counts
    path.write_bytes(data)
    with pytest.raises(CorruptStoreError, match="gpm-current"):
        Versions.open(path, place=place)


def test_after_a_failed_sync_only_opening_helps(memory: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It may be that of a helper: the error is told once, and no later commit may count."""
    for folder in (memory, tmp_path):
        with Versions.create(folder / "v.gpm", {"t": ((40, 50), "f4")}) as versions:
            versions.next["t"][...] = 1
            versions.commit()
            versions.next["t"][...] = 2
            with monkeypatch.context() as patched:
                patched.setattr(Region, "persist", lambda _: (_ for _ in ()).throw(OSError(5, "no disk")))
                versions.flush_ahead("t", 0, 10)
                with pytest.raises((OSError, StoreAccessError), match="no disk"):
                    versions.commit()
            with pytest.raises(StoreAccessError, match="open it again"):
                versions.commit()
            assert versions.number == 1
        with Versions.open(folder / "v.gpm") as versions:
            assert versions.number == 1
            assert (versions.current["t"] == 1).all()


LIFE = """
import os, random, signal, sys, threading, time
from gpkvs.gpm import Versions
path, seed, place = sys.argv[1], int(sys.argv[2]), sys.argv[3]
random.seed(seed)
with Versions.open(path, place=place) as versions:
    number = versions.number
    assert bool((versions.current["t"] == number).all()), number
    threading.Thread(target=lambda: (time.sleep(random.random() / 20), os.kill(os.getpid(), signal.SIGKILL))).start()
    while True:
        number += 1
        for row in range(0, 1000, 100):
            versions.next["t"][row : row + 100] = number
            versions.flush_ahead("t", row, row + 100)
        assert versions.commit() == number
"""


@pytest.mark.parametrize("where", ["memory", "disk"])
def test_killed_again_and_again(memory: Path, tmp_path: Path, place: Place, where: str) -> None:
    path, name = (memory, place.name) if where == "memory" else (tmp_path, "cpu")
    Versions.create(path / "v.gpm", {"t": ((1000, 300), "i4")}).close()
    seed = int(np.random.default_rng().integers(1 << 30))
    print(f"seed {seed}")
    for life in range(4):
        arguments = [sys.executable, "-c", LIFE, str(path / "v.gpm"), str(seed + life), name]
        done = subprocess.run(arguments, capture_output=True, text=True, check=False, cwd=ROOT)
        assert done.returncode == -signal.SIGKILL, done.stderr
    with Versions.open(path / "v.gpm") as versions:
        versions.verify()
        assert (versions.current["t"] == versions.number).all()


def test_an_array_kept_over_a_commit_is_refused(memory: Path) -> None:
    """It is the version that counts by then."""
    with Versions.create(memory / "v.gpm", {"t": ((4,), "f4")}) as versions:
        kept = versions.next["t"]
        kept[:] = 1
        versions.commit()
        with pytest.raises(ValueError, match="read-only"):
            kept[:] = 2
        versions.next["t"][:] = 2
        versions.commit()
        versions.next["t"][:] = 2
        versions.next["t"] += 1  # type: ignore[index]
        with pytest.raises(InvalidArgumentError, match=r"store into it, as next\['t'\]\[\.\.\.\] = array"):
            versions.next["t"] = np.ones(4, "f4")  # type: ignore[index]
        versions.commit()
        assert versions.current["t"].tolist() == [3] * 4
        assert "t, 3 committed" in repr(versions)


def test_after_a_failed_commit_nothing_is_stored_to(memory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nobody knows which version counts."""
    with Versions.create(memory / "v.gpm", {"t": ((4,), "f4")}) as versions:
        kept = versions.next["t"]

        def fail(*_: object) -> None:
            raise KeyboardInterrupt

        with monkeypatch.context() as patched:
            patched.setattr(module, "store_current", fail)
            with pytest.raises(KeyboardInterrupt):
                versions.commit()
        with pytest.raises(ValueError, match="read-only"):
            kept[:] = 2
        with pytest.raises(StoreAccessError, match="close it and open it again"):
            _ = versions.next
    with Versions.open(memory / "v.gpm") as versions, pytest.raises(InvalidArgumentError, match="whole number"):
        versions.flush_ahead("t", 0.0, 1)  # type: ignore[arg-type]


def test_all_of_a_version_is_flushed_before_it_counts(memory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """By `flush_ahead`, which is waited for, or by `commit`; what was flushed for the last version counts for none."""
    flushed: set[int] = set()

    def flush(address: int, begin: int, end: int) -> None:
        if threading.current_thread() is not threading.main_thread():
            time.sleep(0.05)
        flushed.update(range(address + begin, address + end))

    with Versions.create(memory / "v.gpm", {"t": ((40, 2), "f8"), "n": ((7,), "i4")}) as versions:
        monkeypatch.setattr(Versions, "_flush", staticmethod(flush))
        for ranges in ((), ((3, 9), (20, 40)), ((0, 1),), ((5, 30), (2, 11)), ()):
            flushed.clear()
            for first, last in ranges:
                versions.flush_ahead("t", first, last)
            needed = {array.ctypes.data + byte for array in versions.next.values() for byte in range(array.nbytes)}

            def store(*arguments: Any, needed: set[int] = needed) -> None:
                assert needed <= flushed
                store_current(*arguments)

            with monkeypatch.context() as patched:
                patched.setattr(module, "store_current", store)
                versions.commit()
        flushed.clear()
        versions.flush_ahead("t", 3, 9)
        versions._flushing[0].result()
        assert len(flushed) == 6 * 16
