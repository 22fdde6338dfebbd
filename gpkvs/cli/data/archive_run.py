"""What `gpkvs archive` does: it archives a server until a signal comes."""

from __future__ import annotations

import threading
import time
from pathlib import Path

import typer

from gpkvs.archive.archiver import ArchiveConfig, Archiver
from gpkvs.backup.reader import FollowsAll
from gpkvs.backup.source import Source
from gpkvs.changes import Position
from gpkvs.cli.data.archive import EXIT_NOT_ARCHIVED
from gpkvs.cli.data.export_run import PATIENT
from gpkvs.cli.data.server_notes import server_notes
from gpkvs.cli.terminal.cleanup import ended_between_steps
from gpkvs.cli.terminal.output import failures_exit
from gpkvs.client import Client
from gpkvs.credentials import Access
from gpkvs.engine.tables.table_quota import raise_open_files

_SIGNALLED = 128
_LOOK_SECONDS = 0.1


def archive_server(
    access: Access, directory: Path, target: str, base_seconds: float, keep_days: float | None, timeout: float
) -> None:
    """Archive; the parameters are those of the command."""
    raise_open_files()
    config = ArchiveConfig(base_seconds, keep_days)
    try:
        with (
            failures_exit(EXIT_NOT_ARCHIVED),
            ended_between_steps() as step,
            Client(target, timeout=timeout, retry=PATIENT, **access.as_arguments()) as client,
            server_notes(client.target, access, _say) as notes,
        ):

            def follow(since: Position | None) -> FollowsAll:
                return client.follow(since, all_tables=True)

            source = Source(client.target, client, lambda: follow(None), notes)
            with Archiver(directory, source, follow, config, _say) as archiver:
                while True:
                    archiver.keep_up(step)
                    step()
                    time.sleep(_LOOK_SECONDS)
    except SystemExit as end:
        if not isinstance(end.code, int) or end.code <= _SIGNALLED:
            raise
    typer.echo(f"gpkvs: stopped: {directory} holds what was told", err=True)


def _say(text: str) -> None:
    """Print a line on stderr, from any thread."""
    with _printing:
        typer.echo(f"gpkvs: {text}", err=True)


_printing = threading.Lock()
