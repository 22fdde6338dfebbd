"""The native door's oracle: gRPC's own server over an embedded store, with its own decoding.

`tests.fuzz_doors` makes the same calls to both. The oracle has the methods of ``gpkvs.v1.KV`` that make requests, and
Count. It has no logins, and bounds neither memory nor time. It runs one message at a time. Of what it refuses itself it
gives the status and no text: all texts are the store's.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from itertools import accumulate, pairwise
from pathlib import Path
from typing import Any, NamedTuple

import grpc
import numpy as np
from google.protobuf.message import DecodeError, Message

import gpkvs
from gpkvs.batch import Batch, RequestResult
from gpkvs.errors import ConflictError, GpkvsError, InvalidArgumentError, NoSpaceError, UnknownTableError
from gpkvs.proto.v1 import kv_pb2
from gpkvs.request_checks import check_key_bytes, check_value_bytes

GET, SET, DELETE, INCREMENT, APPEND, ADD = 1, 2, 3, 5, 6, 10
OK, CORRUPT, CONDITION_FAILED, OVERFLOW, NOT_A_NUMBER = 0, 2, 3, 4, 5
EQUALS = 3
REQUESTS_MAX = 1024  # of a message
TIME_MAX = (1 << 64) - 1

Code = grpc.StatusCode


class RefusedError(Exception):
    """What the oracle refuses itself."""

    def __init__(self, code: grpc.StatusCode = Code.INVALID_ARGUMENT) -> None:
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
        one = {
            name: grpc.stream_unary_rpc_method_handler(partial(_only, run, getattr(kv_pb2, f"{name}Request")))
            for name, run in self._methods().items()
        }
        pipeline = grpc.stream_stream_rpc_method_handler(self._pipeline)
        self._server = grpc.server(ThreadPoolExecutor(2), options=[("grpc.so_reuseport", 0)])
        self._server.add_generic_rpc_handlers(
            [grpc.method_handlers_generic_handler("gpkvs.v1.KV", {**one, "Pipeline": pipeline})]
        )
        self.target = f"127.0.0.1:{self._server.add_insecure_port('127.0.0.1:0')}"
        self._server.start()

    def stop(self) -> None:
        """End all calls and close the store."""
        self._server.stop(None).wait()
        self.store.close()

    def _methods(self) -> dict[str, Callable[[Any], Message]]:
        names = ("Get", "Set", "Delete", "Increment", "MultiGet", "Batch", "Count")
        return {name: getattr(self, f"_{name}") for name in names}

    def _Get(self, message: kv_pb2.GetRequest) -> kv_pb2.GetResponse:  # noqa: N802 - the contract's name
        check_key_bytes(len(message.key), self.store.open_table(message.table).limits)
        return self._read(message.table, [message.key])[0]

    def _MultiGet(self, message: kv_pb2.MultiGetRequest) -> kv_pb2.MultiGetResponse:  # noqa: N802
        return kv_pb2.MultiGetResponse(results=self._read(message.table, message.keys))

    def _Set(self, message: kv_pb2.SetRequest) -> kv_pb2.SetResponse:  # noqa: N802
        expiry_ms = self._expiry(message.expiry_ms, message.ttl_ms)
        condition = _condition(message.condition)
        result = self._one(
            message.table, Operation(SET, message.key, message.value, condition, message.expected, expiry_ms)
        )
        return kv_pb2.SetResponse(version=int(result.versions[0]), status=int(result.status[0]))

    def _Delete(self, message: kv_pb2.DeleteRequest) -> kv_pb2.DeleteResponse:  # noqa: N802
        condition = _condition(message.condition)
        result = self._one(message.table, Operation(DELETE, message.key, b"", condition, message.expected))
        status = int(result.status[0])
        return kv_pb2.DeleteResponse(found=status == OK, version=int(result.versions[0]), status=status)

    def _Increment(self, message: kv_pb2.IncrementRequest) -> kv_pb2.IncrementResponse:  # noqa: N802
        delta, expiry_ms = struct.pack("<q", message.delta), self._expiry(0, message.ttl_ms)
        result = self._one(message.table, Operation(INCREMENT, message.key, delta, expiry_ms=expiry_ms))
        failed = {CORRUPT: Code.DATA_LOSS, OVERFLOW: Code.OUT_OF_RANGE, NOT_A_NUMBER: Code.FAILED_PRECONDITION}
        if code := failed.get(int(result.status[0])):
            raise RefusedError(code)
        (number,) = struct.unpack("<q", result.values.tobytes())
        return kv_pb2.IncrementResponse(number=number, version=int(result.versions[0]))

    def _Count(self, message: kv_pb2.CountRequest) -> kv_pb2.CountResponse:  # noqa: N802
        return kv_pb2.CountResponse(count=self.store.count(message.prefix, table=message.table))

    def _Batch(self, message: kv_pb2.BatchRequest) -> kv_pb2.BatchResponse:  # noqa: N802 - the contract's name
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
            return self._Batch(message)
        except (GpkvsError, RefusedError) as error:
            return kv_pb2.BatchResponse(id=message.id, **_told(error))

    def _operations(self, message: kv_pb2.BatchRequest) -> list[Operation]:
        """Cut the columns of a message."""
        ops, count = message.ops, len(message.ops)
        keys = iter(_cut(message.keys, message.key_lengths, message.key_size, count))
        has_value = [op in (SET, INCREMENT, APPEND, ADD) for op in ops]
        values = iter(_cut(message.values, message.value_lengths, message.value_size, sum(has_value)))
        conditions = list(message.conditions) or [0] * count
        expected = _numbers(message.expected, "Q") or [None] * count
        expiries, ttls = _numbers(message.expiries, "Q"), _numbers(message.ttls, "Q")
        if expiries and ttls:
            raise RefusedError
        expiries = expiries or [self._expiry(0, ttl) for ttl in ttls] or [0] * count
        if {len(conditions), len(expected), len(expiries)} != {count}:
            raise RefusedError
        return [
            Operation(op, next(keys), next(values) if has else b"", *rest)
            for op, has, *rest in zip(ops, has_value, conditions, expected, expiries, strict=True)
        ]

    def _expiry(self, expiry_ms: int, ttl_ms: int) -> int:
        """Return when something expires."""
        if (expiry_ms and ttl_ms) or self.store.now_ms + ttl_ms > TIME_MAX:
            raise RefusedError
        return self.store.now_ms + ttl_ms if ttl_ms else expiry_ms

    def _one(self, table: str, operation: Operation) -> RequestResult:
        limits = self.store.open_table(table).limits
        check_key_bytes(len(operation.key), limits)
        if operation.op in (SET, INCREMENT):
            check_value_bytes(len(operation.value), limits)
        return self.store.execute(_columns([operation]), table=table)

    def _read(self, table: str, keys: Sequence[bytes]) -> list[kv_pb2.GetResponse]:
        result = self.store.execute(_columns([Operation(GET, key) for key in keys]), table=table)
        if CORRUPT in result.status:
            raise RefusedError(Code.DATA_LOSS)
        rows = zip(result.status.tolist(), result.value_list(), result.versions.tolist(), strict=True)
        return [kv_pb2.GetResponse(found=status == OK, value=value, version=version) for status, value, version in rows]


def _only(
    run: Callable[[Any], Message],
    request_class: type[Message],
    messages: Iterator[bytes],
    context: grpc.ServicerContext,
) -> bytes:
    """Answer the first message of a call; one without any is no call of a method."""
    return _answer(run, request_class, next(messages, None), context)


def _answer(
    run: Callable[[Any], Message], request_class: type[Message], data: bytes | None, context: grpc.ServicerContext
) -> bytes:
    """Return the response to a message, or end the call with why there is none."""
    try:
        if data is None:
            raise RefusedError(Code.UNIMPLEMENTED)
        return run(request_class.FromString(data)).SerializeToString()
    except (GpkvsError, RefusedError, DecodeError) as error:
        told = _told(error)
        code = next(code for code in Code if code.value[0] == told["code"])
        trailing = [] if code is Code.DATA_LOSS else [("gpkvs-executed", "no")]
        names = ("full", "gpkvs-full"), ("failed_check", "gpkvs-failed-check"), ("found", "gpkvs-found")
        trailing += [(name, str(told[field])) for field, name in names if told.get(field) not in (None, "")]
        context.set_trailing_metadata(trailing)
        context.abort(code, told["message"])


def _told(error: Exception) -> dict[str, Any]:
    """Return an error as a `RequestFailure` has it."""
    match error:
        case UnknownTableError():
            return {"code": 5, "message": str(error)}
        case InvalidArgumentError():
            return {"code": 3, "message": str(error)}
        case NoSpaceError():
            return {"code": 8, "message": str(error), "full": error.resource}
        case ConflictError():
            return {"code": 10, "message": str(error), "failed_check": error.index, "found": error.found}
        case RefusedError():
            return {"code": error.code.value[0], "message": ""}
        case DecodeError():
            return {"code": 3, "message": ""}
    raise error


def _condition(number: int) -> int:
    if number > EQUALS or number < 0:
        raise RefusedError
    return number


def _numbers(column: bytes, kind: str) -> list[Any]:
    """Return the numbers of a column."""
    if len(column) % struct.calcsize(kind):
        raise RefusedError
    return [number for (number,) in struct.iter_unpack(f"<{kind}", column)]


def _cut(column: bytes, lengths: bytes, size: int, count: int) -> list[bytes]:
    """Return the strings of a column."""
    if lengths and size:
        raise RefusedError
    sizes = _numbers(lengths, "I") if lengths else [size] * count
    if len(sizes) != count or sum(sizes) != len(column):
        raise RefusedError
    return [column[begin:end] for begin, end in pairwise(accumulate(sizes, initial=0))]


def _columns(operations: Sequence[Operation], counts: Sequence[int] = ()) -> Batch:
    """Return operations as the store takes them: one request, or several of so many operations."""
    values = [one.value for one in operations if one.op in (SET, INCREMENT, APPEND, ADD)]
    has_conditions = any(one.condition for one in operations)
    has_expected = has_conditions and all(one.expected is not None for one in operations)
    has_expiries = any(one.expiry_ms for one in operations)
    return Batch(
        ops=np.array([one.op for one in operations], np.uint8),
        keys=np.frombuffer(b"".join(one.key for one in operations), np.uint8),
        key_lengths=np.array([len(one.key) for one in operations], np.uint32),
        values=np.frombuffer(b"".join(values), np.uint8),
        value_lengths=np.array([len(value) for value in values], np.uint32),
        request_ops=np.array(counts, np.uint32),
        conditions=np.array([one.condition for one in operations], np.uint8) if has_conditions else None,
        expected=np.array([one.expected for one in operations], np.uint64) if has_expected else None,
        expiries=np.array([one.expiry_ms for one in operations], np.uint64) if has_expiries else None,
    )


def _response(message_id: int, results: Sequence[RequestResult], *, has_versions: bool) -> kv_pb2.BatchResponse:
    """Join the results of requests; a table without versions tells the numbers that failed conditions found."""
    status = b"".join(result.status.tobytes() for result in results)
    return kv_pb2.BatchResponse(
        id=message_id,
        status=status,
        values=b"".join(result.values.tobytes() for result in results),
        value_lengths=b"".join(result.value_lengths.astype("<u4").tobytes() for result in results),
        versions=b"".join(result.versions.astype("<u8").tobytes() for result in results)
        if has_versions or CONDITION_FAILED in status
        else b"",
    )
