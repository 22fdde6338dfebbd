"""A KV service over a dictionary, in this process, that fails in ways a real server cannot be made to on demand.

Everything else is tested against a real server.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

import grpc
import numpy as np

from gpkvs.batch import Op, Status
from gpkvs.changes import Position
from gpkvs.proto.v1 import kv_pb2, kv_pb2_grpc

NOT_EXECUTED = (("gpkvs-executed", "no"),)

Operation = tuple[int, bytes, bytes]
_HAS_VALUE = (Op.SET, Op.INCREMENT, Op.APPEND)
Fault = Callable[["DictServer", list[Operation], grpc.aio.ServicerContext], Awaitable[None]]


class DictServer(kv_pb2_grpc.KVServicer):
    """Executes batches; `faults` are applied to the messages in order, one each, and `rule` to all.

    `messages` are the operations of each message that arrived, `executed` those that were carried out. Each watch is
    refused behind its first response, and so many that only ask for the position as `positions_refused` says before it;
    `watches` are those that arrived.
    """

    def __init__(self) -> None:
        self.data: dict[bytes, bytes] = {}
        self.corrupt: set[bytes] = set()
        self.faults: list[Fault] = []
        self.rule: Fault | None = None
        self.mangle: Callable[[kv_pb2.BatchResponse], None] | None = None
        self.positions_refused = 0
        self.watches: list[kv_pb2.WatchRequest] = []
        self.messages: list[list[Operation]] = []
        self.executed: list[list[Operation]] = []
        self.arrived = asyncio.Event()  # a first message is here
        self.target = ""

    async def Batch(  # noqa: N802
        self, request: kv_pb2.BatchRequest, context: grpc.aio.ServicerContext
    ) -> kv_pb2.BatchResponse:
        operations = _operations(request)
        self.messages.append(operations)
        self.arrived.set()
        if self.rule:
            await self.rule(self, operations, context)
        if self.faults:
            await self.faults.pop(0)(self, operations, context)
        response = self.execute(operations)
        if self.mangle:
            self.mangle(response)
        return response

    async def Watch(  # noqa: N802
        self, request: kv_pb2.WatchRequest, context: grpc.aio.ServicerContext
    ) -> AsyncIterator[kv_pb2.WatchResponse]:
        self.watches.append(request)
        if request.only_position and self.positions_refused:
            self.positions_refused -= 1
            await context.abort(grpc.StatusCode.UNAVAILABLE, "Socket closed")
        yield kv_pb2.WatchResponse(position=str(Position(1, 1)))
        if not request.only_position:
            trailing = (*NOT_EXECUTED, ("gpkvs-full", "memory"))
            await context.abort(grpc.StatusCode.RESOURCE_EXHAUSTED, "memory full", trailing)

    def execute(self, operations: list[Operation]) -> kv_pb2.BatchResponse:
        self.executed.append(operations)
        status, values = bytearray(), []
        for op, key, value in operations:
            found = key in self.data
            status.append(Status.OK if found or op == Op.SET else Status.NOT_FOUND)
            if op == Op.SET:
                self.data[key] = value
            elif op == Op.DELETE:
                self.data.pop(key, None)
            elif op == Op.GET:
                values.append(self.data.get(key, b""))
                if key in self.corrupt:
                    status[-1], values[-1] = Status.CORRUPT, b""
        return kv_pb2.BatchResponse(
            status=bytes(status),
            values=b"".join(values),
            value_lengths=np.array([len(value) for value in values], "<u4").tobytes(),
            versions=np.arange(1, len(operations) + 1, dtype="<u8").tobytes(),
        )


def _operations(request: kv_pb2.BatchRequest) -> list[Operation]:
    keys = _cut(request.keys, request.key_lengths, request.key_size, len(request.ops))
    values = iter(
        _cut(request.values, request.value_lengths, request.value_size, sum(map(request.ops.count, _HAS_VALUE)))
    )
    return [(op, key, next(values) if op in _HAS_VALUE else b"") for op, key in zip(request.ops, keys, strict=True)]


def _cut(column: bytes, lengths: bytes, size: int, count: int) -> list[bytes]:
    sizes = np.frombuffer(lengths, "<u4").tolist() if lengths else [size] * count
    assert len(sizes) == count
    assert sum(sizes) == len(column)
    ends = np.cumsum(sizes).tolist()
    return [column[end - size : end] for end, size in zip(ends, sizes, strict=True)]


def refuse(code: grpc.StatusCode, details: str, full: str = "") -> Fault:
    """Refuse before execution, and say so; `full` is what is full."""
    trailing = (*NOT_EXECUTED, ("gpkvs-full", full)) if full else NOT_EXECUTED

    async def fault(server: DictServer, operations: list[Operation], context: grpc.aio.ServicerContext) -> None:
        await context.abort(code, details, trailing)

    return fault


async def lose_response(server: DictServer, operations: list[Operation], context: grpc.aio.ServicerContext) -> None:
    """Execute, then fail as a broken connection does."""
    server.execute(operations)
    await context.abort(grpc.StatusCode.UNAVAILABLE, "Socket closed")


async def hang(server: DictServer, operations: list[Operation], context: grpc.aio.ServicerContext) -> None:
    """Never respond."""
    await asyncio.sleep(60)


def wait_for(event: asyncio.Event) -> Fault:
    """Respond when the event is set."""

    async def fault(server: DictServer, operations: list[Operation], context: grpc.aio.ServicerContext) -> None:
        await event.wait()

    return fault


@asynccontextmanager
async def serving() -> AsyncIterator[DictServer]:
    """Serve on a free loopback port."""
    service = DictServer()
    server = grpc.aio.server(options=[("grpc.so_reuseport", 0), ("grpc.max_receive_message_length", -1)])
    kv_pb2_grpc.add_KVServicer_to_server(service, server)
    service.target = f"127.0.0.1:{server.add_insecure_port('127.0.0.1:0')}"
    await server.start()
    try:
        yield service
    finally:
        await server.stop(None)
