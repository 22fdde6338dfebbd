"""A client's pipeline on streams that go wrong in ways a real server cannot be made to on demand."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any, TypeVar

import grpc
import pytest

from gpkvs.batch import Batch, Op
from gpkvs.client import (
    AsyncClient,
    InvalidArgumentError,
    NoSpaceError,
    OutcomeUnknownError,
    ServerBusyError,
    ServerError,
    UnavailableError,
)
from gpkvs.client.pipeline import AsyncPipeline
from gpkvs.proto.v1 import kv_pb2, kv_pb2_grpc

T = TypeVar("T")
WRITE = Batch.of([(Op.SET, b"k", b"v")])
READ = Batch.of([(Op.GET, b"k")])
Respond = Callable[[kv_pb2.BatchRequest, grpc.aio.ServicerContext], Awaitable[kv_pb2.BatchResponse]]


class StreamServer(kv_pb2_grpc.KVServicer):
    """Responds to the requests of a stream with a function."""

    def __init__(self, respond: Respond) -> None:
        self._respond = respond

    async def Pipeline(  # noqa: N802
        self, requests: AsyncIterator[kv_pb2.BatchRequest], context: grpc.aio.ServicerContext
    ) -> AsyncIterator[kv_pb2.BatchResponse]:
        async for request in requests:
            yield await self._respond(request, context)


def outcomes(respond: Respond, *batches: Batch) -> list[Any]:
    """Send batches to a server that responds so; return results and errors."""

    async def use(pipeline: AsyncPipeline) -> list[Any]:
        results = [await pipeline.send(batch) for batch in batches]
        return await asyncio.gather(*results, return_exceptions=True)

    return with_pipeline(respond, use, in_flight_max=32)


def with_pipeline(respond: Respond, use: Callable[[AsyncPipeline], Awaitable[T]], in_flight_max: int = 2) -> T:
    """Use a pipeline to a server that responds so."""

    async def main() -> T:
        server = grpc.aio.server(options=[("grpc.so_reuseport", 0)])
        kv_pb2_grpc.add_KVServicer_to_server(StreamServer(respond), server)
        target = f"127.0.0.1:{server.add_insecure_port('127.0.0.1:0')}"
        await server.start()
        try:
            async with AsyncClient(target) as client, client.pipeline(in_flight_max=in_flight_max) as pipeline:
                return await use(pipeline)
        finally:
            await server.stop(None)

    return asyncio.run(main())


def good(request: kv_pb2.BatchRequest) -> kv_pb2.BatchResponse:
    lengths = bytes(4) * request.ops.count(Op.GET)
    return kv_pb2.BatchResponse(id=request.id, status=b"\1", versions=bytes(8), value_lengths=lengths)


@pytest.mark.parametrize(
    ("code", "message", "full", "of_write", "of_read"),
    [
        (3, "operation 0, keys: too long", "", InvalidArgumentError, InvalidArgumentError),
        (8, "heap full: delete keys", "heap", NoSpaceError, NoSpaceError),
        (8, "queue full: 5 requests wait", "queue", ServerBusyError, ServerBusyError),
        (13, "internal error", "", OutcomeUnknownError, ServerError),
        (14, "is closed", "", OutcomeUnknownError, UnavailableError),
        (99, "from the future", "", OutcomeUnknownError, ServerError),
    ],
)
def test_codes_say_whether_a_write_may_be_done(
    code: int, message: str, full: str, of_write: type, of_read: type
) -> None:
    async def respond(request: kv_pb2.BatchRequest, _context: grpc.aio.ServicerContext) -> kv_pb2.BatchResponse:
        if request.id >= 3:
            return good(request)
        return kv_pb2.BatchResponse(id=request.id, code=code, message=message, full=full)

    write, read, after = outcomes(respond, WRITE, READ, READ)
    assert type(write) is of_write
    assert type(read) is of_read
    assert after.status.tolist() == [1]  # the stream went on


def test_a_response_out_of_order_ends_the_stream() -> None:
    async def respond(request: kv_pb2.BatchRequest, _context: grpc.aio.ServicerContext) -> kv_pb2.BatchResponse:
        request.id += request.id > 1
        return good(request)

    first, second = outcomes(respond, READ, WRITE)
    assert first.status.tolist() == [1]
    assert isinstance(second, OutcomeUnknownError)
    assert "not the next one" in str(second)


def test_a_response_of_the_wrong_shape_fails_its_request_only() -> None:
    async def respond(request: kv_pb2.BatchRequest, _context: grpc.aio.ServicerContext) -> kv_pb2.BatchResponse:
        response = good(request)
        if request.id == 1:
            response.versions = b"short"
        return response

    first, second = outcomes(respond, READ, READ)
    assert isinstance(first, ServerError)
    assert second.status.tolist() == [1]


@pytest.mark.parametrize("told", [True, False])
def test_an_end_of_the_stream_is_unknown_unless_the_server_says_otherwise(told: bool) -> None:
    async def respond(request: kv_pb2.BatchRequest, context: grpc.aio.ServicerContext) -> kv_pb2.BatchResponse:
        if request.id == 2:
            await asyncio.sleep(0.1)  # so that all was written
            trailing = (("gpkvs-executed", "no"),) if told else ()
            await context.abort(grpc.StatusCode.UNAVAILABLE, "the server is stopping", trailing)
        return good(request)

    first, write, read = outcomes(respond, READ, WRITE, READ)
    assert first.status.tolist() == [1]
    assert type(write) is (UnavailableError if told else OutcomeUnknownError)
    assert isinstance(read, UnavailableError)


async def stopping(_request: kv_pb2.BatchRequest, context: grpc.aio.ServicerContext) -> kv_pb2.BatchResponse:
    """End the stream without a response."""
    await asyncio.sleep(0.1)  # so that all was written
    await context.abort(grpc.StatusCode.UNAVAILABLE, "the server is stopping", (("gpkvs-executed", "no"),))
    raise AssertionError("abort always raises")


def test_every_send_after_the_end_is_refused() -> None:
    async def use(pipeline: AsyncPipeline) -> None:
        with pytest.raises(UnavailableError):
            await (await pipeline.send(READ))
        for _ in range(5):
            with pytest.raises(UnavailableError):
                await asyncio.wait_for(pipeline.send(READ), 30)

    with_pipeline(stopping, use)


def test_a_sender_that_waits_for_room_is_told_of_the_end() -> None:
    async def use(pipeline: AsyncPipeline) -> None:
        results = [await pipeline.send(READ) for _ in range(2)]
        waiting = asyncio.create_task(pipeline.send(READ))
        with pytest.raises(UnavailableError):
            await asyncio.wait_for(waiting, 30)
        assert [type(result.exception()) for result in results] == [UnavailableError] * 2

    with_pipeline(stopping, use)
