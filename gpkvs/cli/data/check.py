"""gpkvs check and gpkvs recover: they work on a store's directory, without a server."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.progress import Progress as Bar

import gpkvs
from gpkvs.cli.terminal.exit_status import IN_USE, exits
from gpkvs.cli.terminal.output import AsJson, failures_exit, print_json
from gpkvs.errors import CorruptStoreError
from gpkvs.gpm.verify import verify
from gpkvs.recovery.startup.check import CheckReport, check
from gpkvs.text import counted

DataDir = Annotated[Path, typer.Argument(help="The store's directory.", metavar="DIR")]
Checked = Annotated[Path, typer.Argument(help="The store's directory, or a file of gpkvs.gpm.", metavar="PATH")]
AcceptLoss = Annotated[
    bool,
    typer.Option(
        "--accept-loss",
        help="Open a store that was in use with durability=none and was not closed, dropping what cannot be read.",
    ),
]

ResetTime = Annotated[
    bool,
    typer.Option(
        "--reset-time",
        help="Let the time by which keys expire be the clock's again: after a clock was set back it is ahead, and a "
        "restart keeps it. Keys that expire keep their moment.",
    ),
]

EXIT_BROKEN = 1
EXIT_NEEDS_RECOVERY = 2


@exits(
    {
        0: "clean",
        1: "broken",
        2: "a batch was in progress (start the server or run `gpkvs recover`), or the store was in use with "
        "durability=none and was not closed",
        IN_USE: "the store cannot be read (another process has it, it is missing, or of another format)",
    }
)
def check_command(directory: Checked, as_json: AsJson = False) -> None:
    """Verify every structure and every record's checksum, read-only.

    Names each broken invariant and says where. A file of gpkvs.gpm is checked alike: its header, its state, and the
    digests of a checkpoint. What an array or a version holds has no checksums.
    """
    if directory.is_file():
        _check_file(directory, as_json)
        return
    with failures_exit(IN_USE):
        report = check(directory)
    if as_json:
        print_json(_as_json(report))
    else:
        _print(report)
    if report.violations:
        raise typer.Exit(EXIT_BROKEN)
    if report.needs_recovery or report.is_unsafe:
        raise typer.Exit(EXIT_NEEDS_RECOVERY)


def _check_file(path: Path, as_json: bool) -> None:
    with failures_exit(IN_USE):
        try:
            found, wrong = verify(path), None
        except CorruptStoreError as error:
            found, wrong = "", str(error)
    if as_json:
        print_json({"path": str(path), "clean": wrong is None, "found": found, "violation": wrong})
    else:
        Console(soft_wrap=True, highlight=False).print(wrong or f"{found}: clean", markup=False)
    if wrong:
        raise typer.Exit(EXIT_BROKEN)


def _as_json(report: CheckReport) -> dict[str, object]:
    return {**json.loads(json.dumps(asdict(report), default=str)), "clean": report.is_clean}


def _print(report: CheckReport) -> None:
    console = Console(soft_wrap=True, highlight=False)
    for violation in report.violations:
        console.print(
            f"[red]{violation.invariant}[/red]  {violation.file} at byte {violation.offset}: ",
            end="",
            markup=True,
        )
        console.print(violation.message, markup=False)
    if report.more_violations:
        console.print(f"... and {report.more_violations:,} more")
    if report.is_unsafe:
        console.print(
            f"{report.path}: UNSAFE: it was in use with durability=none and was not closed. Any batch of that time may "
            "be lost, or there in part. Restore the store from a backup, or keep what can be read: gpkvs recover "
            f"--accept-loss {report.path}",
            markup=False,
        )
    elif report.violations:
        console.print(f"{report.path}: BROKEN. Keep a copy of it; restore from a backup", markup=False)
    elif report.needs_recovery:
        console.print(
            f"{report.path}: a batch was in progress, needs recovery: start the server, or run "
            f"gpkvs recover {report.path}",
            markup=False,
        )
    else:
        held = f"{counted(report.records, 'record')} in {counted(report.slots, 'slot')}"
        growing = f"; {report.growing}" if report.growing else ""
        console.print(f"{report.path}: clean. {held}{growing}", markup=False)


@exits(
    {
        0: "recovered, or there was nothing to do",
        1: "the store cannot be opened",
        IN_USE: "another process has the store",
        70: "a write to the store's files failed (try again)",
    }
)
def recover_command(
    directory: DataDir, as_json: AsJson = False, accept_loss: AcceptLoss = False, reset_time: ResetTime = False
) -> None:
    """Roll back the batch that a crash interrupted, if any, and say what was done.

    A server does this by itself when it starts. Use this command before you check or copy a store.
    """
    console = Console(stderr=True)
    with failures_exit(1), Bar(console=console, transient=True, disable=not console.is_terminal) as bar:
        task = bar.add_task("opening", total=1.0)
        store = gpkvs.open(
            directory,
            create=False,
            accept_loss=accept_loss,
            on_progress=lambda step, share: bar.update(task, description=step, completed=share),
        )
        if reset_time:
            store.reset_time()
        store.close()
    if as_json:
        print_json(asdict(store.recovery))
    else:
        typer.echo(store.recovery.text)
