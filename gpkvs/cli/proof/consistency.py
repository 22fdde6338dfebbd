"""gpkvs consistency: concurrent clients of a server that is killed again and again must see one order of requests."""

from __future__ import annotations

import asyncio
import secrets
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from gpkvs.cli.terminal.cleanup import ended_by_signals, scratch_directory
from gpkvs.cli.terminal.counts_table import counts_table
from gpkvs.cli.terminal.exit_status import exits
from gpkvs.cli.terminal.output import failures_exit, print_json
from gpkvs.config import BackendName, CommitName, DurabilityName
from gpkvs.errors import InvalidArgumentError
from gpkvs.recovery.proof.consistency.consistency import ConsistencyOptions, ConsistencyReport, check_consistency
from gpkvs.recovery.proof.consistency.history import History
from gpkvs.recovery.proof.consistency.serializability import judge
from gpkvs.recovery.proof.servers.kill_plan import SIGKILL
from gpkvs.recovery.proof.servers.server_process import ServerOptions
from gpkvs.recovery.startup.opening import usual_commit
from gpkvs.text import counted


@exits({0: "the history is strictly serializable", 1: "it is not (the history and the store are then kept)"})
def consistency_command(
    operations: Annotated[int, typer.Option(help="Operations to record, at least.", min=1)] = 1_000_000,
    faults: Annotated[int, typer.Option(help="Kills of the server, at least.", min=0)] = 200,
    seed: Annotated[
        int | None,
        typer.Option(help="Seed of the choices; that of an earlier run repeats them. By default a new one.", min=0),
    ] = None,
    data: Annotated[
        Path | None,
        typer.Option(
            help="An empty directory for store and history, on the file system to be tested; it is kept. By default a "
            "temporary one, kept only if something is wrong."
        ),
    ] = None,
    backups: Annotated[
        int,
        typer.Option(
            help="Backups to take beside the clients of the last server, at least; then it is also archived, and "
            "restored to moments of the run.",
            min=0,
        ),
    ] = 0,
    history: Annotated[
        Path | None,
        typer.Option(help="Only judge the history of an earlier run again (a file history.npz)."),
    ] = None,
    backend: Annotated[BackendName, typer.Option(help="Where the servers' kernels run.")] = "auto",
    durability: Annotated[DurabilityName, typer.Option(help="The persistence domain of the store.")] = "auto",
    commit: Annotated[CommitName, typer.Option(help="How batches become durable; auto: as in a new store.")] = "auto",
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object, for scripts.")] = False,
) -> None:
    """Prove that the responses to clients are strictly serializable, while the server is killed under them.

    Clients send batches, single operations and streams on few keys, all at once. Some calls are cancelled, some miss
    their deadline. Meanwhile the index grows and the heap is compacted. The server dies by SIGKILL at random moments
    and at named failpoints of a batch and of recovery, and is started again on the same store. The clients record every
    response. At the end the requests are replayed in the order of their versions: each response, and the order of real
    time, must agree with it. After a lost write, half a batch, a stale read or a repeated read they do not agree.

    Example: gpkvs consistency --operations 50000 --faults 5
    """
    console = Console(stderr=True, highlight=False, soft_wrap=True)
    if history:
        with failures_exit(1):
            _judge_again(history)
        return
    with failures_exit(1), ended_by_signals(), scratch_directory(data, "gpkvs-consistency-") as directory:
        options = ConsistencyOptions(
            operations,
            faults,
            secrets.randbelow(1 << 32) if seed is None else seed,
            directory,
            ServerOptions(
                backend=backend,
                durability=durability,
                commit=usual_commit(directory, durability, commit),
                index="64KiB",  # it grows
                heap="8MiB",  # it is compacted
            ),
            backups=backups,
        )
        report = _check(options, console)
    if as_json:
        print_json(_as_json(report))
    else:
        _print(report)


def _check(options: ConsistencyOptions, console: Console) -> ConsistencyReport:
    """Run the clients and the kills, and show each death of the server."""
    operations, kills = counted(options.operations, "operation"), counted(options.faults, "kill")
    console.print(f"seed {options.seed}, {operations}, {kills}, data in {options.directory}", markup=False)

    def show(killed: int, recorded: int, death: str) -> None:
        console.print(f"{killed} of {kills}, {recorded:,} of {operations}: {death}", markup=False)

    return asyncio.run(check_consistency(options, show))


def _judge_again(file: Path) -> None:
    try:
        found = judge(History.load(file))
    except (OSError, ValueError, KeyError) as error:
        raise InvalidArgumentError(f"{file} cannot be read as a history: {error}", field="history") from error
    for anomaly in found.anomalies:
        typer.echo(str(anomaly))
    if not found.is_serializable:
        raise typer.Exit(1)
    typer.echo(
        f"strictly serializable: {counted(found.writing, 'request')} that wrote, {found.reading:,} that only read"
    )


def _as_json(report: ConsistencyReport) -> dict[str, object]:
    found = report.judgement
    return {
        "seed": report.seed,
        "operations": report.operations,
        "requests": report.requests,
        "requests_writing": found.writing,
        "requests_reading": found.reading,
        "answers_replayed": found.reads,
        "unknown_done": found.unknown_done,
        "unknown_not_done": found.unknown_not_done,
        "refused": report.refused,
        "kills": dict(report.kills),
        "cancelled": report.cancelled,
        "deadlines_missed": report.deadlines,
        "keys_read_back": report.keys_read_back,
        "looking_operations": report.looking_operations,
        "conflicts": report.conflicts,
        "index_doublings": report.doublings,
        "heap_moved_bytes": report.moved_bytes,
        "backups": report.copies.backups,
        "backups_cut": report.copies.cut,
        "moments_restored": report.copies.restored,
        "anomalies": [],
        "seconds": round(report.seconds, 3),
        "seconds_judged": round(report.seconds_judged, 3),
    }


def _print(report: ConsistencyReport) -> None:
    console = Console(highlight=False, soft_wrap=True)
    found, kills = report.judgement, report.kills
    rows = (
        ("operations", report.operations),
        ("requests", report.requests),
        ("  that wrote, replayed in commit order", found.writing),
        ("  that only read, placed between them", found.reading),
        ("  without a response, but done", found.unknown_done),
        ("  without a response, and not done", found.unknown_not_done),
        ("results of a GET or DELETE checked", found.reads),
        ("operations that look first checked", report.looking_operations),
        ("  requests that a check refused", report.conflicts),
        ("kills", kills.total()),
        ("  by SIGKILL at a random moment", kills[SIGKILL]),
        (f"  at {len(kills.keys() - {SIGKILL})} different failpoints", kills.total() - kills[SIGKILL]),
        ("times the index doubled meanwhile", report.doublings),
        ("MiB that compaction moved meanwhile", report.moved_bytes >> 20),
        *_copies_of(report),
        ("calls cancelled", report.cancelled),
        ("deadlines missed", report.deadlines),
        ("anomalies", 0),
    )
    console.print(counts_table("The history is strictly serializable", rows, report.seconds))
    console.print(f"seed {report.seed}", markup=False)


def _copies_of(report: ConsistencyReport) -> list[tuple[str, int]]:
    copies = report.copies
    if not copies.backups:
        return []
    return [
        ("backups, each as the store was at a moment", copies.backups),
        ("  cut short", copies.cut),
        ("moments restored of an archive, likewise", copies.restored),
    ]
