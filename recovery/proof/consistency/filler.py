"""A client that makes the store work beside the history: its table grows, and its heap is compacted.

Its keys are its own, and nothing of it is recorded. It writes records to the table of the history until the heap is as
full as compaction allows, and overwrites and deletes them from then on.
"""

from __future__ import annotations

import asyncio
import math

import grpc
import numpy as np

from gpkvs.batch import Op
from gpkvs.config import DEFAULT_TABLE
from gpkvs.proto.v1 import admin_pb2, admin_pb2_grpc, kv_pb2, kv_pb2_grpc
from gpkvs.recovery.proof.drill.clients import channel

_REQUEST_OPS = 1024
_KEY_BYTES = 8
_VALUE_BYTES_MAX = 1_000
_FULL_SHARE = 0.9  # of what may be charged: more keys only below
_LOOK_REQUESTS = 5  # between two questions how full the heap is
_DELETED_SHARE = 0.05
_SECONDS_MAX = 30.0
_REFUSED_PAUSE_SECONDS = 0.01


class Filler:
    """The client.

    Parameters
    ----------
    seed
        Of its choices.

    Attributes
    ----------
    info : admin_pb2.InfoResponse
        What the server said about itself at the last look.
    doublings : int
        How often the index had doubled at the last look.
    moved_bytes : int
        What compaction had moved at the last look in each life of the server, in all.
    """

    def __init__(self, seed: int) -> None:
        self.info = admin_pb2.InfoResponse()
        self.doublings = 0
        self.moved_bytes = 0
        self._random = np.random.default_rng(seed)
        self._keys = _REQUEST_OPS
        self._slots = 0

    async def run(self, target: str) -> None:
        """Work until the server is gone, or the task is cancelled."""
        moved_before = self.moved_bytes
        async with channel(target) as connection:
            stub, admin = kv_pb2_grpc.KVStub(connection), admin_pb2_grpc.AdminStub(connection)
            try:
                while True:
                    await self._look(admin)
                    self.moved_bytes = moved_before + self.info.heap_moved_bytes
                    for _ in range(_LOOK_REQUESTS):
                        await self._write(stub)
            except grpc.aio.AioRpcError:
                return  # the server is gone

    async def _look(self, admin: admin_pb2_grpc.AdminStub) -> None:
        self.info = await admin.Info(admin_pb2.InfoRequest(), timeout=_SECONDS_MAX)
        slots = next(table.slots for table in self.info.tables if table.name == DEFAULT_TABLE)
        self._slots = self._slots or slots
        self.doublings = int(math.log2(slots / self._slots))

    async def _write(self, stub: kv_pb2_grpc.KVStub) -> None:
        """Send one request; a refusal for want of room is none of our business."""
        if self.info.heap_charged_bytes < _FULL_SHARE * self.info.heap_charged_bytes_max:
            self._keys += _REQUEST_OPS // 2
        rng = self._random
        key = rng.integers(0, self._keys, _REQUEST_OPS, np.uint32)
        is_set = rng.random(_REQUEST_OPS) >= _DELETED_SHARE
        lengths = np.where(is_set, rng.integers(0, _VALUE_BYTES_MAX, _REQUEST_OPS), 0).astype("<u4")
        request = kv_pb2.BatchRequest(
            ops=np.where(is_set, Op.SET, Op.DELETE).astype(np.uint8).tobytes(),
            keys=b"".join(b"fill" + number.to_bytes(4, "little") for number in key.tolist()),
            key_size=_KEY_BYTES,
            values=bytes(int(lengths.sum())),
            value_lengths=lengths[is_set].tobytes(),
        )
        try:
            await stub.Batch(request, timeout=_SECONDS_MAX)
        except grpc.aio.AioRpcError as error:
            if error.code() is not grpc.StatusCode.RESOURCE_EXHAUSTED:
                raise
            await asyncio.sleep(_REFUSED_PAUSE_SECONDS)
