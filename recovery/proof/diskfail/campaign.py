"""Runs the explorer of disks in processes of its own, and adds up what they say."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import dataclass, field
from pathlib import Path

from gpkvs.errors import BackendError
from gpkvs.recovery.proof.diskfail import mutants
from gpkvs.recovery.proof.diskfail.mutants import EQUIVALENT, Mutant
from gpkvs.recovery.proof.diskfail.recorder import LIBRARY

_MODULE = "gpkvs.recovery.proof.diskfail"
# A mutant is looked for in few places of many lives.
_MUTANT_OPTIONS = ("--stop-early", "--points", "12", "--choices", "5")


@dataclass
class Report:
    """What processes visited."""

    states: int = 0
    points: int = 0
    lives: int = 0
    rows: int = 0
    schedules: int = 0
    seconds: float = 0.0
    reached: Counter[str] = field(default_factory=Counter)
    violations: int = 0
    kept: list[dict[str, str]] = field(default_factory=list)  # of some: its file, and what is wrong


@dataclass(frozen=True)
class Verdict:
    """What became of a mutant."""

    mutant: Mutant
    seen: str  # what gave it away; empty: nothing did
    seconds: float

    @property
    def is_missed(self) -> bool:
        """Whether it should have been seen."""
        return not self.seen and self.mutant.name not in EQUIVALENT


def explore(states: int, seconds: float, seed: int, processes: int, keep: Path) -> Report:
    """Play all scripts, and let stores live at random, until so many states were judged or so much time is gone."""
    began, total = time.monotonic(), Report()
    with ThreadPoolExecutor(processes) as pool:
        each = -(-states // processes)
        begun = []
        for number in range(processes):
            options = ["--seed", str(seed + number), "--step", str(processes), "--states", str(each)]
            options += ["--seconds", str(seconds), "--keep", str(keep)]
            options += ["--schedules", "all"] if number == 0 else []
            begun.append(pool.submit(_run, [sys.executable, "-m", _MODULE, *options]))
        for done in as_completed(begun):
            _add(total, done.result())
    total.seconds = time.monotonic() - began
    return total


def plant(
    names: list[str], seconds: float, seed: int, processes: int, keep: Path, show: Callable[[Verdict], None]
) -> list[Verdict]:
    """Plant mistakes, one at a time, all of them or some; return what became of each.

    Parameters
    ----------
    names
        None given: all.
    seconds
        How long a mistake that no script shows may take.
    seed, processes, keep
        As `explore` has them.
    show
        Called with each verdict.
    """
    known = {mutant.name: mutant for mutant in mutants.MUTANTS}
    if unknown := set(names) - known.keys():
        raise ValueError(f"there is no mutant {min(unknown)}; there are {', '.join(known)}")
    with ThreadPoolExecutor(processes) as pool:
        begun = [pool.submit(_plant, known[name], seconds, seed, keep) for name in names or known]
        for done in as_completed(begun):
            show(done.result())
        return [done.result() for done in begun]


def judge_again(state: Path) -> int:
    """Judge a kept state again, and print what comes of it; return the exit status."""
    return subprocess.run([sys.executable, "-m", _MODULE, "--state", str(state)], check=False).returncode


def _plant(mutant: Mutant, seconds: float, seed: int, keep: Path) -> Verdict:
    began = time.monotonic()
    command = [sys.executable, mutants.__file__, mutant.name, "--seed", str(seed), *_MUTANT_OPTIONS]
    command += ["--keep", str(keep / mutant.name), "--seconds", str(0 if mutant.schedule else seconds)]
    command += ["--schedules", mutant.schedule] if mutant.schedule else []
    report = _run(command)
    seen = str(report["kept"][0]["message"]) if report["kept"] else ""
    return Verdict(mutant, seen, time.monotonic() - began)


def _run(command: list[str]) -> dict[str, object]:
    """Run a process of the explorer; return its report. One that did not end by itself found something."""
    if not LIBRARY.exists():
        raise BackendError(f"{LIBRARY} is missing: install gpkvs again")
    environment = {**os.environ, "LD_PRELOAD": str(LIBRARY)}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    try:
        report: dict[str, object] = json.loads(done.stdout)
    except ValueError:
        lines = done.stderr.splitlines() or ["no word"]
        begun = [line for line in lines if line.startswith(("seed ", "script "))]
        if not begun:
            raise BackendError(f"the explorer did not start: {lines[-1]}") from None
        message = f"status {done.returncode} at {begun[-1]}: {lines[-1]}"
        return {"violations": 1, "kept": [{"state": "", "message": message}]}
    return report


def _add(total: Report, report: dict[str, object]) -> None:
    for name, value in report.items():
        if name == "reached":
            assert isinstance(value, dict)
            total.reached.update(value)
        elif name == "kept":
            assert isinstance(value, list)
            total.kept += value
        else:
            setattr(total, name, getattr(total, name) + value)
