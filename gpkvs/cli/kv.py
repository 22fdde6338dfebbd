"""gpkvs get, set, delete: one key of a running server."""

from __future__ import annotations

import base64
import sys
from typing import Annotated

import typer

from gpkvs.cli.exit_status import exits
from gpkvs.cli.output import print_json
from gpkvs.cli.remote import AsJson, Target, Timeout, connect
from gpkvs.config import ServerConfig
from gpkvs.proto.v1 import kv_pb2, kv_pb2_grpc

EXIT_MISS = 1

Key = Annotated[str, typer.Argument(help="The key, UTF-8.", metavar="KEY")]
Table = Annotated[str, typer.Option(help="The table; without it the default one.")]


@exits({0: "found", 1: "not found", 2: "failed"})
def get_command(
    key: Key, target: Target = ServerConfig.listen, table: Table = "", timeout: Timeout = 10.0, as_json: AsJson = False
) -> None:
    """Print the value of a key, byte for byte.

    With --json a value that is no UTF-8 is given as "value_base64".
    """
    with connect(target) as channel:
        answer = kv_pb2_grpc.KVStub(channel).Get(kv_pb2.GetRequest(table=table, key=_bytes(key)), timeout=timeout)
    if as_json:
        print_json({"found": answer.found, **_value(answer.value, answer.found), "version": answer.version})
    elif answer.found:
        sys.stdout.buffer.write(answer.value)
        sys.stdout.flush()
    else:
        typer.echo(f"gpkvs: no key {key!r}", err=True)
    if not answer.found:
        raise typer.Exit(EXIT_MISS)


@exits({0: "stored", 2: "failed"})
def set_command(
    key: Key,
    value: Annotated[str | None, typer.Argument(help="The value, UTF-8; without it, standard input.")] = None,
    target: Target = ServerConfig.listen,
    table: Table = "",
    timeout: Timeout = 10.0,
    as_json: AsJson = False,
) -> None:
    """Store a value under a key; it is durable when this returns."""
    data = sys.stdin.buffer.read() if value is None else _bytes(value)
    with connect(target) as channel:
        request = kv_pb2.SetRequest(table=table, key=_bytes(key), value=data)
        answer = kv_pb2_grpc.KVStub(channel).Set(request, timeout=timeout)
    if as_json:
        print_json({"version": answer.version})


@exits({0: "the key is gone (it says if it was not there)", 2: "failed"})
def delete_command(
    key: Key, target: Target = ServerConfig.listen, table: Table = "", timeout: Timeout = 10.0, as_json: AsJson = False
) -> None:
    """Remove a key, if it is there; that is durable when this returns."""
    with connect(target) as channel:
        request = kv_pb2.DeleteRequest(table=table, key=_bytes(key))
        answer = kv_pb2_grpc.KVStub(channel).Delete(request, timeout=timeout)
    if as_json:
        print_json({"found": answer.found})
    elif not answer.found:
        typer.echo(f"gpkvs: no key {key!r}", err=True)


def _bytes(text: str) -> bytes:
    """Return an argument's bytes, also where they are no UTF-8."""
    return text.encode("utf-8", "surrogateescape")


def _value(value: bytes, found: bool) -> dict[str, str | None]:
    try:
        return {"value": value.decode() if found else None}
    except UnicodeDecodeError:
        return {"value_base64": base64.b64encode(value).decode()}
