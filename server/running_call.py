"""A call that Python serves, while it runs: its id, and what its time goes into.

The handler of a call begins it; whatever the handler awaits finds it in `running`, such as the queue.
"""

from __future__ import annotations

import secrets
import time
from contextvars import ContextVar
from typing import Final

from gpkvs.proto.metadata import REQUEST_ID_BYTES_MAX, REQUEST_ID_KEY
from gpkvs.server.access.connections import end_of
from gpkvs.server.calls import CallContext, Metadata
from gpkvs.server.slow_log import KEY_BYTES_MAX, SlowCall, SlowLog

_ID_BYTES = 8


class RunningCall:
    """A call, a message of a stream, or commands of the Redis protocol that are executed together.

    Parameters
    ----------
    log
        Notes it at its end if it was slow.
    peer
        The name of its connection in gRPC.
    protocol, command
        As `SlowCall` has them.
    given_id
        The client's id for it; empty: one is made when somebody asks.
    """

    __slots__ = (
        *("_answered_ns", "_began_ns", "_durable_ns", "_given_id", "_log", "_peer", "_protocol"),
        *("_scanning_ns", "_waiting_ns"),
        *("bytes_in", "bytes_out", "command", "key", "key_bytes", "operations", "table_id", "user", "words"),
    )

    def __init__(self, log: SlowLog, peer: str, protocol: str, command: str, given_id: str = "") -> None:
        self._log = log
        self._peer, self._protocol, self.command, self._given_id = peer, protocol, command, given_id
        self.user = ""
        self.table_id: int | None = None
        self.key, self.key_bytes, self.words = b"", 0, 0
        self.operations = self.bytes_in = self.bytes_out = 0
        self._began_ns: int | None = None
        self._answered_ns: int | None = None  # when the last batch was durable
        self._waiting_ns = self._durable_ns = self._scanning_ns = 0

    @property
    def request_id(self) -> str:
        """By which errors, logs and the slow log name it."""
        if not self._given_id:
            self._given_id = new_request_id()
        return self._given_id

    def begin(self) -> None:
        """Begin its time: all that the client had to send is there."""
        self._began_ns = time.monotonic_ns()

    def message(self) -> RunningCall:
        """Return a message of this stream, whose time begins now."""
        message = RunningCall(self._log, self._peer, self._protocol, self.command, self.request_id)
        message.user = self.user
        message.begin()
        return message

    def takes_key(self, key: bytes) -> None:
        """Take its first key."""
        if not self.key_bytes:
            self.key, self.key_bytes = bytes(key[:KEY_BYTES_MAX]), len(key)

    def asked(self, table_id: int, operations: int, bytes_in: int) -> None:
        """Note what it asks the engine for."""
        self.table_id = table_id
        self.operations += operations
        self.bytes_in += bytes_in

    def was_run(self, submitted_ns: int, began_ns: int, planned_ns: int, durable_ns: int, bytes_out: int) -> None:
        """Note when the engine had its request, began with its batch, had planned it, and had made it durable."""
        self._waiting_ns += began_ns - submitted_ns
        self._durable_ns += durable_ns - planned_ns
        self.bytes_out += bytes_out
        self._answered_ns = durable_ns

    def was_not_run(self, submitted_ns: int) -> None:
        """Note that the engine refused it, or has not begun with it."""
        self._waiting_ns += time.monotonic_ns() - submitted_ns

    def was_scanned(self, waited_ns: int, read_ns: int, keys: int, bytes_out: int) -> None:
        """Note that a piece of a scan waited for its turn, and was read; from any thread."""
        self._waiting_ns += waited_ns
        self._scanning_ns += read_ns
        self.operations += keys
        self.bytes_out += bytes_out

    def end(self) -> None:
        """Note it if it was slow."""
        if self._began_ns is None:
            return
        ended_ns = time.monotonic_ns()
        total_ns = ended_ns - self._began_ns
        answering_ns = 0 if self._answered_ns is None else ended_ns - self._answered_ns
        self._note(total_ns, self._waiting_ns, self._durable_ns, answering_ns)

    def end_scan(self) -> None:
        """Note it if its pieces took long. Its time is theirs: between them it waits for its reader."""
        self._note(self._waiting_ns + self._scanning_ns, self._waiting_ns)

    def _note(self, total_ns: int, waiting_ns: int, durable_ns: int = 0, answering_ns: int = 0) -> None:
        """Note it if all its time was long; what is no other part of it was its execution."""
        if not self._log.is_slow(total_ns):
            return
        table, key = ("", self.key) if self.table_id is None else self._log.named(self.table_id, self.key)
        self._log.note(
            SlowCall(
                ended_us=time.time_ns() // 1000,
                waiting_ns=waiting_ns,
                executing_ns=max(total_ns - waiting_ns - durable_ns - answering_ns, 0),
                durable_ns=durable_ns,
                answering_ns=answering_ns,
                user=self.user,
                peer=peer_text(self._peer),
                protocol=self._protocol,
                command=self.command,
                table=table,
                key=key,
                key_bytes=self.key_bytes,
                operations=self.operations,
                bytes_in=self.bytes_in,
                bytes_out=self.bytes_out,
                words=self.words,
                request_id=self._given_id or (self.request_id if self._protocol == "grpc" else ""),
            )
        )


running: Final[ContextVar[RunningCall | None]] = ContextVar("running", default=None)
"""The call that a handler serves, in its task; None where a task serves none."""


def begin_grpc(log: SlowLog, context: CallContext, method: str) -> RunningCall:
    """Begin a call of gRPC, of a method with this full name; its time begins later (`RunningCall.begin`)."""
    call = RunningCall(log, context.peer(), "grpc", method.rpartition(".")[2], given_request_id(context))
    running.set(call)
    return call


def peer_text(peer: str) -> str:
    """Return the address and port of a connection by its name in gRPC."""
    end = end_of(peer)
    return f"[{end.address}]:{end.port}" if ":" in end.address else f"{end.address}:{end.port}"


def given_request_id(context: CallContext) -> str:
    """Return the id that a client gives a call; empty if it gives none that may be one."""
    metadata: Metadata = context.invocation_metadata() or ()
    given = next((value for name, value in metadata if name == REQUEST_ID_KEY), "")
    is_short = isinstance(given, str) and len(given) <= REQUEST_ID_BYTES_MAX
    return given if is_short and all("!" <= one <= "~" for one in given) else ""


def request_id_of(context: CallContext) -> str:
    """Return the id of a call, which a handler may serve, or nobody yet."""
    call = running.get()
    return call.request_id if call else given_request_id(context) or new_request_id()


def new_request_id() -> str:
    """Return an id that no other call has."""
    return secrets.token_hex(_ID_BYTES)
