"""gpkvs bench values: large values."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from gpkvs.bench.report.tables import tables_of
from gpkvs.bench.values.benchmark import run_values
from gpkvs.bench.values.options import DISK_PARTS, MEMORY_PARTS, PEERS, ValuesOptions
from gpkvs.cli.bench.shared import chosen, print_result, shown
from gpkvs.cli.options.sizes import format_bytes, parse_bytes
from gpkvs.cli.terminal.cleanup import ended_by_signals
from gpkvs.cli.terminal.exit_status import exits
from gpkvs.cli.terminal.output import failures_exit
from gpkvs.config import FormatName

_PARTS = (*MEMORY_PARTS, *DISK_PARTS)


@exits({0: "measured", 1: "something is missing, or a store returns wrong values"})
def values_command(
    directory: Annotated[
        Path, typer.Option(help="On a tmpfs: where stores are made, and removed.", exists=True, file_okay=False)
    ] = Path("/dev/shm"),
    disk: Annotated[
        Path, typer.Option(help="On a disk: the same, for the parts disk and disk-space.", exists=True, file_okay=False)
    ] = Path("/var/tmp"),
    size: Annotated[
        list[Any] | None,
        typer.Option(
            parser=parse_bytes,
            metavar="SIZE",
            help=f"Size of values; by default {', '.join(map(format_bytes, ValuesOptions.sizes))}. May be repeated.",
        ),
    ] = None,
    total: Annotated[
        Any,
        typer.Option(
            "--total-bytes",
            parser=parse_bytes,
            metavar="SIZE",
            help="Size of all values that a store holds at a time.",
            show_default=format_bytes(ValuesOptions.total_bytes),
        ),
    ] = ValuesOptions.total_bytes,
    runs: Annotated[
        int, typer.Option(help="Rounds of each measurement; their median counts.", min=1)
    ] = ValuesOptions.runs,
    seconds: Annotated[
        float, typer.Option(help="Seconds of a run at most; it ends when each key had its turn, too.", min=0.01)
    ] = ValuesOptions.seconds,
    connections: Annotated[
        int, typer.Option(help="Connections to a server, beside one alone.", min=1, max=128)
    ] = ValuesOptions.connections,
    store_format: Annotated[FormatName, typer.Option("--format", help="Format of gpkvs's store.")] = (
        ValuesOptions.store_format
    ),
    idle: Annotated[
        float, typer.Option(help="Seconds of rest before space is looked at for the last time.", min=0)
    ] = ValuesOptions.idle_seconds,
    part: Annotated[
        list[str] | None, typer.Option(help=f"Part to run: {', '.join(_PARTS)}; by default all. May be repeated.")
    ] = None,
    peer: Annotated[
        list[str] | None,
        typer.Option(help=f"What to compare with: {', '.join(PEERS)}, or none; by default all. May be repeated."),
    ] = None,
    results: Annotated[
        Path | None,
        typer.Option(help="Write values-process.json and values-msync.json to this folder.", file_okay=False),
    ] = None,
) -> None:
    """Measure values of 256 KiB and more beside peers that promise the same, and beside what moves the same bytes.

    Parts: server (SETs and GETs over the Redis protocol beside redis, on one connection and on several, by a client
    that g++ compiles), embedded (one key a call beside LMDB, RocksDB with BlobDB, plain files and memcpy), space (what
    the files take when all values were overwritten three times in random order, at most, after that, and after a rest;
    of redis its memory), disk (durable SETs beside stores that sync, files, and pwrite and fdatasync of the same
    bytes), disk-space (the same as space, on the disk). Values are random bytes, and checked after loading. A size that
    gpkvs does not take is left out, and the result says so. The benchmark needs the peers of pip install 'gpkvs[bench]'
    and Debian's redis-server. With the defaults a part takes a minute or less, and those of space two more at rest; it
    needs 2 GiB of the tmpfs and of the disk.

    Example: gpkvs bench values --results bench/results
    """
    options = ValuesOptions(
        directory=directory,
        disk=disk,
        sizes=tuple(sorted(size)) if size else ValuesOptions.sizes,
        total_bytes=total,
        runs=runs,
        seconds=seconds,
        connections=connections,
        peers=chosen("peer", peer, PEERS),
        store_format=store_format,
        idle_seconds=idle,
    )
    parts = chosen("part", part, _PARTS)
    in_memory = tuple(one for one in parts if one in MEMORY_PARTS)
    on_disk = tuple(one for one in parts if one in DISK_PARTS)
    with failures_exit(1), ended_by_signals(), shown() as show:
        found = [run_values(options, "process", in_memory, show)] if in_memory else []
        if on_disk:
            found.append(run_values(options, "msync", on_disk, show))
    for result in found:
        kept = results / f"values-{result['promise']}.json" if results else None
        print_result(tables_of(result, profile=True), result, kept)
