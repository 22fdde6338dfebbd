"""gpkvs bench gpm: the nine workloads of GPM."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from gpkvs.bench.gpm.benchmark import PARTS, SIZES, WORKLOADS, GpmOptions, run_gpm
from gpkvs.bench.gpm.tables import draw_gpm, gpm_tables
from gpkvs.bench.report.results import write_result
from gpkvs.cli.bench.shared import JSON, chosen, print_result, shown
from gpkvs.cli.terminal.cleanup import ended_by_signals
from gpkvs.cli.terminal.exit_status import exits
from gpkvs.cli.terminal.output import failures_exit


@exits({0: "measured", 1: "something is missing"})
def gpm_command(
    directory: Annotated[
        Path,
        typer.Option(
            help="Where files are made, and removed: persistent memory or a tmpfs.", exists=True, file_okay=False
        ),
    ] = Path("/dev/shm"),
    place: Annotated[str, typer.Option(help="Where the workloads run: cpu, cuda, cuda:1.")] = GpmOptions.place,
    size: Annotated[
        str, typer.Option(help=f"Size of the workloads: {', '.join(SIZES)}; paper is that of GPM's table 1.")
    ] = GpmOptions.size,
    workloads: Annotated[
        list[str] | None,
        typer.Option("--workload", help=f"Workload to run: {', '.join(WORKLOADS)}; by default all. May be repeated."),
    ] = None,
    part: Annotated[
        list[str] | None, typer.Option(help=f"Part to run: {', '.join(PARTS)}; by default all. May be repeated.")
    ] = None,
    disk: Annotated[
        Path, typer.Option(help="A directory on an ordinary disk, for checkpoints there.", exists=True, file_okay=False)
    ] = GpmOptions.disk,
    runs: Annotated[int, typer.Option(help="How often each operation is timed.", min=1)] = GpmOptions.runs,
    json_file: Annotated[Path | None, typer.Option("--json", help=JSON, dir_okay=False)] = None,
    plot: Annotated[Path | None, typer.Option(help="Draw the speedups into this file, as SVG.", dir_okay=False)] = None,
) -> None:
    """Run the nine workloads of GPM (ASPLOS '22), in examples/gpm, with three ways to persist their results.

    CAP-fs copies results to the host, writes and syncs a file. CAP-mm copies them, and threads of the host store them
    to a mapping. GPM is gpkvs.gpm: kernels persist what they compute, in place, with a log, or as a checkpoint. Tables
    have the paper's figures beside these, and the time in which kernels of the same place store as many bytes in a
    stream. The part logs compares both kinds of logs. The part library measures checkpoints against the link and the
    disk, training and a solver that persist, and states of NumPy and PyTorch. On the CPU, size small takes a minute;
    size paper takes a GPU, minutes, and 30 GiB of the file system. A workload without room is left out, with the
    reason. With --json, what was measured so far is kept if the run is ended.

    Example: gpkvs bench gpm --place cuda --size paper --json bench/results/gpm.json --plot gpm.svg
    """
    options = GpmOptions(
        directory,
        place,
        chosen("size", [size], SIZES)[0],
        chosen("workload", workloads, tuple(WORKLOADS)),
        chosen("part", part, PARTS),
        disk,
        runs,
    )
    with failures_exit(1), ended_by_signals(), shown() as show:
        result = run_gpm(options, show, lambda so_far: write_result(json_file, so_far) if json_file else None)
    print_result(gpm_tables(result), result, json_file)
    if plot and result.get("operations"):
        plot.write_text(draw_gpm(result))
