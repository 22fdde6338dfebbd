"""How many operations a request may have, and requests a message, so that every response fits one message."""

from __future__ import annotations

from dataclasses import replace
from typing import Final

from gpkvs.config import Limits

RESPONSE_BYTES: Final = 64
RESPONSE_BYTES_PER_OP: Final = 16  # room for status, version and value length of each operation, beside its value
_MESSAGE_BYTES_PER_OP_MIN: Final = 64
_REQUESTS_MAX: Final = 1024
_FAILURE_BYTES: Final = 1 << 10  # that one of several requests takes in the response, at most


def response_bytes(operations: int, value_bytes: int) -> int:
    """Return about what a response takes in memory or as a message."""
    return RESPONSE_BYTES + RESPONSE_BYTES_PER_OP * operations + value_bytes


def requests_max(message_bytes_max: int) -> int:
    """Return how many requests a message may hold, so that all their failures fit its response."""
    return min(_REQUESTS_MAX, message_bytes_max // _FAILURE_BYTES)


def message_limits(limits: Limits, message_bytes_max: int) -> Limits:
    """Lower the limits so far that every response fits one message.

    The largest request then has one operation for each 64 bytes of a message (1,048,576 for 64 MiB), and its response
    leaves three quarters of the message to values.
    """
    request_ops_max = min(limits.request_ops_max, max(1, message_bytes_max // _MESSAGE_BYTES_PER_OP_MIN))
    result_bytes_max = min(
        limits.result_bytes_max, message_bytes_max - RESPONSE_BYTES - RESPONSE_BYTES_PER_OP * request_ops_max
    )
    return replace(
        limits,
        request_ops_max=request_ops_max,
        result_bytes_max=result_bytes_max,
        value_bytes_max=min(limits.value_bytes_max, result_bytes_max),
    )
