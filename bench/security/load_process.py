"""A client process of the benchmark of security.

    python -m gpkvs.bench.security.load_process

Its standard input says in a line of JSON which server to load: ``target``, ``ca`` (a file, or null for a plain
connection) and ``token`` (or null). Each further line is a load, and is answered by a line when it is done.

It must not be the bottleneck: messages of streams are made and packed before they are timed, and go as bytes.
"""

from __future__ import annotations

import asyncio
import json
import socket
import ssl
import sys
from collections.abc import Awaitable, Callable
from itertools import cycle
from pathlib import Path
from time import perf_counter
from typing import Any

import grpc
import numpy as np
import uvloop

from gpkvs.batch import Op
from gpkvs.bench.peers.contender import BenchError
from gpkvs.proto.v1 import kv_pb2, kv_pb2_grpc

VALUE_BYTES = 100
KEY_BYTES = 16
_FILL = 4096  # operations in a message that fills the table
_OPERATIONS_MADE = 1 << 17  # of a kind of message
_PIPELINE = "/gpkvs.v1.KV/Pipeline"
_WAIT_SECONDS_MAX = 60


class Load:
    """What one process asks of one server.

    Parameters
    ----------
    target
        The server's address.
    ca
        The certificate it must show; None: the connection is plain.
    token
        What every call shows, if not None.
    """

    def __init__(self, target: str, ca: str | None, token: str | None) -> None:
        self._target = target
        self._ca = ca
        self._metadata = (("authorization", f"Bearer {token}"),) if token else None
        options = (("grpc.max_receive_message_length", -1), ("grpc.max_send_message_length", -1))
        self._channel = (
            grpc.aio.secure_channel(target, grpc.ssl_channel_credentials(Path(ca).read_bytes()), options)
            if ca
            else grpc.aio.insecure_channel(target, options)
        )
        self._messages: dict[tuple[str, int], list[bytes]] = {}

    async def run(self, kind: str, parameters: dict[str, Any]) -> tuple[int, float]:
        """Do a load; return how much was done, and in how many seconds."""
        kinds: dict[str, Callable[..., Awaitable[tuple[int, float]]]] = {
            "fill": self.fill,
            "prepare": self.prepare,
            "stream": self.stream,
            "calls": self.calls,
            "handshakes": self.handshakes,
        }
        return await kinds[kind](**parameters)

    async def fill(self, records: int) -> tuple[int, float]:
        """Store every record once."""
        pieces = [np.arange(start, min(start + _FILL, records)) for start in range(0, records, _FILL)]
        messages = [_message("SET", numbers) for numbers in pieces]
        begin = perf_counter()
        await self._send(messages, len(messages), 0.0, 1)
        return records, perf_counter() - begin

    async def prepare(self, operation: str, size: int, records: int) -> tuple[int, float]:
        """Make the messages of streams."""
        random = np.random.default_rng(size)
        count = max(min(_OPERATIONS_MADE, 4 * records) // size, 1)
        self._messages[operation, size] = [
            _message(operation, random.integers(records, size=size)) for _ in range(count)
        ]
        return count, 0.0

    async def stream(self, operation: str, size: int, in_flight: int, seconds: float) -> tuple[int, float]:
        """Send messages through a stream for some seconds; return the operations."""
        begin = perf_counter()
        done = await self._send(self._messages[operation, size], 0, seconds, in_flight)
        return done * size, perf_counter() - begin

    async def _send(self, messages: list[bytes], at_least: int, seconds: float, in_flight: int) -> int:
        """Send messages for so long, and at least so many; return how many were answered."""
        stream = self._channel.stream_stream(_PIPELINE)(metadata=self._metadata)
        free = asyncio.Semaphore(in_flight)
        received = 0

        async def receive() -> None:
            nonlocal received
            while (data := await stream.read()) is not grpc.aio.EOF:
                response = kv_pb2.BatchResponse.FromString(data)
                if response.code:
                    raise BenchError(f"the server refused a message: {response.message}")
                received += 1
                free.release()

        receiving = asyncio.create_task(receive())
        end = perf_counter() + seconds
        for sent, message in enumerate(cycle(messages)):
            await free.acquire()
            if receiving.done() or (sent >= at_least and perf_counter() >= end):
                break
            await stream.write(message)
        await stream.done_writing()
        await receiving
        return received

    async def calls(self, seconds: float) -> tuple[int, float]:
        """Make SETs, one call at a time."""
        stub = kv_pb2_grpc.KVStub(self._channel)
        request = kv_pb2.SetRequest(key=b"%016d" % 0, value=bytes(VALUE_BYTES))
        await stub.Set(request, metadata=self._metadata)
        done, begin = 0, perf_counter()
        while perf_counter() < begin + seconds:
            await stub.Set(request, metadata=self._metadata)
            done += 1
        return done, perf_counter() - begin

    async def handshakes(self, seconds: float) -> tuple[int, float]:
        """Open connections one after the other, each until the server speaks HTTP/2."""
        return await asyncio.to_thread(self._handshakes, seconds)

    def _handshakes(self, seconds: float) -> tuple[int, float]:
        context = ssl.create_default_context(cafile=self._ca)
        context.set_alpn_protocols(["h2"])
        host, port = self._target.rsplit(":", 1)
        done, begin = 0, perf_counter()
        while perf_counter() < begin + seconds:
            plain = socket.create_connection((host, int(port)), timeout=_WAIT_SECONDS_MAX)
            with context.wrap_socket(plain, server_hostname=host) as connection:
                if not connection.recv(1):
                    raise BenchError("the server ended a connection after its handshake")
            done += 1
        return done, perf_counter() - begin

    async def close(self) -> None:
        """Close the connection."""
        await self._channel.close()


def _message(operation: str, numbers: np.ndarray[Any, np.dtype[np.int64]]) -> bytes:
    """Return a packed request for the records of these numbers."""
    fields: dict[str, Any] = {}
    if operation == "SET":
        fields = {"values": np.random.default_rng(1).bytes(VALUE_BYTES * len(numbers)), "value_size": VALUE_BYTES}
    request = kv_pb2.BatchRequest(
        ops=bytes([Op[operation]]) * len(numbers),
        keys=b"".join(b"%016d" % number for number in numbers.tolist()),
        key_size=KEY_BYTES,
        **fields,
    )
    return bytes(request.SerializeToString())


async def main() -> None:
    """Do the loads of the standard input until it ends."""
    load = Load(**json.loads(sys.stdin.readline()))
    while line := await asyncio.to_thread(sys.stdin.readline):
        parameters = json.loads(line)
        done, seconds = await load.run(parameters.pop("kind"), parameters)
        print(json.dumps({"done": done, "seconds": seconds}), flush=True)
    await load.close()


if __name__ == "__main__":
    uvloop.run(main())
