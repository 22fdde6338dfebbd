"""gpkvs bench scan: scans."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from gpkvs.bench.engine.workload import SHAPES
from gpkvs.bench.peers.contender import Promise
from gpkvs.bench.report.tables import tables_of
from gpkvs.bench.scan.benchmark import SCAN_PEERS, ScanOptions, run_scan
from gpkvs.cli.bench.shared import DIRECTORY, JSON, PROMISE, chosen, print_result, shown
from gpkvs.cli.terminal.cleanup import ended_by_signals
from gpkvs.cli.terminal.exit_status import exits
from gpkvs.cli.terminal.output import failures_exit


@exits({0: "measured", 1: "something is missing, or a scan returns too few or too many records"})
def scan_command(
    directory: Annotated[Path, typer.Option(help=DIRECTORY, exists=True, file_okay=False)] = Path("/dev/shm"),
    promise: Annotated[Promise, typer.Option(help=PROMISE)] = ScanOptions.promise,
    records: Annotated[int, typer.Option(help="Records that each store holds.", min=1)] = ScanOptions.records,
    runs: Annotated[int, typer.Option(help="Scans of each kind; the median counts.", min=1)] = ScanOptions.runs,
    shape: Annotated[
        list[str] | None,
        typer.Option(help=f"Shape of the records: {', '.join(SHAPES)}; by default all. May be repeated."),
    ] = None,
    peer: Annotated[
        list[str] | None,
        typer.Option(help=f"Store to compare with: {', '.join(SCAN_PEERS)}, or none; by default all."),
    ] = None,
    json_file: Annotated[Path | None, typer.Option("--json", help=JSON, dir_okay=False)] = None,
) -> None:
    """Scan a table from end to end: keys only, and whole records, beside the cursor of LMDB.

    In this process the stores take turns, with the same records. A server then serves the store: a client scans it, and
    exports it to a file. With the defaults it takes one minute and 2 GiB of the file system.

    Example: gpkvs bench scan --json bench/results/scan-process.json
    """
    options = ScanOptions(
        directory=directory,
        promise=promise,
        records=records,
        runs=runs,
        shapes=tuple(SHAPES[name] for name in chosen("shape", shape, tuple(SHAPES))),
        peers=chosen("peer", peer, SCAN_PEERS),
    )
    with failures_exit(1), ended_by_signals(), shown() as show:
        result = run_scan(options, show)
    print_result(tables_of(result, profile=False), result, json_file)
