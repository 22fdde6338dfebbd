"""gpkvs bench rows: rows of numbers."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Annotated, Any, Literal

import typer

from gpkvs.bench.report.plot import draw
from gpkvs.bench.report.results import write_result
from gpkvs.bench.report.tables import tables_of
from gpkvs.bench.rows.benchmark import run_rows
from gpkvs.bench.rows.gpu_benchmark import run_gpu_rows
from gpkvs.bench.rows.gpu_options import GpuRowsOptions
from gpkvs.bench.rows.options import PEERS, RowsOptions
from gpkvs.cli.bench.shared import JSON, PROFILE, chosen, print_result, shown, writing
from gpkvs.cli.options.sizes import format_bytes, parse_bytes
from gpkvs.cli.terminal.cleanup import ended_by_signals
from gpkvs.cli.terminal.exit_status import exits
from gpkvs.cli.terminal.output import failures_exit


def _both(name: str, text: Callable[[Any], str] = str) -> str:
    """Return the defaults of both parts."""
    return f"{text(getattr(RowsOptions, name))}; of the part gpu {text(getattr(GpuRowsOptions, name))}"


def _dims(dims: tuple[int, ...]) -> str:
    return ", ".join(map(str, dims))


@exits({0: "measured", 1: "something is missing, or a store returns wrong rows"})
def rows_command(
    directory: Annotated[
        Path,
        typer.Option(
            help="Where the benchmark makes its stores, and removes them: on a disk, all of them flush it; on a tmpfs "
            "they survive their process alone.",
            exists=True,
            file_okay=False,
        ),
    ] = Path("/dev/shm"),
    part: Annotated[
        Literal["peers", "gpu"],
        typer.Option(help="peers: on the processor, beside others. gpu: arrays of a GPU, beside what the GPU can do."),
    ] = "peers",
    dim: Annotated[
        list[int] | None,
        typer.Option(
            help=f"How many float32 a row has; by default {_both('dims', _dims)}. May be repeated.", min=1, max=1 << 20
        ),
    ] = None,
    table_bytes: Annotated[
        Any,
        typer.Option(
            parser=parse_bytes,
            metavar="SIZE",
            help="Size of all rows of a table: more than the caches hold, and less than the memory.",
            show_default=_both("table_bytes", format_bytes),
        ),
    ] = None,
    rows_max: Annotated[
        int | None, typer.Option(help="How many rows a table has, at most.", min=1, show_default=_both("rows_max"))
    ] = None,
    batch: Annotated[
        int | None, typer.Option(help="Rows in a call: one transaction.", min=1, show_default=_both("batch"))
    ] = None,
    runs: Annotated[
        int, typer.Option(help="Rounds of each measurement; their median counts.", min=1)
    ] = RowsOptions.runs,
    seconds: Annotated[float, typer.Option(help="Seconds of timed calls in a run.", min=0.001)] = RowsOptions.seconds,
    peer: Annotated[
        list[str] | None,
        typer.Option(
            help=f"Of the part peers: what to compare with: {', '.join(PEERS)}, or none; by default all. May be "
            "repeated."
        ),
    ] = None,
    hkv: Annotated[
        Path | None,
        typer.Option(
            "--hkv",
            metavar="DIRECTORY",
            help="Of the part gpu: a checkout of HierarchicalKV (NVIDIA-Merlin on GitHub), to compare with. It is "
            "compiled by nvcc, which takes a minute or two.",
            exists=True,
            file_okay=False,
        ),
    ] = None,
    profile: Annotated[bool, typer.Option("--profile", help=PROFILE)] = False,
    svg: Annotated[Path | None, typer.Option(help="Draw the result to this file.", dir_okay=False)] = None,
    json_file: Annotated[Path | None, typer.Option("--json", help=JSON, dir_okay=False)] = None,
) -> None:
    """Measure tables of rows, such as float32[128], beside peers that promise the same, and beside NumPy in memory.

    A call reads, sets or adds to 4,096 random rows, and is one durable transaction: `get`, `get into out` (memory that
    is there), `set`, `add` (a fifth of the keys twice), and `step`, which is one of training: get rows, change them,
    set them. All stores hold the same rows, are checked, and take turns. LMDB, SQLite and redis survive what gpkvs
    survives: the directory decides, and on a disk each of them flushes each call. NumPy is `X[ids]` and `X[ids] =
    rows`: it keeps nothing, and is the limit. Keys, and rows that are set, are made into the peers' objects before the
    clock starts; what a peer reads counts as read when it is an array. The result also tells how many bytes a row
    takes. It needs the peers of pip install 'gpkvs[bench,redis]' and Debian's redis-server; redis-py is faster with pip
    install hiredis. With the defaults it takes four minutes, and 4 GiB of the file system and of memory.

    The part gpu needs an NVIDIA GPU and CuPy, and measures calls of a million keys that lie on the GPU, in tables of up
    to 4 M rows: `get` of rows that the GPU keeps, beside a copy of as many bytes and `X[ids]` on the GPU; `get` of rows
    that only the host has, and durable `set`, beside the link; `add` of 200,000 beside GETs and SETs of as many;
    and training with PyTorch, if it is installed, with each step durable. A part that fails is named, and the others go
    on; then the status is 1. The file of --json is written after each part. With the defaults it takes seven minutes,
    and 8 GiB of the file system and of memory.

    Example: gpkvs bench rows --json rows.json --svg rows.svg

    Example: gpkvs bench rows --directory /var/tmp --dim 128 --peer numpy --peer lmdb

    Example: gpkvs bench rows --part gpu --hkv HierarchicalKV --json gpu-rows.json
    """
    sizes = {"dims": tuple(dim or ()), "table_bytes": table_bytes, "rows_max": rows_max, "batch": batch}
    asked: dict[str, Any] = {name: size for name, size in sizes.items() if size}
    asked |= {"directory": directory, "runs": runs, "seconds": seconds}
    _require_of_part(part, "peers", "--peer", peer)
    _require_of_part(part, "gpu", "--hkv", hkv)
    with failures_exit(1), ended_by_signals(), shown() as show:
        if part == "gpu":
            result = run_gpu_rows(GpuRowsOptions(**asked, hkv=hkv), show, partial(_write_so_far, json_file))
        else:
            result = run_rows(RowsOptions(**asked, peers=chosen("peer", peer, PEERS)), show)
    print_result(tables_of(result, profile=profile), result, json_file)
    if svg:
        with writing(svg, "drawn to"):
            svg.parent.mkdir(parents=True, exist_ok=True)
            svg.write_text(draw(result))
    if result.get("left_out"):
        raise typer.Exit(1)


def _write_so_far(path: Path | None, result: dict[str, Any]) -> None:
    if path:
        with suppress(OSError):  # told at the end
            write_result(path, result)


def _require_of_part(part: str, wanted: str, option: str, value: object) -> None:
    if value and part != wanted:
        raise typer.BadParameter(f"only --part {wanted} has it", param_hint=option)
