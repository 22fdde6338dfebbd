"""The time by which keys expire outlives a process: where the clock is earlier than it, an opening goes on from it."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

import gpkvs
from gpkvs.batch import Batch, Op
from gpkvs.config import CommitName
from gpkvs.engine.seam import counted_time
from gpkvs.recovery.copy.copy import CopySizes, copy_store
from gpkvs.recovery.startup.check import check
from gpkvs.store import Store
from tests.conftest import SMALL
from tests.machine_clocks import HOUR_US, MachineClocks

SECOND_US = 10**6
BEGUN_US = 4 * 10**15  # later than any clock says

Open = Callable[..., Store]


@pytest.fixture
def machine(monkeypatch: pytest.MonkeyPatch) -> MachineClocks:
    machine = MachineClocks(BEGUN_US, 7 * HOUR_US)
    monkeypatch.setattr(counted_time, "MACHINE", machine.clocks)
    return machine


@pytest.fixture
def open_store(
    store_path: Path, commit: CommitName, host_ops_max: int, monkeypatch: pytest.MonkeyPatch
) -> Callable[..., Store]:
    monkeypatch.setenv("GPKVS_HOST_OPS_MAX", "" if host_ops_max else "0")
    return lambda path=store_path: gpkvs.open(path, commit=commit, **SMALL)


def crashed(store: Store, to: Path) -> Path:
    """Return what a killed process would leave of a store."""
    store._engine.settle()
    return Path(shutil.copytree(store.path, to))


def set_plain(store: Store, key: bytes, expiry_ms: int = 0) -> None:
    """Store a key by a batch that a GPU could run."""
    batch = Batch.of([(Op.SET, key, b"value")])
    store.execute(replace(batch, expiries=np.array([expiry_ms], np.uint64)))


def test_a_restart_with_an_earlier_clock_goes_on_from_the_last_transaction(
    open_store: Open, machine: MachineClocks, tmp_path: Path
) -> None:
    with open_store() as store:
        set_plain(store, b"lease", BEGUN_US // 1000 + 100_000)
        machine.pass_by(60 * SECOND_US)
        set_plain(store, b"another")
        left = crashed(store, tmp_path / "left")
    machine.wall_us -= 24 * HOUR_US
    machine.restart()
    with open_store(left) as store:
        assert store.clock_back_seconds == 24 * 3600
        assert store.ttl(b"lease") == 40
        machine.pass_by(39 * SECOND_US)
        assert store.ttl(b"lease") == 1
        machine.pass_by(SECOND_US)
        assert store.get(b"lease") is None
    assert check(left).is_clean
    machine.wall_us += 48 * HOUR_US
    with open_store(left) as store:
        assert store.now_ms == machine.wall_us // 1000


def test_what_is_set_while_the_clock_is_behind_does_not_live_longer_after_a_restart(
    open_store: Open, machine: MachineClocks, tmp_path: Path
) -> None:
    with open_store() as store:
        set_plain(store, b"other", BEGUN_US // 1000 + 3_600_000)
        machine.wall_us -= HOUR_US
        store.set(b"key", b"value", ttl=10)
        left = crashed(store, tmp_path / "left")
    with open_store(left) as store:
        assert store.ttl(b"key") == 10
        machine.pass_by(10 * SECOND_US)
        assert store.get(b"key") is None


@pytest.mark.parametrize("is_idle", [True, False], ids=["idle", "busy"])
def test_while_the_clock_is_behind_the_time_is_kept_without_writes(
    open_store: Open, machine: MachineClocks, tmp_path: Path, is_idle: bool
) -> None:
    with open_store() as store:
        set_plain(store, b"key", BEGUN_US // 1000 + 3_600_000)
        machine.pass_by(1000 * SECOND_US)
        store._engine.maintain(1 << 20)
        committed = store._engine.committer.kept_ms
        assert committed == BEGUN_US // 1000, "a clock that is right keeps the time by itself"
        machine.wall_us -= 24 * HOUR_US
        for second in (1, 9, 2, 9):
            machine.pass_by(second * SECOND_US)
            if is_idle:
                store._engine.maintain(1 << 20)
            else:
                store._engine.expiry._look_at = 0.0
                store.get(b"absent")
            assert store.now_ms - store._engine.committer.kept_ms < 10_000
        now = store.now_ms
        left = crashed(store, tmp_path / "left")
    with open_store(left) as store:
        assert now - 10_000 < store.now_ms <= now
    assert check(left).is_clean


def test_a_closing_keeps_the_time(open_store: Open, machine: MachineClocks, store_path: Path) -> None:
    with open_store() as store:
        set_plain(store, b"key", BEGUN_US // 1000 + 3_600_000)
        machine.wall_us -= HOUR_US
        machine.pass_by(9 * SECOND_US)
    machine.wall_us -= HOUR_US
    machine.restart()
    with open_store() as store:
        assert store.now_ms == BEGUN_US // 1000 + 9000
    assert check(store_path).is_clean


@pytest.mark.parametrize("commit", ["journal"])
def test_a_checkpoint_keeps_the_time(open_store: Open, machine: MachineClocks, tmp_path: Path) -> None:
    with open_store() as store:
        set_plain(store, b"key", BEGUN_US // 1000 + 3_600_000)
        machine.pass_by(5 * SECOND_US)
        set_plain(store, b"key", BEGUN_US // 1000 + 3_600_000)
        store._engine.committer.checkpointer.write(paced=False)  # type: ignore[attr-defined]
        assert store._files.root.checkpoint.time_horizon_ms == BEGUN_US // 1000 + 5000
        left = crashed(store, tmp_path / "left")
    machine.wall_us -= HOUR_US
    with open_store(left) as store:
        assert store.now_ms == BEGUN_US // 1000 + 5000


def test_a_copy_keeps_the_time(open_store: Open, machine: MachineClocks, store_path: Path, tmp_path: Path) -> None:
    with open_store() as store:
        set_plain(store, b"key", BEGUN_US // 1000 + 3_600_000)
    machine.wall_us -= HOUR_US
    copy_store(store_path, tmp_path / "copy", CopySizes(), on_progress=lambda *_: None)
    with open_store(tmp_path / "copy") as store:
        assert store.now_ms == BEGUN_US // 1000


def test_a_store_in_which_no_key_expires_keeps_no_time(open_store: Open, machine: MachineClocks) -> None:
    with open_store() as store:
        store.set(b"key", b"value")
        machine.wall_us -= HOUR_US
        store._engine.maintain(1 << 20)
        assert store._engine.committer.kept_ms == 0
    with open_store() as store:
        assert store._engine.committer.kept_ms == 0
        assert store.now_ms == machine.wall_us // 1000


def test_the_time_may_be_reset(open_store: Open, machine: MachineClocks, store_path: Path, tmp_path: Path) -> None:
    with open_store() as store:
        set_plain(store, b"key", BEGUN_US // 1000 + 10_000)
        machine.wall_us -= HOUR_US
        store.reset_time()
        now = machine.wall_us // 1000
        assert store.now_ms == now
        assert store.clock_back_seconds == 0
        assert store.ttl(b"key") == 3610
        store.set(b"new", b"value", ttl=5)
        left = crashed(store, tmp_path / "left")
        machine.pass_by(5 * SECOND_US)
        assert store.get(b"new") is None
    machine.wall_us -= HOUR_US
    with open_store(left) as store:
        assert store.now_ms == now
