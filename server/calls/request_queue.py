"""Python's way into the queue of the door: its handlers make requests over the connections that they serve.

A request is a `BatchRequest`, its answer a `BatchResponse`, as any client's. It has a place in the queue with those of
its connection, and the engine runs it in one batch with others. The door answers each with an event.
"""

from __future__ import annotations

import asyncio
import itertools
import time
from dataclasses import dataclass
from typing import NamedTuple, Protocol

from gpkvs.errors import (
    ConflictError,
    CorruptRecordError,
    GpkvsError,
    InvalidArgumentError,
    NoMemoryError,
    NoSpaceError,
    StoreClosedError,
    UnknownTableError,
)
from gpkvs.proto.v1 import kv_pb2
from gpkvs.server.account.memory import Account
from gpkvs.server.account.message_limits import response_bytes
from gpkvs.server.call_types import StatusCode
from gpkvs.server.calls.running_call import RunningCall, running
from gpkvs.server.gate import NotServingError

_NEVER = (1 << 64) - 1
# Answers that bring no response.
_NOTHING = "the request was executed, and there is no memory for its response"
_CODE_OF_MEMORY = StatusCode.RESOURCE_EXHAUSTED.value[0]
_NOTHING_TEXTS = {
    StatusCode.CANCELLED.value[0]: "the connection has ended",
    StatusCode.INTERNAL.value[0]: _NOTHING,
}


class ExpiredRequestError(GpkvsError):
    """The client's deadline passed before the request got into a batch; it was not executed."""


class ConnectionGoneError(GpkvsError):
    """The connection of a request has ended before it got into a batch; it was not executed."""


_KINDS: dict[int, type[GpkvsError]] = {
    code.value[0]: kind
    for code, kind in (
        (StatusCode.CANCELLED, ConnectionGoneError),
        (StatusCode.NOT_FOUND, UnknownTableError),
        (StatusCode.INVALID_ARGUMENT, InvalidArgumentError),
        (StatusCode.DEADLINE_EXCEEDED, ExpiredRequestError),
        (StatusCode.UNAVAILABLE, NotServingError),
        (StatusCode.DATA_LOSS, CorruptRecordError),
    )
}


class Answer(NamedTuple):
    """What became of a request.

    Attributes
    ----------
    ticket
        Of the request.
    data
        A `BatchResponse`; empty where there is none: then `code` says why.
    code
        gRPC's.
    is_refusal
        The request surely changed nothing.
    submitted_ns, began_ns, planned_ns, durable_ns
        When it came into the queue, when the engine began with its batch and had planned it, and when that was durable,
        by the monotonic clock; 0: it was not executed.
    """

    ticket: int
    data: bytes
    code: int
    is_refusal: bool
    submitted_ns: int
    began_ns: int
    planned_ns: int
    durable_ns: int


class Queue(Protocol):
    """What the door does with such requests (`gpkvs.server.door.library.Library`)."""

    def submit(self, connection: int, ticket: int, table: int, deadline_ns: int, message: bytes) -> None:
        """Queue a request; an `Answer` comes."""

    def withdraw(self, connection: int, ticket: int) -> None:
        """Execute it no more, if it is in no batch yet."""

    def waiting(self) -> int:
        """Return how many requests wait to get into a batch, clients' and Python's."""


@dataclass(slots=True)
class _Waiting:
    response: asyncio.Future[kv_pb2.BatchResponse]
    account: Account
    call: RunningCall | None  # that asks for it
    submitted_ns: int


class RequestQueue:
    """The requests of Python's handlers; used inside their event loop.

    Parameters
    ----------
    door
        Has the queue.
    """

    def __init__(self, door: Queue) -> None:
        self._door = door
        self._tickets = itertools.count(1)
        self._waiting: dict[int, _Waiting] = {}

    @property
    def requests(self) -> int:
        """How many wait to get into a batch, clients' and Python's."""
        return self._door.waiting()

    def submit(
        self, message: kv_pb2.BatchRequest, table: int, account: Account, seconds_left: float | None = None
    ) -> asyncio.Future[kv_pb2.BatchResponse]:
        """Queue a request; it is durable when its response comes.

        Cancelling the response drops the request if it is not yet in a batch; else the batch commits whole.

        Parameters
        ----------
        message
            Its columns, which keep the limits of the table.
        table
            The table's id: its name may be another one's by then.
        account
            Of the call, over whose connection it goes, and where its response is counted.
        seconds_left
            Until the client's deadline, if it has one.
        """
        now_ns = time.monotonic_ns()
        ticket, connection = next(self._tickets), account.connection.id
        call = running.get()
        if call:
            keys = message.keys
            call.asked(table, len(message.ops), len(keys) + len(message.values))
            call.takes_key(keys[: _first_length(message)])
        deadline_ns = _NEVER if seconds_left is None else now_ns + int(1e9 * seconds_left)
        response = asyncio.get_running_loop().create_future()
        try:
            self._door.submit(connection, ticket, table, deadline_ns, message.SerializeToString())
        except MemoryError:
            response.set_exception(NoMemoryError())
            return response
        self._waiting[ticket] = _Waiting(response, account, call, now_ns)
        account.connection.requests += 1
        response.add_done_callback(lambda done: self._door.withdraw(connection, ticket) if done.cancelled() else None)
        return response

    def answered(self, answer: Answer) -> None:
        """Give a response, or the reason why there is none, to who waits for it."""
        waiting = self._waiting.pop(answer.ticket)
        waiting.account.connection.requests -= 1
        if waiting.response.done():
            return
        try:
            response = kv_pb2.BatchResponse.FromString(answer.data)
            error = error_of(answer, response)
            if not error:
                waiting.account.change_responses(held_bytes(response))
        except MemoryError:
            response, error = kv_pb2.BatchResponse(), NoMemoryError() if answer.is_refusal else GpkvsError(_NOTHING)
        if waiting.call:
            if answer.durable_ns:
                times_ns = answer.submitted_ns, answer.began_ns, answer.planned_ns, answer.durable_ns
                waiting.call.was_run(*times_ns, len(response.values))
            else:
                waiting.call.was_not_run(waiting.submitted_ns)
        if error:
            waiting.response.set_exception(error)
        else:
            waiting.response.set_result(response)


def held_bytes(response: kv_pb2.BatchResponse) -> int:
    """Return about what a response takes in memory."""
    return response_bytes(len(response.status), len(response.values))


def error_of(answer: Answer, response: kv_pb2.BatchResponse) -> GpkvsError | None:
    """Return why a request was not done; None if it was."""
    code, text, full = answer.code or response.code, response.message, response.full
    if not code:
        return None
    if response.HasField("failed_check"):
        return ConflictError(response.failed_check, response.found if response.HasField("found") else None)
    if full and answer.is_refusal:
        return NoSpaceError(full, text.removeprefix(f"{full.replace('_', ' ')} full: "))
    if code == _CODE_OF_MEMORY and not text:
        return NoMemoryError()
    kind = _KINDS.get(code, GpkvsError)
    if kind is NotServingError and not answer.is_refusal:
        kind = StoreClosedError
    return kind(text or _NOTHING_TEXTS.get(code, ""))


def _first_length(message: kv_pb2.BatchRequest) -> int:
    return int.from_bytes(message.key_lengths[:4], "little") if message.key_lengths else message.key_size
