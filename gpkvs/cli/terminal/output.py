"""How subcommands print: an error as one line, a result as JSON where a script asks for it."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated

import typer

from gpkvs.cli.terminal.exit_status import IN_USE
from gpkvs.errors import GpkvsError, InvalidArgumentError, StoreLockedError

AsJson = Annotated[bool, typer.Option("--json", help="Print one JSON object, for scripts.")]


@contextmanager
def failures_exit(
    status: int,
    kinds: type[GpkvsError] | tuple[type[GpkvsError], ...] = GpkvsError,
) -> Iterator[None]:
    """Print an expected error of some kinds as one line on stderr and exit with `status`; bugs keep their traceback.

    A store that another process has is `IN_USE`, whatever `status` is.
    """
    try:
        yield
    except kinds as error:
        typer.echo(f"gpkvs: {error}", err=True)
        raise typer.Exit(IN_USE if isinstance(error, StoreLockedError) else status) from error


def confirm(question: str) -> None:
    """Ask for a yes; any other answer ends the command with status 1.

    Raises
    ------
    InvalidArgumentError
        If nobody is there to answer.
    """
    try:
        is_meant = typer.confirm(question, err=True)
    except typer.Abort:
        if sys.stdin.isatty():
            raise
        typer.echo(err=True)  # the question has no end of a line
        raise InvalidArgumentError("nobody is there to answer: with --yes nobody is asked") from None
    if not is_meant:
        raise typer.Abort


def print_json(value: object) -> None:
    """Print one JSON value on stdout."""
    typer.echo(json.dumps(value, indent=1, default=str))


def empty_directory(directory: Path) -> Path:
    """Return an empty directory; make it if it is missing.

    Raises
    ------
    InvalidArgumentError
        If it holds anything: all that is found in it later must come from this command.
    """
    try:
        directory.mkdir(parents=True, exist_ok=True)
        used = any(directory.iterdir())
    except OSError as error:
        raise InvalidArgumentError(f"cannot use {directory}: {error.strerror}", field="data") from error
    if used:
        raise InvalidArgumentError(f"{directory} is not empty: name a directory of its own", field="data")
    return directory
