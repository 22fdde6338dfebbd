"""Several requests in one message: each is atomic by itself, fails by itself, and has a part of the columns.

Requests with checks cannot be joined into one, and a call for each costs much more than its operations.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from itertools import accumulate, pairwise
from typing import Final

import numpy as np

from gpkvs.batch import HAS_VALUE, RETURNS_VALUE, Op
from gpkvs.config import Limits
from gpkvs.errors import InvalidArgumentError
from gpkvs.proto.v1 import kv_pb2
from gpkvs.server.codec import Request, Response, decode
from gpkvs.server.exporter import Metrics
from gpkvs.server.options import Clock, Options
from gpkvs.server.status import tell

_REQUESTS_MAX: Final = 1024
# What a failure takes in the response, at most, so that responses fit their messages.
_FAILURE_BYTES: Final = 1 << 10
_TEXT_MAX: Final = 200


def decode_several(
    message: kv_pb2.BatchRequest, limits: Limits, table: int, message_bytes_max: int, clock: Clock
) -> list[Request]:
    """Take the columns out of a message of several requests, check them, and cut them at the ends of requests.

    Raises
    ------
    InvalidArgumentError
        If anything is wrong with any of them: none is executed then. The index counts through the whole message.
    """
    counts = _counts(message, message_bytes_max)
    return _cut(decode(message, limits, table, 0, clock), counts)


def _counts(message: kv_pb2.BatchRequest, message_bytes_max: int) -> list[int]:
    """Return how many operations each request has."""
    column = message.request_ops
    requests_max = min(_REQUESTS_MAX, message_bytes_max // _FAILURE_BYTES)
    if len(column) % 4 or len(column) > 4 * requests_max:
        raise InvalidArgumentError(
            f"{len(column):,} bytes, 4 for each of at most {requests_max:,} requests are needed", field="request_ops"
        )
    counts: list[int] = np.frombuffer(column, "<u4").tolist()
    if sum(counts) != len(message.ops) or not all(counts):
        raise InvalidArgumentError(
            f"they do not add up to {len(message.ops):,} operations, or one is 0", field="request_ops"
        )
    get = message.ops.find(Op.GET)
    if get >= 0:
        raise InvalidArgumentError("a GET in a message of several requests", field="ops", index=get)
    return counts


def _cut(whole: Request, counts: Sequence[int]) -> list[Request]:
    """Cut checked columns."""
    ops = np.frombuffer(whole.ops, np.uint8)
    op_bounds = list(accumulate(counts, initial=0))
    value_bounds = _bounds_of(HAS_VALUE[ops])[op_bounds].tolist()
    returned = _bounds_of(RETURNS_VALUE[ops])[op_bounds].tolist()
    key_bytes = _byte_bounds(whole.key_lengths, whole.key_size, len(ops), op_bounds)
    value_bytes = _byte_bounds(whole.value_lengths, whole.value_size, whole.with_value, value_bounds)
    bounds = zip(*map(pairwise, (op_bounds, value_bounds, returned, key_bytes, value_bytes)), strict=True)
    return [
        Request(
            operations=op_end - op,
            returning=result_end - result,
            with_value=value_end - value,
            ops=whole.ops[op:op_end],
            keys=whole.keys[key:key_end],
            key_lengths=whole.key_lengths[4 * op : 4 * op_end],
            values=whole.values[data:data_end],
            value_lengths=whole.value_lengths[4 * value : 4 * value_end],
            key_size=whole.key_size,
            value_size=whole.value_size,
            table=whole.table,
            options=_cut_options(whole.options, op, op_end) if whole.options else None,
        )
        for (op, op_end), (value, value_end), (result, result_end), (key, key_end), (data, data_end) in bounds
    ]


def _bounds_of(mask: np.ndarray[tuple[int], np.dtype[np.bool_]]) -> np.ndarray[tuple[int], np.dtype[np.int64]]:
    """Return how many there are before each operation, and in all."""
    return np.concatenate([np.zeros(1, np.int64), np.cumsum(mask)])


def _byte_bounds(lengths: bytes, size: int, count: int, bounds: Sequence[int]) -> list[int]:
    """Return where the bytes of the strings with some numbers begin."""
    if not lengths:
        return [size * bound for bound in bounds]
    ends = np.zeros(count + 1, np.int64)
    np.cumsum(np.frombuffer(lengths, "<u4"), out=ends[1:])
    found: list[int] = ends[list(bounds)].tolist()
    return found


def _cut_options(options: Options, op: int, end: int) -> Options | None:
    cut = Options(options.conditions[op:end], options.expected[8 * op : 8 * end], options.expiries[8 * op : 8 * end])
    return cut if any(cut.conditions) or any(cut.expiries) else None


async def response_of(
    message_id: int, responses: Sequence[asyncio.Future[Response]], metrics: Metrics
) -> kv_pb2.BatchResponse:
    """Await the responses to all requests of a message, and join them; those that failed say why."""
    results = await asyncio.gather(*responses, return_exceptions=True)
    joined = kv_pb2.BatchResponse(id=message_id)
    done = []
    for number, result in enumerate(results):
        if isinstance(result, Response):
            done.append(result)
        elif isinstance(result, Exception):
            joined.failures.append(_failure(number, result, metrics))
        else:
            raise result
    joined.status = b"".join([result.status for result in done])
    joined.values = b"".join([result.values for result in done])
    joined.value_lengths = b"".join([result.value_lengths for result in done])
    if any(result.versions for result in done):
        joined.versions = b"".join([result.versions or bytes(8 * len(result.status)) for result in done])
    return joined


def _failure(number: int, error: Exception, metrics: Metrics) -> kv_pb2.RequestFailure:
    told = tell(error, "Batch", metrics)
    failure = kv_pb2.RequestFailure(
        request=number, code=told.code.value[0], message=told.text[:_TEXT_MAX], full=told.full
    )
    if told.conflict:
        failure.failed_check = told.conflict.index
        if told.conflict.found is not None:
            failure.found = told.conflict.found
    return failure
