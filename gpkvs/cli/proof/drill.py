"""gpkvs drill: kill a real server again and again, and prove that nothing acknowledged is lost."""

from __future__ import annotations

import asyncio
import secrets
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from gpkvs.cli.terminal.cleanup import ended_by_signals, scratch_directory
from gpkvs.cli.terminal.counts_table import counts_table
from gpkvs.cli.terminal.exit_status import exits
from gpkvs.cli.terminal.output import failures_exit, print_json
from gpkvs.config import BackendName, CommitName, DurabilityName
from gpkvs.process.failpoint import SERVING_BY_COMMIT
from gpkvs.recovery.proof.drill.clients import DrillClientOptions
from gpkvs.recovery.proof.drill.drill import DrillError, DrillOptions, DrillReport, RoundResult, drill
from gpkvs.recovery.proof.servers.run_access import make_access
from gpkvs.recovery.proof.servers.server_process import ServerOptions
from gpkvs.recovery.startup.opening import usual_commit
from gpkvs.text import counted

_POINTS_MAX = max(len(batch) + len(start) for batch, start in SERVING_BY_COMMIT.values())


@exits({0: "nothing was lost", 1: "something was lost (the data is then kept)"})
def drill_command(
    rounds: Annotated[
        int,
        typer.Option(
            help=f"Kills of a server, some seconds each. 3 are a first look; from {_POINTS_MAX} on every failpoint is "
            "visited.",
            min=1,
        ),
    ] = 30,
    seed: Annotated[
        int | None,
        typer.Option(help="Seed of the choices; that of an earlier drill repeats them. By default a new one.", min=0),
    ] = None,
    data: Annotated[
        Path | None,
        typer.Option(
            help="An empty directory for the stores, on the file system to be tested; it is kept. By default a "
            "temporary one, kept only if something is wrong."
        ),
    ] = None,
    backend: Annotated[BackendName, typer.Option(help="Where the servers' kernels run.")] = "auto",
    durability: Annotated[DurabilityName, typer.Option(help="The persistence domain of the stores.")] = "auto",
    commit: Annotated[CommitName, typer.Option(help="How batches become durable; auto: as in a new store.")] = "auto",
    tls: Annotated[
        bool,
        typer.Option(
            "--tls", help="With TLS and a user, whose certificate and token are made for the drill.", show_default=False
        ),
    ] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object, for scripts.")] = False,
) -> None:
    """Kill a real server under load, restart it, and check its store, again and again.

    Clients write all the time and remember which writes were acknowledged. The server dies by SIGKILL at random
    moments, and at each named failpoint of a batch and of recovery. After each restart every acknowledged write must be
    there, no batch may be half there, no value may be there that nobody wrote, versions must grow, and `gpkvs check`
    must be clean.

    This proves recovery from the death of the process. A power loss is another matter (docs/drill.md).

    Example: gpkvs drill --rounds 100 --data /mnt/pmem/drill
    """
    console = Console(stderr=True, highlight=False, soft_wrap=True)
    with failures_exit(1), ended_by_signals(), scratch_directory(data, "gpkvs-drill-") as directory:
        access = make_access(directory / "access") if tls else None
        options = DrillOptions(
            rounds=rounds,
            seed=secrets.randbelow(1 << 32) if seed is None else seed,
            directory=directory,
            server=ServerOptions(
                backend=backend,
                durability=durability,
                commit=usual_commit(directory, durability, commit),
                index="128KiB",
                more=(*access.tls_options, access.users_option) if access else (),
            ),
            clients=DrillClientOptions(credentials=access.credentials() if access else None),
        )
        console.print(f"seed {options.seed}, {rounds} rounds, data in {directory}", markup=False)
        try:
            report = _run(options, console)
        except DrillError as error:
            if as_json:
                print_json(_failure(error))
            raise
    if as_json:
        print_json(_as_json(report))
    else:
        _print(report)


def _run(options: DrillOptions, console: Console) -> DrillReport:
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with Progress(*columns, console=console, transient=True, disable=not console.is_terminal) as bar:
        task = bar.add_task("drill", total=options.rounds)

        def show(result: RoundResult) -> None:
            bar.advance(task)
            bar.console.print(_line(result), markup=False)

        return asyncio.run(drill(options, show))


def _line(result: RoundResult) -> str:
    undone = f", {counted(result.undone_entries, 'slot')} rolled back" if result.undone else ""
    return (
        f"round {result.round.number}: {result.round}: {counted(result.counts.writes, 'write')} acknowledged{undone}, "
        f"none lost, {result.seconds:.1f} s"
    )


def _as_json(report: DrillReport) -> dict[str, object]:
    counts = report.counts
    return {
        "seed": report.seed,
        "rounds": len(report.rounds),
        "kills": dict(report.kills),
        "writes_acknowledged": counts.writes,
        "batches_acknowledged": counts.batches,
        "reads": counts.reads,
        "refused": counts.refused,
        "keys_read_back": report.keys_read_back,
        "batches_undone": report.undone,
        "seconds": round(report.seconds, 3),
        "domain": report.domain,
        "domain_note": report.domain_note,
        "violations": [],
    }


def _failure(error: DrillError) -> dict[str, object]:
    return {
        "seed": error.seed,
        "round": error.round.number,
        "kill": str(error.round),
        "directory": str(error.directory),
        "violations": list(error.problems),
    }


def _print(report: DrillReport) -> None:
    console = Console(highlight=False, soft_wrap=True)
    counts, kills = report.counts, report.kills
    points = [point for points in SERVING_BY_COMMIT[report.commit] for point in points]
    rows = (
        ("kills", sum(kills.values())),
        ("  by SIGKILL at a random moment", kills["sigkill"]),
        (
            f"  at failpoints ({sum(name in kills for name in points)} of {len(points)} visited)",
            kills.total() - kills["sigkill"],
        ),
        ("writes acknowledged, none lost", counts.writes),
        ("  of them whole batches of many keys", counts.batches),
        ("writes refused for want of space", counts.refused),
        ("reads checked under load", counts.reads),
        ("keys read back after restarts", report.keys_read_back),
        ("batches rolled back by recovery", report.undone),
        ("violations", 0),
    )
    console.print(counts_table(f"Nothing lost in {len(report.rounds)} rounds", rows, report.seconds))
    console.print(f"persistence domain {report.domain}: {report.domain_note}", markup=False)
    console.print(f"seed {report.seed}", markup=False)
