"""gpkvs get, set, delete, exists: one key of a running server."""

from __future__ import annotations

import base64
import json
import sys
from typing import Annotated, Any

import typer

from gpkvs.cli.options.access import takes_access
from gpkvs.cli.options.channel import connect
from gpkvs.cli.options.connection import Table, Target, Timeout
from gpkvs.cli.options.typed_keys import Typed, form_of
from gpkvs.cli.terminal.exit_status import exits
from gpkvs.cli.terminal.output import AsJson, print_json
from gpkvs.config import ServerConfig
from gpkvs.credentials import Access
from gpkvs.errors import CorruptRecordError
from gpkvs.proto.v1 import kv_pb2, kv_pb2_grpc
from gpkvs.text import quoted

EXIT_MISS = 1
EXIT_CONDITION = 1

Key = Annotated[
    str, typer.Argument(help="The key: text in UTF-8, or a number in a table of numbers or rows.", metavar="KEY")
]
_TTL_SECONDS_MAX = 1 << 52
IfVersion = Annotated[
    int | None,
    typer.Option(
        help="Only if the key has this version, as `gpkvs get --json` prints it; in a table of the layout u64, which "
        "has none, only if it is this number.",
        metavar="N",
        min=0,
        max=(1 << 64) - 1,
    ),
]
Ttl = Annotated[
    float | None,
    typer.Option("--ttl", help="Seconds until the key expires; without it, it stays.", metavar="SECONDS", min=0.001),
]


@exits({0: "found", 1: "not found", 2: "failed"})
@takes_access
def get_command(
    access: Access,
    key: Key,
    target: Target = ServerConfig.listen,
    table: Table = "",
    timeout: Timeout = 10.0,
    as_json: AsJson = False,
) -> None:
    """Print the value of a key, byte for byte.

    On a terminal a newline follows. The value of a u64 table is printed as a number, and a row as an array of JSON, in
    which "NaN", "Infinity" and "-Infinity" are text. With --json, a value that is not UTF-8 is printed as
    "value_base64".
    """
    with connect(target, access) as channel:
        form = form_of(channel, table, timeout)
        request = kv_pb2.GetRequest(table=table, key=form.key(key.encode()))
        response = kv_pb2_grpc.KVStub(channel).Get(request, timeout=timeout)
    value = form.shown_value(response.value) if response.found else None
    if as_json:
        print_json({"found": response.found, **_value(value), "version": response.version})
    elif value is not None:
        end = b"\n" if sys.stdout.isatty() else b""
        sys.stdout.buffer.write((value if isinstance(value, bytes) else json.dumps(value).encode()) + end)
        sys.stdout.flush()
    else:
        typer.echo(f"gpkvs: no key {quoted(key)}", err=True)
    if not response.found:
        raise typer.Exit(EXIT_MISS)


@exits({0: "stored", EXIT_CONDITION: "the condition does not hold, nothing was stored", 2: "failed"})
@takes_access
def set_command(
    access: Access,
    key: Key,
    value: Annotated[
        str | None,
        typer.Argument(
            help="The value: UTF-8, or in a table of the layout u64 a number, in one of rows numbers as [1, 2.5]. "
            "Without it, standard input is read. Write -- before one that begins with -."
        ),
    ] = None,
    ttl: Ttl = None,
    if_absent: Annotated[bool, typer.Option("--if-absent", help="Only if the key is not there.")] = False,
    if_present: Annotated[bool, typer.Option("--if-present", help="Only if the key is there.")] = False,
    if_version: IfVersion = None,
    target: Target = ServerConfig.listen,
    table: Table = "",
    timeout: Timeout = 10.0,
    as_json: AsJson = False,
) -> None:
    """Store a value under a key; it is durable when this returns.

    Without --ttl the key stays, also if it was to expire before. With a condition that does not hold, nothing is
    stored, and one line says what is there.

    Example: gpkvs set session:42 alice --ttl 3600 --if-absent
    """
    condition = condition_of(if_absent=if_absent, if_present=if_present, if_version=if_version)
    data = sys.stdin.buffer.read() if value is None else value.encode()
    with connect(target, access) as channel:
        form = form_of(channel, table, timeout)
        request = kv_pb2.SetRequest(
            table=table,
            key=form.key(key.encode()),
            value=form.value(data),
            condition=condition,
            expected=if_version or 0,
            ttl_ms=milliseconds(ttl),
        )
        response = kv_pb2_grpc.KVStub(channel).Set(request, timeout=timeout)
    if as_json:
        print_json({"stored": response.status == kv_pb2.STATUS_OK, "version": response.version})
    require_condition(key, response)


@exits(
    {
        0: "the key is gone (without a condition also if it was not there: it says so)",
        EXIT_CONDITION: "the condition does not hold, nothing was deleted",
        2: "failed",
    }
)
@takes_access
def delete_command(
    access: Access,
    key: Key,
    if_version: IfVersion = None,
    target: Target = ServerConfig.listen,
    table: Table = "",
    timeout: Timeout = 10.0,
    as_json: AsJson = False,
) -> None:
    """Remove a key, if it is there; that is durable when this returns."""
    with connect(target, access) as channel:
        form = form_of(channel, table, timeout)
        condition = condition_of(if_version=if_version)
        request = kv_pb2.DeleteRequest(
            table=table, key=form.key(key.encode()), condition=condition, expected=if_version or 0
        )
        response = kv_pb2_grpc.KVStub(channel).Delete(request, timeout=timeout)
    if as_json:
        print_json({"found": response.found})
    if response.status == kv_pb2.STATUS_CONDITION_FAILED:
        require_condition(key, response)
    elif not as_json and not response.found:
        typer.echo(f"gpkvs: no key {quoted(key)}", err=True)


@exits({0: "the key is there", 1: "it is not", 2: "failed"})
@takes_access
def exists_command(
    access: Access,
    key: Key,
    target: Target = ServerConfig.listen,
    table: Table = "",
    timeout: Timeout = 10.0,
    as_json: AsJson = False,
) -> None:
    """Say by the exit status whether a key is there, without reading its value."""
    with connect(target, access) as channel:
        data = form_of(channel, table, timeout).key(key.encode())
        request = kv_pb2.BatchRequest(table=table, ops=bytes([kv_pb2.OP_EXISTS]), keys=data, key_size=len(data))
        response = kv_pb2_grpc.KVStub(channel).Batch(request, timeout=timeout)
        status = response.status[0]
        if status not in (kv_pb2.STATUS_OK, kv_pb2.STATUS_NOT_FOUND):
            raise CorruptRecordError(f"the record of key {quoted(key)} fails its check")
    found = status == kv_pb2.STATUS_OK
    if as_json:
        print_json({"found": found})
    if not found:
        raise typer.Exit(EXIT_MISS)


def condition_of(
    *, if_absent: bool = False, if_present: bool = False, if_version: int | None = None
) -> kv_pb2.Condition:
    """Return a condition as the wire has it; more than one are wrong options."""
    if if_absent + if_present + (if_version is not None) > 1:
        raise typer.BadParameter("give one condition only", param_hint="--if-absent, --if-present, --if-version")
    if if_version is not None:
        return kv_pb2.CONDITION_EQUALS
    if if_absent:
        return kv_pb2.CONDITION_ABSENT
    return kv_pb2.CONDITION_PRESENT if if_present else kv_pb2.CONDITION_NONE


def require_condition(key: str, response: kv_pb2.SetResponse | kv_pb2.DeleteResponse) -> None:
    """End the command with one line if the condition of an operation did not hold."""
    if response.status == kv_pb2.STATUS_OK:
        return
    is_there = response.status == kv_pb2.STATUS_CONDITION_FAILED
    what = f"has the version (or number) {response.version}" if is_there else "is not there"
    typer.echo(f"gpkvs: the condition does not hold: key {quoted(key)} {what}; nothing was done", err=True)
    raise typer.Exit(EXIT_CONDITION)


def milliseconds(ttl: float | None) -> int:
    """Return a time to live as the wire has it; 0: for ever."""
    if ttl is None:
        return 0
    if not ttl < _TTL_SECONDS_MAX:  # or no number
        raise typer.BadParameter(f"{ttl:g} seconds are too many: without a time the key stays", param_hint="SECONDS")
    return max(round(ttl * 1000), 1)


def _value(value: Typed | None) -> dict[str, Any]:
    if not isinstance(value, bytes):
        return {"value": value}
    try:
        return {"value": value.decode()}
    except UnicodeDecodeError:
        return {"value_base64": base64.b64encode(value).decode()}
