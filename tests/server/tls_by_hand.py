"""A client of TLS whose records a test sends when and as it likes, and which can say the end before it has read all."""

from __future__ import annotations

import socket
import ssl
import time
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from typing import Any


class Tls:
    """A client's side of TLS, whose bytes a test sends when it likes."""

    def __init__(self, context: ssl.SSLContext, connection: socket.socket) -> None:
        self._connection = connection
        self._in, self._out = ssl.MemoryBIO(), ssl.MemoryBIO()
        self._tls = context.wrap_bio(self._in, self._out, server_hostname="localhost")
        self._step(self._tls.do_handshake)

    def _step(self, step: Callable[[], Any]) -> Any:
        while True:
            try:
                return step()
            except ssl.SSLWantReadError:
                self.flush()
                data = self._connection.recv(1 << 16)
                self._in.write(data) if data else self._in.write_eof()
            finally:
                self.flush()

    def write(self, data: bytes) -> None:
        """Make records of it, one for each 16 KiB."""
        self._tls.write(data)

    def say_the_end(self) -> None:
        """Say that nothing comes any more."""
        with suppress(ssl.SSLWantReadError):  # the other side has not said so
            self._tls.unwrap()

    def flush(self) -> None:
        """Send what was written, at once."""
        if self._out.pending:
            self._connection.sendall(self._out.read())

    def flush_in_two(self) -> None:
        """Send it in two pieces."""
        data = self._out.read()
        for piece in (data[:7], data[7:]):
            self._connection.sendall(piece)
            time.sleep(0.001)

    def read(self, size: int) -> bytes:
        """Return so many bytes, or fewer at the end."""
        data = b""
        with suppress(ssl.SSLZeroReturnError):
            while left := size - len(data):
                data += self._step(partial(self._tls.read, left))
        return data
