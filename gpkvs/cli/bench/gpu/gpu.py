"""gpkvs bench gpu: the engine on a GPU beside its limits."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from gpkvs.bench.gpu.benchmark import PARTS as GPU_PARTS
from gpkvs.bench.gpu.benchmark import GpuOptions, gpu_tables, run_gpu
from gpkvs.cli.bench.shared import GPU_DIRECTORY, JSON, chosen, print_result, shown
from gpkvs.cli.terminal.cleanup import ended_by_signals
from gpkvs.cli.terminal.exit_status import exits
from gpkvs.cli.terminal.output import failures_exit


@exits({0: "measured", 1: "something is missing"})
def gpu_command(
    directory: Annotated[Path, typer.Option(help=GPU_DIRECTORY, exists=True, file_okay=False)] = Path("/dev/shm"),
    index_bytes: Annotated[int, typer.Option(help="Size of the table's index.", min=64 << 10)] = GpuOptions.index_bytes,
    batch: Annotated[int, typer.Option(help="Operations in a batch: one transaction.", min=1)] = GpuOptions.batch,
    batches: Annotated[int, typer.Option(help="Different batches; each is run once.", min=4)] = GpuOptions.batches,
    part: Annotated[
        list[str] | None, typer.Option(help=f"Part to run: {', '.join(GPU_PARTS)}; by default all. May be repeated.")
    ] = None,
    start_index_bytes: Annotated[
        int, typer.Option(help="Size of the larger index for which the start is timed.", min=64 << 10)
    ] = GpuOptions.start_index_bytes,
    json_file: Annotated[Path | None, typer.Option("--json", help=JSON, dir_okay=False)] = None,
) -> None:
    """Measure the engine on one GPU against the limits of the GPU and its link, in the same run.

    Parts: numbers (SET, GET and 95:5 of 8-byte keys and values, from arrays of the host and of the GPU), small
    (batches of 1 to 131,072, on the host's threads and on the GPU), records (16-byte keys, 100-byte values, beside the
    time of the host's threads alone), recovery (verify and undo of a whole batch, opening the store again), start (to
    serving, with a small and a large index), server (YCSB from h2load, on this backend and on cpu),
    growth (batches of new keys while the index grows from 64 KiB to 4 GiB; the steps of growth alone, to 8 GiB).
    The benchmark needs an NVIDIA GPU and CuPy; docs/gpu.md says what limits what. With the defaults it takes five
    minutes and 40 GiB of the file system.

    Example: gpkvs bench gpu --json bench/results/gpu.json
    """
    options = GpuOptions(directory, index_bytes, batch, batches, chosen("part", part, GPU_PARTS), start_index_bytes)
    with failures_exit(1), ended_by_signals(), shown() as show:
        result = run_gpu(options, show)
    print_result(gpu_tables(result), result, json_file)
