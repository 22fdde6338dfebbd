"""One stream of batches: many in flight, responses in order, bounded in number and bytes.

    reader: wait for room -> read a message -> submit it to the batcher -> queue its response
    writer: take the oldest response -> await it -> send it -> give its room back

The reader takes the next message only while there is room: gRPC's flow control then slows down a client that does not
read its responses. The batcher never waits for a stream, and a slow client takes at most the room of its own stream.
The size of a response from a `bytes` table is an estimate until the response is there. If values suddenly grow, a
stream may hold more than its room; what its connection may hold bounds it then, as it bounds single calls
(`gpkvs.server.memory`).
"""

from __future__ import annotations

import asyncio
from collections import deque
from dataclasses import dataclass
from functools import partial

from google.protobuf.message import DecodeError

from gpkvs.errors import GpkvsError, InvalidArgumentError
from gpkvs.proto.v1 import kv_pb2
from gpkvs.server import codec
from gpkvs.server.access.caller import Caller
from gpkvs.server.access.connections import end_of
from gpkvs.server.access.login import Logins
from gpkvs.server.access.rights import RightsError, require_batch
from gpkvs.server.calls import CallContext
from gpkvs.server.codec import Request, Response
from gpkvs.server.exporter import Metrics
from gpkvs.server.gate import NotServingError, Serving
from gpkvs.server.memory import Account
from gpkvs.server.receives import Receives
from gpkvs.server.running_call import RunningCall, running
from gpkvs.server.status import tell
from gpkvs.server.wire import require_message
from gpkvs.store import OpenTable


@dataclass(slots=True)
class _InFlight:
    """A request that was read and whose response is not yet sent."""

    id: int
    response: asyncio.Future[Response]
    message_bytes: int
    room_bytes: int  # what it may hold in memory: its columns and those of its response
    call: RunningCall | None


class Pipeline:
    """One `Pipeline` call.

    Parameters
    ----------
    logins
        Notes what the caller is refused.
    serving
        The open store and its batcher.
    receives
        Where the call waits for messages.
    context, caller, account
        The call, who makes it, and what it holds.
    metrics
        Counts the requests that were refused.
    """

    def __init__(
        self,
        logins: Logins,
        serving: Serving,
        receives: Receives,
        context: CallContext,
        caller: Caller,
        account: Account,
        metrics: Metrics,
    ) -> None:
        self._logins = logins
        self._serving = serving
        self._receives = receives
        self._context = context
        self._caller = caller
        self._metrics = metrics
        self._account = account
        self._call = running.get()
        self._loop = asyncio.get_running_loop()
        self._in_flight: deque[_InFlight] = deque()
        self._room_bytes = 0  # taken
        self._changed = asyncio.Event()  # wakes the side that waits: the reader for room, or the writer for a request
        # Before the first response a GET is taken for the largest: its value may fill a response.
        self._value_bytes = serving.store.limits.result_bytes_max

    async def run(self) -> None:
        """Serve the stream until the client ends it.

        Raises
        ------
        NotServingError, LoginError
            If the server stops, or the caller is gone, after the responses to all requests that were read.
        InvalidArgumentError
            If a message is no `BatchRequest`.
        """
        reader = asyncio.create_task(self._read())
        reader.add_done_callback(lambda _: self._changed.set())
        try:
            await self._write(reader)
        finally:
            reader.cancel()
            for request in self._in_flight:  # the client is gone: requests that are not in a batch yet need not run
                request.response.cancel()
        reader.result()

    async def _read(self) -> None:
        while True:
            while not self._has_room():
                self._changed.clear()
                await self._changed.wait()
            data = await self._receives.read(self._context, caller=self._caller, is_stream=True)
            if data is None:
                return
            self._caller.require()
            self._accept(require_message(data))
            del data  # the frame would hold it until the next message is there

    def _has_room(self) -> bool:
        return (
            len(self._in_flight) < self._serving.stream_requests_max
            and self._room_bytes < self._serving.stream_bytes_max
        )

    def _accept(self, data: bytes) -> None:
        """Submit one request; its response says what is wrong with it."""
        try:
            message = kv_pb2.BatchRequest.FromString(data)
        except DecodeError as error:
            raise InvalidArgumentError(f"these bytes are no gpkvs.v1.BatchRequest: {error}") from error
        room_bytes = size = len(data)
        call = self._call.message() if self._call else None
        running.set(call)
        response: asyncio.Future[Response]
        try:
            if not self._logins.is_open:
                require_batch(self._caller, message)
            if message.request_ops:
                raise InvalidArgumentError("a message of a Pipeline is one request", field="request_ops")
            table = codec.table_of(message, self._serving.store)
            request = codec.decode(message, table.limits, table.id, size, self._serving.now_ms)
            response = self._serving.batcher.submit(request, self._account)
            room_bytes += self._response_bytes(request, table)
        except GpkvsError as error:
            response = self._loop.create_future()
            response.set_exception(error.with_traceback(None))  # its frames hold the message
        in_flight = _InFlight(message.id, response, size, room_bytes, call)
        response.add_done_callback(partial(self._learn, in_flight))
        self._in_flight.append(in_flight)
        self._room_bytes += room_bytes
        if len(self._in_flight) == 1:
            self._changed.set()

    def _response_bytes(self, request: Request, table: OpenTable) -> int:
        """Return what a response will hold: exactly for u64, else by the largest mean value so far."""
        limits = table.limits
        value_bytes = min(self._value_bytes, limits.value_bytes_max)
        return codec.response_bytes(request.operations, min(request.returning * value_bytes, limits.result_bytes_max))

    async def _write(self, reader: asyncio.Task[None]) -> None:
        while True:
            while not self._in_flight:
                if reader.done():
                    return
                self._changed.clear()
                await self._changed.wait()
            oldest = self._in_flight[0]
            message = await self._response(oldest)
            if oldest.call:
                oldest.call.end()
            await self._context.write(message.SerializeToString())
            self._in_flight.popleft()
            self._room_bytes -= oldest.room_bytes
            if not message.code:
                self._account.change_responses(-oldest.response.result().held_bytes)
            self._changed.set()

    async def _response(self, request: _InFlight) -> kv_pb2.BatchResponse:
        """Await a request's response and put it into a message, or why there is none: the stream goes on then."""
        try:
            return codec.encode(request.id, await request.response)
        except NotServingError:  # the drain took too long: this and all after it were dropped, the status says so
            raise
        except Exception as error:  # noqa: BLE001 - a client gets a code, whatever happens
            if isinstance(error, RightsError):
                self._logins.note_refusal(error, end_of(self._context.peer()).address, "gpkvs.v1.KV.Pipeline")
            request_id = request.call.request_id if request.call else ""
            told = tell(self._logins.for_caller(error), "Pipeline", self._metrics, request_id)
            failed = kv_pb2.BatchResponse(id=request.id, code=told.code.value[0], message=told.text, full=told.full)
            if told.conflict:
                failed.failed_check = told.conflict.index
                if told.conflict.found is not None:
                    failed.found = told.conflict.found
            return failed

    def _learn(self, request: _InFlight, done: asyncio.Future[Response]) -> None:
        """Take the true size of a response as soon as it is there, however many others are sent before it."""
        if done.cancelled() or done.exception() is not None:
            return
        response = done.result()
        gets = len(response.value_lengths) // 4
        if gets:
            mean = -(-len(response.values) // gets)
            seen = self._value_bytes if self._value_bytes < self._serving.store.limits.result_bytes_max else 0
            self._value_bytes = max(mean, seen)
        room_bytes = request.message_bytes + response.held_bytes
        self._room_bytes += room_bytes - request.room_bytes
        request.room_bytes = room_bytes
