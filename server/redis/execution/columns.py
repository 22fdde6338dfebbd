"""Requests of the engine that read, guard and write keys, and what their responses say."""

from __future__ import annotations

import struct
from collections.abc import Iterable, Sequence
from typing import NamedTuple

import numpy as np

from gpkvs.batch import HAS_VALUE, Condition, Op, Status
from gpkvs.proto.v1 import kv_pb2
from gpkvs.server.account.message_limits import RESPONSE_BYTES_PER_OP
from gpkvs.server.redis.execution.overlay import ABSENT, Record
from gpkvs.server.redis.protocol.own_error import own_error
from gpkvs.server.redis.protocol.reply import Error
from gpkvs.store import OpenTable

_HAS_VALUE = HAS_VALUE.tolist()  # most requests have one operation or two
# What a key that is read takes of a response beside its value: two rows, and its expiry (`codec.check`).
_READ_BYTES = 2 * 13 + 8

RECORD_BYTES = 64
"""About what a key takes beside itself and its value: its slot, and the head of its record."""


class _Operation(NamedTuple):
    op: Op
    key: bytes
    value: bytes = b""
    condition: Condition = Condition.NONE
    expected: int = 0
    expiry_ms: int = 0


def read_of(keys: Sequence[bytes], table: OpenTable) -> kv_pb2.BatchRequest:
    """Return a request that reads keys: their values, versions and expiries."""
    _require_operations(2 * len(keys), table)
    _require_operations(-(-_READ_BYTES * len(keys) // RESPONSE_BYTES_PER_OP), table)
    return _request_of([_Operation(op, key) for key in keys for op in (Op.GET, Op.EXPIRY)], table)


def found_by(response: kv_pb2.BatchResponse, keys: Sequence[bytes]) -> dict[bytes, Record]:
    """Return what a request of `read_of` has read.

    Raises
    ------
    Error
        If a record fails its checksum.
    """
    lengths = np.frombuffer(response.value_lengths, "<u4").tolist()
    versions = np.frombuffer(response.versions, "<u8").tolist()
    statuses, values = response.status, response.values
    found, at, end = {}, 0, 0
    for number, key in enumerate(keys):
        status, version = statuses[2 * number], versions[2 * number]
        value = values[end : end + lengths[at]]
        expiry = values[end + lengths[at] : end + lengths[at] + lengths[at + 1]]
        end += lengths[at] + lengths[at + 1]
        at += 2
        if Status.CORRUPT in (status, statuses[2 * number + 1]):
            raise own_error("ERR", "the record fails its checksum, so no value is returned: run gpkvs check")
        found[key] = Record(value, int.from_bytes(expiry, "little"), version) if status == Status.OK else ABSENT
    return found


def write_of(found: dict[bytes, Record], written: dict[bytes, Record], table: OpenTable) -> kv_pb2.BatchRequest:
    """Return a request that writes keys if those that were read are still as they were found; else it is a conflict."""
    operations = [_guard(key, record) for key, record in found.items()]
    operations += [_write(key, record, found.get(key, ABSENT)) for key, record in written.items()]
    return _request_of(operations, table)


def supposing_of(
    written: dict[bytes, Record], supposed: dict[bytes, Condition], table: OpenTable
) -> kv_pb2.BatchRequest:
    """Return a request that writes each key if it is as was supposed."""
    operations = [
        _Operation(Op.SET, key, record.value or b"", supposed[key], expiry_ms=record.expiry_ms)
        for key, record in written.items()
    ]
    return _request_of(operations, table)


def delete_of(keys: Sequence[bytes], table: OpenTable) -> kv_pb2.BatchRequest:
    """Return a request that removes keys."""
    return _request_of([_Operation(Op.DELETE, key) for key in keys], table)


def _guard(key: bytes, record: Record) -> _Operation:
    if record.value is None:
        return _Operation(Op.CHECK, key, condition=Condition.ABSENT)
    return _Operation(Op.CHECK, key, condition=Condition.EQUALS, expected=record.version)


def _write(key: bytes, record: Record, before: Record) -> _Operation:
    if record.value is None:
        return _Operation(Op.DELETE, key)
    op = Op.EXPIRE if record.value is before.value else Op.SET
    return _Operation(op, key, record.value, expiry_ms=record.expiry_ms)


def _request_of(operations: Iterable[_Operation], table: OpenTable) -> kv_pb2.BatchRequest:
    operations = list(operations)
    _require_operations(len(operations), table)
    ops, keys, values, conditions, expected, expiries = zip(*operations, strict=True)
    given = [value for op, value in zip(ops, values, strict=True) if _HAS_VALUE[op]]
    return kv_pb2.BatchRequest(
        table=table.name,
        ops=bytes(ops),
        keys=b"".join(keys),
        key_lengths=_u32([len(key) for key in keys]),
        values=b"".join(given),
        value_lengths=_u32([len(value) for value in given]),
        conditions=bytes(conditions) if any(conditions) else b"",
        expected=_u64(expected) if any(conditions) else b"",
        expiries=_u64(expiries) if any(expiries) else b"",
    )


def _require_operations(operations: int, table: OpenTable) -> None:
    most = table.limits.request_ops_max
    if operations > most:
        raise Error(
            f"ERR this takes {operations:,} operations, allowed are {most:,} (request_ops_max): name fewer keys"
        )


def _u32(numbers: Sequence[int]) -> bytes:
    return struct.pack(f"<{len(numbers)}I", *numbers)


def _u64(numbers: Sequence[int]) -> bytes:
    return struct.pack(f"<{len(numbers)}Q", *numbers)
