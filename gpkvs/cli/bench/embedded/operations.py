"""gpkvs bench operations: operations that look first beside plain ones."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from gpkvs.bench.operations.benchmark import OperationsOptions, run_operations
from gpkvs.bench.peers.contender import Promise
from gpkvs.bench.report.tables import tables_of
from gpkvs.cli.bench.shared import DIRECTORY, JSON, PROMISE, print_result, shown
from gpkvs.cli.terminal.cleanup import ended_by_signals
from gpkvs.cli.terminal.exit_status import exits
from gpkvs.cli.terminal.output import failures_exit


@exits({0: "measured", 1: "something is missing, or the store returns wrong numbers"})
def operations_command(
    directory: Annotated[Path, typer.Option(help=DIRECTORY, exists=True, file_okay=False)] = Path("/dev/shm"),
    promise: Annotated[Promise, typer.Option(help=PROMISE)] = OperationsOptions.promise,
    records: Annotated[
        int, typer.Option(help="Records that are loaded before anything is timed.", min=16)
    ] = OperationsOptions.records,
    batch: Annotated[
        int, typer.Option(help="Operations in a batch: one transaction.", min=16)
    ] = OperationsOptions.batch,
    rounds: Annotated[
        int, typer.Option(help="Batches of each kind; the median of their ratios counts.", min=1)
    ] = OperationsOptions.rounds,
    json_file: Annotated[Path | None, typer.Option("--json", help=JSON, dir_okay=False)] = None,
) -> None:
    """Measure batches of increments, conditions, appends and EXISTSs beside plain SETs and GETs of as many keys.

    All kinds of batches take turns on the same keys of one embedded store, and the median of the rounds' ratios counts.
    With the defaults it takes half a minute and 2 GiB of the file system.

    Example: gpkvs bench operations --json bench/results/operations-process.json
    """
    options = OperationsOptions(directory, promise, records, batch, rounds)
    with failures_exit(1), ended_by_signals(), shown() as show:
        result = run_operations(options, show)
    print_result(tables_of(result, profile=False), result, json_file)
