"""A client that breaks every rule, on keys that nobody counts on."""

from __future__ import annotations

import random
import socket
from collections import Counter

import h2.exceptions

from tests.door.http2_client import Http2Client
from tests.served.grpc_client import EndedError
from tests.server.redis.two_servers import encoded
from tests.tools.fuzz_doors import call_of, run
from tests.tools.fuzz_redis import COMMANDS, PIECES, VALUES

SILENCE_SECONDS = 0.02
KEYS = (b"a", b"b", b"key0", b"\r\n\0\xff", b"k" * 4096)


class HostileClient:
    """It sends what is broken, goes away in the middle, and reads only what it likes."""

    def __init__(self, number: int, seed: int, counts: Counter[str]) -> None:
        self.random = random.Random(seed + number)
        self.counts = counts

    def connect(self, target: str, address: str) -> None:
        """Begin to speak with a server."""
        self._target, self._resp = target, address
        try:
            self._calls = Http2Client(target)
        except OSError as error:
            raise EndedError from error

    def close(self) -> None:
        """End the connection."""
        self._calls.__exit__()

    def settle(self) -> None:
        """Count on nothing."""

    def step(self) -> None:
        """Do one thing that nobody should.

        Raises
        ------
        EndedError
            If the server went away.
        """
        kind = self.random.choice((self._call, self._call, self._call, self._commands, self._bytes))
        self.counts[f"hostile {kind.__name__[1:]}"] += 1
        try:
            kind()
        except (OSError, h2.exceptions.ProtocolError) as error:
            if isinstance(error, TimeoutError):
                raise
            raise EndedError from error

    def _call(self) -> None:
        """Make a call that may be broken."""
        if self._calls.is_closed:
            self._calls = Http2Client(self._target)
        run(self._calls, self._target, call_of(self.random))

    def _commands(self) -> None:
        """Send commands, right and wrong, cut anywhere; read some of the replies, or none."""
        sent = b"".join(self._piece() for _ in range(self.random.randrange(1, 30)))
        self._send(self._resp, sent)

    def _piece(self) -> bytes:
        random = self.random
        if random.random() < 0.1:
            return random.choice(PIECES)
        words = [
            random.choice(KEYS) if word == b"K" else random.choice(VALUES) if word in (b"V", b"N", b"T") else word
            for word in random.choice(COMMANDS)
        ]
        data = encoded(words)
        if random.random() < 0.1:
            at = random.randrange(len(data))
            data = data[:at] + random.randbytes(random.randrange(4)) + data[at + random.randrange(4) :]
        return data

    def _bytes(self) -> None:
        """Send bytes that are no protocol."""
        preface = self.random.choice(
            (b"", b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", b"GET / HTTP/1.1\r\n\r\n", b"\x16\x03\x01")
        )
        address = self.random.choice((self._target, self._resp))
        self._send(address, preface + self.random.randbytes(self.random.randrange(300)))

    def _send(self, address: str, data: bytes) -> None:
        host, _, port = address.rpartition(":")
        with socket.create_connection((host, int(port)), timeout=60) as connection:
            at = 0
            try:
                while at < len(data):
                    size = self.random.choice((1, 10, 1000, 100_000))
                    connection.sendall(data[at : at + size])
                    at += size
                if self.random.random() < 0.7:
                    connection.settimeout(SILENCE_SECONDS)
                    while connection.recv(1 << 16):
                        pass
            except (TimeoutError, ConnectionResetError, BrokenPipeError):
                return  # the server has closed it, as it should, or waits for more
