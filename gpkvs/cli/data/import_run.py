"""What `gpkvs import` does: it stores the records of a file, or of a Redis, in a table."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import typer

from gpkvs.batch import Batch, RequestResult
from gpkvs.cli.data.export import EXIT_LEFT_OUT
from gpkvs.cli.data.export_run import PATIENT, layout_at
from gpkvs.cli.data.redis_source import RedisSource, redis_server
from gpkvs.cli.data.server_limits import limits_of
from gpkvs.cli.options.connection import EXIT_FAILED
from gpkvs.cli.options.redis_options import Redis
from gpkvs.cli.terminal.cleanup import ended_by_signals
from gpkvs.cli.terminal.output import failures_exit, print_json
from gpkvs.cli.terminal.shown_progress import shown_progress
from gpkvs.client import Client, DeadlineError, OutcomeUnknownError, ServerBusyError, TlsError, UnavailableError
from gpkvs.config import DEFAULT_TABLE, Limits
from gpkvs.credentials import Access
from gpkvs.export.file_format import ExportError
from gpkvs.export.importer import (
    Execute,
    Imported,
    columns_of_rows,
    import_columns,
    import_numbers,
    import_records,
    numbers_of,
)
from gpkvs.export.parquet import is_parquet
from gpkvs.export.parquet_reader import ColumnNames, ParquetReader
from gpkvs.export.reader import ExportReader
from gpkvs.media.layout import U64_LAYOUT
from gpkvs.text import counted

_PASSING = (UnavailableError, ServerBusyError, DeadlineError, OutcomeUnknownError)


class Asked(NamedTuple):
    """What the options of the command say: of `file` and `redis` there is one."""

    file: Path | None
    columns: ColumnNames
    redis: Redis | None
    target: str
    table: str
    batch: int
    timeout: float
    create: bool
    if_absent: bool


def import_table(asked: Asked, access: Access, *, as_json: bool) -> None:
    """Store the records, and say so."""
    began = time.monotonic()
    origin = asked.file or (asked.redis.address if asked.redis else "")
    with (
        failures_exit(EXIT_FAILED),
        ended_by_signals(kill_children=False),
        Client(asked.target, timeout=asked.timeout, **access.as_arguments()) as client,
    ):
        source: ExportSource | ParquetSource | RedisSource
        if asked.file is not None:
            source = _file_source(asked.file, asked.columns, client)
        elif asked.redis is not None:
            source = RedisSource(redis_server(asked.redis, access), client, asked.timeout)
        name = asked.table or source.table
        if asked.create:
            layout = client.create_table(name, layout=source.layout, exist_ok=True).layout
        else:
            layout = layout_at(asked.target, name, access, asked.timeout)
        if layout != source.layout:
            raise ExportError(f"{origin}: its records are of the layout {source.layout}, table {name!r} has {layout}")
        with shown_progress("importing", "record", source.records) as show:
            imported = source.store(
                _storing(client, name, asked.timeout, show), if_absent=asked.if_absent, batch_ops=asked.batch
            )
    left_out = source.left_out if isinstance(source, RedisSource) else None
    if as_json:
        stored = {"table": name, "stored": imported.stored, "there_already": imported.there_already}
        print_json(stored if left_out is None else {**stored, "left_out": left_out.counts})
    else:
        there = f", {imported.there_already:,} were there already" if asked.if_absent else ""
        typer.echo(
            f"{origin}: {counted(imported.stored, 'record')} stored in table {name}{there}, in "
            f"{time.monotonic() - began:.1f} s"
        )
    if left_out:
        typer.echo(f"gpkvs: left out what gpkvs cannot hold: {left_out}", err=True)
        if not (asked.redis and asked.redis.skip):
            raise typer.Exit(EXIT_LEFT_OUT)


def _file_source(file: Path, columns: ColumnNames, client: Client) -> ExportSource | ParquetSource:
    if is_parquet(file):
        return ParquetSource(file, columns, limits_of(client))
    if columns != ColumnNames():
        raise ExportError(f"{file}: --key, --value and --expires name columns of a Parquet file, and it is none")
    return ExportSource(file)


class ExportSource:
    """An export, checked."""

    def __init__(self, file: Path) -> None:
        with shown_progress("checking", "byte", file.stat().st_size if file.is_file() else None) as show:
            self._reader = ExportReader(file, show)
        header, end = self._reader.header, self._reader.end
        self.table, self.layout, self.records = header.table, header.layout, end.records
        _say_damaged(file, end.damaged)

    def store(self, execute: Execute, *, if_absent: bool, batch_ops: int) -> Imported:
        """Store the records."""
        chunks, header = self._reader.chunks(), self._reader.header
        if header.is_u64:
            return import_numbers(numbers_of(chunks), execute, if_absent=if_absent, batch_ops=batch_ops)
        if header.rows:
            columns = columns_of_rows(chunks, header.rows)
            return import_columns(columns, execute, if_absent=if_absent, batch_ops=batch_ops)
        return import_records(chunks, execute, if_absent=if_absent, batch_ops=batch_ops)


class ParquetSource:
    """A Parquet file, checked."""

    def __init__(self, file: Path, columns: ColumnNames, limits: Limits | None) -> None:
        self._reader = ParquetReader(file, columns)
        self.layout, self.records = self._reader.layout, self._reader.records
        self.table = self._reader.table or DEFAULT_TABLE
        with shown_progress("checking", "record", self.records) as show:
            self._reader.check(limits, show)
        _say_damaged(file, self._reader.damaged)

    def store(self, execute: Execute, *, if_absent: bool, batch_ops: int) -> Imported:
        """Store the records."""
        if self.layout == U64_LAYOUT.name:
            return import_numbers(self._reader.numbers(), execute, if_absent=if_absent, batch_ops=batch_ops)
        return import_columns(self._reader.columns(), execute, if_absent=if_absent, batch_ops=batch_ops)


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
            delay_s = PATIENT.delay_s(attempt)
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
