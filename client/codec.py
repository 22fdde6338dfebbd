"""Columns to and from the messages of the wire.

Little-endian, as the contract says (proto/v1/kv.proto); a column of equal lengths travels as one number.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gpkvs.batch import U64, Batch, Condition, Op, RequestResult, constant, is_constant
from gpkvs.client.errors import ServerError
from gpkvs.errors import InvalidArgumentError
from gpkvs.operations import Options, Value
from gpkvs.proto.v1 import kv_pb2

RETURNS_VALUE = (Op.GET, Op.INCREMENT, Op.EXPIRY)
"""Operations whose responses have a value."""


def encode(batch: Batch, table: str, ttls: U64 | None = None) -> kv_pb2.BatchRequest:
    """Return the message of one request.

    Parameters
    ----------
    batch
        Operations; it must be one request.
    table
        Name of the table; "" is the default one.
    ttls
        In the place of `Batch.expiries`: the same from the moment on at which the server takes the request.

    Raises
    ------
    InvalidArgumentError
        If the batch is made of several requests: the response could not say which of them was rejected.
    """
    if len(batch.request_ops) != 1:
        raise InvalidArgumentError(
            f"{len(batch.request_ops)} requests in one call: execute them one by one", field="request_ops"
        )
    key_lengths, key_size = _lengths(batch.key_lengths)
    value_lengths, value_size = _lengths(batch.value_lengths)
    return kv_pb2.BatchRequest(
        table=table,
        ops=batch.ops.tobytes(),
        keys=batch.keys.tobytes(),
        key_lengths=key_lengths,
        key_size=key_size,
        values=batch.values.tobytes(),
        value_lengths=value_lengths,
        value_size=value_size,
        conditions=b"" if batch.conditions is None else batch.conditions.tobytes(),
        expected=_u64(batch.expected),
        expiries=_u64(batch.expiries),
        ttls=_u64(ttls),
    )


def _u64(column: U64 | None) -> bytes:
    return b"" if column is None else column.astype("<u8", copy=False).tobytes()


def encode_lists(
    ops: bytes,
    keys: Sequence[bytes],
    values: Sequence[Value],
    table: str,
    options: Sequence[Options | None] = (),
) -> kv_pb2.BatchRequest:
    """Return the message of one request given as Python objects.

    Parameters
    ----------
    ops, keys
        One byte and one key for each operation.
    values
        One for each SET, INCREMENT (8 bytes, signed, little-endian) and APPEND.
    table
        Name of the table.
    options
        Of each operation, or empty: none has any.

    Raises
    ------
    InvalidArgumentError
        If a number of the options is out of range.
    """
    key_lengths, key_size = _lengths(np.fromiter(map(len, keys), np.uint32, len(keys)))
    value_lengths, value_size = _lengths(np.fromiter(map(len, values), np.uint32, len(values)))
    message = kv_pb2.BatchRequest(
        table=table,
        ops=ops,
        keys=b"".join(keys),
        key_lengths=key_lengths,
        key_size=key_size,
        values=b"".join(values),
        value_lengths=value_lengths,
        value_size=value_size,
    )
    if any(options):
        _add_options(message, [option or _NO_OPTIONS for option in options])
    return message


_NO_OPTIONS = Options()


def _add_options(message: kv_pb2.BatchRequest, options: Sequence[Options]) -> None:
    """Fill in the columns that are not all zeros."""
    assert len(options) == len(message.ops)
    conditions, expected, ttls = zip(*options, strict=True)
    if any(conditions):
        message.conditions = bytes(conditions)
        if Condition.EQUALS in conditions:
            message.expected = _numbers("expected", expected)
    if any(ttls):
        message.ttls = _numbers("ttls", ttls)


def _numbers(name: str, numbers: Sequence[int]) -> bytes:
    """Return numbers as a column of u64."""
    for index, number in enumerate(numbers):
        if not 0 <= number < 1 << 64:
            raise InvalidArgumentError(f"{number:,} is no number of 64 bits without sign", field=name, index=index)
    return np.array(numbers, "<u8").tobytes()


def _lengths(lengths: NDArray[np.uint32]) -> tuple[bytes, int]:
    """Return a column of lengths as (bytes, 0), or as (b"", size) where all are the same."""
    if len(lengths) and lengths[0] > 0 and (is_constant(lengths) or (lengths == lengths[0]).all()):
        return b"", int(lengths[0])
    return lengths.astype("<u4", copy=False).tobytes(), 0


def decode(response: kv_pb2.BatchResponse, ops: bytes) -> RequestResult:
    """Return the columns of a response.

    Parameters
    ----------
    response
        The message of the server.
    ops
        The operations of its request, one byte each.

    Raises
    ------
    ServerError
        If the server refused the request, or the response does not fit the operations.
    """
    if response.code:
        raise ServerError(f"status {response.code}: {response.message}")
    # Each access to a field of bytes copies it.
    status, versions, value_lengths = response.status, response.versions, response.value_lengths
    n, values = len(ops), ops.count(Op.GET)
    if len(value_lengths) != 4 * values:
        values = sum(map(ops.count, RETURNS_VALUE))
    if len(status) != n or len(versions) not in (0, 8 * n) or len(value_lengths) != 4 * values:
        raise ServerError(
            f"a response of {len(status)} statuses, {len(versions)} bytes of versions and {len(value_lengths)} bytes "
            f"of value lengths to {n} operations that return {values} values"
        )
    result = RequestResult(
        status=np.frombuffer(status, np.uint8),
        versions=np.frombuffer(versions, "<u8") if versions else constant(np.uint64(0), n),
        value_lengths=np.frombuffer(value_lengths, "<u4"),
        values=np.frombuffer(response.values, np.uint8),
    )
    if int(result.value_lengths.sum(dtype=np.uint64)) != len(result.values):
        raise ServerError("a response whose value lengths do not add up to its values")
    return result


def numbers_of(column: bytes, dtype: str) -> NDArray[Any]:
    """Return a column of a response as numbers.

    Raises
    ------
    ServerError
        If they are no whole ones.
    """
    if len(column) % np.dtype(dtype).itemsize:
        raise ServerError(f"a column of {len(column):,} bytes that are no whole numbers")
    return np.frombuffer(column, dtype)
