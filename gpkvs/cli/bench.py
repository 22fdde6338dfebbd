"""gpkvs bench: how fast the engine and the server are here, beside other stores that promise the same."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any, get_args

import typer
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from gpkvs.bench.contender import Promise
from gpkvs.bench.engine import EngineOptions, PeerName, run_engine, steps
from gpkvs.bench.results import write_result
from gpkvs.bench.tables import engine_tables
from gpkvs.bench.workload import SHAPES
from gpkvs.cli.output import failures_exit

app = typer.Typer(
    name="bench",
    help="Measure the engine and the server beside other stores, and keep the figures.",
    no_args_is_help=True,
)

_DIRECTORY = "Where the stores are made and removed again: a tmpfs for `process`, a disk for `msync`."
_PROMISE = "What an acknowledged batch survives, in all stores alike: the death of the process, or a loss of power."
_JSON = "Keep everything, with each single run, in this file."
_PROFILE = "Show where the time went as well."


@contextmanager
def _shown(total: int) -> Iterator[Callable[[str], None]]:
    """Show steps on stderr: as a bar on a terminal, else as lines."""
    console = Console(stderr=True, highlight=False, soft_wrap=True)
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with Progress(*columns, console=console, transient=True, disable=not console.is_terminal) as bar:
        task = bar.add_task("starting", total=total, completed=-1)

        def show(step: str) -> None:
            bar.update(task, description=step, advance=1)
            if not console.is_terminal:
                console.print(step, markup=False)

        yield show


def _finish(result: dict[str, Any], json_file: Path | None) -> None:
    if json_file:
        write_result(json_file, result)
        Console(stderr=True, highlight=False).print(f"kept in {json_file}", markup=False)


@app.command("engine")
def engine_command(
    directory: Annotated[Path, typer.Option(help=_DIRECTORY, exists=True, file_okay=False)] = Path("/dev/shm"),
    promise: Annotated[Promise, typer.Option(help=_PROMISE)] = EngineOptions.promise,
    records: Annotated[int, typer.Option(help="Loaded before anything is timed.", min=1)] = EngineOptions.records,
    batch: Annotated[int, typer.Option(help="Operations in a batch: one transaction.", min=1)] = EngineOptions.batch,
    runs: Annotated[int, typer.Option(help="Of each measurement; the median counts.", min=1)] = EngineOptions.runs,
    batches: Annotated[int, typer.Option(help="In a run, at most.", min=1)] = EngineOptions.batches_max,
    seconds: Annotated[
        float, typer.Option(help="Timed in a run, at most (but three batches).", min=0)
    ] = EngineOptions.seconds_max,
    shape: Annotated[
        list[str] | None, typer.Option(help=f"Of the records: {', '.join(SHAPES)}; by default all. May be repeated.")
    ] = None,
    peer: Annotated[
        list[str] | None,
        typer.Option(help=f"Whom to compare with: {', '.join(get_args(PeerName))}, or none; by default all."),
    ] = None,
    profile: Annotated[bool, typer.Option("--profile", help=_PROFILE)] = False,
    json_file: Annotated[Path | None, typer.Option("--json", help=_JSON, dir_okay=False)] = None,
) -> None:
    """Batches on the embedded store, beside LMDB and RocksDB.

    All stores get the same batches of uniform keys, one after the other, and keep the same promise. Peers come with
    pip install 'gpkvs[bench]'; docs/performance.md says how each is set up and what is timed. With the defaults it
    takes some minutes and 4 GiB of the file system.

    Exit status: 0, 1 if something is missing or a store answers wrongly, 2 wrong options.

    Example: gpkvs bench engine --records 1000000 --json bench/results/engine-process.json
    """
    options = EngineOptions(
        directory=directory,
        promise=promise,
        records=records,
        batch=batch,
        runs=runs,
        batches_max=batches,
        seconds_max=seconds,
        shapes=tuple(SHAPES[name] for name in _chosen("shape", shape, tuple(SHAPES))),
        peers=_chosen("peer", peer, get_args(PeerName)),
    )
    with failures_exit(1), _shown(steps(options)) as show:
        result = run_engine(options, show)
    console = Console(highlight=False)
    for table in engine_tables(result, profile=profile):
        console.print(table)
    _finish(result, json_file)


def _chosen(option: str, names: list[str] | None, known: tuple[Any, ...]) -> tuple[Any, ...]:
    """Return the names that were chosen, or all."""
    if not names:
        return known
    for name in names:
        if name not in known and name != "none":
            raise typer.BadParameter(f"there is no {option} {name!r}; there are {', '.join(known)}", param_hint=option)
    return tuple(name for name in known if name in names)
