"""The KV service: each call of Get, Set, Delete or Batch is one request, and each message of a Pipeline."""

from __future__ import annotations

import asyncio

import grpc

from gpkvs.batch import Op, Status
from gpkvs.errors import CorruptRecordError
from gpkvs.proto.v1 import kv_pb2
from gpkvs.server import codec
from gpkvs.server.codec import Response
from gpkvs.server.exporter import Metrics
from gpkvs.server.gate import Gate
from gpkvs.server.memory import Account
from gpkvs.server.pipeline import Pipeline
from gpkvs.server.receive import Receives
from gpkvs.server.rpc import Call
from gpkvs.text import quoted

_OK, _CORRUPT = int(Status.OK), int(Status.CORRUPT)


class KVService:
    """The methods of ``gpkvs.v1.KV``, by their names there.

    No method holds its message while it waits for the batcher: the message has a copy of each column.
    """

    def __init__(self, gate: Gate, receives: Receives, metrics: Metrics) -> None:
        self._gate = gate
        self._receives = receives
        self._metrics = metrics

    async def Get(self, message: kv_pb2.GetRequest, call: Call) -> kv_pb2.GetResponse:  # noqa: N802
        """Return the value of a key, if it is there."""
        key = message.key
        response = await self._submit(Op.GET, message.table, key, b"", call)
        if response.status[0] == _CORRUPT:
            raise CorruptRecordError(
                f"the record of key {quoted(key)} fails its check, no value is returned: stop the server "
                "and run `gpkvs check` on its directory"
            )
        return kv_pb2.GetResponse(
            found=response.status[0] == _OK, value=response.values, version=int.from_bytes(response.versions, "little")
        )

    async def Set(self, message: kv_pb2.SetRequest, call: Call) -> kv_pb2.SetResponse:  # noqa: N802
        """Store a value; it is durable when the response is sent."""
        submitted = self._submit(Op.SET, message.table, message.key, message.value, call)
        del message
        response = await submitted
        return kv_pb2.SetResponse(version=int.from_bytes(response.versions, "little"))

    async def Delete(self, message: kv_pb2.DeleteRequest, call: Call) -> kv_pb2.DeleteResponse:  # noqa: N802
        """Remove a key; it is gone durably when the response is sent."""
        response = await self._submit(Op.DELETE, message.table, message.key, b"", call)
        return kv_pb2.DeleteResponse(found=response.status[0] == _OK)

    async def Batch(self, message: kv_pb2.BatchRequest, call: Call) -> kv_pb2.BatchResponse:  # noqa: N802
        """Run operations in order, atomically."""
        serving = self._gate.serving()
        table = serving.store.open_table(message.table)
        request = codec.decode(message, table.limits, table.id, call.message_bytes)
        request_id = message.id
        del message
        response = await serving.batcher.submit(request, call.account, call.context.time_remaining())
        return codec.encode(request_id, response)

    async def Pipeline(self, context: grpc.aio.ServicerContext, account: Account) -> None:  # noqa: N802
        """Run batches one after the other, many in flight, and respond in their order."""
        serving = self._gate.serving()
        await Pipeline(self._gate, serving, self._receives, context, account, self._metrics).run()

    def _submit(self, op: Op, table: str, key: bytes, value: bytes, call: Call) -> asyncio.Future[Response]:
        """Queue a request of one operation."""
        serving = self._gate.serving()
        found = serving.store.open_table(table)
        request = codec.single(op, key, value, found.limits, found.id, call.message_bytes)
        return serving.batcher.submit(request, call.account, call.context.time_remaining())
