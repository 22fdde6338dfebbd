"""A request of Python objects as a message, checked before it is sent."""

from __future__ import annotations

from dataclasses import replace

from gpkvs.batch import U64, Batch
from gpkvs.buffers import RequestBounds
from gpkvs.client.codec import encode, encode_lists
from gpkvs.config import Limits
from gpkvs.errors import InvalidArgumentError
from gpkvs.operations import OperationList
from gpkvs.proto.v1 import kv_pb2
from gpkvs.request_checks import check_request_ops

_TABLE_NAME_MAX = 64
_MESSAGE_BYTES_BESIDE = 4096  # more than a message has beside its columns
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


def check_message_bytes(size_bytes: int, message_bytes_max: int) -> None:
    """Check a request's size before it is sent: over the server's limit it would be refused."""
    if size_bytes > message_bytes_max:
        raise InvalidArgumentError(
            f"a request of {size_bytes:,} bytes, the limit of a message is {message_bytes_max:,} "
            "(message_bytes_max): split it",
            field="message",
        )


def numbers_max(limits: Limits, message_bytes_max: int) -> int:
    """Return how many operations on numbers fit one request."""
    return max(min(limits.request_ops_max, (message_bytes_max - _MESSAGE_BYTES_BESIDE) // _BYTES_OF_NUMBER), 1)


def known_limits(limits: Limits | None, message_bytes_max: int) -> Limits:
    """Return the limits that a client checks, of a server that it was told so much of: a value fits a message."""
    known = limits or Limits()
    return replace(known, value_bytes_max=min(known.value_bytes_max, max(message_bytes_max - _MESSAGE_BYTES_BESIDE, 0)))


def request_bounds(limits: Limits, message_bytes_max: int) -> RequestBounds:
    """Return how much goes into one request of several, and into its response."""
    return RequestBounds(limits, min(limits.result_bytes_max, message_bytes_max - _MESSAGE_BYTES_BESIDE))


def message_of(operations: OperationList, table: str, limits: Limits, message_bytes_max: int) -> kv_pb2.BatchRequest:
    """Return a request as it is sent; raises InvalidArgumentError if it is over a limit."""
    check_table(table)
    check_request_ops(len(operations), limits)
    message = encode_lists(operations.ops, operations.keys, operations.values, table, operations.options)
    if operations.is_of_numbers:  # the server refuses a table of another layout than u64
        message.numbers = True
    check_message_bytes(message.ByteSize(), message_bytes_max)
    return message


def message_of_columns(
    batch: Batch, ttls: U64 | None, table: str, limits: Limits, message_bytes_max: int, *, numbers: bool
) -> kv_pb2.BatchRequest:
    """Return columns as they are sent; `numbers` has the server refuse a table of another layout than u64.

    Raises
    ------
    InvalidArgumentError
        If the columns do not add up or are over a limit.
    """
    check_table(table)
    batch.validate(limits)
    message = encode(batch, table, ttls)
    message.numbers = numbers
    check_message_bytes(message.ByteSize(), message_bytes_max)
    return message
