"""Large values in a server of the Redis protocol, on one connection."""

from __future__ import annotations

from gpkvs.bench.peers.contender import BenchError
from gpkvs.bench.peers.resp_port import RespPort

_READ_BYTES = 1 << 20


class RespValues:
    """A server as a store of large values.

    Parameters
    ----------
    name, version, settings
        What the server is.
    port
        Where it listens.
    """

    def __init__(self, name: str, version: str, settings: str, port: RespPort) -> None:
        self.name, self.version, self.settings = name, version, settings
        self._connection = port.connect()
        self._received = self._connection.makefile("rb", _READ_BYTES)

    def set_one(self, key: bytes, value: bytes) -> None:
        """Store one value."""
        self._connection.sendall(b"*3\r\n$3\r\nSET\r\n$%d\r\n%b\r\n$%d\r\n" % (len(key), key, len(value)))
        self._connection.sendall(value)
        self._connection.sendall(b"\r\n")
        self._require(b"+OK\r\n", self._received.readline())

    def get_one(self, key: bytes) -> bytes:
        """Read one value."""
        self._connection.sendall(b"*2\r\n$3\r\nGET\r\n$%d\r\n%b\r\n" % (len(key), key))
        head = self._received.readline()
        if not head.startswith(b"$"):
            raise BenchError(f"{self.name} answered a GET by {head[:80]!r}")
        value: bytes = self._received.read(int(head[1:]))
        self._require(b"\r\n", self._received.read(2))
        return value

    def _require(self, wanted: bytes, got: bytes) -> None:
        if got != wanted:
            raise BenchError(f"{self.name} answered by {got[:80]!r}")

    def settle(self) -> None:
        """Return at once: a server tidies up by itself."""

    def close(self) -> None:
        """Close the connection."""
        self._received.close()
        self._connection.close()
