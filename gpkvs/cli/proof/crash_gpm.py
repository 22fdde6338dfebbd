"""``gpkvs crash --gpm``: power failures under programs on gpkvs.gpm."""

from __future__ import annotations

import time

from rich.console import Console

from gpkvs.cli.terminal.counts_table import counts_table
from gpkvs.cli.terminal.output import print_json
from gpkvs.errors import InvalidArgumentError
from gpkvs.recovery.proof.gpmfail.campaign import GpmCampaign, GpmVerdict
from gpkvs.recovery.proof.gpmfail.explorer import GpmVisited, named
from gpkvs.recovery.proof.gpmfail.workloads import WORKLOADS

_SHOWN_MAX = 10


def explore_gpm(names: list[str], seed: int, processes: int, *, mutate: bool, as_json: bool) -> bool:
    """Explore programs, or try mutants of the library, and print what came of it; return whether all is well.

    Parameters
    ----------
    names
        Of the programs; none: all.
    seed, processes, mutate, as_json
        As `gpkvs crash` has them.

    Raises
    ------
    InvalidArgumentError
        If there is no program of such a name.
    """
    try:
        chosen = [named(name).name for name in names] or [workload.name for workload in WORKLOADS]
    except ValueError as error:
        raise InvalidArgumentError(str(error), field="workload") from None
    campaign, begin = GpmCampaign(seed, processes), time.perf_counter()
    if mutate:
        return _print_verdicts(list(campaign.mutate(chosen)), seed, as_json=as_json)
    return _print_visited(list(campaign.explore(chosen)), seed, time.perf_counter() - begin, as_json=as_json)


def _print_visited(visited: list[GpmVisited], seed: int, seconds: float, *, as_json: bool) -> bool:
    visited.sort(key=lambda one: one.workload)
    violations = [violation for one in visited for violation in one.violations]
    distinct = sum(one.distinct for one in visited)
    if as_json:
        print_json(
            {
                "seed": seed,
                "states_distinct": distinct,
                "workloads": {
                    one.workload: {"epochs": one.epochs, "states": one.states.total(), "states_distinct": one.distinct}
                    for one in visited
                },
                "seconds": round(seconds, 1),
                "violations": [{"state": found.state, "message": found.message} for found in violations],
            }
        )
        return not violations
    console = Console(highlight=False, soft_wrap=True, emoji=False)
    title = f"{len(violations):,} VIOLATIONS" if violations else "No violation"
    counts = [(f"distinct states of {one.workload}, each recovered", one.distinct) for one in visited]
    console.print(counts_table(f"{title} in {distinct:,} states", counts, seconds))
    for found in violations[:_SHOWN_MAX]:
        console.print(f"{found.state}: {found.message}", markup=False)
    console.print(f"seed {seed}", markup=False)
    return not violations


def _print_verdicts(verdicts: list[GpmVerdict], seed: int, *, as_json: bool) -> bool:
    verdicts.sort(key=lambda verdict: str(verdict.mutation))
    missed = [verdict for verdict in verdicts if not verdict.caught]
    if as_json:
        print_json({"seed": seed, "mutants": {str(verdict.mutation): verdict.caught for verdict in verdicts}})
        return not missed
    console = Console(highlight=False, soft_wrap=True, emoji=False)
    for verdict in verdicts:
        how = f"seen at {verdict.caught}" if verdict.caught else "NOT SEEN"
        console.print(f"without {verdict.mutation}: {how}", markup=False)
    console.print(f"{len(verdicts) - len(missed)} of {len(verdicts)} mutants seen, seed {seed}", markup=False)
    return not missed
