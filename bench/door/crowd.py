"""A crowd of connections, of which one floods the server and one reads nothing."""

from __future__ import annotations

import asyncio
import socket
import struct
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path

from gpkvs.bench.door.bodies import frame
from gpkvs.bench.door.h2load import METHODS, Load
from gpkvs.client import AsyncClient
from gpkvs.proto.v1 import kv_pb2

_FLOOD_CALLS = 1 << 30  # it is ended before
_FLOOD_STREAMS = 100
_SILENT_STREAMS = 100
_SILENT_VALUE_BYTES = 1 << 20
_SILENT_KEY = b"large"
# HTTP/2: types of frames, flags, and the largest window.
_DATA, _HEADERS, _SETTINGS, _WINDOW_UPDATE = 0, 1, 4, 8
_END_STREAM, _END_HEADERS = 1, 4
_INITIAL_WINDOW_SIZE = 4
_WINDOW_MAX = (1 << 31) - 1
_WINDOW_USUAL = (1 << 16) - 1


def spread(connections: int) -> tuple[str, ...]:
    """Return the options of h2load that let connections come one after the other, within a second."""
    return (f"--rate={max(connections // 100, 1)}", "--rate-period=10ms")


@asynccontextmanager
async def flood(url: str, body: Path) -> AsyncIterator[None]:
    """Make SETs on one connection, as many as it can."""
    load = Load(METHODS["SET"], body, streams=_FLOOD_STREAMS)
    process = await asyncio.create_subprocess_exec(
        *load.command(url, _FLOOD_CALLS), stdin=asyncio.subprocess.DEVNULL, stdout=asyncio.subprocess.DEVNULL
    )
    try:
        yield
    finally:
        process.kill()
        await process.wait()


async def store_large_value(target: str) -> None:
    """Store what the silent connection asks for."""
    async with AsyncClient(target) as client:
        await client.set(_SILENT_KEY, bytes(_SILENT_VALUE_BYTES))


@contextmanager
def silent_connection(target: str) -> Iterator[None]:
    """Ask for large values on many streams of one connection, allow all windows, and read nothing."""
    host, port = target.rsplit(":", 1)
    with socket.create_connection((host, int(port)), timeout=30) as connection:
        connection.sendall(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n")
        connection.sendall(_frame(_SETTINGS, 0, 0, struct.pack(">HI", _INITIAL_WINDOW_SIZE, _WINDOW_MAX)))
        connection.sendall(_frame(_WINDOW_UPDATE, 0, 0, struct.pack(">I", _WINDOW_MAX - _WINDOW_USUAL)))
        request = frame(kv_pb2.GetRequest(key=_SILENT_KEY).SerializeToString())
        for number in range(_SILENT_STREAMS):
            stream = 2 * number + 1
            connection.sendall(_frame(_HEADERS, _END_HEADERS, stream, _headers(target)))
            connection.sendall(_frame(_DATA, _END_STREAM, stream, request))
        yield


def _headers(target: str) -> bytes:
    """Return the headers of a call, as HPACK has them without an index and without Huffman's code."""
    fields = {
        ":method": "POST",
        ":scheme": "http",
        ":path": METHODS["GET"],
        ":authority": target,
        "te": "trailers",
        "content-type": "application/grpc",
    }
    return b"".join(
        b"\0" + bytes([len(name)]) + name.encode() + bytes([len(value)]) + value.encode()
        for name, value in fields.items()
    )


def _frame(kind: int, flags: int, stream: int, payload: bytes) -> bytes:
    return struct.pack(">I", len(payload))[1:] + struct.pack(">BBI", kind, flags, stream) + payload
