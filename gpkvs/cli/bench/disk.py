"""gpkvs bench disk: stores and servers on an ordinary disk."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Annotated

import typer
import uvloop

from gpkvs.bench.disk.benchmark import DISK_PARTS, run_disk
from gpkvs.bench.disk.options import DiskOptions, server_options_of
from gpkvs.bench.report.tables import tables_of
from gpkvs.bench.server.benchmark import run_server
from gpkvs.cli.bench.shared import chosen, print_result, shown
from gpkvs.cli.terminal.cleanup import ended_by_signals
from gpkvs.cli.terminal.exit_status import exits
from gpkvs.cli.terminal.output import failures_exit

_ALL_DISK_PARTS = (*DISK_PARTS, "server")


@exits({0: "measured", 1: "something is missing, or a store or server does not do what it should"})
def disk_command(
    directory: Annotated[
        Path, typer.Option(help="On a disk: where the benchmark makes its stores, and removes them.", file_okay=False)
    ] = Path("/var/tmp"),
    memory: Annotated[
        Path, typer.Option(help="On a tmpfs: for the store that only survives its process.", file_okay=False)
    ] = DiskOptions.memory,
    records: Annotated[
        int, typer.Option(help="Records that each store holds before anything is timed.", min=4)
    ] = DiskOptions.records,
    server_records: Annotated[
        int, typer.Option(help="Records that the server and redis hold.", min=4)
    ] = DiskOptions.server_records,
    batch: Annotated[int, typer.Option(help="Operations in a large batch.", min=1)] = DiskOptions.batch,
    rounds: Annotated[
        int, typer.Option(help="Rounds of each measurement; the median of their ratios counts.", min=1)
    ] = DiskOptions.rounds,
    seconds: Annotated[float, typer.Option(help="Seconds of each side in a round.", min=0.01)] = DiskOptions.seconds,
    index_bytes: Annotated[
        int, typer.Option(help="Size of the index where device writes are counted.", min=1 << 20)
    ] = DiskOptions.device_index_bytes,
    journal_bytes: Annotated[
        int, typer.Option(help="Size of the journal; 0: as a store of the usual sizes has it.", min=0)
    ] = DiskOptions.journal_bytes,
    part: Annotated[
        list[str] | None,
        typer.Option(help=f"Part to run: {', '.join(_ALL_DISK_PARTS)}; by default all. May be repeated."),
    ] = None,
    results: Annotated[
        Path | None, typer.Option(help="Write engine-msync.json and server-msync.json to this folder.", file_okay=False)
    ] = None,
) -> None:
    """Measure a store on a disk, with its journal, beside stores that sync: every figure that has a target.

    Both sides of a ratio take turns, and the median of the rounds' ratios counts. Parts: batches (SETs beside LMDB,
    RocksDB and a store in memory, with checkpoints running), one-set (beside a flush of the disk), tails (SETs beside
    checkpoints and compactions), reads (GETs beside SETs), writes (what the device gets for a byte of a user), opening
    (beside reading the same bytes), server (beside redis). The benchmark needs the peers of pip install 'gpkvs[bench]'
    and Debian's redis-server. With the defaults it takes ten minutes, 8 GiB of the disk and 5 GiB of the tmpfs; leave
    the machine alone meanwhile.

    Example: gpkvs bench disk --directory /var/tmp --results bench/results
    """
    options = DiskOptions(
        directory=directory,
        memory=memory,
        records=records,
        batch=batch,
        rounds=rounds,
        seconds=seconds,
        device_index_bytes=index_bytes,
        journal_bytes=journal_bytes,
        server_records=server_records,
    )
    parts = chosen("part", part, _ALL_DISK_PARTS)
    engine_parts = tuple(one for one in DISK_PARTS if one in parts)
    with failures_exit(1), ended_by_signals(), shown() as show:
        found = [run_disk(options, engine_parts, show)] if engine_parts else []
        if "server" in parts:
            with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
                found.append(runner.run(run_server(server_options_of(options), ("throughput", "reads"), show)))
    for result in found:
        kept = results / f"{result['benchmark']}-msync.json" if results else None
        print_result(tables_of(result, profile=True), result, kept)
