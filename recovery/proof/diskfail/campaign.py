"""Runs the explorer of disks in processes of its own, and adds up what they say."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor, as_completed
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Self

from gpkvs.errors import BackendError
from gpkvs.recovery.proof.batch_runner import EngineName
from gpkvs.recovery.proof.diskfail import mutants
from gpkvs.recovery.proof.diskfail.mutants import EQUIVALENT, Mutant
from gpkvs.recovery.proof.diskfail.recorder import LIBRARY
from gpkvs.recovery.proof.diskfail.schedules import SCHEDULES

_MODULE = "gpkvs.recovery.proof.diskfail"
# Few places of many lives.
_OPTIONS = ("--points", "20")
_HARMLESS_SECONDS = 20  # to see that it is
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
    states: int  # that were judged

    @property
    def is_missed(self) -> bool:
        """Whether it should have been seen."""
        return not self.seen and self.mutant.name not in EQUIVALENT


class _Processes:
    """Processes of the explorer, a few at a time, and a directory in memory; nothing is left when it ends."""

    def __init__(self, count: int) -> None:
        memory = Path("/dev/shm")
        self._directory = tempfile.TemporaryDirectory(
            prefix="gpkvs-diskfail-", dir=memory if memory.is_dir() else None, ignore_cleanup_errors=True
        )
        self._pool = ThreadPoolExecutor(count)
        self._running: set[subprocess.Popen[str]] = set()
        self._mutex, self._is_ending = threading.Lock(), False

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        with self._mutex:
            self._is_ending = True
            for process in self._running:
                process.kill()
        self._pool.shutdown(cancel_futures=True)
        self._directory.cleanup()

    def begin(self, *command: str | Path) -> Future[dict[str, Any]]:
        """Run the explorer as soon as there is a free place; return its report to come."""
        return self._pool.submit(self._run, [sys.executable, *map(str, command), "--directory", self._directory.name])

    def _run(self, command: list[str]) -> dict[str, Any]:
        environment = {**os.environ, "LD_PRELOAD": str(LIBRARY)}
        with self._mutex:
            if self._is_ending:
                return {}
            process = subprocess.Popen(
                command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
            )
            self._running.add(process)
        output, errors = process.communicate()
        with self._mutex:
            self._running.remove(process)
        return report_of(output, errors, process.returncode)


def report_of(output: str, errors: str, status: int) -> dict[str, Any]:
    """Return what a process reported. One that did not end by itself found something."""
    try:
        report: dict[str, Any] = json.loads(output)
    except ValueError:
        lines = errors.splitlines() or ["no word"]
        begun = [number for number, line in enumerate(lines) if line.startswith(("seed ", "script "))]
        if not begun:
            raise BackendError(f"the explorer did not start: {lines[-1]}") from None
        how = "it never ended" if any(line.startswith("Timeout (") for line in lines) else f"status {status}"
        told = {"message": f"{lines[begun[-1]]}: {how}", "traceback": "\n".join(lines[begun[-1] + 1 :])}
        return {"violations": 1, "kept": [{"state": "", **told}]}
    return report


def explore(states: int, seconds: float, engine: EngineName, seed: int, processes: int, keep: Path) -> Report:
    """Play all scripts, then let stores live at random until so many states were judged or so much time is gone."""
    began, total = time.monotonic(), Report()
    with _Processes(processes) as running:
        begun = []
        for number in range(processes):
            limits = ("--states", str(-(-states // processes)), "--seconds", str(seconds), "--keep", keep)
            lives = ("--engine", engine, "--seed", str(seed + number), "--step", str(processes))
            scripts = [schedule.name for schedule in SCHEDULES[number::processes]]
            begun.append(running.begin("-m", _MODULE, *_OPTIONS, *limits, *lives, "--schedules", *scripts))
        for done in as_completed(begun):
            _add(total, done.result())
    total.seconds = time.monotonic() - began
    return total


def plant(
    names: list[str],
    seconds: float,
    engine: EngineName,
    seed: int,
    processes: int,
    keep: Path,
    show: Callable[[Verdict], None],
) -> list[Verdict]:
    """Plant mistakes, one at a time, all of them or some; return what became of each.

    Parameters
    ----------
    names
        None given: all.
    seconds
        How long a mistake that no script shows may take.
    engine
        Runs the batches, but for mistakes that only phases can have.
    seed, processes, keep
        As `explore` has them.
    show
        Called with each verdict.

    Raises
    ------
    KeyError
        If there is no mutant of a name.
    """
    known = {mutant.name: mutant for mutant in mutants.MUTANTS}
    if unknown := set(names) - known.keys():
        raise KeyError(f"there is no mutant {min(unknown)}; there are {', '.join(known)}")
    verdicts = []
    with _Processes(processes) as running:
        begun = {_plant(running, known[name], seconds, engine, seed, keep): known[name] for name in names or known}
        for done in as_completed(begun):
            verdicts.append(Verdict(begun[done], *_what_was_seen(done.result())))
            show(verdicts[-1])
    return verdicts


def _plant(
    running: _Processes, mutant: Mutant, seconds: float, engine: EngineName, seed: int, keep: Path
) -> Future[dict[str, Any]]:
    seconds = min(seconds, _HARMLESS_SECONDS) if mutant.name in EQUIVALENT else seconds
    scripts = ("--schedules", mutant.schedule, "--seconds", "0") if mutant.schedule else ("--seconds", str(seconds))
    runs = ("--engine", "phases" if mutant.is_of_phases else engine, "--seed", str(seed))
    return running.begin(mutants.__file__, mutant.name, *runs, *_MUTANT_OPTIONS, "--keep", keep / mutant.name, *scripts)


def _what_was_seen(report: dict[str, Any]) -> tuple[str, int]:
    return (str(report["kept"][0]["message"]) if report["kept"] else ""), int(report.get("states", 0))


def judge_again(state: Path) -> int:
    """Judge a kept state again, and print what comes of it; return the exit status."""
    return subprocess.run([sys.executable, "-m", _MODULE, "--state", str(state)], check=False).returncode


def _add(total: Report, report: dict[str, Any]) -> None:
    for name, value in report.items():
        if name == "reached":
            total.reached.update(value)
        elif name == "kept":
            total.kept += value
        else:
            setattr(total, name, getattr(total, name) + value)
