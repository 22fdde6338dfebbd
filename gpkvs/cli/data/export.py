"""gpkvs export, import: the records of a table, to a file and back."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from gpkvs.cli.keys.scan import EXIT_DAMAGED, Prefix
from gpkvs.cli.options.access import is_typed, takes_access
from gpkvs.cli.options.connection import EXIT_FAILED, Target
from gpkvs.cli.options.parquet_options import ExpiresColumn, KeyColumn, ValueColumn, one_column
from gpkvs.cli.options.redis_options import FromRedis, Redis, RedisCredentials, RedisDatabase, Skip
from gpkvs.cli.terminal.exit_status import IN_USE, exits
from gpkvs.cli.terminal.output import AsJson
from gpkvs.config import DEFAULT_TABLE, IMPORT_OPS_USUAL, ServerConfig
from gpkvs.credentials import Access

EXIT_LEFT_OUT = 1

Patience = Annotated[
    float,
    typer.Option(
        "--timeout", help="Seconds to wait for a server that does not respond, as while it is restarted.", min=0.001
    ),
]


class FileFormat(StrEnum):
    """The form of an export."""

    MSGPACK = "msgpack"
    PARQUET = "parquet"


@exits(
    {
        0: "exported",
        EXIT_DAMAGED: "exported, without the records that fail their checks",
        EXIT_FAILED: "failed; FILE is as it was",
        IN_USE: "another process has the store of --data",
        143: "SIGTERM",
    }
)
@takes_access
def export_command(
    context: typer.Context,
    access: Access,
    out: Annotated[Path, typer.Option("--out", help="The file that is made.", metavar="FILE", dir_okay=False)],
    file_format: Annotated[
        FileFormat,
        typer.Option("--format", help="msgpack, or parquet, which needs pyarrow."),
    ] = FileFormat.MSGPACK,
    prefix: Prefix = "",
    resume: Annotated[bool, typer.Option("--resume", help="Go on with an export that was interrupted.")] = False,
    overwrite: Annotated[
        bool, typer.Option("--overwrite", help="Replace FILE, and without --resume an interrupted export.")
    ] = False,
    target: Target = ServerConfig.listen,
    data: Annotated[
        Path | None,
        typer.Option(
            help="The directory of a store that no process has open: it is exported without a server.",
            metavar="DIR",
            file_okay=False,
        ),
    ] = None,
    table: Annotated[str, typer.Option(help="The table.")] = DEFAULT_TABLE,
    timeout: Patience = 60.0,
    as_json: AsJson = False,
) -> None:
    """Write all records of a table to a file: keys, values and when they expire; as parquet with versions, too.

    The table can be used meanwhile. A record that is there throughout is in the file exactly once. One that is changed
    meanwhile is there as it was at some moment: an export is no snapshot of the table.

    FILE gets its name when it is whole and synced; until then it is FILE.partial. After Ctrl-C, a kill or an error the
    same command with --resume goes on. docs/export.md says what is in the file.

    With --data the store is opened as a server opens it: what a crash interrupted is recovered first.

    Example: gpkvs export --out users.msgpack --table users
    """
    if data is not None and is_typed(context, "target"):
        raise typer.BadParameter("it names a server, --data a store without one: give one", param_hint="--target")
    from gpkvs.cli.data.export_run import Asked, export_table  # noqa: PLC0415 - it loads the client and the store

    asked = Asked(out, file_format, prefix, target, data, table, timeout, resume=resume, overwrite=overwrite)
    export_table(asked, access, as_json=as_json)


@exits(
    {
        0: "imported",
        EXIT_LEFT_OUT: "imported, without the keys of Redis that gpkvs cannot hold (see --skip)",
        EXIT_FAILED: "failed; it says how many records are stored",
        143: "SIGTERM",
    }
)
@takes_access
def import_command(
    access: Access,
    file: Annotated[
        Path | None, typer.Argument(help="An export of gpkvs, or a Parquet file.", metavar="FILE", show_default=False)
    ] = None,
    from_redis: FromRedis = None,
    redis_database: RedisDatabase = 0,
    redis_credentials: RedisCredentials = None,
    skip: Skip = False,
    key: KeyColumn = None,
    value: ValueColumn = None,
    expires: ExpiresColumn = None,
    target: Target = ServerConfig.listen,
    table: Annotated[
        str, typer.Option(help="The table; without --create it must be there.", show_default="that of the source")
    ] = "",
    create: Annotated[
        bool,
        typer.Option(
            "--create", help="Make the table if it is missing, of the layout of the source.", show_default=False
        ),
    ] = False,
    if_absent: Annotated[
        bool, typer.Option("--if-absent", help="Leave keys that are there as they are.", show_default=False)
    ] = False,
    batch: Annotated[int, typer.Option(help="Records in a request, at most.", min=1)] = IMPORT_OPS_USUAL,
    timeout: Patience = 60.0,
    as_json: AsJson = False,
) -> None:
    """Store the records of a file, or of a Redis, in a table: keys that are there get the values of the source.

    FILE is read and checked to its end before anything is stored: one that was cut or is damaged is refused. After an
    interruption the same command stores all of it again, which does no harm.

    A Parquet file needs a column of keys and one of values, `key` and `value` unless --key and --value say others: of
    bytes or text for a table of the layout bytes, of whole numbers for one of the layout u64, of whole numbers and
    lists of a fixed size for a table of rows. Several columns of values are not supported. A column `expires` (or
    --expires) may say when records expire, but not of the layout u64. Other columns are left out.

    From a Redis or Valkey come the strings of one database, with their expiries; docs/redis.md says more. It needs
    `pip install 'gpkvs[redis]'`.

    Example: gpkvs import users.msgpack --table users
    """
    if (file is None) == (from_redis is None):
        raise typer.BadParameter("give one of them: a file, or a Redis", param_hint="FILE, --from-redis")
    from gpkvs.cli.data.import_run import Asked, import_table  # noqa: PLC0415 - it loads the client
    from gpkvs.export.parquet_reader import ColumnNames  # noqa: PLC0415

    columns = {
        name: one
        for name, given in (("key", key), ("value", value), ("expires", expires))
        if (one := one_column(f"--{name}", given)) is not None
    }
    if columns and file is None:
        raise typer.BadParameter("they name columns of a Parquet file", param_hint="--key, --value, --expires")
    redis = Redis(from_redis, redis_database, redis_credentials, skip=skip) if from_redis else None
    asked = Asked(
        file, ColumnNames(**columns), redis, target, table, batch, timeout, create=create, if_absent=if_absent
    )
    import_table(asked, access, as_json=as_json)
