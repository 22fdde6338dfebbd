"""A clock that is set back: what the log and the store say."""

from __future__ import annotations

import logging
from pathlib import Path

import pytest

import gpkvs
from gpkvs.engine.seam import counted_time
from gpkvs.errors import StoreError
from gpkvs.server.signs.clock_watch import ClockWatch
from tests.machine_clocks import HOUR_US, MachineClocks


def test_one_line_for_each_step_back(caplog: pytest.LogCaptureFixture) -> None:
    told = iter((0.0, 0.4, 3600.0, 3599.0, 3598.0, 90_000.0, 1.0, 0.0, 0.0, 60.0))
    watch = ClockWatch(lambda: next(told))
    with caplog.at_level(logging.INFO):
        for _ in range(10):
            watch.look()
    assert [record.__dict__["event"] for record in caplog.records] == [
        "clock_back",
        "clock_back",
        "clock_caught_up",
        "clock_back",
    ]
    assert "set back by 3600 s" in caplog.messages[0]


def test_a_store_says_how_far_the_clock_was_set_back(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    now = 4 * 10**12
    monkeypatch.setattr(counted_time, "MACHINE", counted_time.clocks_set_by(lambda: now))
    with gpkvs.open(tmp_path / "store", index_bytes=1 << 20, heap_bytes=1 << 24) as store:
        assert store.clock_back_seconds == 0
        now -= 5000
        assert store.clock_back_seconds == 5
        now += 6000
        assert store.clock_back_seconds == 0
        at, now = store.now_ms, -1  # before 1970
        assert store.now_ms == at


def test_times_to_live_go_on_while_the_clock_is_behind(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What docs/redis.md says of a clock that is set back."""
    machine = MachineClocks(4 * 10**15, 10**12)
    monkeypatch.setattr(counted_time, "MACHINE", machine.clocks)
    with gpkvs.open(tmp_path / "store", index_bytes=1 << 20, heap_bytes=1 << 24) as store:
        store.set(b"before", b"", ttl=4)
        machine.wall_us -= 24 * HOUR_US
        store.set(b"meanwhile", b"", ttl=2)
        assert [store.ttl(b"before"), store.ttl(b"meanwhile")] == [4, 2]
        for ms, left in ((1500, [2.5, 0.5]), (499, [2.001, 0.001]), (1, [2, None]), (1999, [0.001, None])):
            machine.pass_by(1000 * ms)
            assert [store.ttl(b"before"), store.ttl(b"meanwhile")] == left
        machine.pass_by(1000)
        assert store.get(b"before") is None


def test_a_clock_before_1970_opens_no_store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(counted_time, "MACHINE", counted_time.clocks_set_by(lambda: -60_000))
    with pytest.raises(StoreError, match="60 seconds before 1970: set it"):
        gpkvs.open(tmp_path / "store", index_bytes=1 << 20, heap_bytes=1 << 24)
