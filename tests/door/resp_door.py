"""A RESP port of the native door on an embedded store; Python runs its batches."""

from __future__ import annotations

import re
import select
import socket
import struct
import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager

from gpkvs.config import DEFAULT_TABLE, MIB, Limits, ServerConfig
from gpkvs.media.layout import BYTES_LAYOUT
from gpkvs.server.account.bounds import bounds_of
from gpkvs.server.door.engine_thread import EngineThread
from gpkvs.server.door.library import Event, EventKind, Library, Protocol
from gpkvs.server.door.turns import Turns
from gpkvs.server.signs.exporter import Metrics
from gpkvs.store import OpenTable, Store


def commands_of(message: bytes) -> list[list[bytes]]:
    """Return the words of commands that the door hands on together."""
    commands, at = [], 0
    while at < len(message):
        (count,) = struct.unpack_from("<I", message, at)
        sizes = struct.unpack_from(f"<{count}I", message, at + 4)
        at += 4 + 4 * count
        words = []
        for size in sizes:
            words.append(message[at : at + size])
            at += size
        commands.append(words)
    assert at == len(message)
    return commands


class PythonSide:
    """Takes what a door hands on, event by event; nobody else does."""

    def __init__(self, library: Library) -> None:
        self._library = library
        self._events: list[Event] = []

    def next(self, seconds: float = 10.0) -> Event | None:
        """Wait for an event; None if none came."""
        if not self._events and select.select([self._library.events_file()], [], [], seconds)[0]:
            self._events = self._library.events()
        return self._events.pop(0) if self._events else None

    def open(self) -> int:
        """Wait until a connection needs Python; return its call, which may send a command."""
        event = self.next()
        assert event is not None
        assert event.opened is not None
        assert event.opened.path == "/redis"
        self._library.ask(event.call)
        return event.call

    def words(self, call: int) -> list[bytes]:
        """Wait for a command that comes alone."""
        [words] = self.commands(call)
        return words

    def commands(self, call: int) -> list[list[bytes]]:
        """Wait for commands that come together."""
        event = self.next()
        assert event is not None
        assert (event.kind, event.call) == (EventKind.MESSAGE, call)
        return commands_of(event.message)

    def answer(self, call: int, answer: bytes) -> None:
        """Answer it, and take the next one."""
        self._library.respond(call, answer)
        self._library.ask(call)

    def serve(self, answer_of: Callable[[list[bytes]], bytes], stopping: threading.Event) -> None:
        """Answer all commands."""
        while not stopping.is_set():
            event = self.next(0.02)
            if event is None:
                continue
            if event.kind is EventKind.OPEN:
                self._library.ask(event.call)
            elif event.kind is EventKind.MESSAGE:
                self.answer(event.call, b"".join(map(answer_of, commands_of(event.message))))


@contextmanager
def resp_door(
    store: Store, answer_of: Callable[[list[bytes]], bytes], **settings: float
) -> Iterator[tuple[Library, int]]:
    """Yield a door on a store, and its port; commands that it hands on are answered so."""
    library = _library(store.open_tables(), **settings)
    stopping = threading.Event()
    python = threading.Thread(target=PythonSide(library).serve, args=(answer_of, stopping))
    python.start()
    engine_thread = EngineThread(library.interrupt)
    engine_thread.begin(Turns(library, store, Metrics()).turn)
    try:
        yield library, library.listen("127.0.0.1", 0, Protocol.RESP)
    finally:
        stopping.set()
        python.join()
        library.stop()
        engine_thread.shutdown()
        library.delete()


@contextmanager
def bare_door(limits: Limits | None = None, **settings: int) -> Iterator[tuple[Library, int]]:
    """Yield a door and its port: whoever uses it runs the batches."""
    library = _library(
        [OpenTable(id=0, name=DEFAULT_TABLE, layout=BYTES_LAYOUT.name, limits=limits or Limits())], **settings
    )
    try:
        yield library, library.listen("127.0.0.1", 0, Protocol.RESP)
    finally:
        library.delete()


def _library(tables: Iterable[OpenTable], **settings: float) -> Library:
    config = ServerConfig(**settings)  # type: ignore[arg-type]
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
    return b"".join(_answer(stream) for _ in range(count))


def without_ids(found: bytes) -> bytes:
    """Return answers without the ids at the ends of errors, which nobody foresees."""
    return re.sub(rb" \(request [0-9a-f]{16}\)(?=\r\n)", b"", found)


def _answer(stream: socket.SocketIO) -> bytes:
    line = _line(stream)
    count = int(line[1:]) if line[:1] in (b"$", b"*") else -1
    if line[:1] == b"*":
        return line + b"".join(_answer(stream) for _ in range(count))
    return line + _exactly(stream, count + 2) if count >= 0 else line


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
