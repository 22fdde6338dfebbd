"""A door whose turns a test runs, and whose Python side says what it was handed."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import grpc
import numpy as np

from gpkvs.batch import RETURNS_VALUE, Status
from gpkvs.config import Limits
from gpkvs.media.layout import BYTES_LAYOUT
from gpkvs.proto.v1 import kv_pb2, kv_pb2_grpc
from gpkvs.server.door.left_batch import Results
from gpkvs.server.door.library import Event, EventKind, Turn
from gpkvs.store import OpenTable
from tests.door.echo import Echo

PYTHON = "Python's"
VALUE = b"a value"


class HeldDoor(Echo):
    """Serves KV on a table that there is not: the engine is the test.

    Python answers each message of a Pipeline with its id and `PYTHON`, and any other call with `PYTHON` as its status.
    """

    def __init__(self, **settings: float) -> None:
        self.handed: list[tuple[str, bytes]] = []  # methods and messages, in their order
        super().__init__(**settings)
        self.library.set_tables([OpenTable(0, "default", BYTES_LAYOUT.name, Limits(value_bytes_max=16 << 20))])
        self.library.open()

    @contextmanager
    def client(self) -> Iterator[kv_pb2_grpc.KVStub]:
        """Connect."""
        with grpc.insecure_channel(self.target) as channel:
            yield kv_pb2_grpc.KVStub(channel)

    def wait(self, condition: Callable[[], bool]) -> None:
        """Wait until something is true, with or without an event."""
        end = time.monotonic() + 10
        while not condition():
            assert time.monotonic() < end, "waited 10 s in vain"
            time.sleep(0.002)

    def wait_for_requests(self, count: int) -> None:
        """Wait until so many requests wait for the engine."""
        self.wait(lambda: self.library.waiting() == count)

    def drop_all(self) -> None:
        """Run turns until nothing waits: the door itself says what becomes of it."""
        self.wait(lambda: self.library.turn(0) is Turn.IDLE and not self.library.waiting())

    def leave(self) -> None:
        """Run a turn that leaves a batch."""
        assert self.library.turn(10) is Turn.LEFT

    def execute(self, status: Status = Status.OK, gate: int = 0) -> None:
        """Run a turn, and say of all its operations that this became of them; they are durable with their gate."""
        self.leave()
        self.execute_left(status, gate)

    def execute_left(self, status: Status = Status.OK, gate: int = 0) -> None:
        """Say so of a batch that was left."""
        batch = self.library.left()
        returning = int(np.count_nonzero(RETURNS_VALUE[batch.ops]))
        found = returning if status is Status.OK else 0
        results = Results(
            np.full(len(batch), status, np.uint8),
            np.arange(len(batch), dtype=np.uint64),
            np.full(returning, len(VALUE) if found else 0, np.uint32),
            np.frombuffer(VALUE * found, np.uint8),
        )
        self.library.left_done(len(batch.request_ops), results, gate)

    def _take(self, event: Event) -> None:
        library, call = self.library, event.call
        if event.opened:
            self.opened[call] = event.opened
        method = self.opened[call].path.rpartition("/")[2]
        match event.kind, method:
            case EventKind.OPEN, _:
                library.ask(call)
            case EventKind.MESSAGE, "Pipeline":
                self.handed.append((method, event.message))
                request = kv_pb2.BatchRequest.FromString(event.message)
                library.respond(call, kv_pb2.BatchResponse(id=request.id, message=PYTHON).SerializeToString())
            case EventKind.SENT, "Pipeline":
                library.ask(call)
            case EventKind.MESSAGE, _:
                self.handed.append((method, event.message))
                library.finish(call, 15, PYTHON, [])
            case EventKind.HALF_CLOSED, "Pipeline":
                library.finish(call, 0, "", [])
            case EventKind.OVER, _:
                self.over.add(call)
