"""Messages built by hand, as a client in another language would."""

from __future__ import annotations

import re
import struct
from collections.abc import Sequence
from typing import Any

import grpc
import numpy as np
import pytest

from gpkvs.batch import HAS_VALUE, Batch
from gpkvs.proto.metadata import REQUEST_ID_KEY
from gpkvs.proto.v1 import kv_pb2

GET, SET, DELETE, EXISTS, INCREMENT, APPEND, CHECK, EXPIRE, EXPIRY, ADD = range(1, 11)
ABSENT, PRESENT, EQUALS = 1, 2, 3
TTL_MS_MAX = 10**15
"""With more, the native door hands a message to Python."""

Operation = tuple[int, bytes] | tuple[int, bytes, bytes]


def u32(*numbers: int) -> bytes:
    return struct.pack(f"<{len(numbers)}I", *numbers)


def u64(*numbers: int) -> bytes:
    return struct.pack(f"<{len(numbers)}Q", *numbers)


def i64(number: int) -> bytes:
    return struct.pack("<q", number)


def u64s(column: bytes) -> list[int]:
    return list(struct.unpack(f"<{len(column) // 8}Q", column))


def u32s(column: bytes) -> list[int]:
    return list(struct.unpack(f"<{len(column) // 4}I", column))


def batch(operations: Sequence[Operation], **fields: Any) -> kv_pb2.BatchRequest:
    """Put operations into columns."""
    values = [operation[2] for operation in operations if len(operation) == 3]
    return kv_pb2.BatchRequest(
        ops=bytes(operation[0] for operation in operations),
        keys=b"".join(operation[1] for operation in operations),
        key_lengths=u32(*(len(operation[1]) for operation in operations)),
        values=b"".join(values),
        value_lengths=u32(*map(len, values)),
        **fields,
    )


def columns_of(message: kv_pb2.BatchRequest, table: int = 0) -> Batch:
    """Return a message as the batch that it asks for; its times to live are absolute."""
    ops = np.frombuffer(message.ops, np.uint8)

    def lengths(column: bytes, size: int, count: int) -> Any:
        return np.frombuffer(column, "<u4") if column else np.full(count, size, np.uint32)

    options = {
        name: np.frombuffer(column, dtype)
        for name, dtype in (("conditions", "u1"), ("expected", "<u8"), ("expiries", "<u8"))
        if (column := getattr(message, name))
    }
    return Batch(
        ops=ops,
        keys=np.frombuffer(message.keys, np.uint8),
        key_lengths=lengths(message.key_lengths, message.key_size, len(ops)),
        values=np.frombuffer(message.values, np.uint8),
        value_lengths=lengths(message.value_lengths, message.value_size, int(np.count_nonzero(HAS_VALUE[ops]))),
        request_ops=np.frombuffer(message.request_ops or u32(len(ops)), "<u4"),
        table=table,
        **options,
    )


def values_of(response: kv_pb2.BatchResponse) -> list[bytes]:
    """Cut the values of the GETs apart."""
    values, start = [], 0
    for length in u32s(response.value_lengths):
        values.append(response.values[start : start + length])
        start += length
    assert start == len(response.values)
    return values


def trailing_of(call: Any) -> dict[str, str]:
    """Return what the trailing metadata of a call that failed say of it, but for the id that each of them has."""
    trailing = dict(call.trailing_metadata())
    assert re.fullmatch("[!-~]{1,64}", trailing.pop(REQUEST_ID_KEY))
    return {name: text for name, text in trailing.items() if name.startswith("gpkvs-")}


class Refused:
    """Expects a call to be refused with a code, in the details some words, and in the trailing metadata some texts."""

    def __init__(self, code: grpc.StatusCode, *words: str, executed: str | None = "no", **trailing: str | None) -> None:
        self._code, self._words = code, words
        self._trailing = {"executed": executed, **trailing}
        self._raises = pytest.raises(grpc.RpcError)

    def __enter__(self) -> None:
        self._error = self._raises.__enter__()

    def __exit__(self, *exception: Any) -> bool:
        caught = self._raises.__exit__(*exception)
        error: Any = self._error.value
        assert error.code() is self._code, error.details()
        for word in self._words:
            assert word in error.details()
        trailing = dict(error.trailing_metadata() or ())
        for name, text in self._trailing.items():
            assert trailing.get(f"gpkvs-{name.replace('_', '-')}") == text
        return bool(caught)
