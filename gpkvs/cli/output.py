"""How subcommands speak: errors as one clear line, results as JSON where a script asks for them."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager

import typer

from gpkvs.errors import GpkvsError


@contextmanager
def failures_exit(status: int) -> Iterator[None]:
    """Print an expected error as one line on stderr and exit with `status`; bugs keep their traceback."""
    try:
        yield
    except GpkvsError as error:
        typer.echo(f"gpkvs: {error}", err=True)
        raise typer.Exit(status) from error


def print_json(value: object) -> None:
    """Print one JSON value on stdout."""
    typer.echo(json.dumps(value, indent=1, default=str))
