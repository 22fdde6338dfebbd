"""Columns to and from the messages of the wire.

Little-endian, as the contract says (proto/v1/kv.proto); a column of equal lengths travels as one number.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from gpkvs.batch import Batch, Op, RequestResult, constant, is_constant
from gpkvs.client.errors import ServerError
from gpkvs.errors import InvalidArgumentError
from gpkvs.proto.v1 import kv_pb2


def encode(batch: Batch, table: str) -> kv_pb2.BatchRequest:
    """Return the message of one request.

    Parameters
    ----------
    batch
        Operations; it must be one request.
    table
        Name of the table; "" is the default one.

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
    )


def encode_lists(ops: bytes, keys: Sequence[bytes], values: Sequence[bytes], table: str) -> kv_pb2.BatchRequest:
    """Return the message of one request given as Python objects: one byte of `ops` a key, one value a SET."""
    key_lengths, key_size = _lengths(np.fromiter(map(len, keys), np.uint32, len(keys)))
    value_lengths, value_size = _lengths(np.fromiter(map(len, values), np.uint32, len(values)))
    return kv_pb2.BatchRequest(
        table=table,
        ops=ops,
        keys=b"".join(keys),
        key_lengths=key_lengths,
        key_size=key_size,
        values=b"".join(values),
        value_lengths=value_lengths,
        value_size=value_size,
    )


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
    n, gets = len(ops), ops.count(Op.GET)
    if len(response.status) != n or len(response.versions) not in (0, 8 * n) or len(response.value_lengths) != 4 * gets:
        raise ServerError(
            f"a response of {len(response.status)} statuses, {len(response.versions)} bytes of versions and "
            f"{len(response.value_lengths)} bytes of value lengths to {n} operations with {gets} GETs"
        )
    result = RequestResult(
        status=np.frombuffer(response.status, np.uint8),
        versions=np.frombuffer(response.versions, "<u8") if response.versions else constant(np.uint64(0), n),
        value_lengths=np.frombuffer(response.value_lengths, "<u4"),
        values=np.frombuffer(response.values, np.uint8),
    )
    if int(result.value_lengths.sum(dtype=np.uint64)) != len(result.values):
        raise ServerError("a response whose value lengths do not add up to its values")
    return result
