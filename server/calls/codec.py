"""Requests as messages: what is wrong with one that a client sends, and those that handlers make.

The door decodes and checks what is right by itself (`door/grpc/messages.hpp`). A message that it does not take comes
here, where the words are.
"""

from __future__ import annotations

import numpy as np

from gpkvs.batch import HAS_VALUE, U8, U32, Batch, Op, constant
from gpkvs.config import Limits
from gpkvs.errors import InvalidArgumentError
from gpkvs.proto.v1 import kv_pb2
from gpkvs.request_checks import check_key_bytes, check_value_bytes
from gpkvs.server.account.message_limits import RESPONSE_BYTES_PER_OP, requests_max
from gpkvs.server.calls.options import Clock, Options, columns_of, decode_options
from gpkvs.store import OpenTable, Store

_COLUMN_BYTES_PER_OP = 13  # of a response beside its values: status, version, value length
_OP_BYTES = {op: bytes([op]) for op in Op}


def single(op: Op, key: bytes, value: bytes, limits: Limits, options: Options | None = None) -> kv_pb2.BatchRequest:
    """Make a request of one operation on a table with these limits; `value` counts for those that have one only.

    Raises
    ------
    InvalidArgumentError
        Naming the field and the limit.
    """
    check_key_bytes(len(key), limits)
    has_value = op is Op.SET or op is Op.INCREMENT
    if has_value:
        check_value_bytes(len(value), limits)
    else:
        value = b""
    request = kv_pb2.BatchRequest(ops=_OP_BYTES[op], keys=key, key_size=len(key), values=value, value_size=len(value))
    give_options(request, options)
    return request


def give_options(request: kv_pb2.BatchRequest, options: Options | None) -> None:
    """Have the operations of a request ask for these, and for no others."""
    conditions, expected, expiries = options or Options()
    request.conditions, request.expected, request.expiries, request.ttls = conditions, expected, expiries, b""


def table_of(message: kv_pb2.BatchRequest, store: Store) -> OpenTable:
    """Return the table that a message names; raises UnknownTableError, or InvalidArgumentError for a wrong layout."""
    table = store.open_table(message.table).require_layout(message.layout)
    return table.require_numbers() if message.numbers else table


def check(message: kv_pb2.BatchRequest, limits: Limits, clock: Clock) -> None:
    """Check the columns of a message against the limits of its table, and have its times to live count from now on.

    Parameters
    ----------
    message, limits
        The message, and the limits of its table.
    clock
        From which on times to live count.

    Raises
    ------
    InvalidArgumentError
        Naming the operation's index, the field and the limit.
    """
    message.DiscardUnknownFields()  # the door reads those only that are not nested deep
    ops = message.ops
    op_column = np.frombuffer(ops, np.uint8)
    with_value = int(np.count_nonzero(op_column == Op.SET.value))
    gets = int(np.count_nonzero(op_column == Op.GET.value))
    is_plain = with_value + gets == len(ops)
    if not is_plain and op_column.max() > Op.EXISTS.value:
        with_value = int(np.count_nonzero(HAS_VALUE[op_column]))
        _check_response(len(ops), gets, op_column, limits)
    options = decode_options(message, len(ops), clock)
    batch = Batch(
        ops=op_column,
        keys=np.frombuffer(message.keys, np.uint8),
        key_lengths=_lengths("key", message.key_lengths, message.key_size, len(ops)),
        values=np.frombuffer(message.values, np.uint8),
        value_lengths=_lengths("value", message.value_lengths, message.value_size, with_value),
        **(columns_of(options) if options else {}),
    )
    batch.validate(limits, with_value if is_plain else None)
    give_options(message, options)


def check_requests(message: kv_pb2.BatchRequest, message_bytes_max: int) -> None:
    """Check how many operations each of the several requests of a message has.

    Raises
    ------
    InvalidArgumentError
        If they do not fit the operations: none of the requests is executed then.
    """
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


def _check_response(operations: int, gets: int, ops: U8, limits: Limits) -> None:
    """Check that a response with numbers fits its message, as any without them does (`message_limits`)."""
    numbers = int(np.count_nonzero((ops == Op.INCREMENT.value) | (ops == Op.EXPIRY.value)))
    wanted = _COLUMN_BYTES_PER_OP * operations + 8 * numbers
    if gets and wanted > RESPONSE_BYTES_PER_OP * limits.request_ops_max:
        raise InvalidArgumentError(
            f"the response to {numbers:,} increments and expiries among {operations:,} operations, GETs too, may not "
            "fit its message: split it",
            field="ops",
        )


def _lengths(name: str, column: bytes, size: int, count: int) -> U32:
    """Return a column of lengths; if all are equal, it takes no memory: its count is not checked yet."""
    if not column:
        return constant(np.uint32(size), count)
    if size:
        raise InvalidArgumentError(
            f"given beside {name}_size = {size}: fill in {name}_lengths, or {name}_size where all are equally long",
            field=f"{name}_lengths",
        )
    if len(column) % 4:
        raise InvalidArgumentError(
            f"{len(column)} bytes are no whole number of u32, 4 bytes each", field=f"{name}_lengths"
        )
    return np.frombuffer(column, "<u4")
