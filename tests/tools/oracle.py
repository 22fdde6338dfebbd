"""The native door's oracle: gRPC's own server over an embedded store, with its own decoding.

`fuzz_doors.py` makes the same calls to both. The oracle has the methods of ``gpkvs.v1.KV`` that make requests, and
Count. It has no logins, and bounds neither memory nor time. Of what it refuses itself it gives the status and no text:
all texts are the store's.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from itertools import accumulate, pairwise
from pathlib import Path
from typing import Any, Final, NamedTuple

import grpc
import numpy as np
from google.protobuf.message import DecodeError, Message

import gpkvs
from gpkvs.batch import Batch, RequestResult
from gpkvs.errors import ConflictError, GpkvsError, InvalidArgumentError, NoSpaceError, UnknownTableError
from gpkvs.proto.v1 import kv_pb2
from gpkvs.request_checks import check_key_bytes, check_value_bytes

GET, SET, DELETE, INCREMENT, APPEND, ADD = 1, 2, 3, 5, 6, 10
HAS_VALUE = (SET, INCREMENT, APPEND, ADD)
OK, CORRUPT, CONDITION_FAILED, OVERFLOW, NOT_A_NUMBER = 0, 2, 3, 4, 5
INVALID_ARGUMENT, OUT_OF_RANGE, UNIMPLEMENTED, DATA_LOSS, FAILED_PRECONDITION = 3, 11, 12, 15, 9
NOT_DONE: Final = {CORRUPT: DATA_LOSS, OVERFLOW: OUT_OF_RANGE, NOT_A_NUMBER: FAILED_PRECONDITION}
CODES: Final = ((UnknownTableError, 5), (InvalidArgumentError, 3), (NoSpaceError, 8), (ConflictError, 10))
CONDITION_MAX, REQUESTS_MAX, TIME_MAX = 3, 1024, (1 << 64) - 1


class RefusedError(Exception):
    """What the oracle refuses itself."""

    def __init__(self, code: int = INVALID_ARGUMENT) -> None:
        self.code = code


class Operation(NamedTuple):
    """One operation of a request."""

    op: int
    key: bytes
    value: bytes = b""
    condition: int = 0
    expected: int | None = None
    expiry_ms: int = 0


class Oracle:
    """A server of a new store.

    Parameters
    ----------
    path
        The store's directory.
    sizes
        What `gpkvs.open` takes beside it.
    """

    def __init__(self, path: Path, **sizes: Any) -> None:
        self.store = gpkvs.open(path, **sizes)
        names = ("Get", "MultiGet", "Set", "Delete", "Increment", "Batch", "Count")
        handlers = {
            name: grpc.stream_unary_rpc_method_handler(
                partial(_only, getattr(self, name), getattr(kv_pb2, f"{name}Request"))
            )
            for name in names
        } | {"Pipeline": grpc.stream_stream_rpc_method_handler(self._pipeline)}
        self._server = grpc.server(ThreadPoolExecutor(2), options=[("grpc.so_reuseport", 0)])
        self._server.add_generic_rpc_handlers([grpc.method_handlers_generic_handler("gpkvs.v1.KV", handlers)])
        self.target = f"127.0.0.1:{self._server.add_insecure_port('127.0.0.1:0')}"
        self._server.start()

    def stop(self) -> None:
        """End all calls and close the store."""
        self._server.stop(None).wait()
        self.store.close()

    # The methods of the contract, by their names there.

    def Get(self, message: kv_pb2.GetRequest) -> kv_pb2.GetResponse:  # noqa: N802
        check_key_bytes(len(message.key), self.store.open_table(message.table).limits)
        return self._read(message.table, [message.key])[0]

    def MultiGet(self, message: kv_pb2.MultiGetRequest) -> kv_pb2.MultiGetResponse:  # noqa: N802
        return kv_pb2.MultiGetResponse(results=self._read(message.table, message.keys))

    def Set(self, message: kv_pb2.SetRequest) -> kv_pb2.SetResponse:  # noqa: N802
        expiry_ms = self._expiry(message.expiry_ms, message.ttl_ms)
        operation = Operation(SET, message.key, message.value, message.condition, message.expected, expiry_ms)
        result = self._write(message.table, operation)
        return kv_pb2.SetResponse(version=int(result.versions[0]), status=int(result.status[0]))

    def Delete(self, message: kv_pb2.DeleteRequest) -> kv_pb2.DeleteResponse:  # noqa: N802
        operation = Operation(DELETE, message.key, b"", message.condition, message.expected)
        result = self._write(message.table, operation)
        status = int(result.status[0])
        return kv_pb2.DeleteResponse(found=status == OK, version=int(result.versions[0]), status=status)

    def Increment(self, message: kv_pb2.IncrementRequest) -> kv_pb2.IncrementResponse:  # noqa: N802
        delta, expiry_ms = struct.pack("<q", message.delta), self._expiry(0, message.ttl_ms)
        result = self._write(message.table, Operation(INCREMENT, message.key, delta, expiry_ms=expiry_ms))
        if code := NOT_DONE.get(int(result.status[0])):
            raise RefusedError(code)
        (number,) = struct.unpack("<q", result.values.tobytes())
        return kv_pb2.IncrementResponse(number=number, version=int(result.versions[0]))

    def Count(self, message: kv_pb2.CountRequest) -> kv_pb2.CountResponse:  # noqa: N802
        return kv_pb2.CountResponse(count=self.store.count(message.prefix, table=message.table))

    def Batch(self, message: kv_pb2.BatchRequest) -> kv_pb2.BatchResponse:  # noqa: N802
        table = self.store.open_table(message.table).require_layout(message.layout)
        if message.numbers:
            table.require_numbers()
        counts = _numbers(message.request_ops, "I")
        is_whole = all(counts) and sum(counts) == len(message.ops) and len(counts) <= REQUESTS_MAX
        if counts and (not is_whole or GET in message.ops):
            raise RefusedError
        batch = _columns(self._operations(message), counts)
        batch.validate(table.limits)  # if anything is wrong with any of them, none is executed
        done = self.store.execute_requests(batch.on_table(table.id))
        assert done.requests == len(batch.request_ops)
        if done.rejected and not counts:
            raise done.rejected[0]
        results = [done.request(number) for number in range(done.requests) if number not in done.rejected]
        response = _response(message.id, results, has_versions=table.layout != "u64")
        failures = sorted(done.rejected.items())
        response.failures.extend(kv_pb2.RequestFailure(request=number, **_told(error)) for number, error in failures)
        return response

    def _pipeline(self, messages: Iterator[bytes], context: grpc.ServicerContext) -> Iterator[bytes]:
        for data in messages:
            yield _answer(self._step, kv_pb2.BatchRequest, data, context)

    def _step(self, message: kv_pb2.BatchRequest) -> kv_pb2.BatchResponse:
        """Return the response to a message of a Pipeline, or why it failed: the stream goes on."""
        try:
            if message.request_ops:
                raise RefusedError
            return self.Batch(message)
        except (GpkvsError, RefusedError) as error:
            return kv_pb2.BatchResponse(id=message.id, **_told(error))

    def _operations(self, message: kv_pb2.BatchRequest) -> list[Operation]:
        """Cut the columns of a message."""
        ops, count = message.ops, len(message.ops)
        keys = iter(_cut(message.keys, message.key_lengths, message.key_size, count))
        with_value = sum(op in HAS_VALUE for op in ops)
        values = iter(_cut(message.values, message.value_lengths, message.value_size, with_value))
        conditions = list(message.conditions) or [0] * count
        expected = _numbers(message.expected, "Q") or [None] * count
        expiries, ttls = _numbers(message.expiries, "Q"), _numbers(message.ttls, "Q")
        if expiries and ttls:
            raise RefusedError
        expiries = expiries or [self._expiry(0, ttl) for ttl in ttls] or [0] * count
        if {len(conditions), len(expected), len(expiries)} != {count}:
            raise RefusedError
        return [
            Operation(op, next(keys), next(values) if op in HAS_VALUE else b"", *rest)
            for op, *rest in zip(ops, conditions, expected, expiries, strict=True)
        ]

    def _expiry(self, expiry_ms: int, ttl_ms: int) -> int:
        """Return when something expires."""
        if (expiry_ms and ttl_ms) or self.store.now_ms + ttl_ms > TIME_MAX:
            raise RefusedError
        return self.store.now_ms + ttl_ms if ttl_ms else expiry_ms

    def _write(self, table: str, operation: Operation) -> RequestResult:
        """Run one operation."""
        if not 0 <= operation.condition <= CONDITION_MAX:
            raise RefusedError
        limits = self.store.open_table(table).limits
        check_key_bytes(len(operation.key), limits)
        if operation.op in HAS_VALUE:
            check_value_bytes(len(operation.value), limits)
        return self.store.execute(_columns([operation]), table=table)

    def _read(self, table: str, keys: Sequence[bytes]) -> list[kv_pb2.GetResponse]:
        """Read keys as of one moment."""
        result = self.store.execute(_columns([Operation(GET, key) for key in keys]), table=table)
        if CORRUPT in result.status:
            raise RefusedError(DATA_LOSS)
        rows = zip(result.status.tolist(), result.value_list(), result.versions.tolist(), strict=True)
        return [kv_pb2.GetResponse(found=status == OK, value=value, version=version) for status, value, version in rows]


Run = Callable[[Any], Message]


def _only(run: Run, request: type[Message], messages: Iterator[bytes], context: grpc.ServicerContext) -> bytes:
    """Answer the first message of a call."""
    return _answer(run, request, next(messages, None), context)


def _answer(run: Run, request: type[Message], data: bytes | None, context: grpc.ServicerContext) -> bytes:
    """Return the response to a message, or end the call with why there is none."""
    try:
        if data is None:
            raise RefusedError(UNIMPLEMENTED)
        return run(request.FromString(data)).SerializeToString()
    except (GpkvsError, RefusedError, DecodeError) as error:
        told = _told(error)
        trailing = [] if told["code"] == DATA_LOSS else [("gpkvs-executed", "no")]
        names = ("full", "gpkvs-full"), ("failed_check", "gpkvs-failed-check"), ("found", "gpkvs-found")
        trailing += [(name, str(told[field])) for field, name in names if told.get(field) is not None]
        context.set_trailing_metadata(trailing)
        context.abort(next(code for code in grpc.StatusCode if code.value[0] == told["code"]), told["message"])


def _told(error: Exception) -> dict[str, Any]:
    """Return an error as a `RequestFailure` has it."""
    match error:
        case RefusedError():
            return {"code": error.code, "message": ""}
        case DecodeError():
            return {"code": INVALID_ARGUMENT, "message": ""}
    told = {"code": next(code for kind, code in CODES if isinstance(error, kind)), "message": str(error)}
    match error:
        case NoSpaceError():
            return told | {"full": error.resource}
        case ConflictError():
            return told | {"failed_check": error.index, "found": error.found}
    return told


def _numbers(column: bytes, kind: str) -> list[Any]:
    """Return the numbers of a column."""
    if len(column) % struct.calcsize(kind):
        raise RefusedError
    return [number for (number,) in struct.iter_unpack(f"<{kind}", column)]


def _cut(column: bytes, lengths: bytes, size: int, count: int) -> list[bytes]:
    """Return the strings of a column."""
    sizes = _numbers(lengths, "I") if lengths else [size] * count
    if (lengths and size) or len(sizes) != count or sum(sizes) != len(column):
        raise RefusedError
    return [column[begin:end] for begin, end in pairwise(accumulate(sizes, initial=0))]


def _columns(operations: Sequence[Operation], counts: Sequence[int] = ()) -> Batch:
    """Return operations as the store takes them: one request, or several of so many operations."""
    ops, keys, values, conditions, expected, expiries = zip(*operations, strict=True) if operations else [()] * 6
    values = [value for op, value in zip(ops, values, strict=True) if op in HAS_VALUE]
    has_expected = any(conditions) and None not in expected
    return Batch(
        ops=np.array(ops, np.uint8),
        keys=np.frombuffer(b"".join(keys), np.uint8),
        key_lengths=np.array([len(key) for key in keys], np.uint32),
        values=np.frombuffer(b"".join(values), np.uint8),
        value_lengths=np.array([len(value) for value in values], np.uint32),
        request_ops=np.array(counts, np.uint32),
        conditions=np.array(conditions, np.uint8) if any(conditions) else None,
        expected=np.array(expected, np.uint64) if has_expected else None,
        expiries=np.array(expiries, np.uint64) if any(expiries) else None,
    )


def _response(message_id: int, results: Sequence[RequestResult], *, has_versions: bool) -> kv_pb2.BatchResponse:
    """Join the results of requests; a table without versions tells the numbers that failed conditions found."""
    status = b"".join(result.status.tobytes() for result in results)
    versions = b"".join(result.versions.astype("<u8").tobytes() for result in results)
    return kv_pb2.BatchResponse(
        id=message_id,
        status=status,
        values=b"".join(result.values.tobytes() for result in results),
        value_lengths=b"".join(result.value_lengths.astype("<u4").tobytes() for result in results),
        versions=versions if has_versions or CONDITION_FAILED in status else b"",
    )
