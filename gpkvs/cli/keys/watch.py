"""gpkvs watch: what changes on a running server, as it changes."""

from __future__ import annotations

from typing import Annotated

import typer

from gpkvs.cli.options.access import takes_access
from gpkvs.cli.options.connection import EXIT_FAILED, Table, Target, Timeout
from gpkvs.cli.terminal.exit_status import exits
from gpkvs.config import ServerConfig
from gpkvs.credentials import Access

EXIT_OVER = 1


@exits(
    {
        0: "as many shown as --limit says",
        EXIT_OVER: "nothing more comes: the changes are no longer held, or the table was dropped",
        EXIT_FAILED: "failed",
    }
)
@takes_access
def watch_command(
    access: Access,
    prefix: Annotated[
        str, typer.Argument(help="Only keys that begin with this text; not for tables whose keys are numbers.")
    ] = "",
    target: Target = ServerConfig.listen,
    table: Table = "",
    all_tables: Annotated[
        bool,
        typer.Option("--all-tables", help="All tables, and which are made and dropped. It takes the right backup."),
    ] = False,
    since: Annotated[
        str,
        typer.Option(help="Go on behind a position that this command printed.", metavar="POSITION", show_default=False),
    ] = "",
    limit: Annotated[int | None, typer.Option(help="End after so many changes.", min=1)] = None,
    timeout: Timeout = 10.0,
    as_json: Annotated[bool, typer.Option("--json", help="Print a JSON object for each change, one a line.")] = False,
) -> None:
    r"""Show what changes in a table, in order, until Ctrl-C.

    A line says what happened (set, deleted, expired), the key, and the value of a key that was set, with tabs between;
    with --all-tables it begins with the table. What is no printable text is escaped as by gpkvs scan, and with --json
    bytes that are not UTF-8 are printed as "key_base64" and "value_base64". What is shown is durable.

    At its end the command prints the position on stderr, with which --since goes on, unless nothing more comes. If a
    connection is lost, the command goes on by itself, and a change may be shown twice. The server holds the newest
    changes only (--changes-bytes). If what comes next is not there any more, begin anew, with gpkvs scan.

    Example: gpkvs watch user: --json
    """
    if all_tables and table:
        raise typer.BadParameter("give one of them only", param_hint="--all-tables and --table")
    from gpkvs.cli.keys.watch_run import watch_changes  # noqa: PLC0415 - it loads the client, which help can do without

    watch_changes(access, prefix, target, table, since, limit, timeout, all_tables=all_tables, as_json=as_json)
