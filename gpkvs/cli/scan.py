"""gpkvs scan, count: the keys of a table of a running server."""

from __future__ import annotations

import base64
import json
import sys
from collections.abc import Iterator
from typing import Annotated, Any

import typer

from gpkvs.cli.connection import EXIT_FAILED, AsJson, Target, connect
from gpkvs.cli.exit_status import exits
from gpkvs.cli.kv import Table
from gpkvs.cli.output import failures_exit, print_json
from gpkvs.cli.typed_keys import Form, form_of
from gpkvs.client import Client
from gpkvs.config import ServerConfig
from gpkvs.proto.v1 import kv_pb2, kv_pb2_grpc
from gpkvs.scan import ScanPiece
from gpkvs.text import counted

EXIT_DAMAGED = 1

Prefix = Annotated[str, typer.Option(help="Only keys that begin with this text; not in a table of the layout u64.")]
Waiting = Annotated[
    float, typer.Option("--timeout", help="Seconds to wait for a response before the command gives up.", min=0.001)
]


@exits({0: "shown", EXIT_DAMAGED: "records fail their checks: the others were shown", EXIT_FAILED: "failed"})
def scan_command(
    prefix: Prefix = "",
    keys_only: Annotated[bool, typer.Option("--keys-only", help="Leave out the values.")] = False,
    limit: Annotated[int | None, typer.Option(help="Show so many keys at most.", min=1)] = None,
    target: Target = ServerConfig.listen,
    table: Table = "",
    timeout: Waiting = 10.0,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object a line, for scripts.")] = False,
) -> None:
    r"""Print all keys of a table with their values, in no order that means anything.

    A line has a key, a tab and the value. What is not printable, and the backslash, are written as \\xNN, byte by byte.
    Numbers of a u64 table are printed as numbers. With --json, a key or value that is not UTF-8 is printed as
    "key_base64" or "value_base64".

    Keys that are there throughout are printed exactly once, also if the server is restarted meanwhile. gpkvs export
    writes a table to a file.

    Example: gpkvs scan --prefix user: --limit 10
    """
    damaged = 0
    with failures_exit(EXIT_FAILED), connect(target) as channel:
        form = form_of(channel, table, timeout)
        with Client(target, table=table, timeout=timeout) as client:
            for piece in client.scan_pieces(prefix.encode(), keys_only=keys_only, limit=limit):
                lines = _json_lines(piece, form) if as_json else _text_lines(piece, form)
                sys.stdout.buffer.write("".join(lines).encode())
                sys.stdout.flush()
                damaged += piece.damaged
    if damaged:
        typer.echo(f"gpkvs: left out {counted(damaged, 'record')} whose checks fail: run gpkvs check", err=True)
        raise typer.Exit(EXIT_DAMAGED)


@exits({0: "counted", EXIT_FAILED: "failed"})
def count_command(
    prefix: Prefix = "",
    target: Target = ServerConfig.listen,
    table: Table = "",
    timeout: Waiting = 60.0,
    as_json: AsJson = False,
) -> None:
    """Print how many keys a table has; with a prefix the server scans for them.

    Without a prefix, expired keys count until the server has removed them.
    """
    with connect(target) as channel:
        request = kv_pb2.CountRequest(table=table, prefix=prefix.encode())
        count = kv_pb2_grpc.KVStub(channel).Count(request, timeout=timeout).count
    if as_json:
        print_json({"count": count})
    else:
        typer.echo(count)


def _columns(piece: ScanPiece, form: Form) -> Iterator[tuple[bytes | int, ...]]:
    """Yield the key of each record, and its value if the scan has values."""
    columns = [piece.key_list()]
    if len(piece.value_lengths):
        columns.append(piece.value_list())
    return zip(*([form.decode(one) for one in column] for column in columns), strict=True)


def _text_lines(piece: ScanPiece, form: Form) -> Iterator[str]:
    for record in _columns(piece, form):
        yield "\t".join(map(printable, record)) + "\n"


def _json_lines(piece: ScanPiece, form: Form) -> Iterator[str]:
    expiries = piece.expiry_list()
    versions = piece.versions.tolist() or [None] * len(piece)
    for record, version, expiry in zip(_columns(piece, form), versions, expiries, strict=True):
        shown: dict[str, Any] = {}
        for name, data in zip(("key", "value"), record, strict=False):  # no value with --keys-only
            shown |= _json_form(name, data)
        if version is not None:
            shown["version"] = version
        if expiry:
            shown["expiry_ms"] = expiry
        yield json.dumps(shown) + "\n"


def _json_form(name: str, data: bytes | int) -> dict[str, str | int]:
    if isinstance(data, int):
        return {name: data}
    try:
        return {name: data.decode()}
    except UnicodeDecodeError:
        return {f"{name}_base64": base64.b64encode(data).decode()}


def printable(data: bytes | int) -> str:
    r"""Return bytes as one line of text from which they can be had again: what is not printable becomes ``\xNN``."""
    if isinstance(data, int):
        return str(data)
    text = data.decode(errors="surrogateescape")
    if text.isprintable() and "\\" not in text:
        return text
    return "".join(map(_printable_character, text))


def _printable_character(character: str) -> str:
    if character.isprintable() and character != "\\":
        return character
    return "".join(f"\\x{byte:02x}" for byte in character.encode(errors="surrogateescape"))
