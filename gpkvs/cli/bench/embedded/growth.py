"""gpkvs bench growth: growing tables."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from gpkvs.bench.engine.workload import SHAPES
from gpkvs.bench.growth.benchmark import GROWTH_PEERS, GrowthOptions, run_growth
from gpkvs.bench.peers.contender import Promise
from gpkvs.bench.report.tables import tables_of
from gpkvs.cli.bench.shared import DIRECTORY, JSON, PROMISE, chosen, print_result, shown
from gpkvs.cli.terminal.cleanup import ended_by_signals
from gpkvs.cli.terminal.exit_status import exits
from gpkvs.cli.terminal.output import failures_exit


@exits({0: "measured", 1: "something is missing, or a store returns wrong values"})
def growth_command(
    directory: Annotated[Path, typer.Option(help=DIRECTORY, exists=True, file_okay=False)] = Path("/dev/shm"),
    promise: Annotated[Promise, typer.Option(help=PROMISE)] = GrowthOptions.promise,
    records: Annotated[int, typer.Option(help="Keys that are inserted.", min=1)] = GrowthOptions.records,
    batch: Annotated[int, typer.Option(help="Keys in a batch: one transaction.", min=1)] = GrowthOptions.batch,
    index_bytes: Annotated[int, typer.Option(help="Size of the index at first.", min=1)] = GrowthOptions.index_bytes,
    steps_bytes: Annotated[
        int, typer.Option(help="Size of the indexes whose steps are measured alone; 0: none.", min=0)
    ] = GrowthOptions.steps_bytes,
    shape: Annotated[str, typer.Option(help=f"Shape of the records: {', '.join(SHAPES)}.")] = GrowthOptions.shape.name,
    peer: Annotated[
        list[str] | None,
        typer.Option(help=f"Store to compare with: {', '.join(GROWTH_PEERS)}, or none; by default all."),
    ] = None,
    json_file: Annotated[Path | None, typer.Option("--json", help=JSON, dir_okay=False)] = None,
) -> None:
    """Insert keys into a small store that grows: how late batches are meanwhile, beside a store made large, and redis.

    All get the same batches of new keys, one after the other, and keep the same promise. The result has p50, p99 and
    the longest batch of each moment, with growth and moves marked; `gpkvs bench report` draws them. With the defaults
    it takes two minutes and 5 GiB of the file system.

    Example: gpkvs bench growth --records 1000000 --json bench/results/growth-process.json
    """
    options = GrowthOptions(
        directory=directory,
        promise=promise,
        records=records,
        batch=batch,
        index_bytes=index_bytes,
        steps_bytes=steps_bytes,
        shape=SHAPES[chosen("shape", [shape], tuple(SHAPES))[0]],
        peers=chosen("peer", peer, GROWTH_PEERS),
    )
    with failures_exit(1), ended_by_signals(), shown() as show:
        result = run_growth(options, show)
    print_result(tables_of(result, profile=False), result, json_file)
