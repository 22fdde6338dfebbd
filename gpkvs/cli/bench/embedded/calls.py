"""gpkvs bench calls: one operation a call."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from gpkvs.bench.calls.benchmark import CALLS_PEERS, CallsOptions, run_calls
from gpkvs.bench.peers.contender import Promise
from gpkvs.bench.report.tables import tables_of
from gpkvs.cli.bench.shared import DIRECTORY, JSON, PROMISE, chosen, print_result, shown
from gpkvs.cli.terminal.cleanup import ended_by_signals
from gpkvs.cli.terminal.exit_status import exits
from gpkvs.cli.terminal.output import failures_exit


@exits({0: "measured", 1: "something is missing, or a store returns a wrong value"})
def calls_command(
    directory: Annotated[Path, typer.Option(help=DIRECTORY, exists=True, file_okay=False)] = Path("/dev/shm"),
    promise: Annotated[Promise, typer.Option(help=PROMISE)] = CallsOptions.promise,
    records: Annotated[int, typer.Option(help="Records that each store holds.", min=1)] = CallsOptions.records,
    calls: Annotated[int, typer.Option(help="Calls of a run.", min=1)] = CallsOptions.calls,
    runs: Annotated[int, typer.Option(help="Runs of each kind; the median counts.", min=1)] = CallsOptions.runs,
    peer: Annotated[
        list[str] | None,
        typer.Option(help=f"Store to compare with: {', '.join(CALLS_PEERS)}, or none; by default all."),
    ] = None,
    json_file: Annotated[Path | None, typer.Option("--json", help=JSON, dir_okay=False)] = None,
) -> None:
    """Set, get and count in an embedded store, one operation a call, beside LMDB.

    Each write is durable when its call returns. The stores take turns, and do all again beside a thread that computes
    in Python. With the defaults it takes half a minute. Beside a thread that computes, runs are a twentieth as long.

    Example: gpkvs bench calls --json bench/results/calls-process.json
    """
    options = CallsOptions(
        directory=directory,
        promise=promise,
        records=records,
        calls=calls,
        runs=runs,
        peers=chosen("peer", peer, CALLS_PEERS),
    )
    with failures_exit(1), ended_by_signals(), shown() as show:
        result = run_calls(options, show)
    print_result(tables_of(result, profile=False), result, json_file)
