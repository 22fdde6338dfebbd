"""A crowd of connections, of which one floods the server and one reads nothing."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path

from gpkvs.bench.door.frames import (
    DATA,
    END_HEADERS,
    END_STREAM,
    HEADERS,
    PREFACE,
    call_headers,
    frame,
    message,
    wide_open,
)
from gpkvs.bench.door.h2load import METHODS, Load
from gpkvs.client import AsyncClient
from gpkvs.proto.v1 import kv_pb2

_FLOOD_CALLS = 1 << 30  # it is ended before
_FLOOD_STREAMS = 100
_SILENT_STREAMS = 100
_LARGE_VALUE_BYTES = 1 << 20
LARGE_KEY = b"large"


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
        await client.set(LARGE_KEY, bytes(_LARGE_VALUE_BYTES))


@contextmanager
def silent_connection(target: str) -> Iterator[None]:
    """Ask for large values on many streams of one connection, allow all windows, and read nothing."""
    host, port = target.rsplit(":", 1)
    with socket.create_connection((host, int(port)), timeout=30) as connection:
        connection.sendall(PREFACE + wide_open())
        block, request = call_headers(METHODS["GET"]), message(kv_pb2.GetRequest(key=LARGE_KEY).SerializeToString())
        for stream in range(1, 2 * _SILENT_STREAMS, 2):
            connection.sendall(frame(HEADERS, END_HEADERS, stream, block) + frame(DATA, END_STREAM, stream, request))
        yield
