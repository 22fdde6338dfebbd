"""One stream of batches: many in flight, answered in order, bounded in number and bytes.

    reader: wait for room -> read a message -> submit it to the batcher -> queue its answer
    writer: take the oldest answer -> await it -> send it -> give its room back

The next message is read only while there is room, so a client that does not read its answers is slowed down by gRPC's
flow control; the batcher never waits for a stream, and a slow reader costs at most the room of its own stream. The
size of an answer from a `bytes` table is an estimate until it is there. What a stream whose values suddenly grow may
pass its room by is bounded as for single calls, by what its connection may hold (`gpkvs.server.memory`).
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from dataclasses import dataclass
from functools import partial

import grpc
from google.protobuf.message import DecodeError

from gpkvs.errors import GpkvsError, InvalidArgumentError, NoSpaceError
from gpkvs.proto.v1 import kv_pb2
from gpkvs.server import codec
from gpkvs.server.codec import Answer, Request
from gpkvs.server.exporter import Metrics
from gpkvs.server.gate import Gate, NotServingError, Serving
from gpkvs.server.memory import Account
from gpkvs.server.receive import Receives
from gpkvs.server.status import status_of, status_text
from gpkvs.server.wire import require_message
from gpkvs.store import OpenTable

_log = logging.getLogger("gpkvs.server")


@dataclass(slots=True)
class _InFlight:
    """A request that was read and is not yet answered."""

    id: int
    answer: asyncio.Future[Answer]
    message_bytes: int
    room_bytes: int  # what it may hold in memory: its columns and those of its answer


class Pipeline:
    """One `Pipeline` call.

    Parameters
    ----------
    gate
        Tells when the server stops.
    serving
        The open store and its batcher.
    receives
        Where the call waits for messages.
    context
        The call.
    account
        What it holds.
    metrics
        Told of requests that were refused.
    """

    def __init__(
        self,
        gate: Gate,
        serving: Serving,
        receives: Receives,
        context: grpc.aio.ServicerContext,
        account: Account,
        metrics: Metrics,
    ) -> None:
        self._gate = gate
        self._serving = serving
        self._receives = receives
        self._context = context
        self._metrics = metrics
        self._account = account
        self._loop = asyncio.get_running_loop()
        self._in_flight: deque[_InFlight] = deque()
        self._room_bytes = 0  # taken
        self._changed = asyncio.Event()  # wakes the side that waits: one for room, or one for something to answer
        # Until a first answer tells, a GET may bring as much as an answer can hold.
        self._value_bytes = serving.store.limits.result_bytes_max

    async def run(self) -> None:
        """Serve the stream until the client ends it.

        Raises
        ------
        NotServingError
            If the server stops; all that was read is answered then.
        InvalidArgumentError
            If a message is no `BatchRequest`.
        """
        reader = asyncio.create_task(self._read())
        reader.add_done_callback(lambda _: self._changed.set())
        try:
            await self._write(reader)
        finally:
            reader.cancel()
            for request in self._in_flight:  # the client is gone: what is not yet in a batch need not run
                request.answer.cancel()
        reader.result()

    async def _read(self) -> None:
        while True:
            while not self._has_room():
                self._changed.clear()
                await self._changed.wait()
            data = await self._receives.read(self._context, self._account.connection, is_stream=True)
            if data is grpc.aio.EOF:
                return
            self._accept(require_message(data))
            del data  # else it would be held until the next message is there

    def _has_room(self) -> bool:
        return (
            len(self._in_flight) < self._serving.stream_requests_max
            and self._room_bytes < self._serving.stream_bytes_max
        )

    def _accept(self, data: bytes) -> None:
        """Submit one request; whatever is wrong with it becomes its answer."""
        try:
            message = kv_pb2.BatchRequest.FromString(data)
        except DecodeError as error:
            raise InvalidArgumentError(f"these bytes are no gpkvs.v1.BatchRequest: {error}") from error
        room_bytes = size = len(data)
        answer: asyncio.Future[Answer]
        try:
            table = self._serving.store.table(message.table)
            request = codec.decode(message, table.limits, table.id, size)
            answer = self._serving.batcher.submit(request, self._account)
            room_bytes += self._answer_bytes(request, table)
        except GpkvsError as error:
            answer = self._loop.create_future()
            answer.set_exception(error.with_traceback(None))  # its frames have the message
        in_flight = _InFlight(message.id, answer, size, room_bytes)
        answer.add_done_callback(partial(self._learn, in_flight))
        self._in_flight.append(in_flight)
        self._room_bytes += room_bytes
        if len(self._in_flight) == 1:
            self._changed.set()

    def _answer_bytes(self, request: Request, table: OpenTable) -> int:
        """Return what an answer will hold: exactly for u64, else by the largest mean value so far."""
        limits = table.limits
        value_bytes = min(self._value_bytes, limits.value_bytes_max)
        return codec.answer_bytes(request.operations, min(request.gets * value_bytes, limits.result_bytes_max))

    async def _write(self, reader: asyncio.Task[None]) -> None:
        while True:
            while not self._in_flight:
                if reader.done():
                    return
                self._changed.clear()
                await self._changed.wait()
            oldest = self._in_flight[0]
            response = await self._response(oldest)
            await self._context.write(response.SerializeToString())
            self._in_flight.popleft()
            self._room_bytes -= oldest.room_bytes
            if not response.code:
                self._account.answer(-oldest.answer.result().held_bytes)
            self._changed.set()

    async def _response(self, request: _InFlight) -> kv_pb2.BatchResponse:
        """Await a request's answer and put it into a message."""
        try:
            answer = await request.answer
        except NotServingError:  # the drain took too long: this and all after it were dropped, the status says so
            raise
        except GpkvsError as error:
            return self._failure(request.id, error)
        except Exception:  # noqa: BLE001 - a client gets a code, the log the traceback
            _log.exception("Pipeline failed")
            return kv_pb2.BatchResponse(
                id=request.id,
                code=grpc.StatusCode.INTERNAL.value[0],
                message="internal error: the server's log has the details",
            )
        return codec.encode(request.id, answer)

    def _learn(self, request: _InFlight, done: asyncio.Future[Answer]) -> None:
        """Take the true size of an answer as soon as it is there, however many others are sent before it."""
        if done.cancelled() or done.exception() is not None:
            return
        answer = done.result()
        gets = len(answer.value_lengths) // 4
        if gets:
            mean = -(-len(answer.values) // gets)
            seen = self._value_bytes if self._value_bytes < self._serving.store.limits.result_bytes_max else 0
            self._value_bytes = max(mean, seen)
        room_bytes = request.message_bytes + answer.held_bytes
        self._room_bytes += room_bytes - request.room_bytes
        request.room_bytes = room_bytes

    def _failure(self, request_id: int, error: GpkvsError) -> kv_pb2.BatchResponse:
        """Put what became of a request into its answer, so that the stream goes on."""
        code, refused = status_of(error)
        if refused:
            self._metrics.request_refused(refused)
        else:
            _log.error("%s: %s", code.name, error)
        full = error.resource if isinstance(error, NoSpaceError) else ""
        return kv_pb2.BatchResponse(id=request_id, code=code.value[0], message=status_text(error), full=full)
