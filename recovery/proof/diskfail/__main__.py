"""``python -m gpkvs.recovery.proof.diskfail``: power failures of an ordinary disk, under stores with a journal."""

from __future__ import annotations

import argparse
import os
import pickle
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from random import Random

from gpkvs.recovery.proof.diskfail import mutants
from gpkvs.recovery.proof.diskfail.explorer import Explorer, Options
from gpkvs.recovery.proof.diskfail.judge import Judge
from gpkvs.recovery.proof.diskfail.player import Player
from gpkvs.recovery.proof.diskfail.recorder import LIBRARY
from gpkvs.recovery.proof.diskfail.schedules import SCHEDULES

_MODULE = "gpkvs.recovery.proof.diskfail"


def main() -> int:
    """Run what the command line asks for; return the exit status."""
    parser = argparse.ArgumentParser(prog=f"python -m {_MODULE}", description=__doc__)
    parser.add_argument("--seed", type=int, default=None, help="of the first row of lives; others follow")
    parser.add_argument("--seconds", type=float, default=60, help="how long to begin new rows of lives")
    parser.add_argument("--rows", type=int, default=1 << 30, help="how many rows of lives at most")
    parser.add_argument("--depth", type=int, default=3, help="lives in a row")
    parser.add_argument("--points", type=int, default=40, help="crash points of each life")
    parser.add_argument("--choices", type=int, default=6, help="states of each crash point")
    parser.add_argument("--step", type=int, default=1, help="from one seed to the next")
    parser.add_argument("--stop-early", action="store_true", help="end at the first violation")
    parser.add_argument(
        "--mutants", nargs="*", metavar="NAME", help="plant mistakes, all of them or some: are they seen?"
    )
    parser.add_argument(
        "--schedules", nargs="*", metavar="NAME", help="play scripts, all of them or some, and no lives at random"
    )
    parser.add_argument("--keep", type=Path, default=Path("build/diskfail"), help="where violations are kept")
    parser.add_argument("--state", type=Path, help="judge one kept state again")
    given = parser.parse_args()
    if given.mutants is not None:
        return _plant(given)
    if str(LIBRARY) not in os.environ.get("LD_PRELOAD", ""):
        environment = {**os.environ, "LD_PRELOAD": str(LIBRARY)}
        return subprocess.run([sys.executable, "-m", _MODULE, *sys.argv[1:]], env=environment, check=False).returncode
    memory = Path("/dev/shm")
    directory = Path(tempfile.mkdtemp(prefix="gpkvs-diskfail-", dir=memory if memory.is_dir() else None))
    try:
        return _judge_again(given.state, directory) if given.state else _explore(given, directory)
    finally:
        shutil.rmtree(directory, ignore_errors=True)


def _plant(given: argparse.Namespace) -> int:
    """Explore with one mistake at a time; return whether one was not seen."""
    names = given.mutants or [mutant.name for mutant in mutants.MUTANTS]
    unseen = []
    for name in names:
        began = time.monotonic()
        command = [
            sys.executable,
            mutants.__file__,
            name,
            "--seed",
            str(given.seed or 1),
            "--seconds",
            str(given.seconds),
        ]
        done = subprocess.run(
            [*command, "--stop-early", "--points", "12", "--choices", "5", "--keep", str(given.keep / name)],
            env={**os.environ, "LD_PRELOAD": str(LIBRARY)},
            capture_output=True,
            text=True,
            check=False,
        )
        lines = done.stdout.splitlines() or done.stderr.splitlines()[-1:]
        if done.returncode == 0 and name not in mutants.EQUIVALENT:
            unseen.append(name)
        how = f"seen ({done.returncode})" if done.returncode else f"not seen: {mutants.EQUIVALENT.get(name, 'WHY?')}"
        print(f"{name}: {how} in {time.monotonic() - began:.0f} s: {lines[0][:300]}", flush=True)
    print(f"{len(names)} mutants, not seen: {', '.join(unseen) or 'none'}")
    return bool(unseen)


def _judge_again(path: Path, directory: Path) -> int:
    kept = pickle.loads(path.read_bytes())
    print(f"{kept.name}: {kept.message}", *kept.lost, kept.shape, sep="\n")
    for seed in range(5):
        message = Judge(directory / "state").judge(kept.state, kept.allowed, kept.shape, Random(seed))
        print("now:", message or "it recovers as it must", flush=True)
    return bool(message)


def _explore(given: argparse.Namespace, directory: Path) -> int:
    if given.schedules is not None:
        given.rows = 0
    seed = Random().randrange(1 << 32) if given.seed is None else given.seed
    explorer = Explorer(directory, Options(given.depth, given.points, given.choices, given.stop_early))
    totals, began, rows = explorer.totals, time.monotonic(), 0
    player = Player(explorer)
    for schedule in SCHEDULES:
        if given.schedules is not None and (not given.schedules or schedule.name in given.schedules):
            b,st=time.monotonic(),totals.states
            player.play(schedule)
            print(schedule.name, len(totals.violations), totals.states-st, time.monotonic()-b, file=sys.stderr)
            for violation in totals.violations[:3]:
                print(f"{violation.name}: {violation.message}\n  kept: {violation.save(given.keep)}", flush=True)
    while rows < given.rows and time.monotonic() - began < given.seconds:
        print(f"seed {seed}", file=sys.stderr, flush=True)
        known = len(totals.violations)
        explorer.explore(seed)
        for violation in totals.violations[known : known + 3]:
            print(f"{violation.name}: {violation.message}\n  kept: {violation.save(given.keep)}", flush=True)
        rows, seed = rows + 1, seed + given.step
        if given.stop_early and totals.violations:
            break
    seconds = time.monotonic() - began
    print(
        f"{len(totals.violations)} violations in {totals.states} states ({totals.opening_states} of openings) at "
        f"{totals.points} points of {totals.lives} lives in {rows} rows; {seconds:.1f} s, "
        f"of which the lives took {totals.live_seconds:.1f} s, "
        f"{totals.states / max(totals.judge_seconds, 0.001):.0f} states a second; "
        f"events {dict(totals.events)}"
    )
    return bool(totals.violations)


if __name__ == "__main__":
    sys.exit(main())
