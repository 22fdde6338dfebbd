"""gpkvs crash: recover and judge every state that a power failure can leave."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Literal, TypeVar

import typer
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from gpkvs.cli.proof.crash_disk import STATES, explore_disk, judge_disk_state, mutate_journal
from gpkvs.cli.proof.crash_gpm import explore_gpm
from gpkvs.cli.terminal.cleanup import ended_by_signals
from gpkvs.cli.terminal.counts_table import counts_table
from gpkvs.cli.terminal.exit_status import exits
from gpkvs.cli.terminal.output import failures_exit, print_json
from gpkvs.errors import InvalidArgumentError
from gpkvs.recovery.proof.powerfail.base_store import ExploredEngine
from gpkvs.recovery.proof.powerfail.campaign import Campaign, Totals, part_of
from gpkvs.recovery.proof.powerfail.crash_models import MODEL_OF_DOMAIN, Model
from gpkvs.recovery.proof.powerfail.explorer import ExplorerOptions, StateName, StateReport, Visited
from gpkvs.recovery.proof.powerfail.missing_persists import MutantVerdict
from gpkvs.recovery.proof.powerfail.trace import Kind, Mutation
from gpkvs.recovery.proof.powerfail.workloads import Workload, all_workloads

# How many distinct states a run of everything must have visited.
STATES_MIN = {1: 100_000, 2: 20_000}
_SHOWN_MAX = 10
_T = TypeVar("_T")


@exits({0: "no violation (a run of everything has also visited as many states as it should)", 1: "anything else"})
def crash_command(
    commit: Annotated[
        Literal["undo", "journal"], typer.Option(help="Of the stores: with an undo log, or with a journal on a disk.")
    ] = "undo",
    gpm: Annotated[
        bool,
        typer.Option("--gpm", help="Of programs on gpkvs.gpm: logs, transactions, checkpoints, versions, kernels."),
    ] = False,
    engine: Annotated[
        ExploredEngine,
        typer.Option(
            help="What runs batches: one native call; phases, as a GPU's batches have them; or phases of a pair of "
            "processors that store together, with a log in chunks, as a GPU and its host do (not for page)."
        ),
    ] = "native",
    depth: Annotated[int, typer.Option(help="2: crash a second time, while recovery runs.", min=1, max=2)] = 1,
    mutate: Annotated[
        bool,
        typer.Option(
            "--mutate",
            help="Leave out each fence, write-back and sync, one at a time (journal: plant mistakes): does a state "
            "show it?",
        ),
    ] = False,
    model: Annotated[list[Model] | None, typer.Option(help="Only this crash model; may be repeated.")] = None,
    workload: Annotated[
        list[str] | None, typer.Option(help="Only this workload, such as bytes:NUD; may be repeated.")
    ] = None,
    part: Annotated[int, typer.Option(help="Visit only so many workloads, chosen by the seed; 0: all.", min=0)] = 0,
    seed: Annotated[int, typer.Option(help="Seed of the choices; that of an earlier run repeats them.", min=0)] = 1,
    state: Annotated[
        str | None,
        typer.Option(help="Visit only this state, as a violation names it, and show it in full (journal: a file)."),
    ] = None,
    without: Annotated[
        str | None, typer.Option(help="With --state: leave out this persist, as --mutate names it.")
    ] = None,
    states: Annotated[int, typer.Option(help="journal: how many states to judge, at least.", min=1)] = STATES,
    seconds: Annotated[
        float, typer.Option(help="journal: how long to begin new lives; 0: until all states are judged.", min=0)
    ] = 0,
    mutant: Annotated[
        list[str] | None, typer.Option(help="journal, with --mutate: only this mistake; may be repeated.")
    ] = None,
    keep: Annotated[Path, typer.Option(help="journal: where states that break a promise are kept.")] = Path(
        "crash-states"
    ),
    processes: Annotated[int, typer.Option(help="How many processes; 0: one for each processor.", min=0)] = 0,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object, for scripts.")] = False,
) -> None:
    """Visit the states that a power failure can leave behind, and recover every one of them.

    Short sequences of batches run on a traced build of the real kernels, which records every store, write-back and
    fence. The trace determines the states that a crash at any point could leave in memory, by each model of what a
    crash keeps (docs/reliability.md). The command recovers and checks each of them: it must hold what the store held
    before the batch or after it, nothing else.

    A batch is planned and committed by one native call, as on a machine without a GPU. With --engine phases, batches
    of GET, SET, DELETE and EXISTS run phase by phase, as on a GPU.

    With --commit journal, stores of that kind live on a disk in memory, at random and by scripts, up to three times in
    a row, each time from a state that a power failure may leave. The options --depth, --model, --workload, --part and
    --without are of the undo log.

    With --gpm, small programs on the library gpkvs.gpm take the place of the store: each state is opened and recovered
    as its program does it. Of the other options, --mutate, --workload (such as transaction), --seed, --processes and
    --json go with it.

    Examples: gpkvs crash --part 100 --seed 7; gpkvs crash --depth 2; gpkvs crash --mutate; gpkvs crash --commit journal
    """
    if gpm or commit == "journal":
        of_undo = {"depth": depth != 1, "model": model, "part": part, "without": without}
        with failures_exit(1), ended_by_signals(kill_children=not gpm):
            if gpm:
                _require_none({**of_undo, "commit": commit == "journal", "state": state}, "of stores", "--gpm")
                passed = explore_gpm(workload or [], seed, processes, mutate=mutate, as_json=as_json)
            else:
                pair = {"engine": engine == "pair"}
                _require_none({**of_undo, "workload": workload, **pair}, "of the undo log", "--commit journal")
                passed = _crash_disk(
                    state, mutant or [], engine, seed, processes, keep, states, seconds, mutate, as_json
                )
        if not passed:
            raise typer.Exit(1)
        return
    console = Console(stderr=True, highlight=False, soft_wrap=True, emoji=False)  # :100: is a line of the source
    with failures_exit(1), ended_by_signals(kill_children=False):  # the pool of processes ends its own
        options = ExplorerOptions(
            models=tuple(model or Model),
            engine=engine,
            seed=seed,
            depth=2 if mutate else depth,
            samples=16 if mutate else 64,
            mutation=_parsed(Mutation.parse, without, "without") if without else None,
        )
        campaign = Campaign(options, processes)
        if state:
            passed = _print_state(_parsed(lambda name: campaign.visit(StateName.parse(name)), state, "state"))
        elif mutate:
            passed = _print_verdicts(_mutate(campaign, console), options, as_json)
        else:
            chosen = _workloads(workload, part, options)
            totals = _explore(campaign, chosen, console)
            wanted = 0 if workload or part or model else STATES_MIN[depth]
            passed = _print_totals(totals, options, wanted, as_json)
    if not passed:
        raise typer.Exit(1)


def _require_none(given: dict[str, object], whose: str, without: str) -> None:
    """Raise `InvalidArgumentError` if an option was given that has no meaning."""
    if names := [name for name, value in given.items() if value]:
        raise InvalidArgumentError(f"it is {whose}: leave it out, or {without}", field=names[0])


def _crash_disk(
    state: str | None,
    mutants: list[str],
    engine: ExploredEngine,
    seed: int,
    processes: int,
    keep: Path,
    states: int,
    seconds: float,
    mutate: bool,
    as_json: bool,
) -> bool:
    assert engine != "pair"
    if state:
        return judge_disk_state(Path(state))
    if mutate:
        return mutate_journal(mutants, engine, seed, processes, keep, as_json=as_json)
    return explore_disk(states, seconds, engine, seed, processes, keep, as_json=as_json)


def _workloads(names: list[str] | None, part: int, options: ExplorerOptions) -> list[Workload]:
    if names:
        return [_parsed(Workload.parse, name, "workload") for name in names]
    return part_of(part, options.seed) if part else all_workloads(options.depth)


def _parsed(parse: Callable[[str], _T], text: str, field: str) -> _T:
    try:
        return parse(text)
    except ValueError as error:
        raise InvalidArgumentError(str(error), field=field) from None


def _explore(campaign: Campaign, workloads: list[Workload], console: Console) -> Totals:
    with _bar(console) as bar:
        task = bar.add_task("workloads", total=len(workloads))

        def show(visited: Visited) -> None:
            bar.advance(task)
            for violation in visited.violations[:1]:
                bar.console.print(f"{violation.state}: {violation.message}", markup=False)

        return campaign.explore(workloads, show)


def _mutate(campaign: Campaign, console: Console) -> list[MutantVerdict]:
    with _bar(console) as bar:
        task = bar.add_task("mutants", total=None)

        def show(verdict: MutantVerdict) -> None:
            bar.advance(task)
            bar.console.print(_verdict_line(verdict), markup=False)

        return campaign.mutate(lambda count: bar.update(task, total=count), show)


def _bar(console: Console) -> Progress:
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    return Progress(*columns, console=console, transient=True, disable=not console.is_terminal)


def _verdict_line(verdict: MutantVerdict) -> str:
    how = f"seen at {verdict.caught}" if verdict.caught else f"NOT SEEN in {verdict.states:,} states"
    return f"without {verdict.mutation}: {how}"


def _print_totals(totals: Totals, options: ExplorerOptions, wanted: int, as_json: bool) -> bool:
    """Print what a run visited; return whether it passed."""
    missed = totals.distinct < wanted
    if as_json:
        print_json(_as_json(totals, options))
        return not (totals.violations or missed)
    console = Console(highlight=False, soft_wrap=True, emoji=False)
    title = f"{len(totals.violations):,} VIOLATIONS" if totals.violations else "No violation"
    counts = [
        ("workloads", totals.workloads),
        ("  batches that the native engine ran", totals.natively),
        ("epochs", totals.epochs),
        ("  whose states were all visited", totals.exhaustive),
    ]
    for model in options.models:
        domains = ", ".join(domain for domain, models in MODEL_OF_DOMAIN.items() if model in models)
        counts.append((f"states, model {model} (domain {domains})", totals.states[model]))
    if options.depth == 2:
        counts.append(("first crashes whose recovery was interrupted", totals.recoveries))
    counts.append(("distinct states, each recovered", totals.distinct))
    console.print(counts_table(f"{title} in {totals.distinct:,} states", counts, totals.seconds))
    for found in totals.violations[:_SHOWN_MAX]:
        console.print(f"{found.state}: {found.message}", markup=False)
        again = f"--engine {options.engine} --seed {options.seed}"
        without = f" --without '{options.mutation}'" if options.mutation else ""
        console.print(f"  again: gpkvs crash {again}{without} --state {found.state}", markup=False)
    if missed:
        console.print(f"FAILED: at least {wanted:,} distinct states should have been visited")
    console.print(f"seed {options.seed}", markup=False)
    return not (totals.violations or missed)


def _as_json(totals: Totals, options: ExplorerOptions) -> dict[str, object]:
    return {
        "seed": options.seed,
        "engine": options.engine,
        "depth": options.depth,
        "workloads": totals.workloads,
        "native_batches": totals.natively,
        "epochs": totals.epochs,
        "epochs_exhaustive": totals.exhaustive,
        "states": {model.value: totals.states[model] for model in options.models},
        "states_distinct": totals.distinct,
        "recoveries": totals.recoveries,
        "images_judged": totals.judged,
        "seconds": round(totals.seconds, 1),
        "violations": [{"state": str(found.state), "message": found.message} for found in totals.violations],
    }


def _print_verdicts(verdicts: list[MutantVerdict], options: ExplorerOptions, as_json: bool) -> bool:
    """Print what became of the mutants; return whether all were seen."""
    unseen = [verdict for verdict in verdicts if not verdict.caught]
    if as_json:
        print_json(
            {
                "seed": options.seed,
                "engine": options.engine,
                "mutants": len(verdicts),
                "unseen": [str(verdict.mutation) for verdict in unseen],
                "seen": {str(verdict.mutation): str(verdict.caught) for verdict in verdicts if verdict.caught},
            }
        )
    else:
        typer.echo(
            f"{len(verdicts)} mutants, {len(verdicts) - len(unseen)} seen, {len(unseen)} not; seed {options.seed}"
        )
        for verdict in unseen:
            typer.echo(_verdict_line(verdict))
    return not unseen


def _print_state(report: StateReport) -> bool:
    """Print one state: what its crash keeps and loses; return whether it recovers as it must."""
    for kept, event in report.changes:
        file = report.files.get(event.file, f"file {event.file}")
        what = f"{event.name} -> {file}" if event.kind is Kind.NAME else f"{file} word {event.at}"
        typer.echo(f"{'kept' if kept else 'lost'}  {event.kind.name:5}  {what:28}  {event.site}")
    typer.echo(f"VIOLATION: {report.message}" if report.message else "it recovers as it must")
    return not report.message
