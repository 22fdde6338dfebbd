"""gpkvs incr, append, expire, ttl: one key of a running server."""

from __future__ import annotations

from typing import Annotated

import typer

from gpkvs.batch import Op
from gpkvs.cli.keys.kv import EXIT_MISS, Key, milliseconds
from gpkvs.cli.options.access import takes_access
from gpkvs.cli.options.channel import connect
from gpkvs.cli.options.connection import Table, Target, Timeout
from gpkvs.cli.options.typed_keys import form_of
from gpkvs.cli.terminal.exit_status import exits
from gpkvs.cli.terminal.output import AsJson, print_json
from gpkvs.config import ServerConfig
from gpkvs.credentials import Access
from gpkvs.errors import CorruptRecordError, InvalidArgumentError
from gpkvs.proto.v1 import kv_pb2, kv_pb2_grpc
from gpkvs.text import quoted

_OK = b"\x00"
_CORRUPT, _OVERFLOW = b"\x02", b"\x04"
NewTtl = Annotated[
    float | None,
    typer.Option(
        "--ttl",
        help="Seconds until the key expires, if it is a new one; one that is there keeps what it has.",
        metavar="SECONDS",
        min=0.001,
    ),
]


@exits({0: "added", 2: "failed, as where the value is no number; the key is as it was"})
@takes_access
def incr_command(
    access: Access,
    key: Key,
    delta: Annotated[int, typer.Argument(help="What to add; write -- before a negative number.")] = 1,
    ttl: NewTtl = None,
    target: Target = ServerConfig.listen,
    table: Table = "",
    timeout: Timeout = 10.0,
    as_json: AsJson = False,
) -> None:
    """Add to the number that a key holds, and print the sum; it is durable when this returns.

    The value is a number as text, such as 42. A key that is not there counts as 0.

    Example: gpkvs incr visits
    """
    with connect(target, access) as channel:
        form = form_of(channel, table, timeout)
        form.require_no_rows()
        request = kv_pb2.IncrementRequest(
            table=table, key=form.key(key.encode()), delta=_signed(delta), ttl_ms=milliseconds(ttl)
        )
        response = kv_pb2_grpc.KVStub(channel).Increment(request, timeout=timeout)
    if as_json:
        print_json({"number": response.number, "version": response.version})
    else:
        typer.echo(response.number)


def _signed(delta: int) -> int:
    if not -(1 << 63) <= delta < 1 << 63:
        raise InvalidArgumentError("it is no signed number of 64 bits", field="delta")
    return delta


@exits({0: "added", 2: "failed; the key is as it was"})
@takes_access
def append_command(
    access: Access,
    key: Key,
    value: Annotated[str, typer.Argument(help="What to add, as UTF-8. Write -- before one that begins with -.")],
    ttl: NewTtl = None,
    target: Target = ServerConfig.listen,
    table: Table = "",
    timeout: Timeout = 10.0,
    as_json: AsJson = False,
) -> None:
    """Add text to the end of a key's value; it is durable when this returns. A key that is not there is made.

    Example: gpkvs append log "one more line"
    """
    response = _operate(Op.APPEND, key, access, target, table, timeout, value=value.encode(), ttl=ttl)
    if as_json:
        print_json({"version": int.from_bytes(response.versions, "little")})


@exits({0: "changed", EXIT_MISS: "not found", 2: "failed"})
@takes_access
def expire_command(
    access: Access,
    key: Key,
    ttl: Annotated[
        float | None,
        typer.Argument(help="Seconds until it expires; without it, it never does.", metavar="SECONDS", min=0.001),
    ] = None,
    target: Target = ServerConfig.listen,
    table: Table = "",
    timeout: Timeout = 10.0,
) -> None:
    """Change when a key expires; that is durable when this returns.

    Example: gpkvs expire session:42 3600
    """
    if _operate(Op.EXPIRE, key, access, target, table, timeout, ttl=ttl).status != _OK:
        _miss(key)


@exits({0: "found", EXIT_MISS: "not found", 2: "failed"})
@takes_access
def ttl_command(
    access: Access,
    key: Key,
    target: Target = ServerConfig.listen,
    table: Table = "",
    timeout: Timeout = 10.0,
    as_json: AsJson = False,
) -> None:
    """Print how many seconds a key will still be there, or "never" if it does not expire.

    The seconds are counted by this machine's clock, and the key expires by that of the server's.
    """
    from gpkvs.operations import seconds_left  # noqa: PLC0415 - the other commands need less

    response = _operate(Op.EXPIRY, key, access, target, table, timeout)
    found = response.status == _OK
    expiry_ms = int.from_bytes(response.values, "little")
    left = seconds_left(expiry_ms) if expiry_ms else None
    if as_json:
        print_json({"found": found, "seconds": left, "expiry_ms": expiry_ms or None})
    elif found:
        typer.echo("never" if left is None else f"{left:.3f}")
    if not found:
        _miss(key)


def _operate(
    op: Op,
    key: str,
    access: Access,
    target: str,
    table: str,
    timeout: float,
    *,
    value: bytes | None = None,
    ttl: float | None = None,
) -> kv_pb2.BatchResponse:
    """Run one operation."""
    with connect(target, access) as channel:
        form = form_of(channel, table, timeout)
        if op is Op.APPEND:
            form.require_no_rows()
        encoded = form.key(key.encode())
        request = kv_pb2.BatchRequest(
            table=table,
            ops=bytes([op]),
            keys=encoded,
            key_size=len(encoded),
            values=value or b"",
            value_lengths=b"" if value is None else len(value).to_bytes(4, "little"),
            ttls=b"" if ttl is None else milliseconds(ttl).to_bytes(8, "little"),
        )
        response: kv_pb2.BatchResponse = kv_pb2_grpc.KVStub(channel).Batch(request, timeout=timeout)
        if response.status == _OVERFLOW:
            raise InvalidArgumentError("the value would be longer than the limit; nothing was added", field="value")
        if response.status == _CORRUPT:
            raise CorruptRecordError(f"the record of key {quoted(key)} fails its check: run gpkvs check")
    return response


def _miss(key: str) -> None:
    typer.echo(f"gpkvs: no key {quoted(key)}", err=True)
    raise typer.Exit(EXIT_MISS)
