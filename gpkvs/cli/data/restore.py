"""gpkvs restore: a store as it was at a moment."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from gpkvs.cli.terminal.exit_status import IN_USE, exits
from gpkvs.cli.terminal.output import AsJson

EXIT_NOT_RESTORED = 1


@exits(
    {
        0: "restored, or listed",
        EXIT_NOT_RESTORED: "not restored: the moment is not archived, or something is damaged; there is no NEW",
        IN_USE: "another process has the backup, or makes NEW",
        143: "SIGTERM; there is no NEW",
    }
)
def restore_command(
    source: Annotated[Path, typer.Argument(help="An archive, or a backup; it is only read.", metavar="ARCHIVE")],
    new: Annotated[
        Path | None,
        typer.Argument(help="The directory of the new store, which must not be there.", metavar="NEW"),
    ] = None,
    until: Annotated[
        str,
        typer.Option(
            help="The moment: a time such as 2026-11-29T10:00:00Z, milliseconds since 1970, or a position.",
            metavar="TIME|POSITION",
            show_default="the newest",
        ),
    ] = "",
    lists: Annotated[bool, typer.Option("--list", help="Show instead which moments can be restored.")] = False,
    as_json: AsJson = False,
) -> None:
    """Make a store as it was at a moment, of an archive or a backup.

    The base before the moment is copied, and what changed behind it is applied, up to the moment and with it. A moment
    that is not archived is refused, and the nearest ones are named; so is anything that is damaged. Times are those of
    the server's clock. ARCHIVE may be written to meanwhile.

    NEW is made as NEW.partial, and gets its name when it is whole, checked and durable. It has the keys, values,
    versions and expiries of that moment.

    Example: gpkvs restore /backups/archive data --until 2026-11-29T10:00:00Z
    """
    if lists == (new is not None):
        raise typer.BadParameter("name a directory, or ask for the --list", param_hint="NEW")
    if lists and until:
        raise typer.BadParameter("a list has no moment", param_hint="--until")
    from gpkvs.cli.data.restore_run import list_moments, restore_store  # noqa: PLC0415 - it loads the store

    if new is None:
        list_moments(source, as_json=as_json)
    else:
        restore_store(source, new, until, as_json=as_json)
