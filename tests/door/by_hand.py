"""A client of the native door that sends frames by hand."""

from __future__ import annotations

import socket
from typing import Any

from gpkvs.bench.door.frames import (
    DATA,
    END_HEADERS,
    END_STREAM,
    HEADERS,
    PREFACE,
    SETTINGS,
    Frame,
    call_headers,
    frame,
    frames_of,
)
from tests.door import probes
from tests.door.echo import MIB, Echo

BEGIN = PREFACE + frame(SETTINGS, 0, 0)


class Client:
    """A connection, and what came of it."""

    def __init__(self, door: Echo, begin: bytes = BEGIN) -> None:
        self._socket = socket.create_connection(("127.0.0.1", door.port))
        self._socket.settimeout(10)
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.received = b""
        self.send(begin)

    def __enter__(self) -> Client:
        return self

    def __exit__(self, *_: object) -> None:
        self._socket.close()

    def send(self, data: bytes) -> None:
        self._socket.sendall(data)

    def call(self, path: str, data: bytes, stream: int = 1, flags: int = END_STREAM, **options: Any) -> None:
        block = call_headers(path, **options)
        self.send(frame(HEADERS, END_HEADERS, stream, block) + frame(DATA, flags, stream, data))

    def receive(self) -> bool:
        """Take in what came; False at the end of the connection."""
        try:
            data = self._socket.recv(MIB)
        except ConnectionResetError:
            return False
        self.received += data
        return bool(data)

    def wait(self, kind: int, stream: int = 0, *, flags: int = 0) -> Frame:
        """Return the first frame of a kind, as soon as it is there."""
        while True:
            for found in frames_of(self.received):
                if found.kind == kind and found.stream == stream and found.flags & flags == flags:
                    return found
            assert self.receive(), "the connection has ended"

    def wait_end(self) -> list[Frame]:
        """Return all frames when the server has closed the connection."""
        while self.receive():
            pass
        return list(frames_of(self.received))

    def trailers(self, stream: int) -> dict[str, str]:
        """Return the headers with which a stream has ended, as soon as they are there."""
        last = self.wait(HEADERS, stream, flags=END_STREAM)
        blocks = [found for found in frames_of(self.received) if found.kind == HEADERS]
        return probes.headers([found.payload for found in blocks[: blocks.index(last) + 1]])[-1]

    def messages(self, stream: int) -> bytes:
        """Return what came of a stream."""
        return b"".join(found.payload for found in frames_of(self.received) if found[0::2] == (DATA, stream))
