"""The calls of a foreign client by grpclib: gRPC in Python on asyncio, with an HTTP/2 of its own (h2)."""

from __future__ import annotations

import asyncio
import json
import os
import ssl
import struct
import sys
from typing import Any

from grpclib.client import Channel, StreamStreamMethod, UnaryUnaryMethod
from grpclib.exceptions import GRPCError

from gpkvs.proto.v1 import kv_pb2

GET, SET = 1, 2
MESSAGES = 100


def _sets(number: int) -> kv_pb2.BatchRequest:
    value = struct.pack("<Q", number)
    return kv_pb2.BatchRequest(id=number, ops=bytes([SET, GET]), keys=value * 2, key_size=8, values=value, value_size=8)


async def main(target: str) -> dict[str, Any]:
    """Make the calls."""
    host, port = target.rsplit(":", 1)
    ca, token = os.environ.get("GPKVS_CLIENT_TLS_CA"), os.environ.get("GPKVS_TOKEN")
    context = None
    if ca:
        context = ssl.create_default_context(cafile=ca)
        context.set_alpn_protocols(["h2"])
    metadata = {"authorization": f"Bearer {token}"} if token else None
    found: dict[str, Any] = {}
    async with Channel(host, int(port), ssl=context) as channel:

        def unary(name: str, request: Any, response: Any) -> Any:
            return UnaryUnaryMethod(channel, f"/gpkvs.v1.KV/{name}", request, response)

        pipeline = StreamStreamMethod(channel, "/gpkvs.v1.KV/Pipeline", kv_pb2.BatchRequest, kv_pb2.BatchResponse)
        set_, get = (
            unary("Set", kv_pb2.SetRequest, kv_pb2.SetResponse),
            unary("Get", kv_pb2.GetRequest, kv_pb2.GetResponse),
        )
        batch = unary("Batch", kv_pb2.BatchRequest, kv_pb2.BatchResponse)
        await set_(kv_pb2.SetRequest(key=b"k", value=b"value"), metadata=metadata)
        found["get"] = (await get(kv_pb2.GetRequest(key=b"k"), metadata=metadata)).value.decode()
        answer = await batch(_sets(7), metadata=metadata)
        found["batch"] = [answer.id, *struct.unpack("<Q", answer.values)]
        try:
            await get(kv_pb2.GetRequest(key=b""), metadata=metadata)
        except GRPCError as error:
            found["refused"] = [error.status.value, error.message]
        async with pipeline.open(metadata=metadata) as stream:
            for number in range(MESSAGES):
                await stream.send_message(_sets(number), end=number == MESSAGES - 1)
            found["pipeline"] = sum([answer.id == number async for number, answer in _numbered(stream)])
        try:
            async with pipeline.open(timeout=0.3, metadata=metadata) as stream:
                await stream.send_message(_sets(1))
                await stream.recv_message()
                await stream.recv_message()
        except (TimeoutError, GRPCError) as error:
            found["deadline"] = error.status.value if isinstance(error, GRPCError) else 4  # its own clock was first
        async with pipeline.open(metadata=metadata) as stream:
            await stream.send_message(_sets(1))
            await stream.recv_message()
            await stream.cancel()
        found["cancel"] = 1
        found["after"] = (await get(kv_pb2.GetRequest(key=b"k"), metadata=metadata)).value.decode()
    return found


async def _numbered(stream: Any) -> Any:
    number = 0
    async for answer in stream:
        yield number, answer
        number += 1


if __name__ == "__main__":
    print(json.dumps(asyncio.run(main(sys.argv[1]))))
