"""gpkvs export, import: the records of a table, to a file and back."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, suppress
from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

import gpkvs
from gpkvs.batch import Batch, RequestResult
from gpkvs.cli.access import is_typed, takes_access
from gpkvs.cli.cleanup import ended_by_signals
from gpkvs.cli.connection import EXIT_FAILED, Target, connect
from gpkvs.cli.exit_status import IN_USE, exits
from gpkvs.cli.output import AsJson, failures_exit, print_json
from gpkvs.cli.redis_source import FromRedis, RedisCredentials, RedisDatabase, RedisSource, Skip, redis_server
from gpkvs.cli.scan import EXIT_DAMAGED, Prefix
from gpkvs.cli.typed_keys import is_u64
from gpkvs.client import (
    Client,
    DeadlineError,
    OutcomeUnknownError,
    RetryPolicy,
    ServerBusyError,
    TlsError,
    UnavailableError,
)
from gpkvs.config import DEFAULT_TABLE, ServerConfig
from gpkvs.credentials import Access
from gpkvs.errors import UnknownTableError
from gpkvs.export.file_format import ExportError, Header
from gpkvs.export.importer import BATCH_OPS, Execute, Imported, import_numbers, import_records, numbers_of
from gpkvs.export.parquet import ParquetReader, is_parquet
from gpkvs.export.reader import ExportReader
from gpkvs.export.writer import ExportWriter
from gpkvs.info import package_version
from gpkvs.media.layout import BYTES_LAYOUT, U64_LAYOUT
from gpkvs.text import counted, no_such

EXIT_LEFT_OUT = 1

_TOLD_SECONDS = 10.0  # between two lines about progress, where there is no terminal
# The server may be restarted meanwhile: until the timeout it is asked again and again.
_PATIENT = RetryPolicy(attempts_max=1 << 30, delay_ms_max=1000.0)
_PASSING = (UnavailableError, ServerBusyError, DeadlineError, OutcomeUnknownError)

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
        typer.Option("--format", help="msgpack, or parquet: only for a table of the layout u64, with pyarrow."),
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
    """Write all records of a table to a file: keys, values and when they expire, without versions.

    The table can be used meanwhile. A record that is there throughout is in the file exactly once. One that is changed
    meanwhile is there as it was at some moment: an export is no snapshot of the table.

    FILE gets its name when it is whole and synced; until then it is FILE.partial. After Ctrl-C, a kill or an error the
    same command with --resume goes on. docs/export.md says what is in the file.

    With --data the store is opened as a server opens it: what a crash interrupted is recovered first.

    Example: gpkvs export --out users.msgpack --table users
    """
    began = time.monotonic()
    if data is not None and is_typed(context, "target"):
        raise typer.BadParameter("it names a server, --data a store without one: give one", param_hint="--target")
    with (
        failures_exit(EXIT_FAILED),
        ended_by_signals(kill_children=False),
        _source(target, access, data, timeout) as source,
    ):
        layout, records = _described(source, table, access, timeout)
        header = Header(table, layout, prefix.encode(), package_version())
        is_parquet_wanted = file_format is FileFormat.PARQUET
        with ExportWriter(out, header, resume=resume, overwrite=overwrite, parquet=is_parquet_wanted) as writer:
            _scan_into(writer, source, header, None if prefix else records)
            writer.finish()
    if as_json:
        print_json({"file": str(out), "table": table, "records": writer.records, "damaged": writer.damaged})
    else:
        typer.echo(
            f"{out}: {counted(writer.records, 'record')} of table {table}, {out.stat().st_size:,} bytes, in "
            f"{time.monotonic() - began:.1f} s"
        )
    if writer.damaged:
        typer.echo(f"gpkvs: left out {counted(writer.damaged, 'record')} whose checks fail: run gpkvs check", err=True)
        raise typer.Exit(EXIT_DAMAGED)


def _source(
    target: str, access: Access, data: Path | None, timeout: float
) -> AbstractContextManager[Client | gpkvs.Store]:
    if data is None:
        return Client(target, timeout=timeout, retry=_PATIENT, **access.as_arguments())
    return gpkvs.open(data, create=False)


def _scan_into(writer: ExportWriter, source: Client | gpkvs.Store, header: Header, records: int | None) -> None:
    """Write what is not written yet; whatever ends it, what was written is kept."""
    if writer.is_scanned:
        return
    try:
        with _shown("exporting", "record", records) as show:
            show(writer.records)
            for piece in source.scan_pieces(header.prefix, cursor=writer.cursor, table=header.table):
                writer.add(piece)
                show(len(piece))
    except BaseException:
        with suppress(ExportError):
            writer.save()
            sys.stderr.write(f"stopped after {counted(writer.records, 'record')}: --resume goes on\n")
        raise


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
    batch: Annotated[int, typer.Option(help="Records in a request, at most.", min=1)] = BATCH_OPS,
    timeout: Patience = 60.0,
    as_json: AsJson = False,
) -> None:
    """Store the records of a file, or of a Redis, in a table: keys that are there get the values of the source.

    FILE is read and checked to its end before anything is stored: one that was cut or is damaged is refused. After an
    interruption the same command stores all of it again, which does no harm. A Parquet file needs the columns `key` and
    `value`, of whole numbers, and a table of the layout u64.

    From a Redis or Valkey come the strings of one database, with their expiries; docs/redis.md says more. It needs
    `pip install 'gpkvs[redis]'`.

    Example: gpkvs import users.msgpack --table users
    """
    began = time.monotonic()
    origin = file or from_redis
    if (file is None) == (from_redis is None):
        raise typer.BadParameter("give one of them: a file, or a Redis", param_hint="FILE, --from-redis")
    with (
        failures_exit(EXIT_FAILED),
        ended_by_signals(kill_children=False),
        Client(target, timeout=timeout, **access.as_arguments()) as client,
    ):
        source: ExportSource | ParquetSource | RedisSource
        if file is not None:
            source = ParquetSource(file) if is_parquet(file) else ExportSource(file)
        elif from_redis is not None:
            server = redis_server(from_redis, redis_database, redis_credentials, access)
            source = RedisSource(server, client, timeout)
        name = table or source.table
        if create:
            layout = client.create_table(name, layout=source.layout, exist_ok=True).layout
        else:
            layout = _layout(target, name, access, timeout)
        if layout != source.layout:
            raise ExportError(f"{origin}: its records are of the layout {source.layout}, table {name!r} has {layout}")
        with _shown("importing", "record", source.records) as show:
            imported = source.store(_storing(client, name, timeout, show), if_absent=if_absent, batch_ops=batch)
    left_out = source.left_out if isinstance(source, RedisSource) else None
    if as_json:
        stored = {"table": name, "stored": imported.stored, "there_already": imported.there_already}
        print_json(stored if left_out is None else {**stored, "left_out": left_out.counts})
    else:
        there = f", {imported.there_already:,} were there already" if if_absent else ""
        typer.echo(
            f"{origin}: {counted(imported.stored, 'record')} stored in table {name}{there}, in "
            f"{time.monotonic() - began:.1f} s"
        )
    if left_out:
        typer.echo(f"gpkvs: left out what gpkvs cannot hold: {left_out}", err=True)
        if not skip:
            raise typer.Exit(EXIT_LEFT_OUT)


class ExportSource:
    """An export, checked."""

    def __init__(self, file: Path) -> None:
        with _shown("checking", "byte", file.stat().st_size if file.is_file() else None) as show:
            self._reader = ExportReader(file, show)
        header, end = self._reader.header, self._reader.end
        self.table, self.layout, self.records = header.table, header.layout, end.records
        _say_damaged(file, end.damaged)

    def store(self, execute: Execute, *, if_absent: bool, batch_ops: int) -> Imported:
        """Store the records."""
        chunks = self._reader.chunks()
        if self._reader.header.is_u64:
            return import_numbers(numbers_of(chunks), execute, if_absent=if_absent, batch_ops=batch_ops)
        return import_records(chunks, execute, if_absent=if_absent, batch_ops=batch_ops)


class ParquetSource:
    """A Parquet file, checked."""

    layout = U64_LAYOUT.name

    def __init__(self, file: Path) -> None:
        self._reader = ParquetReader(file)
        self._reader.check()
        self.table, self.records = self._reader.table or DEFAULT_TABLE, self._reader.records
        _say_damaged(file, self._reader.damaged)

    def store(self, execute: Execute, *, if_absent: bool, batch_ops: int) -> Imported:
        """Store the records."""
        return import_numbers(self._reader.chunks(), execute, if_absent=if_absent, batch_ops=batch_ops)


def _say_damaged(file: Path, damaged: int) -> None:
    if damaged:
        typer.echo(
            f"{file}: {counted(damaged, 'record')} failed their checks when it was made, and are not in it", err=True
        )


def _storing(client: Client, table: str, timeout: float, show: Callable[[int], None]) -> Execute:
    """Return a function that stores a batch, again and again if the server is away; twice does no harm."""
    stored = 0

    def store(batch: Batch) -> RequestResult:
        nonlocal stored
        give_up, attempt = time.monotonic() + timeout, 0
        while True:
            attempt += 1
            delay_s = _PATIENT.delay_s(attempt)
            try:
                result = client.execute(batch, table=table)
            except _PASSING as error:
                if isinstance(error, TlsError) or time.monotonic() + delay_s > give_up:
                    _say_stored(stored)
                    raise
                time.sleep(delay_s)
            except BaseException:
                _say_stored(stored)
                raise
            else:
                stored += len(batch)
                show(len(batch))
                return result

    return store


def _say_stored(records: int) -> None:
    sys.stderr.write(f"stopped after {counted(records, 'record')}: the same command begins again\n")


def _described(source: Client | gpkvs.Store, table: str, access: Access, timeout: float) -> tuple[str, int]:
    """Return the layout of a table and how many records it has; of a server, that takes the right to read alone."""
    if isinstance(source, Client):
        return _layout(source.target, table, access, timeout), source.count(table=table)
    tables = {found.name: found for found in source.list_tables()}
    if table not in tables:
        raise UnknownTableError(no_such("table", table, list(tables)), field="table")
    return tables[table].layout, tables[table].records


def _layout(target: str, table: str, access: Access, timeout: float) -> str:
    with connect(target, access) as channel:
        return U64_LAYOUT.name if is_u64(channel, table, timeout) else BYTES_LAYOUT.name


@contextmanager
def _shown(what: str, noun: str, total: int | None) -> Iterator[Callable[[int], None]]:
    """Show progress on stderr: as a bar on a terminal, else as a line from time to time."""
    console = Console(stderr=True, highlight=False, soft_wrap=True)
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    done, told = 0, time.monotonic()
    with Progress(*columns, console=console, transient=True, disable=not console.is_terminal) as bar:
        task = bar.add_task(what, total=total)

        def show(more: int) -> None:
            nonlocal done, told
            done += more
            bar.update(task, advance=more)
            if not console.is_terminal and time.monotonic() - told > _TOLD_SECONDS:
                told = time.monotonic()
                console.print(f"{what}: {counted(done, noun)}", markup=False)

        yield show
