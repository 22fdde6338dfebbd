"""What `gpkvs export` does: it writes the records of a table to a file."""

from __future__ import annotations

import sys
import time
from contextlib import AbstractContextManager, suppress
from pathlib import Path
from typing import NamedTuple

import typer

import gpkvs
from gpkvs.cli.data.export import FileFormat
from gpkvs.cli.keys.scan import EXIT_DAMAGED
from gpkvs.cli.options.channel import connect
from gpkvs.cli.options.connection import EXIT_FAILED
from gpkvs.cli.options.typed_keys import layout_of
from gpkvs.cli.terminal.cleanup import ended_by_signals
from gpkvs.cli.terminal.output import failures_exit, print_json
from gpkvs.cli.terminal.shown_progress import shown_progress
from gpkvs.client import Client, RetryPolicy
from gpkvs.credentials import Access
from gpkvs.errors import UnknownTableError
from gpkvs.export.file_format import ExportError, Header
from gpkvs.export.writer import ExportWriter
from gpkvs.info import package_version
from gpkvs.text import counted, no_such

# The server may be restarted meanwhile: until the timeout it is asked again and again.
PATIENT = RetryPolicy(attempts_max=1 << 30, delay_ms_max=1000.0)


class Asked(NamedTuple):
    """What the options of the command say."""

    out: Path
    file_format: FileFormat
    prefix: str
    target: str
    data: Path | None
    table: str
    timeout: float
    resume: bool
    overwrite: bool


def export_table(asked: Asked, access: Access, *, as_json: bool) -> None:
    """Write the records to the file, and say so."""
    began = time.monotonic()
    with (
        failures_exit(EXIT_FAILED),
        ended_by_signals(kill_children=False),
        _source(asked, access) as source,
    ):
        layout, records = _described(source, asked.table, access, asked.timeout)
        header = Header(asked.table, layout, asked.prefix.encode(), package_version())
        is_parquet_wanted = asked.file_format is FileFormat.PARQUET
        with ExportWriter(
            asked.out, header, resume=asked.resume, overwrite=asked.overwrite, parquet=is_parquet_wanted
        ) as writer:
            _scan_into(writer, source, header, None if asked.prefix else records)
            writer.finish()
    if as_json:
        print_json({"file": str(asked.out), "table": asked.table, "records": writer.records, "damaged": writer.damaged})
    else:
        typer.echo(
            f"{asked.out}: {counted(writer.records, 'record')} of table {asked.table}, "
            f"{asked.out.stat().st_size:,} bytes, in "
            f"{time.monotonic() - began:.1f} s"
        )
    if writer.damaged:
        typer.echo(f"gpkvs: left out {counted(writer.damaged, 'record')} whose checks fail: run gpkvs check", err=True)
        raise typer.Exit(EXIT_DAMAGED)


def _source(asked: Asked, access: Access) -> AbstractContextManager[Client | gpkvs.Store]:
    if asked.data is None:
        return Client(asked.target, timeout=asked.timeout, retry=PATIENT, **access.as_arguments())
    return gpkvs.open(asked.data, create=False)


def _scan_into(writer: ExportWriter, source: Client | gpkvs.Store, header: Header, records: int | None) -> None:
    """Write what is not written yet; whatever ends it, what was written is kept."""
    if writer.is_scanned:
        return
    try:
        with shown_progress("exporting", "record", records) as show:
            show(writer.records)
            for piece in source.scan_pieces(header.prefix, cursor=writer.cursor, table=header.table):
                writer.add(piece)
                show(len(piece))
    except BaseException:
        with suppress(ExportError):
            writer.save()
            sys.stderr.write(f"stopped after {counted(writer.records, 'record')}: --resume goes on\n")
        raise


def _described(source: Client | gpkvs.Store, table: str, access: Access, timeout: float) -> tuple[str, int]:
    """Return the layout of a table and how many records it has; of a server, that takes the right to read alone."""
    if isinstance(source, Client):
        return layout_at(source.target, table, access, timeout), source.count(table=table)
    tables = {found.name: found for found in source.list_tables()}
    if table not in tables:
        raise UnknownTableError(no_such("table", table, list(tables)), field="table")
    return tables[table].layout, tables[table].records


def layout_at(target: str, table: str, access: Access, timeout: float) -> str:
    """Ask a server for the layout of a table."""
    with connect(target, access) as channel:
        return layout_of(channel, table, timeout)
