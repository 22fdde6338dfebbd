"""gpkvs backup: a copy of a server's store, taken while it serves."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from gpkvs.cli.data.export import Patience
from gpkvs.cli.options.access import takes_access
from gpkvs.cli.options.connection import Target
from gpkvs.cli.terminal.background import give_way
from gpkvs.cli.terminal.exit_status import IN_USE, exits
from gpkvs.cli.terminal.output import AsJson
from gpkvs.config import ServerConfig
from gpkvs.credentials import Access

EXIT_NOT_BACKED_UP = 1


@exits(
    {
        0: "backed up",
        EXIT_NOT_BACKED_UP: "not backed up; DIR is as it was",
        IN_USE: "another backup is being made in DIR",
        143: "SIGTERM; DIR is as it was",
    }
)
@takes_access
def backup_command(
    access: Access,
    directory: Annotated[
        Path,
        typer.Argument(
            help="The directory of the backup, which must not be there; with --keep a folder.", metavar="DIR"
        ),
    ],
    target: Target = ServerConfig.listen,
    keep: Annotated[
        int | None,
        typer.Option(
            help="DIR is a folder of backups, each named by its time: when the new one is whole, remove all but the "
            "newest ones.",
            metavar="N",
            min=1,
            show_default=False,
        ),
    ] = None,
    timeout: Patience = 60.0,
    as_json: AsJson = False,
) -> None:
    """Back up the store of a server while it serves: all tables, as they were at one moment.

    The backup is a store: `gpkvs check DIR`, `gpkvs serve --data DIR`, `gpkvs copy DIR NEW`. It has keys, values,
    versions and expiries, and all that was acknowledged before the command began. BACKUP.json in it says what it is.

    It is made here, where the command runs, as DIR.partial, and gets its name when it is whole, checked and durable.
    If the command is killed, the next one removes what it left. It leaves the processors to others (nice 10). A user
    needs the right `backup`.

    Example: gpkvs backup /backups/store --keep 7
    """
    give_way()
    from gpkvs.cli.data.backup_run import Asked, back_up_server  # noqa: PLC0415 - it loads the client and the store

    back_up_server(Asked(directory, target, keep, timeout), access, as_json=as_json)
