"""The nightly run: it goes on after a failure, keeps what it found, and fails at its end."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.tools import nightly
from tests.tools.nightly import STEPS, Step


def test_results_are_kept_and_a_failure_fails(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(nightly, "LOGS", tmp_path / "logs")
    steps = (
        Step("slow", "sleep 60 & wait", "", 0.005),
        Step("fails", "echo what happened >&2; exit 3", "", 1),
        Step("works", """printf '{"states": %d}' $SEED""", "", 1),
    )
    assert not nightly.nightly(steps, tmp_path / "kept", small=False, seed=5)
    (file,) = (tmp_path / "kept").iterdir()
    kept = json.loads(file.read_text())
    assert file.name.startswith(kept["date"].replace(":", ""))
    assert kept["commit"][:12] in file.name
    assert (kept["size"], kept["seed"]) == ("full", 5)
    slow, fails, works = kept["steps"]
    assert slow["status"] == "failed: not done after 0.005 minutes"
    assert slow["seconds"] < 30
    assert (fails["status"], fails["output"]) == ("failed: status 3", ["what happened"])
    assert (works["status"], works["report"]) == ("passed", {"states": 5})
    assert nightly.nightly(steps[2:], tmp_path / "kept", small=False, seed=5)


def test_each_step_has_a_limit_and_a_small_form() -> None:
    assert len({step.name for step in STEPS}) == len(STEPS)
    assert all(step.small and 0 < step.minutes_max <= (600 if step.name == "loaded" else 90) for step in STEPS)
