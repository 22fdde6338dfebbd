"""The KV service: each call but Scan, Count and Watch is one request, and each message of a Pipeline."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Iterator, Sequence
from typing import TYPE_CHECKING

import numpy as np

from gpkvs.batch import Op, Status
from gpkvs.errors import (
    CorruptRecordError,
    InvalidArgumentError,
    NoSpaceError,
    NotANumberError,
    NumberOverflowError,
)
from gpkvs.proto.v1 import kv_pb2
from gpkvs.server.access.caller import Caller
from gpkvs.server.access.login import Logins
from gpkvs.server.account.memory import Account
from gpkvs.server.call_types import CallContext
from gpkvs.server.calls import codec
from gpkvs.server.calls.options import Options, options_of
from gpkvs.server.calls.pipeline import Pipeline
from gpkvs.server.calls.receives import Receives
from gpkvs.server.calls.rpc import Call
from gpkvs.server.calls.scan import Scans
from gpkvs.server.gate import Gate
from gpkvs.server.signs.exporter import Metrics
from gpkvs.server.threads import NoThreadError
from gpkvs.text import quoted

if TYPE_CHECKING:
    from gpkvs.server.calls.watch import Watches

_OK, _CORRUPT = int(Status.OK), int(Status.CORRUPT)
# The event loop makes a message of each value: 10 ms for so many.
_MULTI_GET_KEYS_MAX = 16_384


class KVService:
    """The methods of ``gpkvs.v1.KV``, by their names there.

    The door serves what is plain of them (`door/grpc/kv.hpp`), and hands the rest on. No method holds its message while
    it waits for the queue, which has a copy.
    """

    def __init__(self, logins: Logins, gate: Gate, receives: Receives, metrics: Metrics) -> None:
        self._logins = logins
        self._gate = gate
        self._receives = receives
        self._metrics = metrics
        self._scans = Scans(gate, metrics)
        self._watches: Watches | None = None

    async def Get(self, message: kv_pb2.GetRequest, call: Call) -> kv_pb2.GetResponse:  # noqa: N802
        """Return the value of a key, if it is there."""
        key = message.key
        response = await self._submit(Op.GET, message.table, key, call)
        _require_sound(response, [key])
        return kv_pb2.GetResponse(
            found=response.status[0] == _OK, value=response.values, version=int.from_bytes(response.versions, "little")
        )

    async def Set(self, message: kv_pb2.SetRequest, call: Call) -> kv_pb2.SetResponse:  # noqa: N802
        """Store a value; it is durable when the response is sent."""
        options = options_of(
            self._gate.serving().now_ms,
            condition=message.condition,
            expected=message.expected,
            expiry_ms=message.expiry_ms,
            ttl_ms=message.ttl_ms,
        )
        submitted = self._submit(Op.SET, message.table, message.key, call, message.value, options)
        del message
        response = await submitted
        return kv_pb2.SetResponse(
            version=int.from_bytes(response.versions, "little"), status=kv_pb2.Status.ValueType(response.status[0])
        )

    async def Delete(self, message: kv_pb2.DeleteRequest, call: Call) -> kv_pb2.DeleteResponse:  # noqa: N802
        """Remove a key; it is gone durably when the response is sent."""
        options = options_of(self._gate.serving().now_ms, condition=message.condition, expected=message.expected)
        response = await self._submit(Op.DELETE, message.table, message.key, call, options=options)
        return kv_pb2.DeleteResponse(
            found=response.status[0] == _OK,
            version=int.from_bytes(response.versions, "little"),
            status=kv_pb2.Status.ValueType(response.status[0]),
        )

    async def Increment(self, message: kv_pb2.IncrementRequest, call: Call) -> kv_pb2.IncrementResponse:  # noqa: N802
        """Add to the number of a key; the sum is durable when the response is sent."""
        key, delta = message.key, message.delta.to_bytes(8, "little", signed=True)
        options = options_of(self._gate.serving().now_ms, ttl_ms=message.ttl_ms)
        response = await self._submit(Op.INCREMENT, message.table, key, call, delta, options)
        _require_sound(response, [key])
        match response.status[0]:
            case Status.NOT_A_NUMBER:
                raise NotANumberError
            case Status.OVERFLOW:
                raise NumberOverflowError
        return kv_pb2.IncrementResponse(
            number=int.from_bytes(response.values, "little", signed=True),
            version=int.from_bytes(response.versions, "little"),
        )

    async def MultiGet(self, message: kv_pb2.MultiGetRequest, call: Call) -> kv_pb2.MultiGetResponse:  # noqa: N802
        """Return the values of some keys, all as of one moment."""
        if len(message.keys) > _MULTI_GET_KEYS_MAX:
            raise InvalidArgumentError(
                f"{len(message.keys):,} keys, at most {_MULTI_GET_KEYS_MAX:,} are read at once: Batch reads more",
                field="keys",
            )
        serving = self._gate.serving()
        table, keys = serving.store.open_table(message.table), list(message.keys)
        request = kv_pb2.BatchRequest(
            table=table.name,
            ops=bytes([Op.GET]) * len(keys),
            keys=b"".join(keys),
            key_lengths=np.fromiter(map(len, keys), "<u4", len(keys)).tobytes(),
        )
        del message
        codec.check(request, table.limits, serving.now_ms)
        submitted = serving.queue.submit(request, table.id, call.account, call.context.time_remaining())
        del request
        response = await submitted
        _require_sound(response, keys)
        results = kv_pb2.MultiGetResponse(results=_get_responses(response))
        if results.ByteSize() > serving.message_bytes_max:
            raise InvalidArgumentError("the values do not fit one message: ask for fewer keys", field="keys")
        return results

    async def Batch(self, message: kv_pb2.BatchRequest, call: Call) -> kv_pb2.BatchResponse:  # noqa: N802
        """Run operations in order: one request, or several, each of which is atomic and fails by itself."""
        serving = self._gate.serving()
        table = codec.table_of(message, serving.store)
        if message.request_ops:
            codec.check_requests(message, serving.message_bytes_max)
        codec.check(message, table.limits, serving.now_ms)
        submitted = serving.queue.submit(message, table.id, call.account, call.context.time_remaining())
        del message
        return await submitted

    async def Pipeline(self, context: CallContext, caller: Caller, account: Account) -> None:  # noqa: N802
        """Run batches one after the other, many in flight, and respond in their order."""
        serving = self._gate.serving()
        await Pipeline(self._logins, serving, self._receives, context, caller, account, self._metrics).run()

    def Scan(self, message: kv_pb2.ScanRequest, call: Call) -> AsyncGenerator[kv_pb2.ScanResponse, None]:  # noqa: N802
        """Return all keys of a table, in pieces."""
        return self._scans.scan(message, call.caller, call.account)

    def Watch(  # noqa: N802
        self, message: kv_pb2.WatchRequest, call: Call
    ) -> AsyncGenerator[kv_pb2.WatchResponse, None]:
        """Return what changes, until the client has enough."""
        return self._begun_watches().watch(message, call.caller, call.account)

    def _begun_watches(self) -> Watches:
        """Return what all watches share. Its threads and its module come with the first one: few servers have any.

        Raises
        ------
        NoSpaceError
            If the system gives no thread.
        """
        if self._watches is None:
            from gpkvs.server.calls.watch import Watches  # noqa: PLC0415

            try:
                self._watches = Watches(self._gate, self._metrics)
            except NoThreadError as error:
                raise NoSpaceError("memory", str(error)) from error
        return self._watches

    async def Count(self, message: kv_pb2.CountRequest, call: Call) -> kv_pb2.CountResponse:  # noqa: N802
        """Return how many keys a table has; with a prefix they are scanned for."""
        return kv_pb2.CountResponse(count=await self._scans.count(message, call.caller))

    def _submit(
        self, op: Op, table: str, key: bytes, call: Call, value: bytes = b"", options: Options | None = None
    ) -> asyncio.Future[kv_pb2.BatchResponse]:
        """Queue a request of one operation."""
        serving = self._gate.serving()
        found = serving.store.open_table(table)
        request = codec.single(op, key, value, found.limits, options)
        request.table = found.name
        return serving.queue.submit(request, found.id, call.account, call.context.time_remaining())


def _require_sound(response: kv_pb2.BatchResponse, keys: Sequence[bytes]) -> None:
    """Refuse to return what fails its checksum."""
    corrupt = response.status.find(_CORRUPT)
    if corrupt >= 0:
        raise CorruptRecordError(
            f"the record of key {quoted(keys[corrupt])} fails its check, no value is returned: stop the server "
            "and run `gpkvs check` on its directory"
        )


def _get_responses(response: kv_pb2.BatchResponse) -> Iterator[kv_pb2.GetResponse]:
    """Cut the columns of a response to GETs."""
    lengths, values = np.frombuffer(response.value_lengths, "<u4").tolist(), response.values
    versions = np.frombuffer(response.versions, "<u8").tolist() if response.versions else [0] * len(lengths)
    end = 0
    for status, length, version in zip(response.status, lengths, versions, strict=True):
        end += length
        yield kv_pb2.GetResponse(found=status == _OK, value=values[end - length : end], version=version)
