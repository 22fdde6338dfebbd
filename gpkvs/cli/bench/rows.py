"""gpkvs bench rows: rows of numbers."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from gpkvs.bench.report.plot import draw
from gpkvs.bench.report.tables import tables_of
from gpkvs.bench.rows.benchmark import run_rows
from gpkvs.bench.rows.options import PEERS, RowsOptions
from gpkvs.cli.bench.shared import JSON, PROFILE, chosen, print_result, shown, writing
from gpkvs.cli.cleanup import ended_by_signals
from gpkvs.cli.exit_status import exits
from gpkvs.cli.output import failures_exit
from gpkvs.cli.sizes import format_bytes, parse_bytes


@exits({0: "measured", 1: "something is missing, or a store returns wrong rows"})
def rows_command(
    directory: Annotated[
        Path,
        typer.Option(
            help="Where the benchmark makes its stores, and removes them: on a disk, all of them flush it; on a tmpfs "
            "they survive their process alone.",
            exists=True,
            file_okay=False,
        ),
    ] = Path("/dev/shm"),
    dim: Annotated[
        list[int] | None,
        typer.Option(
            help=f"How many float32 a row has; by default {', '.join(map(str, RowsOptions.dims))}. May be repeated.",
            min=1,
            max=1 << 20,
        ),
    ] = None,
    table_bytes: Annotated[
        Any,
        typer.Option(
            parser=parse_bytes,
            metavar="SIZE",
            help="Size of all rows of a table: more than the caches hold, and less than the memory.",
            show_default=format_bytes(RowsOptions.table_bytes),
        ),
    ] = RowsOptions.table_bytes,
    rows_max: Annotated[int, typer.Option(help="How many rows a table has, at most.", min=1)] = RowsOptions.rows_max,
    batch: Annotated[int, typer.Option(help="Rows in a call: one transaction.", min=1)] = RowsOptions.batch,
    runs: Annotated[
        int, typer.Option(help="Rounds of each measurement; their median counts.", min=1)
    ] = RowsOptions.runs,
    seconds: Annotated[float, typer.Option(help="Seconds of timed calls in a run.", min=0.001)] = RowsOptions.seconds,
    peer: Annotated[
        list[str] | None,
        typer.Option(help=f"What to compare with: {', '.join(PEERS)}, or none; by default all. May be repeated."),
    ] = None,
    profile: Annotated[bool, typer.Option("--profile", help=PROFILE)] = False,
    svg: Annotated[Path | None, typer.Option(help="Draw the result to this file.", dir_okay=False)] = None,
    json_file: Annotated[Path | None, typer.Option("--json", help=JSON, dir_okay=False)] = None,
) -> None:
    """Measure tables of rows, such as float32[128], beside peers that promise the same, and beside NumPy in memory.

    A call reads, sets or adds to 4,096 random rows, and is one durable transaction: `get`, `get into out` (memory that
    is there), `set`, `add` (a fifth of the keys twice), and `step`, which is one of training: get rows, change them,
    set them. All stores hold the same rows, are checked, and take turns. LMDB, SQLite and redis survive what gpkvs
    survives: the directory decides, and on a disk each of them flushes each call. NumPy is `X[ids]` and `X[ids] =
    rows`: it keeps nothing, and is the limit. Keys, and rows that are set, are made into the peers' objects before the
    clock starts; what a peer reads counts as read when it is an array. The result also tells how many bytes a row
    takes. It needs the peers of pip install 'gpkvs[bench,redis]' and Debian's redis-server; redis-py is faster with pip
    install hiredis. With the defaults it takes four minutes, and 4 GiB of the file system and of memory.

    Example: gpkvs bench rows --json rows.json --svg rows.svg

    Example: gpkvs bench rows --directory /var/tmp --dim 128 --peer numpy --peer lmdb
    """
    options = RowsOptions(
        directory=directory,
        dims=tuple(dim) if dim else RowsOptions.dims,
        table_bytes=table_bytes,
        rows_max=rows_max,
        batch=batch,
        runs=runs,
        seconds=seconds,
        peers=chosen("peer", peer, PEERS),
    )
    with failures_exit(1), ended_by_signals(), shown() as show:
        result = run_rows(options, show)
    print_result(tables_of(result, profile=profile), result, json_file)
    if svg:
        with writing(svg, "drawn to"):
            svg.parent.mkdir(parents=True, exist_ok=True)
            svg.write_text(draw(result))
