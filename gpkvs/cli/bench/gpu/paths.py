"""gpkvs bench paths: how well the path of a batch is chosen."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from gpkvs.bench.gpu.paths import PathsOptions, draw_paths, paths_tables, run_paths
from gpkvs.cli.bench.shared import GPU_DIRECTORY, JSON, print_result, shown
from gpkvs.cli.terminal.cleanup import ended_by_signals
from gpkvs.cli.terminal.exit_status import exits
from gpkvs.cli.terminal.output import failures_exit


@exits({0: "measured", 1: "something is missing"})
def paths_command(
    directory: Annotated[Path, typer.Option(help=GPU_DIRECTORY, exists=True, file_okay=False)] = Path("/dev/shm"),
    large_index_bytes: Annotated[
        int, typer.Option(help="Size of the index for uniform keys.", min=64 << 10)
    ] = PathsOptions.large_index_bytes,
    large_keys: Annotated[int, typer.Option(help="Keys in it.", min=1)] = PathsOptions.large_keys,
    json_file: Annotated[Path | None, typer.Option("--json", help=JSON, dir_okay=False)] = None,
    plot: Annotated[Path | None, typer.Option(help="Draw the grid into this file, as SVG.", dir_okay=False)] = None,
) -> None:
    """Measure how well a store chooses who plans a batch, the host's threads or the GPU.

    A fixed grid of 48 kinds of batches (GET and SET, 1 to 2,097,152 operations, arrays of the host and of the GPU,
    uniform keys in a large table and zipfian ones in a small table) runs in turn on the host, on the GPU, and as the
    store chooses. The regret is what the choice takes longer than the better of both. It needs an NVIDIA GPU and CuPy.
    With the defaults it takes four minutes and 9 GiB of the file system.

    Example: gpkvs bench paths --json bench/results/paths.json --plot paths.svg
    """
    options = PathsOptions(directory, large_index_bytes, large_keys=large_keys)
    with failures_exit(1), ended_by_signals(), shown() as show:
        result = run_paths(options, show)
    if plot:
        plot.write_text(draw_paths(result))
    print_result(paths_tables(result), result, json_file)
