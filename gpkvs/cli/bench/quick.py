"""gpkvs bench quick: what this machine does, in a minute."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from gpkvs.bench.quick.benchmark import STEPS, run_quick
from gpkvs.bench.quick.options import BATCH, QuickOptions
from gpkvs.bench.quick.picture import bars, heading, remarks, table
from gpkvs.bench.report.plot import draw
from gpkvs.cli.bench.shared import JSON, keep, shown, writing
from gpkvs.cli.terminal.cleanup import ended_by_signals
from gpkvs.cli.terminal.exit_status import exits
from gpkvs.cli.terminal.output import failures_exit


@exits({0: "measured", 1: "a store or server does not do what it should, or a file cannot be written"})
def quick_command(
    directory: Annotated[
        Path,
        typer.Option(
            help="Where the benchmark makes its stores, and removes them: on a disk, all of them flush it; on a tmpfs "
            "such as /dev/shm they survive their process alone.",
            exists=True,
            file_okay=False,
        ),
    ] = Path("/var/tmp"),
    seconds: Annotated[float, typer.Option(help="How long it takes, about.", min=0.1)] = QuickOptions.seconds,
    records: Annotated[
        int, typer.Option(help="Records that each store holds before anything is timed.", min=BATCH)
    ] = QuickOptions.records,
    runs: Annotated[
        int, typer.Option(help="Runs of each measurement, in turn with the peer's; the median counts.", min=1)
    ] = QuickOptions.runs,
    svg: Annotated[Path | None, typer.Option(help="Draw the result to this file.", dir_okay=False)] = None,
    json_file: Annotated[Path | None, typer.Option("--json", help=JSON, dir_okay=False)] = None,
) -> None:
    """Measure in a minute what this machine does: embedded and served, beside LMDB and redis where they are.

    Single calls, batches and pipelines of SETs and GETs, each in turn with LMDB (the Python package lmdb) in the same
    process, or with a redis-server of its own. All survive the same: on a disk every acknowledged write is flushed, by
    redis too (appendfsync always). What is not installed is left out, and said. It takes a GiB of the disk, and
    `gpkvs bench --quick` is another name for it.

    Example: gpkvs bench quick --svg quick.svg --json quick.json
    """
    with failures_exit(1), ended_by_signals(), shown(STEPS) as show:
        result = run_quick(QuickOptions(directory, seconds, records, runs), show)
    console = Console(highlight=False)
    for part in (heading(result), table(result).rich(), bars(result), remarks(result)):
        console.print(part, markup=False)
        console.print()
    keep(result, json_file)
    if svg:
        with writing(svg, "drawn to"):
            svg.parent.mkdir(parents=True, exist_ok=True)
            svg.write_text(draw(result))
