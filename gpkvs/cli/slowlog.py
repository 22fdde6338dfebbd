"""gpkvs slowlog: the calls of a running server that took long, and what their time went into."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import UTC, datetime
from typing import Annotated

import typer
from rich.console import Console
from rich.table import Table
from rich.text import Text

from gpkvs.cli.access import takes_access
from gpkvs.cli.connection import AsJson, Target, Timeout, connect
from gpkvs.cli.exit_status import exits
from gpkvs.cli.info import as_dict
from gpkvs.cli.output import print_json
from gpkvs.config import ServerConfig
from gpkvs.credentials import Access
from gpkvs.proto.v1 import admin_pb2, admin_pb2_grpc
from gpkvs.text import counted, readable_bytes

_KEY_BYTES_MAX = 32  # that the server shows
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
    """Show the last calls that took long, the newest first, and what their time went into.

    "waiting" is the time until the engine ran the call: others were before it. "executing" is the work itself.
    "durable" is the wait for the disk, or for persistent memory. "answering" is the time until the answer was on its
    way to the client. The four are the whole time in the server.

    A client finds its call by the id in the last column: it may send one with each call (metadata gpkvs-request-id),
    and every error of the server has one. No values are shown, and of a key only its first 32 bytes. The server notes
    a call that takes as long as --slow-log-over-ms, and keeps --slow-log-entries-max of them.

    With users it needs the right to administer all tables.

    Example: gpkvs slowlog -n 5
    """
    request = admin_pb2.SlowLogRequest(entries=entries, clear=clear)
    with connect(target, access) as channel:
        log = admin_pb2_grpc.AdminStub(channel).SlowLog(request, timeout=timeout)
    if as_json:
        print_json({**as_dict(log), "calls": [_as_dict(call) for call in log.calls]})
    else:
        _print(log)


def _as_dict(call: admin_pb2.SlowCall) -> dict[str, object]:
    """Return a call for JSON; a key is text there, with escapes for what is none."""
    fields = {field.name: getattr(call, field.name) for field in call.DESCRIPTOR.fields}
    return fields | {"total_ms": _total_ms(call), "key": _key(call)}


def _print(log: admin_pb2.SlowLogResponse) -> None:
    console = Console(soft_wrap=True, highlight=False)
    if not log.entries_max:
        console.print("the server keeps no slow log: --slow-log-entries-max 0")
        return
    if not log.calls:
        console.print(f"no call has taken {log.over_ms:g} ms or more (--slow-log-over-ms)")
        return
    view = Table("#", "answered (UTC)", box=None, pad_edge=False)
    for heading in ("ms", *_PHASES):
        view.add_column(heading, justify="right")
    for heading in ("client", "call", "table", "key"):
        view.add_column(heading)
    for heading in ("operations", "in", "out"):
        view.add_column(heading, justify="right")
    view.add_column("request")
    for call in log.calls:
        view.add_row(*map(Text, _cells(call)))
    console.print(view)
    console.print(f"{counted(len(log.calls), 'call')} of {log.over_ms:g} ms or more; times in ms")


def _cells(call: admin_pb2.SlowCall) -> Iterable[str]:
    yield str(call.number)
    yield datetime.fromtimestamp(call.ended_us / 1e6, UTC).strftime("%m-%d %H:%M:%S.%f")[:-3]
    yield _milliseconds(_total_ms(call))
    for phase in _PHASES:
        yield _milliseconds(getattr(call, f"{phase}_ms"))
    yield f"{call.user}@{call.peer}" if call.user else call.peer
    yield call.command
    yield call.table or "-"
    yield _key(call) if call.key_bytes else "-"
    yield f"{call.operations:,}"
    yield readable_bytes(call.bytes_in)
    yield readable_bytes(call.bytes_out)
    yield call.request_id or "-"


def _total_ms(call: admin_pb2.SlowCall) -> float:
    return call.waiting_ms + call.executing_ms + call.durable_ms + call.answering_ms


def _milliseconds(value: float) -> str:
    return f"{value:.3f}" if value < 10 else f"{value:,.0f}"


def _key(call: admin_pb2.SlowCall) -> str:
    text = repr(call.key)[2:-1]
    return f"{text}... ({call.key_bytes:,} bytes)" if call.key_bytes > _KEY_BYTES_MAX else text
