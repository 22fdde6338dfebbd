"""The explorer of disks: it finds nothing in the store as it is, and does find what is planted."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path
from random import Random
from typing import Any

import pytest
from typer.testing import CliRunner

from gpkvs.cli.main import app
from gpkvs.errors import BackendError
from gpkvs.recovery.proof.diskfail import mutants
from gpkvs.recovery.proof.diskfail.campaign import report_of
from gpkvs.recovery.proof.diskfail.recorder import LIBRARY
from gpkvs.recovery.proof.diskfail.schedules import SCHEDULES

# Seen at once: by lives at random, and by scripts. `gpkvs crash --commit journal --mutate` plants all of them.
PLANTED = ("no-flush", "told-before-gate", "first-frame-not-awaited", "freed-before-roots", "incarnation-kept")
# A minute on two quiet cores.
COMMAND_SECONDS_MAX = 800
pytestmark = pytest.mark.timeout(900)
# What the scripts alone go through, whatever the time.
REACHED = (
    "frames of one page",
    "frames of many pages",
    "frames over the end of a segment",
    "segments of the journal used again",
    "states of life 1",
    "states of life 2",
    "states of openings after a crash",
    "states while tables change",
    "tables made",
    "tables dropped",
    "entries told",
    "blobs",
)
NATIVE = "batches of the native engine"
# Scripts that look at what an engine tells its callers, and when.
ENGINES = ("told-too-early", "gone-too-early", "frame-lost-before-another")


def crash(*options: str) -> subprocess.CompletedProcess[str]:
    """Run `gpkvs crash` on stores with a journal."""
    command = [sys.executable, "-m", "gpkvs.cli", "crash", "--commit", "journal", *options]
    return subprocess.run(command, capture_output=True, text=True, timeout=COMMAND_SECONDS_MAX, check=False)


def reported(done: subprocess.CompletedProcess[str]) -> dict[str, Any]:
    print(done.stdout, done.stderr)
    report: dict[str, Any] = json.loads(done.stdout)
    return report


@pytest.mark.parametrize("mutant", mutants.MUTANTS, ids=lambda mutant: mutant.name)
def test_the_text_of_a_mistake_is_there_once(mutant: mutants.Mutant) -> None:
    for module, old, _ in mutant.changes:
        spec = find_spec(module)
        assert spec
        assert spec.origin
        assert Path(spec.origin).read_text().count(old) == 1


def test_scripts_and_reasons_are_of_mistakes_that_exist() -> None:
    names = {mutant.name for mutant in mutants.MUTANTS}
    assert len(names) == len(mutants.MUTANTS)
    assert mutants.EQUIVALENT.keys() <= names
    scripted = {mutant.name: mutant.schedule for mutant in mutants.MUTANTS if mutant.schedule}
    assert not scripted.keys() & mutants.EQUIVALENT.keys()
    assert set(scripted.values()) <= {schedule.name for schedule in SCHEDULES}
    assert set(mutants.SHOWN_BY) <= names


def visited(*options: str) -> dict[str, Any]:
    """Run one process of the explorer, with lives at random of a new seed; return what it reports."""
    seed = os.environ.get("GPKVS_SEED", str(Random().randrange(1 << 32)))
    print(f"GPKVS_SEED={seed}")
    command = [sys.executable, "-m", "gpkvs.recovery.proof.diskfail", "--seed", seed, *options]
    done = subprocess.run(command, capture_output=True, text=True, timeout=COMMAND_SECONDS_MAX, check=False)
    report = reported(done)
    assert done.returncode == 0
    return report


def test_power_failures_of_a_disk_show_no_violation(tmp_path: Path) -> None:
    """All scripts. They judge more states than are asked for, so no lives at random follow."""
    done = crash("--seed", "1", "--states", "1", "--processes", "2", "--json", "--keep", str(tmp_path))
    report = reported(done)
    assert done.returncode == 0
    assert report["violations"] == 0
    assert report["schedules"] == len(SCHEDULES)
    assert report["states"] > 300
    assert [name for name in (*REACHED, NATIVE) if not report["reached"].get(name)] == []


def test_power_failures_show_no_violation_of_lives_at_random(tmp_path: Path) -> None:
    """Three in a row; `gpkvs crash` lets stores live as long as it is told to."""
    report = visited("--states", "1", "--points", "10", "--keep", str(tmp_path))
    assert (report["rows"], report["schedules"]) == (1, 0)
    assert report["lives"] == 3
    assert report["states"] > 50


def test_power_failures_show_no_violation_of_phases(tmp_path: Path) -> None:
    options = ["--schedules", *ENGINES, "--states", "60", "--points", "5", "--depth", "1", "--keep", str(tmp_path)]
    report = visited("--engine", "phases", *options)
    assert report["schedules"] == len(ENGINES)
    assert report["rows"] > 0
    assert report["reached"]["batches by phases"] > 10


def test_planted_mistakes_are_seen_and_can_be_judged_again(tmp_path: Path) -> None:
    wanted = [option for name in PLANTED for option in ("--mutant", name)]
    done = crash("--mutate", *wanted, "--seed", "1", "--processes", "2", "--json", "--keep", str(tmp_path))
    report = reported(done)
    assert done.returncode == 0
    assert report["seen"].keys() == set(PLANTED)
    assert report["unseen"] == []
    kept = sorted((tmp_path / "freed-before-roots").glob("*.state"))
    assert kept
    again = crash("--state", str(kept[0]))
    assert again.returncode == 1  # the journal is overwritten, whoever opens it
    assert "is damaged" in again.stdout


AN_ERROR = """
import sys
from gpkvs.recovery.proof.diskfail import __main__, life

def raises(self, random):
    raise IndexError("planted")

life.Life._requests = raises
sys.argv = ["diskfail", "--seed", "1", "--stop-early", "--keep", sys.argv[1]]
sys.exit(__main__.main())
"""


def test_an_error_without_a_crash_is_kept_with_its_place_and_what_was_written(tmp_path: Path) -> None:
    """It may not come again with the same seed: threads meet by chance."""
    done = subprocess.run(
        [sys.executable, "-c", AN_ERROR, str(tmp_path)],
        env={**os.environ, "LD_PRELOAD": str(LIBRARY)},
        capture_output=True,
        text=True,
        timeout=COMMAND_SECONDS_MAX,
        check=False,
    )
    report = reported(done)
    assert done.returncode == 1
    (kept,) = report["kept"]
    assert kept["message"] == "1/0/-: without a crash: IndexError: planted"
    assert "in raises" in kept["traceback"]
    assert kept["shape"].startswith("Shape(index_bytes=")
    again = crash("--state", kept["state"])
    assert "in raises" in again.stdout
    assert "Shape(" in again.stdout
    assert "Event(" in again.stdout


def test_what_has_no_sense_is_refused(tmp_path: Path) -> None:
    for options, words in (
        (("--mutate", "--mutant", "nothing"), "there is no mutant nothing"),
        (("--depth", "2"), "of the undo log"),
        (("--state", str(tmp_path / "none.state")), "there is no file"),
    ):
        refused = CliRunner().invoke(app, ["crash", "--commit", "journal", *options])
        assert refused.exit_code == 1
        assert words in refused.output


def test_what_a_process_said_last_is_kept() -> None:
    [kept] = report_of("", "seed 7\nseed 8\nTimeout (0:01:00)!\nThread 1:\n  in wait\n", 1)["kept"]
    assert kept["message"] == "seed 8: it never ended"
    assert kept["traceback"] == "Timeout (0:01:00)!\nThread 1:\n  in wait"


def test_a_process_that_cannot_start_is_no_mistake_seen() -> None:
    """A stale mutant ends its process at once: that must not pass for a violation."""
    done = subprocess.run(
        [sys.executable, mutants.__file__, "nothing"],
        env={**os.environ, "LD_PRELOAD": str(LIBRARY)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 1
    with pytest.raises(BackendError, match="did not start"):
        report_of(done.stdout, done.stderr, done.returncode)
