"""The example that trains a model of clicks is killed, and goes on to the same bits."""

from __future__ import annotations

import random
import signal
import subprocess
import sys
import time
from importlib.util import find_spec
from pathlib import Path

import pytest

from tests.conftest import assert_clean

EXAMPLE = Path(__file__).parents[2] / "examples" / "click" / "train.py"
HAS_TORCH = find_spec("torch") is not None
pytestmark = [pytest.mark.machine, pytest.mark.skipif(not HAS_TORCH, reason="PyTorch is not installed")]
STEPS, KILLS = 90, 3


def started(data: Path) -> subprocess.Popen[str]:
    command = [sys.executable, str(EXAMPLE), "--data", str(data), "--steps", str(STEPS)]
    return subprocess.Popen(command, stdout=subprocess.PIPE, text=True)


def lines_of(process: subprocess.Popen[str]) -> list[str]:
    """Return what a run prints that ends by itself."""
    lines = process.communicate()[0].splitlines()
    assert process.returncode == 0
    return lines


def killed(data: Path, step: int, seconds: float) -> list[str]:
    """Kill a run some seconds after a step; return what it printed."""
    process, lines = started(data), []
    assert process.stdout
    for line in process.stdout:
        lines.append(line.strip())
        if line.startswith(f"step {step}:"):
            break
    time.sleep(seconds)
    process.kill()
    lines += process.communicate()[0].splitlines()
    assert process.returncode == -signal.SIGKILL
    return lines


def step_of(line: str) -> int:
    return int(line.removeprefix("step ").partition(":")[0])


def test_killed_it_goes_on_to_the_same_bits(tmp_path: Path) -> None:
    seed = random.randrange(1 << 32)
    print(f"seed {seed}")
    rng = random.Random(seed)
    whole = lines_of(started(tmp_path / "whole"))
    losses = [line for line in whole if line.startswith("step ")]
    assert [step_of(line) for line in losses] == list(range(1, STEPS + 1))
    first, last = (sum(float(line.rpartition(" ")[2]) for line in part) / 10 for part in (losses[:10], losses[-10:]))
    assert last < 0.8 * first  # it learns

    told: dict[int, str] = {}  # the losses of each step, of all runs
    for number in range(1, KILLS + 1):
        lines = killed(tmp_path / "killed", number * STEPS // (KILLS + 2), rng.uniform(0, 0.05))
        assert any(line.startswith("goes on") for line in lines) == (number > 1)
        told.update((step_of(line), line) for line in lines if line.startswith("step "))
    lines = lines_of(started(tmp_path / "killed"))
    # At most the step that was written and not told is missing.
    assert int(lines[0].removeprefix("goes on after step ")) - max(told) in (0, 1)
    told.update((step_of(line), line) for line in lines if line.startswith("step "))
    assert all(told[step] == losses[step - 1] for step in told)
    assert lines[-1] == whole[-1]  # all rows: embeddings, sums of squares, dense weights, Adam's moments
    assert_clean(tmp_path / "killed")
