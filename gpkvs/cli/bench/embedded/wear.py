"""gpkvs bench wear: what other stores write to a disk."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from gpkvs.bench.peers.contender import Promise
from gpkvs.bench.report.tables import tables_of
from gpkvs.bench.wear.benchmark import run_wear
from gpkvs.bench.wear.options import WEAR_PARTS, WEAR_PEERS, WearOptions
from gpkvs.cli.bench.shared import DIRECTORY, JSON, PROMISE, chosen, print_result, shown
from gpkvs.cli.terminal.cleanup import ended_by_signals
from gpkvs.cli.terminal.exit_status import exits
from gpkvs.cli.terminal.output import failures_exit


@exits({0: "measured", 1: "something is missing, or a store returns wrong values"})
def wear_command(
    directory: Annotated[Path, typer.Option(help=DIRECTORY, exists=True, file_okay=False)] = Path("/dev/shm"),
    promise: Annotated[Promise, typer.Option(help=PROMISE)] = WearOptions.promise,
    heap_bytes: Annotated[
        int, typer.Option(help="Size of the heap for records of 100 B; their number follows.", min=1 << 20)
    ] = WearOptions.heap_bytes,
    overwrites: Annotated[int, typer.Option(help="How often each of them is overwritten.", min=1)] = (
        WearOptions.overwrites
    ),
    share: Annotated[
        list[float] | None,
        typer.Option(
            help="How much of the heap, without reserve and tails, they take; by default 0.5, 0.7 and 0.85. "
            "May be repeated.",
            max=1,
        ),
    ] = None,
    batch: Annotated[int, typer.Option(help="Operations in a batch: one transaction.", min=1)] = WearOptions.batch,
    large_records: Annotated[int, typer.Option(help="Records of 1 KB, for the space of files.", min=10)] = (
        WearOptions.large_records
    ),
    large_overwrites: Annotated[int, typer.Option(help="How often each of them is overwritten.", min=1)] = (
        WearOptions.large_overwrites
    ),
    idle: Annotated[float, typer.Option(help="Seconds that a server may tidy up after deletes.", min=0)] = (
        WearOptions.idle_seconds
    ),
    part: Annotated[
        list[str] | None, typer.Option(help=f"Part to run: {', '.join(WEAR_PARTS)}; by default all. May be repeated.")
    ] = None,
    peer: Annotated[
        list[str] | None,
        typer.Option(help=f"Store to compare with: {', '.join(WEAR_PEERS)}, or none; by default all."),
    ] = None,
    json_file: Annotated[Path | None, typer.Option("--json", help=JSON, dir_okay=False)] = None,
) -> None:
    """Overwrite records again and again in a heap that is nearly full, beside RocksDB with BlobDB and LMDB.

    Parts: overwrites (records of 100 B that take 0.5, 0.7 and 0.85 of the heap without reserve and tails, uniform and
    zipfian: what is refused, what is written for a byte of a user, the rate over that at 0.5 and over the peers', how
    late batches are while records are moved), space (records of 1 KB: files over live records), deleted (a server whose
    records are mostly deleted and that is then idle: heap file over live records). What the device gets is counted on a
    disk (--promise msync). With the defaults it takes twenty minutes, most of them for the peers, and 2 GiB; the aims
    are meant for --heap-bytes 536870912 --large-records 1000000 --large-overwrites 100.

    Example: gpkvs bench wear --part overwrites --json bench/results/wear-process.json
    """
    options = WearOptions(
        directory=directory,
        promise=promise,
        heap_bytes=heap_bytes,
        overwrites=overwrites,
        shares=tuple(sorted(share)) if share else WearOptions.shares,
        batch=batch,
        large_records=large_records,
        large_overwrites=large_overwrites,
        idle_seconds=idle,
        peers=chosen("peer", peer, tuple(WEAR_PEERS)),
    )
    parts = chosen("part", part, WEAR_PARTS)
    with failures_exit(1), ended_by_signals(), shown() as show:
        result = run_wear(options, parts, show)
    print_result(tables_of(result, profile=False), result, json_file)
