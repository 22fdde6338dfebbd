"""A channel of gRPC for one subcommand: it logs in, and an error of a call is one line."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import grpc
import typer

from gpkvs.cli.options.connection import EXIT_FAILED
from gpkvs.cli.terminal.output import failures_exit
from gpkvs.credentials import Access

_SIZES_UNBOUNDED = (("grpc.max_receive_message_length", -1), ("grpc.max_send_message_length", -1))


@contextmanager
def connect(target: str, access: Access) -> Iterator[grpc.Channel]:
    """Connect to a server; print an error as one line on stderr and exit with status 2."""
    try:
        with failures_exit(EXIT_FAILED), open_channel(target, access) as channel:
            yield channel
    except grpc.RpcError as error:
        typer.echo(f"gpkvs: {target}: {error.code().name}: {_explained(error, target)}", err=True)
        raise typer.Exit(EXIT_FAILED) from error


@contextmanager
def open_channel(target: str, access: Access) -> Iterator[grpc.Channel]:
    """Connect to a server; whoever calls sees to the errors."""
    with access.channel(target, _SIZES_UNBOUNDED, grpc) as channel:
        yield channel if access.metadata is None else grpc.intercept_channel(channel, _Login(access.metadata))


class _Login(grpc.UnaryUnaryClientInterceptor):  # type: ignore[misc]
    """Sends metadata with each call."""

    def __init__(self, metadata: tuple[tuple[str, str], ...]) -> None:
        self._metadata = metadata

    def intercept_unary_unary(self, continuation: Callable[..., Any], details: Any, request: Any) -> Any:
        return continuation(details._replace(metadata=self._metadata), request)


def _explained(error: grpc.RpcError, target: str) -> str:
    """Return the details of an error; those of a connection that failed are a long story."""
    details: str = error.details()
    if error.code() is not grpc.StatusCode.UNAVAILABLE:
        return details
    from gpkvs.client.retry import classify  # noqa: PLC0415 - it takes longer than most commands

    return str(classify(error.code(), details, {}, target).error).removeprefix(f"{target}: ")
