"""A request of Python objects as a message, checked before it is sent."""

from __future__ import annotations

import numpy as np

from gpkvs.batch import U64, Batch
from gpkvs.client.codec import encode, encode_lists
from gpkvs.columns.buffers import RequestBounds
from gpkvs.config import Limits
from gpkvs.errors import InvalidArgumentError
from gpkvs.operations import OperationList
from gpkvs.proto.v1 import kv_pb2
from gpkvs.request_checks import check_request_ops

NUMBERS = "u64"
"""The layout of tables of numbers."""
_TABLE_NAME_MAX = 64
_MESSAGE_BYTES_BESIDE = 4096  # more than a message has beside its columns
_LENGTH_BYTES = 4  # in a column of lengths
_IN_PIECES_MIN = (
    1 << 20
)  # a value of so many bytes comes in pieces, if a request has no other one (door/request/upload.hpp)
_BYTES_OF_NUMBER = 17  # of an operation on numbers: its kind, its key, its value


def check_table(name: str) -> None:
    """Check a table's name before it is sent; "" is the default table.

    Raises
    ------
    TypeError
        If it is not `str`.
    InvalidArgumentError
        If it is too long for a name; the server checks the rest.
    """
    if not isinstance(name, str):
        raise TypeError(f"a table's name is str, not {type(name).__name__}")
    if len(name) > _TABLE_NAME_MAX:
        raise InvalidArgumentError(
            f"a name of {len(name):,} characters, allowed are 1 to {_TABLE_NAME_MAX}", field="table"
        )


def check_message_bytes(message: kv_pb2.BatchRequest, message_bytes_max: int) -> None:
    """Check a request's size before it is sent: over the server's limit it would be refused.

    The only value of a request comes in pieces if it is large: it counts for nothing then.
    """
    size_bytes = message.ByteSize()
    values = len(message.values)
    is_one = len(message.value_lengths) == _LENGTH_BYTES or (not message.value_lengths and message.value_size == values)
    if values >= _IN_PIECES_MIN and is_one:
        size_bytes -= values
    if size_bytes > message_bytes_max:
        raise InvalidArgumentError(
            f"a request of {size_bytes:,} bytes, the limit of a message is {message_bytes_max:,} "
            "(message_bytes_max): split it",
            field="message",
        )


def numbers_max(limits: Limits, message_bytes_max: int) -> int:
    """Return how many operations on numbers fit one request."""
    return max(min(limits.request_ops_max, (message_bytes_max - _MESSAGE_BYTES_BESIDE) // _BYTES_OF_NUMBER), 1)


def request_bounds(limits: Limits, message_bytes_max: int) -> RequestBounds:
    """Return how much goes into one request of several, and into its response."""
    return RequestBounds(limits, min(limits.result_bytes_max, message_bytes_max - _MESSAGE_BYTES_BESIDE))


def ttls_of(batch: Batch, ttl: int) -> U64 | None:
    """Return the column that gives each key of SETs so many milliseconds to live; None for 0: they stay."""
    return np.full(len(batch), ttl, np.uint64) if ttl else None


def message_of(operations: OperationList, table: str, limits: Limits, message_bytes_max: int) -> kv_pb2.BatchRequest:
    """Return a request as it is sent; raises InvalidArgumentError if it is over a limit."""
    check_table(table)
    check_request_ops(len(operations), limits)
    message = encode_lists(operations.ops, operations.keys, operations.values, table, operations.options)
    if operations.is_of_numbers:  # the server refuses a table of another layout than u64
        message.numbers = True
    check_message_bytes(message, message_bytes_max)
    return message


def message_of_columns(
    batch: Batch, ttls: U64 | None, table: str, limits: Limits, message_bytes_max: int, layout: str
) -> kv_pb2.BatchRequest:
    """Return columns as they are sent; the server refuses a table of another `layout`, unless that is empty.

    Raises
    ------
    InvalidArgumentError
        If the columns do not add up or are over a limit.
    """
    check_table(table)
    batch.validate(limits)
    message = encode(batch, table, ttls)
    if layout == NUMBERS:
        message.numbers = True
    else:
        message.layout = layout
    check_message_bytes(message, message_bytes_max)
    return message
