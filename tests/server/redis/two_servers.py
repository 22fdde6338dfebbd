"""A gpkvs server that speaks the Redis protocol, and a real Redis beside it: the oracle."""

from __future__ import annotations

import socket
import ssl
import subprocess
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from gpkvs.bench.peers.ports import free_port
from gpkvs.client import Client
from tests.programs import require
from tests.serving import Server

DATABASE = 9
_START_SECONDS_MAX = 60


@contextmanager
def redis_server(folder: Path, *options: str) -> Iterator[int]:
    """Yield the port of a Redis of its own."""
    require("redis-server")
    port = free_port()
    place = ("--port", str(port), "--save", "", "--bind", "127.0.0.1", "--dir", str(folder))
    process = subprocess.Popen(["redis-server", *place, *options], stdout=subprocess.DEVNULL)
    try:
        until = time.monotonic() + _START_SECONDS_MAX
        while not _accepts(port):
            assert process.poll() is None, f"redis-server ended with {process.returncode}"
            assert time.monotonic() < until, "redis-server does not start"
            time.sleep(0.02)
        yield port
    finally:
        process.kill()
        process.wait()


def _accepts(port: int) -> bool:
    with suppress(OSError), socket.create_connection(("127.0.0.1", port)):
        return True
    return False


def resp_port(server: Server) -> int:
    """Return where a server speaks the Redis protocol."""
    [address] = server.resp_addresses
    return int(address.rpartition(":")[2])


def wait_for_connections(server: Server, wanted: int, *, seconds_max: float = 60) -> None:
    """Wait until a server has so many connections: it sees a client's end a little later than the client does."""
    until = time.monotonic() + seconds_max
    while (found := server.metric("gpkvs_redis_connections")) != wanted:
        assert time.monotonic() < until, f"{found} connections are open, wanted are {wanted}"
        time.sleep(0.01)


@contextmanager
def gpkvs_server(folder: Path) -> Iterator[int]:
    """Yield the port of a server that has the table of `DATABASE`; its store is checked afterwards."""
    server = Server(folder / "store", folder, "--resp", "127.0.0.1:0")
    try:
        with Client(server.target) as client:
            client.create_table(str(DATABASE))
        yield resp_port(server)
        server.stop()
    finally:
        server.kill()
    assert "Traceback" not in server.log.read_text()


class Connection:
    """A connection to either, inside TLS if there is a context for it; a reply may take so many seconds."""

    def __init__(self, port: int, tls: ssl.SSLContext | None = None, *, seconds: float = 20) -> None:
        self._socket = socket.create_connection(("127.0.0.1", port), timeout=seconds)
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        if tls:
            self._socket = tls.wrap_socket(self._socket, server_hostname="localhost")
        self._stream = self._socket.makefile("rb")

    def certificate(self) -> dict[str, Any]:
        """Return what the server has shown."""
        assert isinstance(self._socket, ssl.SSLSocket)
        return dict(self._socket.getpeercert() or {})

    def __enter__(self) -> Connection:
        return self

    def __exit__(self, *_: object) -> None:
        self._stream.close()
        self._socket.close()

    def send(self, *commands: Sequence[bytes]) -> None:
        """Send commands at once."""
        self.send_bytes(b"".join(map(encoded, commands)))

    def send_bytes(self, data: bytes) -> None:
        """Send what may be no command."""
        self._socket.sendall(data)

    def reply(self) -> Any:
        """Return the next reply: bytes of its line, or a bulk string, a push, a list, a dict, None. Raises EOFError."""
        line = self._stream.readline()
        if not line:
            raise EOFError
        kind, rest = line[:1], line[1:-2]
        match kind:
            case b"$" | b"=":
                size = int(rest)
                return None if size < 0 else ("bulk", self._stream.read(size + 2)[:-2])
            case b"*":
                return "null array" if rest == b"-1" else [self.reply() for _ in range(int(rest))]
            case b">":
                return ("push", [self.reply() for _ in range(int(rest))])
            case b"%":
                return {repr(self.reply()): self.reply() for _ in range(int(rest))}
            case b"_":
                return None
        return line

    def end(self) -> None:
        """Go away, also while another thread sends."""
        with suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)

    def call(self, *words: bytes) -> Any:
        """Send a command; return its reply."""
        self.send(words)
        return self.reply()


def encoded(words: Sequence[bytes]) -> bytes:
    """Return a command as bytes of the wire."""
    return b"*%d\r\n" % len(words) + b"".join(b"$%d\r\n%b\r\n" % (len(word), word) for word in words)
