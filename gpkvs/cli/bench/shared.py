"""What the commands of `gpkvs bench` share: texts of options, steps shown, results printed and kept."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from itertools import count
from pathlib import Path
from typing import Any

import typer
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from gpkvs.bench.peers.contender import BenchError
from gpkvs.bench.report.results import write_result
from gpkvs.bench.report.tables import Rows
from gpkvs.cli.terminal.output import failures_exit

DIRECTORY = "Where the benchmark makes its stores, and removes them: a tmpfs for `process`, a disk for `msync`."
PROMISE = "What an acknowledged batch survives, in all stores alike: the death of the process, or a loss of power."
GPU_DIRECTORY = "Where the benchmark makes its store, and removes it: a tmpfs, whose files the GPU can store to."
JSON = "Write all results, with every single run, to this file."
PROFILE = "Show where the time went as well."
_FILE_COLUMNS = 200  # of a table that goes to a file: at 80 its words are cut


@contextmanager
def shown(total: int | None = None) -> Iterator[Callable[[str], None]]:
    """Show steps on stderr: as a bar on a terminal, else as lines."""
    console = Console(stderr=True, highlight=False, soft_wrap=True)
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with Progress(*columns, console=console, transient=True, disable=not console.is_terminal) as bar:
        task = bar.add_task("starting", total=total)
        begun = count()  # a step that begins is not done yet

        def show(step: str) -> None:
            bar.update(task, description=step, completed=next(begun))
            if not console.is_terminal:
                console.print(step, markup=False)

        yield show


def print_result(tables: Iterable[Rows], result: dict[str, Any], json_file: Path | None) -> None:
    """Print a result's tables, and write the result to a file."""
    console = Console(highlight=False)
    if not console.is_terminal:
        console.width = _FILE_COLUMNS
    for rows in tables:
        console.print(rows.rich())
    keep(result, json_file)


def keep(result: dict[str, Any], json_file: Path | None) -> None:
    """Write a result to a file, if there is to be one."""
    if json_file:
        with writing(json_file, "kept in"):
            write_result(json_file, result)


@contextmanager
def writing(path: Path, done: str) -> Iterator[None]:
    """Say that a file was written, or why it cannot be; then the command ends with status 1."""
    with failures_exit(1):
        try:
            yield
        except OSError as error:
            raise BenchError(f"cannot write {path}: {error.strerror}") from error
    Console(stderr=True, highlight=False, soft_wrap=True).print(f"{done} {path}", markup=False)


def chosen(option: str, names: list[str] | None, known: tuple[Any, ...]) -> tuple[Any, ...]:
    """Return the names that were chosen, or all."""
    if not names:
        return known
    for name in names:
        if name not in known and name != "none":
            raise typer.BadParameter(f"there is no {option} {name!r}; there are {', '.join(known)}", param_hint=option)
    return tuple(name for name in known if name in names)
