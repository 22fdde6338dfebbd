"""The time by which keys expire, against a model: the wall clock jumps, several threads ask."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path
from random import Random

import gpkvs
from gpkvs.engine.seam.counted_time import CountedTime, clocks_set_by
from tests.machine_clocks import HOUR_US, MachineClocks

_DAY_US = 24 * HOUR_US


def _random() -> Random:
    seed = int(os.environ.get("GPKVS_SEED", Random().randrange(1 << 32)))
    print(f"GPKVS_SEED={seed}")
    return Random(seed)


def test_the_time_is_the_wall_clocks_or_goes_on_where_that_was_set_back() -> None:
    random = _random()
    for _ in range(50):
        machine = MachineClocks(random.randrange(10**15), random.randrange(10**12))
        counted = CountedTime(machine.clocks)
        now = 0
        for _ in range(100):
            passed = random.choice((0, 1, 999, random.randrange(10**4), random.randrange(_DAY_US)))
            machine.pass_by(passed)
            if random.random() < 0.3:
                machine.wall_us += random.randrange(-_DAY_US, _DAY_US) // random.choice((1, 1000, 10**6))
            now = max(now + passed, machine.wall_us)
            assert counted.now_us() == now
            assert counted.behind_ms() == (now - machine.wall_us) // 1000


def test_a_time_before_1970_is_none() -> None:
    machine = MachineClocks(10**15, 10**12)
    machine.wall_us = -5 * 10**6
    counted = CountedTime(machine.clocks)
    assert counted.now_us() == 0
    machine.pass_by(2 * 10**6)
    assert counted.now_us() == 2 * 10**6
    assert counted.behind_ms() == 5000


def test_a_later_time_goes_on_until_the_clock_has_caught_up() -> None:
    machine = MachineClocks(10**15, 10**12)
    counted = CountedTime(machine.clocks)
    begun = counted.now_ms()
    counted.begin_at(begun + 1000)
    machine.pass_by(500_000)
    assert counted.now_ms() == begun + 1500
    machine.wall_us += 900_000
    assert counted.now_ms() == begun + 1500
    machine.wall_us += 101_000
    assert counted.now_ms() == begun + 1501
    assert counted.behind_ms() == 0


def test_no_thread_sees_the_time_go_back(tmp_path: Path) -> None:
    program, kernels = tmp_path / "threads", Path(gpkvs.__file__).parent / "kernels"
    source = Path(__file__).with_name("counted_time_threads.cpp")
    subprocess.run(["c++", "-std=c++17", "-O2", "-pthread", "-I", kernels, source, "-o", program], check=True)
    done = subprocess.run([program], capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stdout


def test_a_clock_that_somebody_sets_says_all() -> None:
    at = 4 * 10**12
    counted = CountedTime(clocks_set_by(lambda: at))
    assert [counted.now_ms() for _ in range(3)] == [at] * 3
    assert not counted.clocks.are_native
