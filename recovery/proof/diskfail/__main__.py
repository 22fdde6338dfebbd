"""``python -m gpkvs.recovery.proof.diskfail``: power failures of an ordinary disk, under stores with a journal.

One process, as ``gpkvs crash --commit journal`` starts several. It starts itself again with the library preloaded.
"""

from __future__ import annotations

import argparse
import json
import os
import pickle
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from random import Random
from typing import get_args

from gpkvs.recovery.proof.batch_runner import EngineName
from gpkvs.recovery.proof.diskfail.explorer import Explorer, Options
from gpkvs.recovery.proof.diskfail.judge import Judge
from gpkvs.recovery.proof.diskfail.player import Player
from gpkvs.recovery.proof.diskfail.recorder import LIBRARY
from gpkvs.recovery.proof.diskfail.schedules import SCHEDULES

MODULE = "gpkvs.recovery.proof.diskfail"
_EVENTS_SHOWN, _DATA_SHOWN = 40, 64  # the last ones of a life that ended with an error, and bytes of each
_KEPT_MAX = 3  # violations of one row, or script: states are large


def main() -> int:
    """Run what the command line asks for; return the exit status."""
    parser = argparse.ArgumentParser(prog=f"python -m {MODULE}", description=__doc__)
    parser.add_argument("--engine", choices=get_args(EngineName), default="native", help="what runs batches")
    parser.add_argument("--seed", type=int, default=None, help="of the first row of lives; others follow")
    parser.add_argument("--step", type=int, default=1, help="from one seed to the next")
    parser.add_argument("--seconds", type=float, default=60, help="how long to begin new rows of lives")
    parser.add_argument("--states", type=int, default=1 << 60, help="after how many states to begin none")
    parser.add_argument("--depth", type=int, default=3, help="lives in a row")
    parser.add_argument("--points", type=int, default=40, help="crash points of each life")
    parser.add_argument("--choices", type=int, default=6, help="states of each crash point")
    parser.add_argument("--schedules", nargs="*", default=[], metavar="NAME", help="first play scripts: some, or `all`")
    parser.add_argument("--stop-early", action="store_true", help="end at the first violation")
    parser.add_argument("--keep", type=Path, default=Path("build/diskfail"), help="where violations are kept")
    parser.add_argument("--directory", type=Path, help="where the stores live; best in memory")
    parser.add_argument("--state", type=Path, help="judge one kept state again")
    given = parser.parse_args()
    if unknown := set(given.schedules) - {"all", *(schedule.name for schedule in SCHEDULES)}:
        parser.error(f"there is no script {min(unknown)}")
    if str(LIBRARY) not in os.environ.get("LD_PRELOAD", ""):
        environment = {**os.environ, "LD_PRELOAD": str(LIBRARY)}
        return subprocess.run([sys.executable, "-m", MODULE, *sys.argv[1:]], env=environment, check=False).returncode
    memory = Path("/dev/shm")
    parent = given.directory or (memory if memory.is_dir() else None)
    directory = Path(tempfile.mkdtemp(prefix="gpkvs-diskfail-", dir=parent))
    try:
        return _judge_again(given.state, directory) if given.state else _explore(given, directory)
    finally:
        shutil.rmtree(directory, ignore_errors=True)


def _judge_again(path: Path, directory: Path) -> int:
    kept = pickle.loads(path.read_bytes())
    print(f"{kept.name}: {kept.message}", *kept.lost, kept.shape, sep="\n")
    if kept.traceback:
        print(kept.traceback)
        print(*(event._replace(data=event.data[:_DATA_SHOWN]) for event in kept.events[-_EVENTS_SHOWN:]), sep="\n")
    for seed in range(5):
        message = Judge(directory / "state").judge(kept.state, kept.allowed, kept.shape, Random(seed))
        print("now:", message or "it recovers as it must", flush=True)
    return bool(message)


def _explore(given: argparse.Namespace, directory: Path) -> int:
    """Play scripts, then let stores live; print violations as they are found, and one JSON object at the end."""
    seed = Random().randrange(1 << 32) if given.seed is None else given.seed
    explorer = Explorer(directory, Options(given.engine, given.depth, given.points, given.choices, given.stop_early))
    totals, began, rows = explorer.totals, time.monotonic(), 0
    kept: list[dict[str, str]] = []

    def goes_on(known: int) -> bool:
        for violation in totals.violations[known : known + _KEPT_MAX]:
            message = f"{violation.name}: {violation.message}"
            print(message, file=sys.stderr, flush=True)
            of_error = {"shape": str(violation.shape), "traceback": violation.traceback} if violation.traceback else {}
            kept.append({"state": str(violation.save(given.keep)), "message": message, **of_error})
        return not (given.stop_early and totals.violations)

    plays = True
    for schedule in SCHEDULES:
        if plays and (schedule.name in given.schedules or "all" in given.schedules):
            print(f"script {schedule.name}", file=sys.stderr, flush=True)
            known = len(totals.violations)
            Player(explorer).play(schedule)
            plays = goes_on(known)
    played = time.monotonic()
    while plays and totals.states < given.states and time.monotonic() - played < given.seconds:
        print(f"seed {seed}", file=sys.stderr, flush=True)
        known = len(totals.violations)
        explorer.explore(seed)
        plays = goes_on(known)
        rows, seed = rows + 1, seed + given.step
    report = {
        "states": totals.states,
        "points": totals.points,
        "lives": totals.lives,
        "rows": rows,
        "schedules": len(SCHEDULES) if "all" in given.schedules else len(given.schedules),
        "seconds": round(time.monotonic() - began, 1),
        "reached": dict(sorted(totals.reached.items())),
        "violations": len(totals.violations),
        "kept": kept,
    }
    print(json.dumps(report))
    return bool(totals.violations)


if __name__ == "__main__":
    sys.exit(main())
