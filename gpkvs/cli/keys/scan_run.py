"""What `gpkvs scan` and `gpkvs count` do: they show the keys of a table, or how many there are."""

from __future__ import annotations

import base64
import json
import sys
from collections.abc import Iterator
from typing import Any

import typer

from gpkvs.cli.keys.scan import EXIT_DAMAGED
from gpkvs.cli.options.channel import connect
from gpkvs.cli.options.connection import EXIT_FAILED
from gpkvs.cli.options.typed_keys import Form, Typed, form_of
from gpkvs.cli.terminal.output import failures_exit, print_json
from gpkvs.client import Client
from gpkvs.credentials import Access
from gpkvs.errors import InvalidArgumentError
from gpkvs.proto.v1 import kv_pb2, kv_pb2_grpc
from gpkvs.scan import ScanPiece
from gpkvs.text import counted, quoted


def scan_table(
    access: Access,
    prefix: str,
    limit: int | None,
    cursor: str,
    target: str,
    table: str,
    timeout: float,
    *,
    keys_only: bool,
    as_json: bool,
) -> None:
    """Show the keys; the parameters are those of the command."""
    with failures_exit(EXIT_FAILED):
        behind = _cursor_of(cursor)
    with connect(target, access) as channel:
        form = form_of(channel, table, timeout)
    damaged = 0
    with (
        failures_exit(EXIT_FAILED),
        Client(target, timeout=timeout, table=table, **access.as_arguments()) as client,
    ):
        for piece in client.scan_pieces(prefix.encode(), cursor=behind, keys_only=keys_only, limit=limit):
            damaged, behind = damaged + piece.damaged, piece.cursor
            shown = _json_lines(piece, form) if as_json else _text_lines(piece, form)
            sys.stdout.write("".join(shown))
            sys.stdout.flush()
    if behind:
        typer.echo(f"gpkvs: go on with --cursor {behind.hex()}", err=True)
    tell_damaged(damaged)


def _cursor_of(text: str) -> bytes:
    try:
        return bytes.fromhex(text)
    except ValueError as error:
        raise InvalidArgumentError(f"{quoted(text)} is none that gpkvs scan printed", field="cursor") from error


def tell_damaged(damaged: int) -> None:
    """End the command with a line about damaged records, if there are some."""
    if damaged:
        typer.echo(
            f"gpkvs: {counted(damaged, 'record')} damaged and left out: stop the server and run gpkvs check", err=True
        )
        raise typer.Exit(EXIT_DAMAGED)


def _text_lines(piece: ScanPiece, form: Form) -> Iterator[str]:
    keys = (printable(form.shown_key(key)) for key in piece.key_list())
    if not len(piece.value_lengths):
        return (f"{key}\n" for key in keys)
    values = (printable(form.shown_value(value)) for value in piece.value_list())
    return (f"{key}\t{value}\n" for key, value in zip(keys, values, strict=True))


_SHORT = {"\\": r"\\", "\n": r"\n", "\r": r"\r", "\t": r"\t"}


def printable(data: Typed) -> str:
    r"""Return bytes as one line of text: what is not printable is escaped, byte by byte, and a backslash is ``\\``."""
    if not isinstance(data, bytes):
        return json.dumps(data)
    text = data.decode(errors="surrogateescape")
    if text.isprintable() and "\\" not in text:
        return text
    return "".join(map(_escaped, text))


def _escaped(character: str) -> str:
    if character in _SHORT:
        return _SHORT[character]
    if character.isprintable():
        return character
    return "".join(f"\\x{byte:02x}" for byte in character.encode(errors="surrogateescape"))


def _json_lines(piece: ScanPiece, form: Form) -> Iterator[str]:
    values: list[bytes] | list[None] = piece.value_list() or [None] * len(piece)
    versions: list[int] | list[None] = piece.versions.tolist() or [None] * len(piece)
    columns = zip(piece.key_list(), values, versions, piece.expiry_list(), strict=True)
    for key, value, version, expiry_ms in columns:
        record: dict[str, Any] = named("key", form.shown_key(key))
        if value is not None:
            record |= named("value", form.shown_value(value))
        if version is not None:
            record["version"] = version
        if expiry_ms:
            record["expiry_ms"] = expiry_ms
        yield json.dumps(record) + "\n"


def named(name: str, data: Typed) -> dict[str, Any]:
    """Return bytes as a field of a JSON object, whose name says whether they are UTF-8."""
    if not isinstance(data, bytes):
        return {name: data}
    try:
        return {name: data.decode()}
    except UnicodeDecodeError:
        return {f"{name}_base64": base64.b64encode(data).decode()}


def count_table(access: Access, prefix: str, target: str, table: str, timeout: float, *, as_json: bool) -> None:
    """Show how many keys there are; the parameters are those of the command."""
    with connect(target, access) as channel:
        request = kv_pb2.CountRequest(table=table, prefix=prefix.encode())
        count = kv_pb2_grpc.KVStub(channel).Count(request, timeout=timeout).count
    if as_json:
        print_json({"count": count})
    else:
        typer.echo(count)
