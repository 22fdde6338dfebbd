"""gpkvs table: the tables of a running server."""

from __future__ import annotations

from typing import Annotated

import typer
from rich.console import Console

from gpkvs.cli.keys.info import as_dict, tables_view
from gpkvs.cli.options.access import takes_access
from gpkvs.cli.options.channel import connect
from gpkvs.cli.options.connection import EXIT_FAILED, Target, Timeout
from gpkvs.cli.options.layout import Layout
from gpkvs.cli.options.sizes import parse_bytes
from gpkvs.cli.terminal.exit_status import EVERY, exits
from gpkvs.cli.terminal.output import AsJson, confirm, failures_exit, print_json
from gpkvs.columns.index_size import index_bytes_asked
from gpkvs.config import ServerConfig
from gpkvs.credentials import Access
from gpkvs.proto.v1 import admin_pb2, admin_pb2_grpc

app = typer.Typer(
    help="Make, list and drop the tables of a running server.\n\n"
    "A table of the layout bytes holds any keys and values. A table of the layout u64 holds 8-byte keys and "
    "values in its index alone: it is several times faster, and has no versions. A table of a layout as float32[128] "
    "holds rows: arrays of one type and shape, by 8-byte keys.",
    epilog=EVERY,
    no_args_is_help=True,
)


Name = Annotated[str, typer.Argument(metavar="NAME", help="1 to 64 of a-z 0-9 _ . -")]


@app.command("create")
@exits({0: "made", 2: "failed"})
@takes_access
def create_command(
    access: Access,
    name: Name,
    layout: Layout = "bytes",
    index_bytes: Annotated[
        int,
        typer.Option(
            parser=parse_bytes,
            metavar="SIZE",
            help="Size of the index: 32 bytes for each slot, 16 of the layout u64. It grows.",
            show_default="4MiB",
        ),
    ] = 0,
    records: Annotated[
        int | None,
        typer.Option(
            metavar="N",
            min=1,
            help="Instead of --index-bytes: the records that are expected. The index holds so many before it grows.",
        ),
    ] = None,
    index_bytes_max: Annotated[
        int,
        typer.Option(
            parser=parse_bytes,
            metavar="SIZE",
            help="Size to which the index may grow, for good. The limit of the server holds too.",
            show_default="no limit of its own",
        ),
    ] = 0,
    target: Target = ServerConfig.listen,
    timeout: Timeout = 60.0,
    as_json: AsJson = False,
) -> None:
    """Make an empty table; it is durable when this returns.

    Example: gpkvs table create vectors --layout 'float32[128]' --records 10000000
    """
    with failures_exit(EXIT_FAILED):
        asked = index_bytes_asked(index_bytes, records, layout)
    with connect(target, access) as channel:
        request = admin_pb2.CreateTableRequest(
            name=name, layout=layout, index_bytes=asked, index_bytes_max=index_bytes_max
        )
        made = admin_pb2_grpc.AdminStub(channel).CreateTable(request, timeout=timeout).table
    if as_json:
        print_json(as_dict(made))


@app.command("list")
@exits({0: "shown", 2: "the server cannot be asked"})
@takes_access
def list_command(
    access: Access, target: Target = ServerConfig.listen, timeout: Timeout = 10.0, as_json: AsJson = False
) -> None:
    """Show all tables: records, slots, load, size."""
    with connect(target, access) as channel:
        tables = admin_pb2_grpc.AdminStub(channel).ListTables(admin_pb2.ListTablesRequest(), timeout=timeout).tables
    if as_json:
        print_json([as_dict(table) for table in tables])
    else:
        Console(soft_wrap=True, highlight=False).print(tables_view(tables))


@app.command("drop")
@exits({0: "dropped", 1: "you said no", 2: "failed"})
@takes_access
def drop_command(
    access: Access,
    name: Name,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")] = False,
    target: Target = ServerConfig.listen,
    timeout: Timeout = 60.0,
) -> None:
    """Remove a table and everything in it, for good."""
    if not yes:
        with failures_exit(EXIT_FAILED):
            confirm(f"Remove table {name!r} of {target} and everything in it?")
    with connect(target, access) as channel:
        admin_pb2_grpc.AdminStub(channel).DropTable(admin_pb2.DropTableRequest(name=name), timeout=timeout)
