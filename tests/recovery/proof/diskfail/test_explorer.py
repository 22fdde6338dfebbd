"""The explorer of disks: it finds nothing in the store as it is, and does find what is planted."""

from __future__ import annotations

import os
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path
from random import Random

import pytest

from gpkvs.recovery.proof.diskfail import mutants
from gpkvs.recovery.proof.diskfail.recorder import LIBRARY

EXPLORER = (sys.executable, "-m", "gpkvs.recovery.proof.diskfail")


def explore(keep: Path, *options: str) -> subprocess.CompletedProcess[str]:
    """Run the explorer in a process of its own: it is preloaded."""
    return subprocess.run(
        [*EXPLORER, *options, "--keep", str(keep)], capture_output=True, text=True, timeout=120, check=False
    )


@pytest.mark.parametrize("mutant", mutants.MUTANTS, ids=lambda mutant: mutant.name)
def test_the_text_of_a_mistake_is_there_once(mutant: mutants.Mutant) -> None:
    spec = find_spec(mutant.module)
    assert spec
    assert spec.origin
    source = Path(spec.origin).read_text()
    for old, _ in mutant.changes:
        assert source.count(old) == 1


def test_power_failures_of_a_disk_show_no_violation(tmp_path: Path) -> None:
    seed = int(os.environ.get("GPKVS_SEED", Random().randrange(1 << 32)))
    print(f"GPKVS_SEED={seed}")
    done = explore(tmp_path, "--seed", str(seed), "--seconds", "25", "--points", "14", "--choices", "5")
    print(done.stdout, done.stderr)
    assert done.returncode == 0
    assert "0 violations" in done.stdout


# Those that are seen at once; `--mutants` plants all of them.
@pytest.mark.parametrize("name", ["no-flush", "result-before-gate", "records-always-verified"])
def test_a_planted_mistake_is_seen_and_can_be_judged_again(tmp_path: Path, name: str) -> None:
    command = [sys.executable, mutants.__file__, name, "--seed", "1", "--seconds", "60", "--stop-early"]
    done = subprocess.run(
        [*command, "--points", "12", "--choices", "5", "--keep", str(tmp_path)],
        env={**os.environ, "LD_PRELOAD": str(LIBRARY)},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 1, done.stderr
    kept = sorted(tmp_path.glob("*.state"))
    assert kept
    assert "now: " in explore(tmp_path, "--state", str(kept[0])).stdout


def test_an_unknown_mistake_is_refused() -> None:
    command = [sys.executable, mutants.__file__, "nothing"]
    assert subprocess.run(command, capture_output=True, check=False).returncode == 1
