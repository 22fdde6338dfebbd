"""Several requests in one message: each is atomic by itself, and fails by itself.

Requests with checks cannot be joined into one, and a call for each costs much more than its operations. They stay
together: no Python object is made for each of them but where one fails.
"""

from __future__ import annotations

from typing import Final

import numpy as np

from gpkvs.batch import Op
from gpkvs.config import Limits
from gpkvs.errors import InvalidArgumentError
from gpkvs.proto.v1 import kv_pb2
from gpkvs.server.codec import Request, Response, decode, encode
from gpkvs.server.exporter import Metrics
from gpkvs.server.options import Clock
from gpkvs.server.status import tell

_REQUESTS_MAX: Final = 1024
# What a failure takes in the response, at most, so that responses fit their messages.
_FAILURE_BYTES: Final = 1 << 10
_TEXT_MAX: Final = 200


def decode_several(
    message: kv_pb2.BatchRequest, limits: Limits, table: int, message_bytes: int, message_bytes_max: int, clock: Clock
) -> Request:
    """Take the columns out of a message of several requests, and check them.

    Raises
    ------
    InvalidArgumentError
        If anything is wrong with any of them: none is executed then. The index counts through the whole message.
    """
    _check_counts(message, message_bytes_max)
    request = decode(message, limits, table, message_bytes, clock)
    request.request_ops = message.request_ops
    return request


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


def encode_several(message_id: int, response: Response, metrics: Metrics) -> kv_pb2.BatchResponse:
    """Put the responses to all requests of a message into one; those that failed say why."""
    message = encode(message_id, response)
    message.failures.extend(_failure(number, error, metrics) for number, error in response.failures)
    return message


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
