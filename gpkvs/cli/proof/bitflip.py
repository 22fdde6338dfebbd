"""gpkvs bitflip: damage a store in a hundred thousand ways, and see that no damage is served as if it were whole."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

import typer
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn
from rich.table import Table

from gpkvs.cli.terminal.cleanup import ended_by_signals, scratch_directory
from gpkvs.cli.terminal.exit_status import exits
from gpkvs.cli.terminal.output import failures_exit, print_json
from gpkvs.recovery.proof.damage.bitflip import BitflipOptions, BitflipReport, bitflip, memory_parent, plan
from gpkvs.recovery.proof.damage.damage_kinds import Damage
from gpkvs.recovery.proof.damage.judge_process import DamageOutcome
from gpkvs.recovery.proof.damage.sample_store import commit_of


@exits({0: "nothing was missed", 1: "something was missed (it is listed, with the command that repeats it)"})
def bitflip_command(
    bits: Annotated[
        int,
        typer.Option(
            help="Random single bits, besides every bit of roots, flag, descriptors, log, and frames' heads.", min=0
        ),
    ] = 100_000,
    bursts: Annotated[int, typer.Option(help="Bursts of up to 64 random bytes.", min=0)] = 10_000,
    every: Annotated[int, typer.Option(help="Take every n-th bit of these structures only; 1 takes all.", min=1)] = 1,
    seed: Annotated[
        int, typer.Option(help="Seed of the random choices: the same seed damages the same places.", min=0)
    ] = 1,
    commit: Annotated[
        Literal["undo", "journal"], typer.Option(help="How batches of the damaged stores become durable.")
    ] = "undo",
    only: Annotated[
        str, typer.Option(help="Repeat one damage, as a report names it: IMAGE:FILE:OFFSET:MASK.", metavar="DAMAGE")
    ] = "",
    data: Annotated[
        Path | None,
        typer.Option(
            help="An empty directory for the stores. By default one in memory, kept only if something is wrong."
        ),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object, for scripts.")] = False,
) -> None:
    """Invert bits of a store's files, one store after the other, and open, read, write and check each.

    It damages images of a small store: at rest, and of a process that died in a batch, some of them with large
    values in blobs. No damage may end a process by a signal. No damage may give a wrong value, except in a slot
    of a u64 table, which nothing checks. A store that is refused must stay as it was, and `gpkvs check` must name
    what is wrong.

    Example: gpkvs bitflip --bits 1000 --bursts 100 --every 50
    """
    console = Console(stderr=True, highlight=False, soft_wrap=True)
    with (
        failures_exit(1),
        ended_by_signals(),
        scratch_directory(data, "gpkvs-bitflip-", memory_parent()) as directory,
    ):
        single = [Damage.parse(only)] if only else []
        of_stores = commit_of(single[0].image) if single else commit
        options = BitflipOptions(bits, bursts, seed, directory, every, of_stores, **({"workers": 1} if only else {}))
        damages = single or plan(options)
        report = _run(options, damages, console)
        if as_json:
            print_json(_as_json(report, options))
        else:
            _print(report, options)
        for verdict in report.missed:
            typer.echo(f"gpkvs: missed: {verdict.damage}: {verdict.detail}", err=True)
        if report.missed:
            again = f"gpkvs bitflip --only {report.missed[0].damage}"
            typer.echo(f"gpkvs: repeat one with: {again} (the stores are kept in {directory})", err=True)
            raise typer.Exit(1)


def _run(options: BitflipOptions, damages: list[Damage], console: Console) -> BitflipReport:
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        TimeRemainingColumn(),
    )
    with Progress(*columns, console=console, transient=True, disable=not console.is_terminal) as bar:
        task = bar.add_task("bitflip", total=len(damages))
        return bitflip(options, damages, lambda _: bar.advance(task))


def _as_json(report: BitflipReport, options: BitflipOptions) -> dict[str, object]:
    return {
        "seed": options.seed,
        "commit": options.commit,
        "damages": report.outcomes.total(),
        "outcomes": {outcome.name.lower(): report.outcomes[outcome] for outcome in DamageOutcome},
        "by_file": {
            file: {outcome.name.lower(): report.by_file[file, outcome] for outcome in DamageOutcome}
            for file in sorted({file for file, _ in report.by_file})
        },
        "missed": [{"damage": verdict.damage, "detail": verdict.detail} for verdict in report.missed],
        "seconds": round(report.seconds, 3),
    }


def _print(report: BitflipReport, options: BitflipOptions) -> None:
    console = Console(highlight=False, soft_wrap=True)
    title = f"{report.outcomes.total():,} damaged stores, {report.outcomes[DamageOutcome.MISSED]:,} missed"
    facts = Table(title=title, title_justify="left")
    facts.add_column("file", no_wrap=True)
    for outcome in DamageOutcome:
        facts.add_column(outcome, justify="right")
    for file in sorted({file for file, _ in report.by_file}):
        facts.add_row(file, *[f"{report.by_file[file, outcome]:,}" for outcome in DamageOutcome])
    facts.add_section()
    facts.add_row("all", *[f"{report.outcomes[outcome]:,}" for outcome in DamageOutcome])
    console.print(facts)
    console.print(f"seed {options.seed}, {report.seconds:.1f} s, {options.workers} workers", markup=False)
