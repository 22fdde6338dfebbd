"""Small requests that run at the same time share messages: each stays atomic by itself, and fails by itself.

Requests that only read are sent as one request: its results are as of one moment, so those of each part are too. Others
cannot be joined, for a check that fails and a write that finds no room take their whole request back; but a message may
hold several (`request_ops`). A server that is too old for that refuses checks, and takes requests that write for one:
then all of them are done, or none.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Iterable, Iterator, Sequence
from itertools import chain
from typing import TypeAlias

import grpc
import numpy as np

from gpkvs.batch import Op
from gpkvs.client.codec import RETURNS_VALUE, decode, encode_lists
from gpkvs.client.errors import AccessDeniedError, ClientClosedError, DeadlineError, ServerError
from gpkvs.client.retry import CODES, Failure, classify, trailing_of
from gpkvs.client.sending import Sending
from gpkvs.config import MIB, Limits
from gpkvs.errors import GpkvsError, NoSpaceError
from gpkvs.operations import OperationList, Options, ResultLists
from gpkvs.proto.v1 import kv_pb2

Outcome: TypeAlias = ResultLists | Failure
Send = Callable[[kv_pb2.BatchRequest, float], Awaitable[kv_pb2.BatchResponse | Failure]]

_MESSAGES_IN_FLIGHT_MAX = 2
# A larger request is worth a message of its own.
_OPS_MAX, _BYTES_MAX = 256, 64 << 10
# A server that takes only the smallest messages takes so many requests in one.
_REQUESTS_MAX = 64
_MESSAGE_OPS_MAX, _MESSAGE_BYTES_MAX = 4096, 4 * MIB
_BYTES_PER_OP = 32  # at most, of all columns but keys and values
_READS = bytes([Op.GET, Op.EXISTS, Op.EXPIRY])
_GET, _CHECK = int(Op.GET), int(Op.CHECK)  # found faster than through their class
_RETURNS_VALUE = tuple(map(int, RETURNS_VALUE))
_NO_OPTIONS = Options()


class _Request:
    """One request that somebody waits for; who made its operations may go on adding to them."""

    __slots__ = ("deadline", "future", "is_sent", "keys", "ops", "options", "size_bytes", "values")

    def __init__(
        self,
        operations: OperationList,
        ops: bytes,
        size_bytes: int,
        deadline: float,
        future: asyncio.Future[Outcome],
    ) -> None:
        self.ops = ops
        self.keys, self.values = list(operations.keys), list(operations.values)
        self.options = list(operations.options)
        self.size_bytes = size_bytes
        self.deadline = deadline
        self.future = future
        self.is_sent = False

    def settle(self, outcome: Outcome) -> None:
        if not self.future.done():
            self.future.set_result(outcome)

    def give_up(self, reason: GpkvsError) -> None:
        """End the request, if it has no result yet."""
        self.settle(Failure(reason, executed=self.is_sent, transient=False))


def _only_reads(ops: bytes) -> bool:
    return not ops.translate(None, _READS)


class RequestGatherer(Sending[_Request]):
    """Gathers requests on one table into messages; each is sent once.

    Parameters
    ----------
    send
        Sends one message, once.
    target, table
        The server's address and the table's name.
    limits, message_bytes_max
        Of the server.
    is_of_numbers
        Whether the requests have the server refuse a table of another layout than u64.
    over
        As of `Sending`.
    """

    def __init__(
        self,
        send: Send,
        target: str,
        table: str,
        limits: Limits,
        message_bytes_max: int,
        *,
        is_of_numbers: bool = False,
        over: Callable[[], object] | None = None,
    ) -> None:
        super().__init__(_MESSAGES_IN_FLIGHT_MAX, over)
        self._send = send
        self._target, self._table = target, table
        self._is_of_numbers = is_of_numbers
        self._ops_max = min(_MESSAGE_OPS_MAX, limits.request_ops_max)
        self._bytes_max = min(_MESSAGE_BYTES_MAX, message_bytes_max // 2)
        self._reading: deque[_Request] = deque()
        self._writing: deque[_Request] = deque()
        self._checking: deque[_Request] = deque()
        # Messages of all in turn. Those who read and those who commit then share the few messages in flight.
        self._queues = deque((self._reading, self._writing, self._checking))
        self._value_bytes = 0  # of the longest value read lately: so much may a GET bring
        self._is_closed = False

    def submit(self, operations: OperationList, deadline: float) -> asyncio.Future[Outcome] | None:
        """Queue a request; the future gets its results, or why there are none. None: it must be sent alone."""
        ops = operations.ops
        if len(ops) > min(_OPS_MAX, self._ops_max):
            return None
        if _only_reads(ops):
            queue = self._reading
        elif _GET in ops:
            return None
        else:
            queue = self._checking if _CHECK in ops else self._writing
        size_bytes = sum(map(len, operations.keys)) + sum(map(len, operations.values)) + _BYTES_PER_OP * len(ops)
        if size_bytes > min(_BYTES_MAX, self._bytes_max):
            return None
        request = _Request(operations, ops, size_bytes, deadline, self._loop.create_future())
        if self._is_closed:
            request.give_up(ClientClosedError("the client is closed"))
            return request.future
        queue.append(request)
        if deadline < self._sweep_at:
            self._sweep_by(deadline)
        self._flush_soon()
        return request.future

    def _waiting(self) -> Iterable[_Request]:
        return chain(*self._queues)

    def _has_waiting(self) -> bool:
        return any(self._queues)

    def _clear(self) -> list[_Request]:
        self._is_closed = True
        requests = list(self._waiting())
        for queue in self._queues:
            queue.clear()
        return requests

    def _late(self, _request: _Request) -> DeadlineError:
        return DeadlineError(f"{self._target}: the deadline of the call has passed")

    def _take(self) -> list[_Request]:
        """Take the next message's requests, all of one kind."""
        self._queues.rotate()
        queue = next(filter(None, self._queues))
        requests: list[_Request] = []
        ops = size_bytes = 0
        while queue and len(requests) < _REQUESTS_MAX:
            request = queue[0]
            ops += len(request.ops)
            size_bytes += request.size_bytes + self._value_bytes * request.ops.count(_GET)
            if requests and (ops > self._ops_max or size_bytes > self._bytes_max):
                break
            queue.popleft()
            if not request.future.done():  # cancelled, or its deadline has passed
                requests.append(request)
        return requests

    async def _deliver(self, calls: list[_Request]) -> None:
        """Send requests, and give each its outcome."""
        message = self._message(calls)
        for request in calls:
            request.is_sent = True
        response = await self._send(message, max(request.deadline for request in calls))
        outcomes: Iterable[Outcome]
        if not isinstance(response, Failure):
            outcomes = self._outcomes(response, [request.ops for request in calls])
        elif len(calls) > 1 and _is_of_one(response, calls):
            # One of them is wrong, and nothing was executed: each hears what is wrong with it.
            await asyncio.gather(*(self._deliver([request]) for request in calls if not request.future.done()))
            return
        else:
            outcomes = [response] * len(calls)
        for request, outcome in zip(calls, outcomes, strict=True):
            request.settle(outcome)

    def _message(self, requests: Sequence[_Request]) -> kv_pb2.BatchRequest:
        """Return the message of requests of one kind."""
        ops = b"".join([request.ops for request in requests])
        options = [request.options for request in requests]
        message = encode_lists(
            ops,
            list(chain.from_iterable([request.keys for request in requests])),
            list(chain.from_iterable([request.values for request in requests])),
            self._table,
            list(_filled(options, requests)) if any(options) else (),
        )
        if self._is_of_numbers:
            message.numbers = True
        if len(requests) > 1 and not _only_reads(ops):
            message.request_ops = np.array([len(request.ops) for request in requests], "<u4").tobytes()
        return message

    def _outcomes(self, response: kv_pb2.BatchResponse, requests: Sequence[bytes]) -> Iterable[Outcome]:
        """Cut a response into those of its requests, given by their operations."""
        failures = {failure.request: failure for failure in response.failures}
        done = [ops for number, ops in enumerate(requests) if number not in failures]
        try:
            result = decode(response, b"".join(done))
        except ServerError as error:
            return [Failure(error, executed=True, transient=False)] * len(requests)
        self._value_bytes = max(int(result.value_lengths.max(initial=0)), self._value_bytes // 2)
        cut = _cut(ResultLists.of(result), done)
        if not failures:
            return cut
        return [
            _failure(failures[number], self._target) if number in failures else next(cut)
            for number in range(len(requests))
        ]


def _is_of_one(failure: Failure, requests: Sequence[_Request]) -> bool:
    """Whether one request may be the cause why a message of some, all of one kind, was refused."""
    if isinstance(failure.error, AccessDeniedError) and _only_reads(requests[0].ops):  # all need the same right
        return False
    return failure.is_of_one and not isinstance(failure.error, NoSpaceError)


def _filled(options: Sequence[Sequence[Options]], requests: Sequence[_Request]) -> Iterator[Options]:
    """Return the options of all operations of some requests."""
    for own, request in zip(options, requests, strict=True):
        yield from own or [_NO_OPTIONS] * len(request.ops)


def _cut(whole: ResultLists, requests: Sequence[bytes]) -> Iterator[ResultLists]:
    """Cut results into those of requests, given by their operations."""
    op = value = 0
    for ops in requests:
        op_end = op + len(ops)
        value_end = value + sum(map(ops.count, _RETURNS_VALUE))
        yield ResultLists(whole.statuses[op:op_end], whole.versions[op:op_end], whole.values[value:value_end])
        op, value = op_end, value_end


def _failure(failure: kv_pb2.RequestFailure, target: str) -> Failure:
    code = CODES.get(failure.code, grpc.StatusCode.UNKNOWN)
    return classify(code, failure.message, trailing_of(code, failure), target)
