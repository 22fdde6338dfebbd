"""gpkvs archive: what changes on a server, in files, and a backup from time to time."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from gpkvs.cli.data.export import Patience
from gpkvs.cli.options.access import takes_access
from gpkvs.cli.options.connection import Target
from gpkvs.cli.options.durations import parse_duration
from gpkvs.cli.terminal.background import give_way
from gpkvs.cli.terminal.exit_status import IN_USE, exits
from gpkvs.config import ServerConfig
from gpkvs.credentials import Access

EXIT_NOT_ARCHIVED = 1


@exits(
    {
        0: "SIGTERM or Ctrl-C: what was told is sealed",
        EXIT_NOT_ARCHIVED: "no longer archived; what is in DIR stays",
        IN_USE: "another process archives into DIR",
    },
    interrupted=False,
)
@takes_access
def archive_command(
    access: Access,
    directory: Annotated[
        Path, typer.Argument(help="The directory of the archive; it is made if it is missing.", metavar="DIR")
    ],
    target: Target = ServerConfig.listen,
    base_every: Annotated[
        float,
        typer.Option(parser=parse_duration, metavar="DURATION", help="Time between two bases, such as 24h."),
    ] = "24h",  # type: ignore[assignment]  # the parser reads it
    keep: Annotated[
        float | None,
        typer.Option(
            help="Remove what no restore to a moment of the last days needs, each time when a new base is whole.",
            metavar="DAYS",
            min=0.0,
            show_default=False,
        ),
    ] = None,
    timeout: Patience = 60.0,
) -> None:
    """Archive all that changes on a server, so that any moment can be restored, until SIGTERM or Ctrl-C.

    DIR gets files with all that changes, in all tables, and a base now and then: a backup, which is a store. What the
    server has acknowledged is in the archive a second later; nobody who writes waits for it.

    If the server is gone or DIR is full, the command says so and goes on as soon as it can. If it then lacks changes,
    it begins anew with a new base, and no moment between the two can be restored. If the command itself is stopped, it
    goes on without a gap when it is started again within ten minutes. A user needs the right `backup`.

    Example: gpkvs archive /backups/archive --keep 14
    """
    give_way()
    from gpkvs.cli.data.archive_run import archive_server  # noqa: PLC0415 - it loads the client and the store

    archive_server(access, directory, target, base_every, keep, timeout)
