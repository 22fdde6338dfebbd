"""Runs of tests beside busy processes: a test that fails once is told, and no process is left."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.tools import loaded

FAILS_THE_SECOND_TIME = """
from pathlib import Path

def test_it():
    print("seed 77")
    runs = Path(__file__).with_name("runs")
    before = runs.read_text() if runs.exists() else ""
    runs.write_text(before + "x")
    assert before != "x"
"""


def test_one_failure_of_three_runs_is_told_with_what_it_printed(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "test_it.py"
    file.write_text(FAILS_THE_SECOND_TIME)
    assert loaded.run([str(file)], 3, beside=1) == 1
    said = capfd.readouterr().out
    assert "run 1 of 3: 1 passed" in said
    assert "run 2 of 3: 1 failed" in said
    assert "seed 77" in said
    assert said.endswith("1 of 3 runs failed beside 1 busy processes\n")
    assert (tmp_path / "runs").read_text() == "xxx"


def test_no_busy_process_is_left() -> None:
    with loaded.busy(2) as processes:
        assert [process.poll() for process in processes] == [None, None]
    assert [process.poll() for process in processes] == [-9, -9]
