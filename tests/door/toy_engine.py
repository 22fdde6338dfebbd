"""An engine for a door's turns: each operation of each batch goes well, and finds nothing."""

from __future__ import annotations

import ctypes
import threading
from typing import Any

from gpkvs.engine.seam.engine_batch import Engine, EngineRefusal, EngineRoom
from gpkvs.engine.seam.left import Left
from gpkvs.errors import ConflictError
from gpkvs.server.door.left_batch import batch_of
from gpkvs.server.door.library import Library
from tests.native_calls import Durable, Run, Wait

DONE, LEFT, DUE = range(3)


class ToyEngine:
    """Runs the batches of a door; it must stay as long as there are turns.

    Parameters
    ----------
    library
        The door.
    operations_max
        Of a batch.
    never_waits
        Whether any thread may run a small batch.
    """

    def __init__(self, library: Library, operations_max: int = 1 << 20, *, never_waits: bool = True) -> None:
        self.request_ops: list[list[int]] = []  # of each batch: the operations of its requests
        self.threads: list[int] = []  # which ran it
        self.ends = DONE  # how batches end
        self.conflicts: list[tuple[int, ConflictError | Left]] = []  # of requests of the next batch, or what they lack
        self._calls = Run(self._run), Durable(lambda _: 0), Wait(lambda _, gate: None)
        addresses = (ctypes.cast(call, ctypes.c_void_p) for call in self._calls)
        self._engine = Engine(None, *addresses, None, operations_max, never_waits)
        library.set_engine(ctypes.addressof(self._engine))

    def _run(self, _: Any, given: Any, give_room: Any, sink: Any, *outs: Any) -> int:
        batch, room = batch_of(given.contents), EngineRoom()
        self.request_ops.append(batch.request_ops.tolist())
        self.threads.append(threading.get_native_id())
        if self.ends == LEFT:
            return LEFT
        conflicts, self.conflicts = self.conflicts, []
        done = len(batch) - sum(int(batch.request_ops[request]) for request, _ in conflicts)
        assert give_room(sink, done, 0, 0, len(conflicts), room)
        ctypes.memset(room.status, 0, done)
        ctypes.memset(room.versions, 0, 8 * done)
        for at, (request, error) in enumerate(conflicts):
            told = EngineRefusal(lacks=error) if isinstance(error, Left) else EngineRefusal.of(error)
            told.request = request
            room.refusals[at] = told
        requests, gate, has_versions = outs
        requests[0] = len(batch.request_ops)
        gate[0] = has_versions[0] = 0
        return self.ends
