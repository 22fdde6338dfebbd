"""gpkvs bench paper: the papers' comparisons."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from gpkvs.bench.gpu.benchmark import GpuOptions
from gpkvs.bench.gpu.paper import draw_paper, paper_tables, run_paper
from gpkvs.cli.bench.shared import GPU_DIRECTORY, JSON, print_result, shown
from gpkvs.cli.terminal.cleanup import ended_by_signals
from gpkvs.cli.terminal.exit_status import exits
from gpkvs.cli.terminal.output import failures_exit


@exits({0: "measured", 1: "something is missing"})
def paper_command(
    directory: Annotated[Path, typer.Option(help=GPU_DIRECTORY, exists=True, file_okay=False)] = Path("/dev/shm"),
    index_bytes: Annotated[int, typer.Option(help="Size of the table's index.", min=64 << 10)] = GpuOptions.index_bytes,
    batch: Annotated[int, typer.Option(help="Operations in a batch: one transaction.", min=1)] = GpuOptions.batch,
    batches: Annotated[int, typer.Option(help="Different batches.", min=4)] = GpuOptions.batches,
    json_file: Annotated[Path | None, typer.Option("--json", help=JSON, dir_okay=False)] = None,
    plot: Annotated[Path | None, typer.Option(help="Draw the speeds into this file, as SVG.", dir_okay=False)] = None,
) -> None:
    """Repeat the comparisons of the paper behind the engine (GPM, ASPLOS '22), with this code.

    It compares who makes results durable: the host after a copy of the table (CAP-fs, CAP-mm: mock-ups), the host after
    the GPU stored (GPM-NDP), or the GPU (GPM). It also compares a coalesced log with one that has locks, and measures
    write amplification and restoration. It needs an NVIDIA GPU and CuPy; docs/gpu.md has the figures beside the
    paper's. With the defaults it takes a minute.

    Example: gpkvs bench paper --json bench/results/paper.json
    """
    options = GpuOptions(directory, index_bytes, batch, batches, ())
    with failures_exit(1), ended_by_signals(), shown() as show:
        result = run_paper(options, show)
    print_result(paper_tables(result), result, json_file)
    if plot:
        plot.write_text(draw_paper(result))
