"""Requests with checks that run at the same time share messages: each stays a request of its own.

A check that fails takes its whole request back, so such requests cannot be joined with others; but a message may hold
several (`request_ops`). Those of one turn of the event loop, or those that come while messages are in flight, make the
next message. A server that is too old for such messages knows no checks either, and refuses them.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from math import inf

import grpc
import numpy as np

from gpkvs.batch import Op, RequestResult
from gpkvs.client.codec import decode
from gpkvs.client.errors import ClientClosedError, DeadlineError, ServerError
from gpkvs.client.retry import CODES, Failure, classify, trailing_of
from gpkvs.errors import InvalidArgumentError
from gpkvs.proto.v1 import kv_pb2

Outcome = RequestResult | Failure
SendAlone = Callable[[kv_pb2.BatchRequest, float], Awaitable[Outcome]]
SendSeveral = Callable[[kv_pb2.BatchRequest, float], Awaitable[kv_pb2.BatchResponse | Failure]]

_MESSAGES_IN_FLIGHT_MAX = 2
# A larger request is worth a message of its own.
_OPS_MAX, _BYTES_MAX = 256, 64 << 10
_REQUESTS_MAX = 64


class _Request:
    """One request that somebody waits for."""

    __slots__ = ("deadline", "future", "is_sent", "message")

    def __init__(self, message: kv_pb2.BatchRequest, deadline: float, future: asyncio.Future[Outcome]) -> None:
        self.message = message
        self.deadline = deadline
        self.future = future
        self.is_sent = False


def may_share(message: kv_pb2.BatchRequest) -> bool:
    """Whether a request may share a message with others."""
    ops = message.ops
    return (
        Op.CHECK in ops
        and Op.GET not in ops
        and len(ops) <= _OPS_MAX
        and len(message.keys) + len(message.values) <= _BYTES_MAX
        and not message.expiries  # a message has these or times to live
    )


class RequestGatherer:
    """Gathers requests on one table into messages; each is sent once.

    Parameters
    ----------
    send_alone
        Sends a message that is one request.
    send_several
        Sends one that is several.
    target
        The server's address.
    """

    def __init__(self, send_alone: SendAlone, send_several: SendSeveral, target: str) -> None:
        self._loop = asyncio.get_running_loop()
        self._send_alone = send_alone
        self._send_several = send_several
        self._target = target
        self._queue: deque[_Request] = deque()
        self._in_flight: set[asyncio.Task[None]] = set()
        self._flush_is_due = False
        self._is_closed = False

    async def send(self, message: kv_pb2.BatchRequest, deadline: float) -> Outcome:
        """Send one request, once."""
        if self._is_closed:
            return Failure(ClientClosedError("the client is closed"), executed=False, transient=False)
        request = _Request(message, deadline, self._loop.create_future())
        self._queue.append(request)
        self._flush_soon()
        try:
            async with asyncio.timeout_at(None if deadline == inf else deadline):
                return await request.future
        except TimeoutError:
            late = DeadlineError(f"{self._target}: the deadline of the call has passed")
            return Failure(late, executed=request.is_sent, transient=False)

    def _flush_soon(self) -> None:
        """Send after all tasks that are ready now have run, so that their requests are gathered too."""
        if not self._flush_is_due and len(self._in_flight) < _MESSAGES_IN_FLIGHT_MAX:
            self._flush_is_due = True
            self._loop.call_soon(self._flush)

    def _flush(self) -> None:
        self._flush_is_due = False
        while self._queue and len(self._in_flight) < _MESSAGES_IN_FLIGHT_MAX:
            taken = [self._queue.popleft() for _ in range(min(len(self._queue), _REQUESTS_MAX))]
            requests = [request for request in taken if not request.future.done()]
            if requests:
                task = self._loop.create_task(self._deliver(requests))
                self._in_flight.add(task)
                task.add_done_callback(lambda task, requests=requests: self._landed(task, requests))  # type: ignore[misc]

    def _landed(self, task: asyncio.Task[None], requests: Sequence[_Request]) -> None:
        self._in_flight.discard(task)
        error: ClientClosedError | ServerError | None = None
        if task.cancelled():
            error = ClientClosedError("the client was closed while the call was in flight")
        elif (bug := task.exception()) is not None:
            error = ServerError(f"the client failed: {bug!r}")
            self._loop.call_exception_handler({"message": str(error), "exception": bug, "task": task})
        if error is not None:
            for request in requests:
                _settle(request, Failure(error, executed=True, transient=False))
        if self._queue:
            self._flush_soon()

    async def _deliver(self, requests: Sequence[_Request]) -> None:
        """Send requests, and give each its outcome."""
        for request in requests:
            request.is_sent = True
        if len(requests) == 1:
            _settle(requests[0], await self._send_alone(requests[0].message, requests[0].deadline))
            return
        deadline = max(request.deadline for request in requests)
        response = await self._send_several(_joined([request.message for request in requests]), deadline)
        if isinstance(response, Failure):
            if isinstance(response.error, InvalidArgumentError) and not response.executed:
                # One of them is wrong, and nothing was executed: each hears what is wrong with it.
                await asyncio.gather(*(self._deliver([request]) for request in requests))
                return
            outcomes: Sequence[Outcome] = [response] * len(requests)
        else:
            outcomes = _outcomes(response, [request.message.ops for request in requests], self._target)
        for request, outcome in zip(requests, outcomes, strict=True):
            _settle(request, outcome)

    async def close(self, grace_s: float) -> None:
        """Refuse the requests that were not sent, wait some time for the others, then give them up."""
        self._is_closed = True
        closed = ClientClosedError("the client was closed before the call was sent")
        while self._queue:
            _settle(self._queue.popleft(), Failure(closed, executed=False, transient=False))
        if self._in_flight:
            _, late = await asyncio.wait(list(self._in_flight), timeout=grace_s)
            for task in late:
                task.cancel()
            await asyncio.gather(*late, return_exceptions=True)


def _settle(request: _Request, outcome: Outcome) -> None:
    if not request.future.done():
        request.future.set_result(outcome)


def _joined(messages: Sequence[kv_pb2.BatchRequest]) -> kv_pb2.BatchRequest:
    """Join requests on one table to one message; columns that only some of them have are filled up."""
    counts = [len(message.ops) for message in messages]
    joined = kv_pb2.BatchRequest(
        table=messages[0].table,
        ops=b"".join([message.ops for message in messages]),
        keys=b"".join([message.keys for message in messages]),
        key_lengths=b"".join([message.key_lengths or _equal(message.key_size, message.keys) for message in messages]),
        values=b"".join([message.values for message in messages]),
        value_lengths=b"".join(
            [message.value_lengths or _equal(message.value_size, message.values) for message in messages]
        ),
        request_ops=b"".join(map(_u32, counts)),
    )
    for name, size in (("conditions", 1), ("expected", 8), ("ttls", 8)):
        columns = [getattr(message, name) for message in messages]
        if any(columns):
            filled = [column or bytes(size * count) for column, count in zip(columns, counts, strict=True)]
            setattr(joined, name, b"".join(filled))
    return joined


def _equal(size: int, column: bytes) -> bytes:
    """Return the lengths of strings that are all equally long, and not empty; b"" where there are none."""
    return _u32(size) * (len(column) // size) if size else b""


def _u32(number: int) -> bytes:
    return number.to_bytes(4, "little")


def _outcomes(response: kv_pb2.BatchResponse, requests: Sequence[bytes], target: str) -> list[Outcome]:
    """Cut a response into those of its requests, given by their operations."""
    failures = {failure.request: failure for failure in response.failures}
    done = [ops for number, ops in enumerate(requests) if number not in failures]
    try:
        whole = decode(
            kv_pb2.BatchResponse(
                status=response.status,
                values=response.values,
                value_lengths=response.value_lengths,
                versions=response.versions,
                code=response.code,
            ),
            b"".join(done),
        )
    except ServerError as error:
        return [Failure(error, executed=True, transient=False)] * len(requests)
    outcomes: list[Outcome] = []
    op = value = data = 0
    for number, ops in enumerate(requests):
        if number in failures:
            outcomes.append(_failure(failures[number], target))
            continue
        op_end = op + len(ops)
        value_end = value + ops.count(Op.INCREMENT) + ops.count(Op.EXPIRY)
        lengths = whole.value_lengths[value:value_end]
        data_end = data + int(lengths.sum(dtype=np.uint64))
        values = whole.values[data:data_end]
        outcomes.append(RequestResult(whole.status[op:op_end], whole.versions[op:op_end], lengths, values))
        op, value, data = op_end, value_end, data_end
    return outcomes


def _failure(failure: kv_pb2.RequestFailure, target: str) -> Failure:
    code = CODES.get(failure.code, grpc.StatusCode.UNKNOWN)
    return classify(code, failure.message, trailing_of(code, failure), target)
