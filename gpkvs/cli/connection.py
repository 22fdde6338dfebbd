"""The connection of subcommands that talk to a server: its address, its timeout, and its errors as one line."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Annotated

import grpc
import typer

from gpkvs.cli.output import failures_exit

EXIT_FAILED = 2

Target = Annotated[str, typer.Option(help="The address of the server.", envvar="GPKVS_TARGET", metavar="HOST:PORT")]
Timeout = Annotated[float, typer.Option("--timeout", help="Seconds to wait for the response.", min=0.001)]
AsJson = Annotated[bool, typer.Option("--json", help="Print one JSON object, for scripts.")]

_SIZES_UNBOUNDED = [("grpc.max_receive_message_length", -1), ("grpc.max_send_message_length", -1)]


@contextmanager
def connect(target: str) -> Iterator[grpc.Channel]:
    """Connect to a server; print an error as one line on stderr and exit with status 2."""
    try:
        with failures_exit(EXIT_FAILED), grpc.insecure_channel(target, options=_SIZES_UNBOUNDED) as channel:
            yield channel
    except grpc.RpcError as error:
        typer.echo(f"gpkvs: {target}: {error.code().name}: {error.details()}", err=True)
        raise typer.Exit(EXIT_FAILED) from error
