"""What subcommands that talk to a server share: where it is, how long to wait, errors as one line."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Annotated

import grpc
import typer

from gpkvs.cli.output import failures_exit

EXIT_FAILED = 2

Target = Annotated[str, typer.Option(help="The server.", envvar="GPKVS_TARGET", metavar="HOST:PORT")]
Timeout = Annotated[float, typer.Option("--timeout", help="Seconds to wait for the answer.", min=0.001)]
AsJson = Annotated[bool, typer.Option("--json", help="Print one JSON object, for scripts.")]

_SIZES_UNBOUNDED = [("grpc.max_receive_message_length", -1), ("grpc.max_send_message_length", -1)]


@contextmanager
def connect(target: str) -> Iterator[grpc.Channel]:
    """Connect to a server; an error is one line on stderr and exit status 2."""
    try:
        with failures_exit(EXIT_FAILED), grpc.insecure_channel(target, options=_SIZES_UNBOUNDED) as channel:
            yield channel
    except grpc.RpcError as error:
        typer.echo(f"gpkvs: {target}: {error.code().name}: {error.details()}", err=True)
        raise typer.Exit(EXIT_FAILED) from error
