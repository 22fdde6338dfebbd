"""gpkvs scan, count: the keys of a table of a running server."""

from __future__ import annotations

from typing import Annotated

import typer

from gpkvs.cli.options.access import takes_access
from gpkvs.cli.options.connection import EXIT_FAILED, Table, Target, Timeout
from gpkvs.cli.terminal.exit_status import exits
from gpkvs.cli.terminal.output import AsJson
from gpkvs.config import ServerConfig
from gpkvs.credentials import Access

EXIT_DAMAGED = 1

Prefix = Annotated[
    str, typer.Option(help="Only keys that begin with this text; not for tables whose keys are numbers.")
]


@exits({0: "all shown", EXIT_DAMAGED: "some records are damaged and are not shown", EXIT_FAILED: "failed"})
@takes_access
def scan_command(
    access: Access,
    prefix: Prefix = "",
    keys_only: Annotated[bool, typer.Option("--keys-only", help="Show no values.")] = False,
    limit: Annotated[
        int | None, typer.Option(help="Show so many keys at most; print a cursor on stderr if more may follow.", min=1)
    ] = None,
    cursor: Annotated[
        str,
        typer.Option(help="Go on where --limit ended a scan of the same table.", metavar="CURSOR", show_default=False),
    ] = "",
    target: Target = ServerConfig.listen,
    table: Table = "",
    timeout: Timeout = 10.0,
    as_json: Annotated[bool, typer.Option("--json", help="Print a JSON object for each key, one a line.")] = False,
) -> None:
    r"""Show the keys of a table with their values, in no order that means anything.

    A line has a key, a tab and the value. What is no printable text is escaped, as \n and \xff, and a backslash is
    doubled. Rows are arrays of JSON. With --json, bytes that are not UTF-8 are printed as "key_base64" and
    "value_base64". A key that is there throughout is shown exactly once, whatever others write meanwhile.

    Example: gpkvs scan --prefix user: --limit 10
    """
    from gpkvs.cli.keys.scan_run import scan_table  # noqa: PLC0415 - it loads the client, which help can do without

    scan_table(access, prefix, limit, cursor, target, table, timeout, keys_only=keys_only, as_json=as_json)


@exits({0: "counted", EXIT_FAILED: "failed"})
@takes_access
def count_command(
    access: Access,
    prefix: Prefix = "",
    target: Target = ServerConfig.listen,
    table: Table = "",
    timeout: Timeout = 60.0,
    as_json: AsJson = False,
) -> None:
    """Print how many keys a table has.

    With --prefix the server looks at all keys. Without it the answer comes at once, and keys that have expired count
    until the server removes them, which is soon.
    """
    from gpkvs.cli.keys.scan_run import count_table  # noqa: PLC0415 - it loads the client, which help can do without

    count_table(access, prefix, target, table, timeout, as_json=as_json)
