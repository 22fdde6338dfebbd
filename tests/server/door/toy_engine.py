"""An engine for a door's turns: each operation of each batch goes well, and finds nothing."""

from __future__ import annotations

import ctypes
import threading
from typing import Any

from gpkvs.engine.engine_batch import EngineBatch, EngineRefusal
from gpkvs.engine.left import Left
from gpkvs.errors import ConflictError
from gpkvs.server.door.left_batch import batch_of
from gpkvs.server.door.library import Library

DONE, LEFT, DUE = range(3)
_Address, _U64 = ctypes.c_void_p, ctypes.c_uint64


class _Room(ctypes.Structure):
    _fields_ = [
        (name, _Address)
        for name in ("status", "versions", "value_lengths", "values", "refusals", "places", "place_bytes", "blobs")
    ] + [("blob_count", _U64)]


_GivesRoom = ctypes.CFUNCTYPE(ctypes.c_bool, _Address, _U64, _U64, _U64, _U64, ctypes.POINTER(_Room))
_Run = ctypes.CFUNCTYPE(
    ctypes.c_int,
    _Address,
    ctypes.POINTER(EngineBatch),
    _GivesRoom,
    _Address,
    ctypes.POINTER(_U64),
    ctypes.POINTER(_U64),
    ctypes.POINTER(_U64),
)
_Durable = ctypes.CFUNCTYPE(_U64, _Address)
_Wait = ctypes.CFUNCTYPE(None, _Address, _U64)


class _Engine(ctypes.Structure):
    """``struct Engine`` of gpkvs/kernels/engine_batch.h."""

    _fields_ = [
        ("self", _Address),
        ("run", _Run),
        ("durable", _Durable),
        ("wait", _Wait),
        ("reserve", _Address),
        ("operations_max", _U64),
        ("never_waits", ctypes.c_bool),
        ("planned_ns", _Address),
    ]


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
        calls = _Run(self._run), _Durable(lambda _: 0), _Wait(lambda _, gate: None)
        self._engine = _Engine(None, *calls, None, operations_max, never_waits)
        library.set_engine(ctypes.addressof(self._engine))

    def _run(self, _: Any, given: Any, give_room: Any, sink: Any, *outs: Any) -> int:
        batch, room = batch_of(given.contents), _Room()
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
            (EngineRefusal * len(conflicts)).from_address(room.refusals)[at] = told
        requests, gate, has_versions = outs
        requests[0] = len(batch.request_ops)
        gate[0] = has_versions[0] = 0
        return self.ends
