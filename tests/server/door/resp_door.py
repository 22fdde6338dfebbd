"""A RESP port of the native door on an embedded store; Python runs its batches."""

from __future__ import annotations

import socket
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager

from gpkvs.config import DEFAULT_TABLE, MIB, Limits, ServerConfig
from gpkvs.media.layout import BYTES_LAYOUT
from gpkvs.server.bounds import bounds_of
from gpkvs.server.door.engine_thread import EngineThread
from gpkvs.server.door.library import Library, Protocol
from gpkvs.server.door.turns import Turns
from gpkvs.server.exporter import Metrics
from gpkvs.store import OpenTable, Store


@contextmanager
def resp_door(store: Store) -> Iterator[tuple[Library, int]]:
    """Yield a door on a store, and its port."""
    library = _library(store.open_tables())
    flush_thread = ThreadPoolExecutor(max_workers=1)
    engine_thread = EngineThread(library.interrupt)
    engine_thread.begin(Turns(library, store, flush_thread, Metrics()).turn)
    try:
        yield library, library.listen("127.0.0.1", 0, Protocol.RESP)
    finally:
        library.stop()
        engine_thread.shutdown()
        flush_thread.shutdown()
        library.delete()


@contextmanager
def bare_door() -> Iterator[tuple[Library, int]]:
    """Yield a door and its port: whoever uses it runs the batches."""
    library = _library([OpenTable(id=0, name=DEFAULT_TABLE, layout=BYTES_LAYOUT.name, limits=Limits())])
    try:
        yield library, library.listen("127.0.0.1", 0, Protocol.RESP)
    finally:
        library.delete()


def _library(tables: Iterable[OpenTable]) -> Library:
    config = ServerConfig()
    library = Library(config, bounds_of(config, Limits(), 4 * MIB, 256 * MIB))
    library.set_tables(tables)
    library.open()
    return library


def connect(port: int) -> socket.socket:
    """Return a new connection."""
    connection = socket.create_connection(("127.0.0.1", port), timeout=20)
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return connection


def command(*words: bytes) -> bytes:
    """Return a command as bytes of the wire."""
    return b"*%d\r\n" % len(words) + b"".join(b"$%d\r\n%s\r\n" % (len(word), word) for word in words)


def answers(connection: socket.socket, count: int) -> bytes:
    """Read so many answers and nothing behind them; return their bytes, as many as came before the end."""
    stream = connection.makefile("rb", buffering=0)
    found = b""
    for _ in range(count):
        line = _line(stream)
        found += line
        if line[:1] == b"$" and line != b"$-1\r\n":
            found += _exactly(stream, int(line[1:]) + 2)
    return found


def _line(stream: socket.SocketIO) -> bytes:
    line = b""
    while not line.endswith(b"\r\n"):
        byte = stream.read(1)
        if not byte:
            break
        line += byte
    return line


def _exactly(stream: socket.SocketIO, size: int) -> bytes:
    data = b""
    while len(data) < size:
        piece = stream.read(size - len(data))
        if not piece:
            break
        data += piece
    return data
