"""gpkvs info: facts about a running server and its store."""

from __future__ import annotations

import time
from collections.abc import Iterable
from time import gmtime, strftime
from typing import Any

from google.protobuf.message import Message
from rich.console import Console
from rich.table import Column, Table

from gpkvs.cli.access import takes_access
from gpkvs.cli.channel import connect
from gpkvs.cli.connection import Target, Timeout
from gpkvs.cli.exit_status import exits
from gpkvs.cli.output import AsJson, print_json
from gpkvs.config import ServerConfig
from gpkvs.credentials import Access
from gpkvs.proto.v1 import admin_pb2, admin_pb2_grpc
from gpkvs.text import counted, readable_bytes, readable_seconds


@exits({0: "shown", 2: "the server cannot be asked"})
@takes_access
def info_command(
    access: Access, target: Target = ServerConfig.listen, timeout: Timeout = 10.0, as_json: AsJson = False
) -> None:
    """Show a server's store: durability, sizes, tables, limits, the last recovery."""
    with connect(target, access) as channel:
        info = admin_pb2_grpc.AdminStub(channel).Info(admin_pb2.InfoRequest(), timeout=timeout)
    if as_json:
        print_json(as_dict(info))
    else:
        _print(info)


def as_dict(message: Message) -> dict[str, object]:
    """Return a message for JSON: every field by its name in the protocol (None if absent), numbers as numbers."""
    return {
        field.name: None
        if field.has_presence and not message.HasField(field.name)
        else _plain(getattr(message, field.name))
        for field in message.DESCRIPTOR.fields
    }


def _plain(value: Any) -> object:
    if isinstance(value, Message):
        return as_dict(value)
    return value if isinstance(value, str | int | float) else [as_dict(item) for item in value]


def _print(info: admin_pb2.InfoResponse) -> None:
    console = Console(soft_wrap=True, highlight=False)
    facts = Table.grid(padding=(0, 2))
    recovery = info.last_recovery
    for name, text in (
        ("version", info.version),
        ("store", info.path),
        ("backend", info.backend),
        ("durability", f"{info.domain}: {info.domain_note}"),
        ("heap", _heap(info)),
        ("large values", f"{readable_bytes(info.blobs_live_bytes)} live, {readable_bytes(info.blobs_bytes)} of disk"),
        ("commit", _commit(info)),
        ("format", info.store_format),
        (
            "limits",
            f"key {info.key_bytes_max:,} B, value {info.value_bytes_max:,} B, "
            f"{info.request_ops_max:,} operations a request, message {readable_bytes(info.message_bytes_max)}",
        ),
        ("next version", f"{info.next_version:,}"),
        ("last recovery", recovery.report),
        ("next opening", info.next_opening),
        ("device", _device(info)),
        ("last backup", _last_backup(info)),
        ("archive", _last_archive(info)),
    ):
        facts.add_row(f"[bold]{name}[/bold]", text)
    console.print(facts)
    console.print(tables_view(info.tables))
    for table in info.tables:
        if table.growth_waits:
            console.print(f"growth of table {table.name} waits: {table.growth_waits}", markup=False)


def tables_view(tables: Iterable[admin_pb2.TableInfo]) -> Table:
    """Return tables as people see them."""
    view = Table("table", Column("layout", no_wrap=True))
    for heading in ("records", "expiring", "slots", "load", "index", "heap", "bytes per key"):
        view.add_column(heading, justify="right")
    view.add_column("growth", justify="right")
    for table in tables:
        view.add_row(
            table.name,
            table.layout,
            f"{table.records:,}",
            f"{table.expiring_keys:,}",
            f"{table.slots:,}",
            f"{100 * table.load_factor:.1f} %",
            _index(table),
            readable_bytes(table.heap_bytes),
            f"{table.bytes_per_key:,.0f}" if table.records else "-",
            _growth(table),
        )
    return view


def _index(table: admin_pb2.TableInfo) -> str:
    size, largest = readable_bytes(table.index_bytes), readable_bytes(table.index_bytes_max)
    return f"{size} of {largest}" if table.index_bytes_max else size


def _growth(table: admin_pb2.TableInfo) -> str:
    if table.growth_waits:
        return "waits"
    return f"{table.moved_blocks / table.growing_blocks:.0%}" if table.growing_blocks else "-"


def _heap(info: admin_pb2.InfoResponse) -> str:
    text = f"{readable_bytes(info.heap_live_bytes)} live of {readable_bytes(info.heap_bytes)}"
    if info.heap_charged_bytes_max < info.heap_bytes:
        charged_max = readable_bytes(info.heap_charged_bytes_max)
        text += f", {readable_bytes(info.heap_charged_bytes)} charged of {charged_max} that may be"
    if info.heap_given_back_bytes:
        text += f", {readable_bytes(info.heap_given_back_bytes)} given back to the file system"
    if info.heap_bytes < info.heap_bytes_max:
        text += f"; it may grow to {readable_bytes(info.heap_bytes_max)}"
    return f"{text}; growth waits: {info.heap_growth_waits}" if info.heap_growth_waits else text


def _commit(info: admin_pb2.InfoResponse) -> str:
    if not info.HasField("journal"):
        return f"undo log, {readable_bytes(info.log_bytes)}"
    journal = info.journal
    how = "direct: past the page cache" if journal.is_direct else "through the page cache"
    return f"journal ({how}), {readable_bytes(journal.used_bytes)} in use of {readable_bytes(info.journal_bytes)}"


def _device(info: admin_pb2.InfoResponse) -> str:
    if not info.HasField("process_written_bytes"):
        return "the system does not say how much the process wrote"
    written, read = readable_bytes(info.process_written_bytes), readable_bytes(info.process_read_bytes)
    return f"{written} written and {read} read by the process since it started"


_NOBODY = "nobody has told of one since the server started"


def _last_backup(info: admin_pb2.InfoResponse) -> str:
    if not info.HasField("last_backup"):
        return _NOBODY
    backup = info.last_backup
    size = f"{counted(backup.keys, 'key')}, {readable_bytes(backup.bytes)} of disk"
    return f"as of {_moment(backup.time_ms)}: {size}; it took {backup.seconds:,.1f} s"


def _last_archive(info: admin_pb2.InfoResponse) -> str:
    if not info.HasField("last_archive"):
        return _NOBODY
    return f"it has all that was executed up to {_moment(info.last_archive.synced_ms)}"


def _moment(time_ms: int) -> str:
    """Return a time, and how long ago it was by the clock here."""
    at = strftime("%Y-%m-%dT%H:%M:%SZ", gmtime(time_ms / 1000))
    return f"{at} ({readable_seconds(max(time.time() - time_ms / 1000, 0.0))} ago)"
