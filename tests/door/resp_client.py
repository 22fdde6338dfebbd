"""A client of a RESP port, the engine, and Python's side of the client's connection: a test is all three."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np

from gpkvs.batch import Op
from gpkvs.config import Limits
from gpkvs.server.door.left_batch import Results
from gpkvs.server.door.library import Library, Turn
from tests.door.resp_door import PythonSide, answers, bare_door, command, connect

VALUE = b"a value"
LIMITS = Limits(key_bytes_max=100, value_bytes_max=5000, request_ops_max=50)


class Client:
    """A client, and what it talks to."""

    def __init__(self, library: Library, connection: socket.socket) -> None:
        self.library = library
        self.connection = connection
        self.python = PythonSide(library)

    def send(self, *commands: list[bytes]) -> None:
        """Send commands, at once."""
        self.connection.sendall(b"".join(command(*words) for words in commands))

    def ask(self, *words: bytes) -> bytes:
        """Send a command that the door answers by itself."""
        self.send([*words])
        return answers(self.connection, 1)

    def rest(self) -> bytes:
        """Read until the door closes the connection."""
        with self.connection.makefile("rb") as stream:
            return stream.read()

    def execute(self) -> list[tuple[Op, bytes]]:
        """Run a batch in which everything is found; return its operations."""
        turn = self.library.turn(10)
        assert turn is Turn.LEFT, turn
        return self.execute_left()

    def execute_left(self) -> list[tuple[Op, bytes]]:
        """Say so of a batch that was left."""
        batch = self.library.left()
        gets = int(np.count_nonzero(batch.ops == Op.GET.value))
        ends = np.cumsum(batch.key_lengths)
        keys = [batch.keys[end - size : end].tobytes() for end, size in zip(ends, batch.key_lengths, strict=True)]
        found = [(Op(op), key) for op, key in zip(batch.ops.tolist(), keys, strict=True)]
        lengths, values = np.full(gets, len(VALUE), np.uint32), np.frombuffer(VALUE * gets, np.uint8)
        self.library.left_done(
            len(batch.request_ops), Results(np.zeros(len(batch), np.uint8), None, lengths, values), 0
        )
        return found

    def is_silent(self) -> bool:
        """Return whether nothing happens that Python or the engine would see."""
        return self.python.next(0.05) is None and self.library.waiting() == 0


@contextmanager
def client(**settings: int) -> Iterator[Client]:
    """Yield a client of a door with these settings."""
    with bare_door(LIMITS, **settings) as (library, port), connect(port) as connection:
        yield Client(library, connection)
