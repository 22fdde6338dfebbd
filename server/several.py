"""Several requests in one message: each is atomic by itself, and fails by itself.

The door runs them together. Those that the engine cannot do in one go come here, and go to the queue one by one.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator, Sequence
from itertools import islice
from typing import Final

import numpy as np
from numpy.typing import NDArray

from gpkvs.batch import HAS_VALUE, Op
from gpkvs.config import Limits
from gpkvs.errors import InvalidArgumentError
from gpkvs.proto.v1 import kv_pb2
from gpkvs.server import codec
from gpkvs.server.exporter import Metrics
from gpkvs.server.options import Clock
from gpkvs.server.status import tell

_REQUESTS_MAX: Final = 1024
# What a failure takes in the response, at most, so that responses fit their messages.
_FAILURE_BYTES: Final = 1 << 10
_TEXT_MAX: Final = 200
_AT_ONCE: Final = 64  # in the queue; as many of a connection have their turn together

Submit = Callable[[kv_pb2.BatchRequest], asyncio.Future[kv_pb2.BatchResponse]]


def check_several(message: kv_pb2.BatchRequest, limits: Limits, message_bytes_max: int, clock: Clock) -> None:
    """Check the columns of a message of several requests (`codec.check`).

    Raises
    ------
    InvalidArgumentError
        If anything is wrong with any of them: none is executed then. The index counts through the whole message.
    """
    _check_counts(message, message_bytes_max)
    codec.check(message, limits, clock)


def requests_max(message_bytes_max: int) -> int:
    """Return how many requests a message may hold, so that all their failures fit its response."""
    return min(_REQUESTS_MAX, message_bytes_max // _FAILURE_BYTES)


def _check_counts(message: kv_pb2.BatchRequest, message_bytes_max: int) -> None:
    """Check how many operations each request has."""
    column = message.request_ops
    most = requests_max(message_bytes_max)
    if len(column) % 4 or len(column) > 4 * most:
        raise InvalidArgumentError(
            f"{len(column):,} bytes, 4 for each of at most {most:,} requests are needed", field="request_ops"
        )
    counts = np.frombuffer(column, "<u4")
    if int(counts.sum(dtype=np.uint64)) != len(message.ops) or not counts.all():
        raise InvalidArgumentError(
            f"they do not add up to {len(message.ops):,} operations, or one is 0", field="request_ops"
        )
    get = message.ops.find(Op.GET)
    if get >= 0:
        raise InvalidArgumentError("a GET in a message of several requests", field="ops", index=get)


async def run_several(message: kv_pb2.BatchRequest, submit: Submit, metrics: Metrics) -> kv_pb2.BatchResponse:
    """Run the requests of a message that was checked, in order; those that fail say why in its response.

    Parameters
    ----------
    message
        The message.
    submit
        Queues one request.
    metrics
        Counts those that are refused.
    """
    responses: list[kv_pb2.BatchResponse | BaseException] = []
    requests = _requests_of(message)
    while some := list(islice(requests, _AT_ONCE)):
        responses += await asyncio.gather(*map(submit, some), return_exceptions=True)
    return _joined(message.id, responses, metrics)


def _requests_of(message: kv_pb2.BatchRequest) -> Iterator[kv_pb2.BatchRequest]:
    """Cut a message into its requests."""
    ops, keys, values = message.ops, message.keys, message.values
    key_lengths, value_lengths = message.key_lengths, message.value_lengths
    conditions, expected, expiries = message.conditions, message.expected, message.expiries
    op_ends = np.frombuffer(message.request_ops, "<u4").cumsum(dtype=np.int64)
    value_ends = HAS_VALUE[np.frombuffer(ops, np.uint8)].cumsum(dtype=np.int64)[op_ends - 1]
    key_bytes, value_bytes = (
        _bytes_before(key_lengths, message.key_size),
        _bytes_before(value_lengths, message.value_size),
    )
    first_op = first_value = 0
    for op_end, value_end in zip(op_ends.tolist(), value_ends.tolist(), strict=True):
        yield kv_pb2.BatchRequest(
            table=message.table,
            ops=ops[first_op:op_end],
            keys=keys[key_bytes(first_op) : key_bytes(op_end)],
            key_lengths=key_lengths[4 * first_op : 4 * op_end],
            key_size=message.key_size,
            values=values[value_bytes(first_value) : value_bytes(value_end)],
            value_lengths=value_lengths[4 * first_value : 4 * value_end],
            value_size=message.value_size,
            conditions=conditions[first_op:op_end],
            expected=expected[8 * first_op : 8 * op_end],
            expiries=expiries[8 * first_op : 8 * op_end],
        )
        first_op, first_value = op_end, value_end


def _bytes_before(lengths: bytes, size: int) -> Callable[[int], int]:
    """Return what tells how many bytes the first few strings take."""
    if not lengths:
        return lambda count: size * count
    ends: NDArray[np.int64] = np.frombuffer(lengths, "<u4").cumsum(dtype=np.int64)
    return lambda count: int(ends[count - 1]) if count else 0


def _joined(
    message_id: int, responses: Sequence[kv_pb2.BatchResponse | BaseException], metrics: Metrics
) -> kv_pb2.BatchResponse:
    done = [response for response in responses if not isinstance(response, BaseException)]
    has_versions = any(response.versions for response in done)
    return kv_pb2.BatchResponse(
        id=message_id,
        status=b"".join(response.status for response in done),
        values=b"".join(response.values for response in done),
        value_lengths=b"".join(response.value_lengths for response in done),
        versions=b"".join(response.versions or bytes(8 * len(response.status)) for response in done)
        if has_versions
        else b"",
        failures=[
            _failure(number, error, metrics) for number, error in enumerate(responses) if isinstance(error, Exception)
        ],
    )


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
