"""gpkvs slowlog: the calls of a running server that took long, and what their time went into."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import UTC, datetime
from typing import Annotated

import typer

from gpkvs.cli.options.access import takes_access
from gpkvs.cli.options.channel import connect
from gpkvs.cli.options.connection import Target, Timeout
from gpkvs.cli.terminal.exit_status import exits
from gpkvs.cli.terminal.output import AsJson, print_json
from gpkvs.config import ServerConfig
from gpkvs.credentials import Access
from gpkvs.proto.v1 import admin_pb2, admin_pb2_grpc
from gpkvs.text import counted, readable_bytes

_KEY_BYTES_MAX = 32  # that the server shows
_WHOLE_MS_MIN = 100
_PHASES = ("waiting", "executing", "durable", "answering")


@exits({0: "shown", 2: "the server cannot be asked"})
@takes_access
def slowlog_command(
    access: Access,
    target: Target = ServerConfig.listen,
    timeout: Timeout = 10.0,
    entries: Annotated[int, typer.Option("--entries", "-n", help="The last so many calls; 0: all.", min=0)] = 20,
    clear: Annotated[bool, typer.Option("--clear", help="Forget all calls after that.")] = False,
    as_json: AsJson = False,
) -> None:
    """Show the last calls that took long, and what their time went into.

    The newest call comes first.

    "waiting" is the time until the engine ran the call: others were before it. "executing" is the work itself.
    "durable" is the wait for the disk, or for persistent memory. "answering" is the time until the answer was on its
    way to the client. The four are the whole time in the server.

    A client finds its call by the id of the request: it may send one with each call (metadata gpkvs-request-id), and
    every error of the server has one. No values are shown, and of a key only its first 32 bytes. The server notes
    a call that takes as long as --slow-log-over-ms, and keeps --slow-log-entries-max of them.

    With users it needs the right to administer all tables.

    Example: gpkvs slowlog -n 5
    """
    request = admin_pb2.SlowLogRequest(entries=entries, clear=clear)
    with connect(target, access) as channel:
        log = admin_pb2_grpc.AdminStub(channel).SlowLog(request, timeout=timeout)
    if as_json:
        calls = [_as_dict(call) for call in log.calls]
        print_json({"calls": calls, "over_ms": log.over_ms, "entries_max": log.entries_max})
    else:
        _print(log)


def _as_dict(call: admin_pb2.SlowCall) -> dict[str, object]:
    """Return a call for JSON; a key is text there, with escapes for what is none."""
    fields = {field.name: getattr(call, field.name) for field in call.DESCRIPTOR.fields}
    return fields | {"total_ms": _total_ms(call), "key": _key(call)}


def _print(log: admin_pb2.SlowLogResponse) -> None:
    if not log.entries_max:
        typer.echo("the server keeps no slow log: --slow-log-entries-max 0")
    elif not log.calls:
        typer.echo(f"no call took {log.over_ms:g} ms or more (--slow-log-over-ms)")
    for call in log.calls:
        typer.echo("\n    ".join(_lines(call)))


def _lines(call: admin_pb2.SlowCall) -> Iterable[str]:
    """Return a call as people see it."""
    answered = datetime.fromtimestamp(call.ended_us / 1e6, UTC).isoformat(sep=" ", timespec="milliseconds")
    what = (call.command, call.table, _key(call))
    yield f"#{call.number}  {answered}  {_milliseconds(_total_ms(call))} ms  {' '.join(filter(None, what))}"
    phases = ", ".join(f"{phase} {_milliseconds(getattr(call, f'{phase}_ms'))}" for phase in _PHASES)
    came, left = readable_bytes(call.bytes_in), readable_bytes(call.bytes_out)
    yield f"{phases} ms; {counted(call.operations, 'operation')}, {came} in, {left} out"
    who = f"user {call.user}, {call.peer}" if call.user else call.peer
    how = ", over the Redis protocol" if call.protocol == "redis" else ""
    yield f"{who}{how}, request {call.request_id}" if call.request_id else f"{who}{how}"


def _total_ms(call: admin_pb2.SlowCall) -> float:
    return call.waiting_ms + call.executing_ms + call.durable_ms + call.answering_ms


def _milliseconds(value: float) -> str:
    return f"{value:,.0f}" if value >= _WHOLE_MS_MIN else f"{value:.3g}"


def _key(call: admin_pb2.SlowCall) -> str:
    text = repr(call.key)[2:-1]  # with escapes for what is no text
    return f"{text}... ({call.key_bytes:,} bytes)" if call.key_bytes > _KEY_BYTES_MAX else text
