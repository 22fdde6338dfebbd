"""``gpkvs crash --commit journal``: power failures of an ordinary disk, under stores with a journal."""

from __future__ import annotations

import math
import os
from pathlib import Path

import typer
from rich.console import Console

from gpkvs.cli.terminal.counts_table import counts_table
from gpkvs.cli.terminal.output import print_json
from gpkvs.errors import InvalidArgumentError
from gpkvs.recovery.proof.batch_runner import EngineName
from gpkvs.recovery.proof.diskfail.campaign import Report, Verdict, explore, judge_again, plant
from gpkvs.recovery.proof.diskfail.mutants import EQUIVALENT

STATES = 20_000  # a few minutes for each processor
_MUTANT_SECONDS = 180  # of lives at random, which most mistakes need a few of
_SHOWN_MAX = 10


def explore_disk(
    states: int, seconds: float, engine: EngineName, seed: int, processes: int, keep: Path, *, as_json: bool
) -> bool:
    """Judge at least so many states, if there is time, and print what came of it; return whether no promise is broken.

    Parameters
    ----------
    states
        To judge.
    seconds
        After which no new lives begin; 0: no limit.
    engine, seed, processes, keep, as_json
        As `gpkvs crash` has them.
    """
    report = explore(states, seconds or math.inf, engine, seed, processes or os.cpu_count() or 1, keep)
    passed = not report.violations and (report.states >= states or seconds > 0)
    if as_json:
        print_json(_as_json(report, engine, seed))
        return passed
    console = Console(highlight=False, soft_wrap=True, emoji=False)
    title = f"{report.violations:,} VIOLATIONS" if report.violations else "No violation"
    counts = [
        ("scripts", report.schedules),
        ("lives", report.lives),
        ("places where the power failed", report.points),
        ("states, each recovered", report.states),
        *((f"  {name}", count) for name, count in sorted(report.reached.items())),
    ]
    console.print(counts_table(f"{title} in {report.states:,} states", counts, report.seconds))
    for kept in report.kept[:_SHOWN_MAX]:
        console.print(kept["message"], *kept.get("traceback", "").splitlines(), sep="\n", markup=False)
        if kept["state"]:
            console.print(f"  again: gpkvs crash --commit journal --state {kept['state']}", markup=False)
    console.print(f"seed {seed}", markup=False)
    return passed


def _as_json(report: Report, engine: EngineName, seed: int) -> dict[str, object]:
    return {
        "seed": seed,
        "commit": "journal",
        "engine": engine,
        "schedules": report.schedules,
        "rows": report.rows,
        "lives": report.lives,
        "points": report.points,
        "states": report.states,
        "reached": dict(sorted(report.reached.items())),
        "seconds": round(report.seconds, 1),
        "violations": report.violations,
        "kept": report.kept,
    }


def mutate_journal(
    names: list[str], engine: EngineName, seed: int, processes: int, keep: Path, *, as_json: bool
) -> bool:
    """Plant mistakes, one at a time, and print what became of each; return whether all that can be seen were seen."""
    console = Console(stderr=True, highlight=False, soft_wrap=True, emoji=False)

    def show(verdict: Verdict) -> None:
        console.print(_line(verdict), markup=False)

    try:
        verdicts = plant(names, _MUTANT_SECONDS, engine, seed, processes or os.cpu_count() or 1, keep, show)
    except KeyError as error:
        raise InvalidArgumentError(str(error.args[0]), field="mutant") from None
    missed = [verdict.mutant.name for verdict in verdicts if verdict.is_missed]
    harmless = sorted(verdict.mutant.name for verdict in verdicts if not (verdict.seen or verdict.is_missed))
    if as_json:
        seen = {verdict.mutant.name: verdict.seen for verdict in verdicts if verdict.seen}
        reasons = {name: EQUIVALENT[name] for name in harmless}
        print_json(
            {
                "seed": seed,
                "engine": engine,
                "mutants": len(verdicts),
                "unseen": missed,
                "harmless": reasons,
                "seen": seen,
            },
        )
    else:
        seen_count = len(verdicts) - len(missed) - len(harmless)
        typer.echo(
            f"{len(verdicts)} mutants, {seen_count} seen, {len(missed)} not; {len(harmless)} harmless; seed {seed}"
        )
    return not missed


def _line(verdict: Verdict) -> str:
    name = verdict.mutant.name
    if verdict.seen:
        return f"{name}: seen: {verdict.seen[:200]}"
    return f"{name}: NOT SEEN in {verdict.states:,} states" if verdict.is_missed else f"{name}: {EQUIVALENT[name]}"


def judge_disk_state(state: Path) -> bool:
    """Judge a kept state again; return whether it recovers as it must."""
    if not state.is_file():
        raise InvalidArgumentError(f"there is no file {state}", field="state")
    return judge_again(state) == 0
