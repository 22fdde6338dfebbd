"""What `gpkvs backup` does: it copies the store of a server into a new one."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from time import gmtime, strftime
from typing import NamedTuple

import typer
from rich.console import Console
from rich.progress import Progress as Bar

from gpkvs.backup.copier import back_up
from gpkvs.backup.kept import Kept, keep_backups
from gpkvs.backup.manifest import BackupReport, manifest_of
from gpkvs.backup.source import Source
from gpkvs.cli.data.backup import EXIT_NOT_BACKED_UP
from gpkvs.cli.data.export_run import PATIENT
from gpkvs.cli.data.server_notes import server_notes
from gpkvs.cli.terminal.cleanup import ended_between_steps
from gpkvs.cli.terminal.output import failures_exit, print_json
from gpkvs.client import Client
from gpkvs.credentials import Access
from gpkvs.engine.tables.table_quota import raise_open_files
from gpkvs.store import Store
from gpkvs.text import counted


class Asked(NamedTuple):
    """What the options of the command say."""

    directory: Path
    target: str
    keep: int | None
    timeout: float


def back_up_server(asked: Asked, access: Access, *, as_json: bool) -> None:
    """Make the backup, and say so."""
    raise_open_files()
    console = Console(stderr=True)
    made: list[Path] = []
    try:
        with (
            failures_exit(EXIT_NOT_BACKED_UP),
            ended_between_steps() as step,
            Client(asked.target, timeout=asked.timeout, retry=PATIENT, **access.as_arguments()) as client,
            server_notes(client.target, access, _say) as notes,
            Bar(console=console, transient=True, disable=not console.is_terminal) as bar,
        ):
            source = Source(client.target, client, partial(client.follow, all_tables=True), notes)
            task = bar.add_task("connecting", total=1.0)

            def show(what: str, share: float) -> None:
                step()
                bar.update(task, description=what, completed=share)

            def make(directory: Path) -> BackupReport:
                made.append(directory)
                return back_up(source, directory, Store, show)

            if asked.keep is None:
                kept = Kept(make(asked.directory), [], [])
            else:
                kept = keep_backups(asked.directory, asked.keep, make)
    except SystemExit:
        for directory in made:
            held = "a whole backup" if directory.exists() else "no backup"
            _say(f"stopped: {directory} holds {held}")
        raise
    report = kept.report
    if as_json:
        print_json({**manifest_of(report), "directory": str(report.directory), "removed": list(map(str, kept.removed))})
    else:
        _print(report, kept.removed)
    for why in kept.stays:
        _say(f"an old backup could not be removed: {why}")


def _say(text: str) -> None:
    typer.echo(f"gpkvs: {text}", err=True)


def _print(report: BackupReport, removed: list[Path]) -> None:
    at = strftime("%Y-%m-%dT%H:%M:%SZ", gmtime(report.time_ms / 1000))
    typer.echo(
        f"{report.directory}: {counted(report.keys, 'key')} in {counted(len(report.tables), 'table')} of "
        f"{report.source}, as of {at} (position {report.position})"
    )
    typer.echo(
        f"{counted(report.changes, 'change')} came meanwhile and are in it; copied and checked in "
        f"{report.seconds:.1f} s"
    )
    for directory in removed:
        typer.echo(f"removed {directory}")
