"""Progress on stderr: as a bar on a terminal, else as a line from time to time."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from gpkvs.text import counted

_TOLD_SECONDS = 10.0  # between two lines


@contextmanager
def shown_progress(what: str, noun: str, total: int | None) -> Iterator[Callable[[int], None]]:
    """Show how far something is; what this gives is told how much more is done."""
    console = Console(stderr=True, highlight=False, soft_wrap=True)
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    done, told = 0, time.monotonic()
    with Progress(*columns, console=console, transient=True, disable=not console.is_terminal) as bar:
        task = bar.add_task(what, total=total)

        def show(more: int) -> None:
            nonlocal done, told
            done += more
            bar.update(task, advance=more)
            if not console.is_terminal and time.monotonic() - told > _TOLD_SECONDS:
                told = time.monotonic()
                console.print(f"{what}: {counted(done, noun)}", markup=False)

        yield show
