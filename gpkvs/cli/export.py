"""gpkvs export, import: the records of a table of a running server to a file, and back."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Annotated

import numpy as np
import typer
from rich.console import Console
from rich.progress import Progress as Bar

from gpkvs.batch import Batch, Op, constant
from gpkvs.cli.connection import EXIT_FAILED, Target, Timeout, connect
from gpkvs.cli.exit_status import exits
from gpkvs.cli.export_file import ExportReader, ExportWriter, Header, columns_of
from gpkvs.cli.output import failures_exit
from gpkvs.cli.scan import EXIT_DAMAGED, Prefix, tell_damaged
from gpkvs.cli.typed_keys import form_of
from gpkvs.client import Client, OutcomeUnknownError
from gpkvs.config import DEFAULT_TABLE, ServerConfig
from gpkvs.errors import InvalidArgumentError
from gpkvs.proto.v1 import admin_pb2, admin_pb2_grpc, kv_pb2, kv_pb2_grpc
from gpkvs.text import counted, no_such, quoted

# How often an export makes durable what it has, so that an interrupted one goes on there.
_KEEP_SECONDS, _KEEP_BYTES = 5.0, 256 << 20
_BATCH_RECORDS, _BATCH_BYTES = 8192, 2 << 20
_ATTEMPTS = 5  # of a batch whose outcome is unknown: to store the same again does no harm


@exits(
    {
        0: "exported",
        EXIT_DAMAGED: "exported, but for some records, which are damaged",
        EXIT_FAILED: "failed; the same command goes on where this one ended",
    }
)
def export_command(
    out: Annotated[Path, typer.Option(help="The file to make.", dir_okay=False)],
    prefix: Prefix = "",
    target: Target = ServerConfig.listen,
    table: Annotated[str, typer.Option(help="The table.")] = DEFAULT_TABLE,
    timeout: Timeout = 60.0,
) -> None:
    """Write the records of a table to a file.

    The server goes on serving. A key that is there throughout is in the file exactly once; what others write meanwhile
    may be in it or not. The file is msgpack: a map that describes it, then an array for each record (key, value, and
    when it expires in milliseconds since 1970, 0: never), and an end with a checksum.

    The file gets its name when it is whole and durable; until then it is FILE.part. If the export is interrupted, the
    same command goes on behind what FILE.part has.

    Example: gpkvs export --out users.msgpack --prefix user:
    """
    began = time.monotonic()
    with connect(target) as channel:
        layout = "u64" if form_of(channel, table, timeout).is_u64 else "bytes"
        total = kv_pb2_grpc.KVStub(channel).Count(kv_pb2.CountRequest(table=table), timeout=timeout).count
    header = Header(table, layout, prefix.encode().hex())
    with failures_exit(EXIT_FAILED), Client(target, timeout=timeout, table=table) as client:
        writer = ExportWriter(out, header)
        state = writer.state
        if writer.is_resumed:
            typer.echo(f"gpkvs: going on behind {counted(state.records, 'record')} of {writer.part}", err=True)
        try:
            _export(client, writer, prefix.encode(), total)
        finally:
            writer.close()
    typer.echo(
        f"{out}: {counted(state.records, 'record')}, {state.size:,} bytes, in {time.monotonic() - began:.1f} s",
        err=True,
    )
    tell_damaged(state.damaged)


def _export(client: Client, writer: ExportWriter, prefix: bytes, total: int) -> None:
    state, console = writer.state, Console(stderr=True)
    with Bar(console=console, transient=True, disable=not console.is_terminal) as bar:
        task = bar.add_task("exporting", total=total)
        kept_at, kept_bytes = time.monotonic(), state.size
        for piece in client.scan_pieces(prefix, cursor=bytes.fromhex(state.cursor or "")):
            writer.write(piece)
            bar.update(task, completed=state.records)
            is_due = time.monotonic() - kept_at > _KEEP_SECONDS or state.size - kept_bytes > _KEEP_BYTES
            if piece.cursor and is_due:
                writer.keep()
                kept_at, kept_bytes = time.monotonic(), state.size
        writer.finish()


@exits({0: "imported", EXIT_FAILED: "failed; to import the same file again does no harm"})
def import_command(
    file: Annotated[Path, typer.Argument(metavar="FILE", help="A file that gpkvs export made.", dir_okay=False)],
    target: Target = ServerConfig.listen,
    table: Annotated[
        str | None, typer.Option(help="The table, which must be there.", show_default="that of the export")
    ] = None,
    timeout: Timeout = 60.0,
) -> None:
    """Store the records of an exported file in a table of a running server.

    The file is checked first: nothing of a file that was cut is imported. Records are stored in batches, and each batch
    is durable as one. A record replaces the one that is there. An import that was interrupted can be done again.

    Example: gpkvs import users.msgpack --table users
    """
    began = time.monotonic()
    with failures_exit(EXIT_FAILED):
        reader = ExportReader(file)
    name = reader.header.table if table is None else table
    with connect(target) as channel:
        tables = admin_pb2_grpc.AdminStub(channel).ListTables(admin_pb2.ListTablesRequest(), timeout=timeout).tables
        layouts = {found.name: found.layout for found in tables}
        _require_layout(layouts, name or DEFAULT_TABLE, reader.header.layout)
    console = Console(stderr=True)
    with (
        failures_exit(EXIT_FAILED),
        Client(target, timeout=timeout, table=name) as client,
        Bar(console=console, transient=True, disable=not console.is_terminal) as bar,
    ):
        task = bar.add_task("importing", total=reader.records)
        for records in reader.batches(_BATCH_RECORDS, _BATCH_BYTES):
            _store(client, _batch_of(records, reader.header.layout))
            bar.update(task, advance=len(records))
    typer.echo(f"{file}: {counted(reader.records, 'record')} in {time.monotonic() - began:.1f} s", err=True)


def _require_layout(layouts: dict[str, str], table: str, layout: str) -> None:
    if table not in layouts:
        raise InvalidArgumentError(
            f"{no_such('table', table, list(layouts))}; make it with gpkvs table create {table} --layout {layout}",
            field="table",
        )
    if layouts[table] != layout:
        raise InvalidArgumentError(
            f"{quoted(table)} has the layout {layouts[table]}, the file holds records of {layout}", field="table"
        )


def _batch_of(records: list[tuple[bytes, bytes, int]], layout: str) -> Batch:
    keys, values, expiries = columns_of(records, layout)
    n = len(records)
    return Batch(
        constant(np.uint8(Op.SET), n),
        np.frombuffer(b"".join(keys), np.uint8),
        np.fromiter(map(len, keys), np.uint32, n),
        np.frombuffer(b"".join(values), np.uint8),
        np.fromiter(map(len, values), np.uint32, n),
        expiries=np.array(expiries, np.uint64) if any(expiries) else None,
    )


def _store(client: Client, batch: Batch) -> None:
    for attempt in range(_ATTEMPTS):
        try:
            client.execute(batch)
        except OutcomeUnknownError:
            if attempt == _ATTEMPTS - 1:
                raise
        else:
            return
