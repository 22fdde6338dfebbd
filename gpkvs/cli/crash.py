"""gpkvs crash: the states that a power failure can leave, each one recovered and judged."""

from __future__ import annotations

from typing import Annotated

import typer
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table

from gpkvs.cli.output import failures_exit, print_json
from gpkvs.crash.campaign import Campaign, Totals, part_of
from gpkvs.crash.explore import Options, Visited
from gpkvs.crash.models import MODEL_OF_DOMAIN, Model
from gpkvs.crash.workloads import Workload, all_workloads

DISTINCT_MIN = {1: 100_000, 2: 20_000}


def crash_command(
    depth: Annotated[int, typer.Option(help="2: a second crash, while recovery runs.", min=1, max=2)] = 1,
    model: Annotated[list[Model] | None, typer.Option(help="Only this model; may be given again.")] = None,
    workload: Annotated[
        list[str] | None, typer.Option(help="Only this workload, such as bytes:NUD; may be given again.")
    ] = None,
    part: Annotated[int, typer.Option(help="Only so many workloads, chosen by the seed; 0 is all.", min=0)] = 0,
    seed: Annotated[int, typer.Option(help="Repeats the choices of an earlier run.", min=0)] = 1,
    processes: Annotated[int, typer.Option(help="0: one for each processor.", min=0)] = 0,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object, for scripts.")] = False,
) -> None:
    """Visit the states that a power failure can leave behind, and recover every one of them.

    Short sequences of batches run on a traced build of the real kernels, which records every store, write-back and fence.
    From the trace follow the states that memory could be in after a crash at any point, for each model of what a crash
    keeps (docs/reliability.md). Each one is recovered, checked, and must hold the store as it was before the batch or as
    it is after it.

    Exit status: 0 no violation and the aim was met; 1 else. A run of everything fails too if it visited fewer states than
    it should.

    Example: gpkvs crash --part 100 --seed 7
    """
    console = Console(stderr=True, highlight=False, soft_wrap=True)
    with failures_exit(1):
        options = Options(models=tuple(model or Model), seed=seed, depth=depth)
        chosen = (
            [Workload.parse(name) for name in workload]
            if workload
            else part_of(part, seed)
            if part
            else all_workloads()
        )
        totals = _run(Campaign(options, processes), chosen, console)
    is_whole = not workload and not part and not model
    missed = is_whole and totals.distinct < DISTINCT_MIN[depth]
    if as_json:
        print_json(_as_json(totals, options))
    else:
        _print(totals, options)
    if missed:
        console.print(f"only {totals.distinct:,} distinct states; at least {DISTINCT_MIN[depth]:,} are wanted")
    if totals.violations or missed:
        raise typer.Exit(1)


def _run(campaign: Campaign, workloads: list[Workload], console: Console) -> Totals:
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with Progress(*columns, console=console, transient=True, disable=not console.is_terminal) as bar:
        task = bar.add_task("workloads", total=len(workloads))

        def show(visited: Visited) -> None:
            bar.advance(task)
            for violation in visited.violations[:3]:
                bar.console.print(f"{violation.state}: {violation.message}", markup=False)

        return campaign.run(workloads, show)


def _as_json(totals: Totals, options: Options) -> dict[str, object]:
    return {
        "seed": options.seed,
        "depth": options.depth,
        "workloads": totals.workloads,
        "epochs": totals.epochs,
        "epochs_exhaustive": totals.exhaustive,
        "states": {model.value: totals.states[model] for model in options.models},
        "states_distinct": totals.distinct,
        "recoveries": totals.recoveries,
        "images_judged": totals.judged,
        "seconds": round(totals.seconds, 1),
        "violations": [{"state": str(found.state), "message": found.message} for found in totals.violations],
    }


def _print(totals: Totals, options: Options) -> None:
    console = Console(highlight=False, soft_wrap=True)
    title = "No violation" if not totals.violations else f"{len(totals.violations):,} VIOLATIONS"
    facts = Table(show_header=False, title=f"{title} in {totals.distinct:,} states", title_justify="left")
    facts.add_column()
    facts.add_column(justify="right")
    given = {model: [domain.value for domain, models in MODEL_OF_DOMAIN.items() if model in models] for model in Model}
    facts.add_row("workloads", f"{totals.workloads:,}")
    facts.add_row("epochs", f"{totals.epochs:,}")
    facts.add_row("  of which every state was visited", f"{totals.exhaustive:,}")
    for model in options.models:
        facts.add_row(f"states, model {model} (domain {', '.join(given[model])})", f"{totals.states[model]:,}")
    facts.add_row("distinct states, each recovered", f"{totals.distinct:,}")
    if options.depth > 1:
        facts.add_row("first crashes", f"{totals.recoveries:,}")
    facts.add_row("violations", f"{len(totals.violations):,}")
    facts.add_row("seconds", f"{totals.seconds:.1f}")
    console.print(facts)
    for found in totals.violations[:20]:
        console.print(f"{found.state}: {found.message}", markup=False)
        console.print(f"  again: gpkvs crash --seed {options.seed} --state {found.state}", markup=False)
    console.print(f"seed {options.seed}", markup=False)
