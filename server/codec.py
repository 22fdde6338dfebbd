"""Between messages and columns.

The columns of a request stay bytes, as they came from the wire, until the engine's thread forms a batch; it joins each
column once. A request that is alone in its batch is not copied at all.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from gpkvs.batch import (
    HAS_VALUE,
    RETURNS_VALUE,
    U8,
    U32,
    Batch,
    BatchPart,
    BatchResult,
    Op,
    Status,
    constant,
    is_constant,
)
from gpkvs.config import Limits
from gpkvs.errors import GpkvsError, InvalidArgumentError
from gpkvs.operations import wall_clock_ms
from gpkvs.proto.v1 import kv_pb2
from gpkvs.request_checks import check_key_bytes, check_value_bytes
from gpkvs.server.message_limits import RESPONSE_BYTES, RESPONSE_BYTES_PER_OP
from gpkvs.server.options import Clock, Options, decode_options, join_options
from gpkvs.store import OpenTable, Store

_COLUMN_BYTES_PER_OP = 13  # of a response beside its values: status, version, value length
# The Python objects of a request, without its columns.
_REQUEST_BYTES = 2 << 10
_OP_BYTES = {op: bytes([op]) for op in Op}


@dataclass(slots=True)
class Request:
    """The checked columns of one request, or of several requests of one message (`gpkvs.server.several`).

    Lengths are little-endian u32, or one number for all: then their column is empty.
    """

    operations: int
    returning: int  # operations that return a value
    with_value: int  # operations that have one
    ops: bytes
    keys: bytes
    key_lengths: bytes
    values: bytes
    value_lengths: bytes
    key_size: int = 0
    value_size: int = 0
    table: int = 0  # its id
    message_bytes: int = 0  # of the message it came in: its columns and all the rest
    options: Options | None = None  # None: none has any
    request_ops: bytes = b""  # if these are several requests: the operations of each, u32

    @property
    def requests(self) -> int:
        """How many requests these are for the engine."""
        return len(self.request_ops) // 4 or 1

    @property
    def payload_bytes(self) -> int:
        """Bytes of keys and values."""
        return len(self.keys) + len(self.values)

    @property
    def held_bytes(self) -> int:
        """About what it takes in memory while it waits: no less than its message."""
        return _REQUEST_BYTES + max(self.message_bytes, self.payload_bytes)

    @property
    def response_bytes(self) -> int:
        """What its response takes, without the values that it reads."""
        return response_bytes(self.operations, 0)


class Response(NamedTuple):
    """The columns of one response: the results of a request as the wire has them.

    Versions are little-endian u64. Where the table has none, there are none here, unless a condition failed: then they
    tell the number that is there. Value lengths are u32.
    """

    status: bytes
    versions: bytes
    value_lengths: bytes
    values: bytes
    failures: tuple[tuple[int, Exception], ...] = ()  # of several requests: those that failed; not in the columns

    @property
    def held_bytes(self) -> int:
        """About what it takes in memory or as a message."""
        return response_bytes(len(self.status), len(self.values))


def single(
    op: Op,
    key: bytes,
    value: bytes,
    limits: Limits,
    table: int = 0,
    message_bytes: int = 0,
    options: Options | None = None,
) -> Request:
    """Make a request of one operation on a table with these limits; `value` counts for those that have one only.

    Parameters
    ----------
    op, key, value, limits, table
        The operation, and the limits and id of its table.
    message_bytes
        Size of the message it came in.
    options
        What it asks for; `gpkvs.server.options`.

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
    return Request(
        operations=1,
        returning=int(op is Op.GET or op is Op.INCREMENT),
        with_value=int(has_value),
        ops=_OP_BYTES[op],
        keys=key,
        key_lengths=b"",
        values=value,
        value_lengths=b"",
        key_size=len(key),
        value_size=len(value),
        table=table,
        message_bytes=message_bytes,
        options=options,
    )


def table_of(message: kv_pb2.BatchRequest, store: Store) -> OpenTable:
    """Return the table that a message names; raises UnknownTableError, or InvalidArgumentError for a wrong layout."""
    table = store.open_table(message.table).require_layout(message.layout)
    return table.require_numbers() if message.numbers else table


def decode(
    message: kv_pb2.BatchRequest,
    limits: Limits,
    table: int = 0,
    message_bytes: int = 0,
    clock: Clock = wall_clock_ms,
) -> Request:
    """Take the columns out of a message and check them against the limits of its table.

    Parameters
    ----------
    message, limits, table
        The message, and the limits and id of its table.
    message_bytes
        The message's size as it came.
    clock
        From which on times to live count.

    Raises
    ------
    InvalidArgumentError
        Naming the operation's index, the field and the limit.
    """
    # Each access to a field of bytes copies it.
    ops, keys, values = message.ops, message.keys, message.values
    op_column = np.frombuffer(ops, np.uint8)
    with_value = int(np.count_nonzero(op_column == Op.SET.value))
    returning = int(np.count_nonzero(op_column == Op.GET.value))
    is_plain = with_value + returning == len(ops)
    if not is_plain and op_column.max() > Op.EXISTS.value:
        with_value = int(np.count_nonzero(HAS_VALUE[op_column]))
        _check_response(len(ops), returning, op_column, limits)
        returning = int(np.count_nonzero(RETURNS_VALUE[op_column]))
    options = decode_options(message, len(ops), clock)
    batch = Batch(
        ops=op_column,
        keys=np.frombuffer(keys, np.uint8),
        key_lengths=_lengths("key", message.key_lengths, message.key_size, len(ops)),
        values=np.frombuffer(values, np.uint8),
        value_lengths=_lengths("value", message.value_lengths, message.value_size, with_value),
        **(join_options([options], [len(ops)]) if options else {}),
    )
    batch.validate(limits, with_value if is_plain else None)
    return Request(
        operations=len(ops),
        returning=returning,
        with_value=with_value,
        ops=ops,
        keys=keys,
        key_lengths=message.key_lengths,
        values=values,
        value_lengths=message.value_lengths,
        key_size=message.key_size,
        value_size=message.value_size,
        table=table,
        message_bytes=message_bytes,
        options=options,
    )


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


def first_key(request: Request) -> bytes:
    """Return the key of the first operation; empty without one."""
    size = int.from_bytes(request.key_lengths[:4], "little") if request.key_lengths else request.key_size
    return request.keys[:size]


def batch_of(requests: Sequence[Request]) -> Batch:
    """Join the columns of requests on one table to those of a batch, in order."""
    options = [request.options for request in requests]
    return Batch(
        ops=np.frombuffer(b"".join([request.ops for request in requests]), np.uint8),
        keys=np.frombuffer(b"".join([request.keys for request in requests]), np.uint8),
        key_lengths=_joined_lengths([(r.key_lengths, r.key_size, r.operations) for r in requests]),
        values=np.frombuffer(b"".join([request.values for request in requests]), np.uint8),
        value_lengths=_joined_lengths([(r.value_lengths, r.value_size, r.with_value) for r in requests]),
        request_ops=np.frombuffer(
            b"".join([r.request_ops or r.operations.to_bytes(4, "little") for r in requests]), "<u4"
        ),
        table=requests[0].table,
        **(join_options(options, [request.operations for request in requests]) if any(options) else {}),
    )


def _joined_lengths(parts: Sequence[tuple[bytes, int, int]]) -> U32:
    """Join the lengths of several requests, each given as a column, the one length of all, and how many there are."""
    _, first_size, _ = parts[0]
    if all(size == first_size and not column for column, size, _ in parts):
        return constant(np.uint32(first_size), sum(count for _, _, count in parts))
    return np.frombuffer(
        b"".join([column or size.to_bytes(4, "little") * count for column, size, count in parts]), "<u4"
    )


def responses_of(result: BatchResult, requests: Sequence[Request] = ()) -> list[Response | GpkvsError]:
    """Return the response to each request that a result covers, or why the request was rejected.

    Parameters
    ----------
    result
        Of a batch.
    requests
        Of which it was made, if some of them are several: these have one response. The last one that is covered at all
        may be covered in part.
    """
    if any(request.request_ops for request in requests):
        return _shared_responses(result, requests)
    responses: dict[int, Response | GpkvsError] = dict(result.rejected)
    if part := result.part:
        responses.update(zip(part.numbers.tolist(), _responses(part), strict=True))
    return [responses[number] for number in range(result.requests)]


def _shared_responses(result: BatchResult, requests: Sequence[Request]) -> list[Response | GpkvsError]:
    """Return one response for all the requests that came together."""
    begins = list(accumulate((request.requests for request in requests), initial=0))
    covered = bisect_left(begins, result.requests)
    bounds = np.array([*begins[:covered], result.requests])
    part = result.part
    nothing = Response(b"", b"", b"", b"")
    responses = list(_responses(part, np.searchsorted(part.numbers, bounds))) if part else [nothing] * covered
    failures: dict[int, list[tuple[int, GpkvsError]]] = {}
    for number, error in sorted(result.rejected.items()):
        of = bisect_right(begins, number) - 1
        failures.setdefault(of, []).append((number - begins[of], error))
    shared: list[Response | GpkvsError] = list(responses)
    for of, failed in failures.items():
        shared[of] = responses[of]._replace(failures=tuple(failed)) if requests[of].request_ops else failed[0][1]
    return shared


def behind(request: Request, done: int) -> Request:
    """Return the requests of a message behind the first few."""
    counts = np.frombuffer(request.request_ops, "<u4")
    op = int(counts[:done].sum())
    ops = np.frombuffer(request.ops, np.uint8)
    with_value = int(np.count_nonzero(HAS_VALUE[ops[:op]]))
    key_bytes = _bytes_before(request.key_lengths, request.key_size, op)
    value_bytes = _bytes_before(request.value_lengths, request.value_size, with_value)
    return replace(
        request,
        operations=request.operations - op,
        returning=request.returning - int(np.count_nonzero(RETURNS_VALUE[ops[:op]])),
        with_value=request.with_value - with_value,
        ops=request.ops[op:],
        keys=request.keys[key_bytes:],
        key_lengths=request.key_lengths[4 * op :],
        values=request.values[value_bytes:],
        value_lengths=request.value_lengths[4 * with_value :],
        options=request.options and request.options.behind(op),
        request_ops=request.request_ops[4 * done :],
    )


def _bytes_before(lengths: bytes, size: int, count: int) -> int:
    """Return how many bytes the first few strings take."""
    return int(np.frombuffer(lengths, "<u4")[:count].sum()) if lengths else size * count


def joined_responses(responses: Sequence[Response], requests: Sequence[int]) -> Response:
    """Join the responses to requests of one message, of which each covers so many."""
    has_versions = any(response.versions for response in responses)
    return Response(
        b"".join([response.status for response in responses]),
        b"".join([response.versions or bytes(8 * len(response.status)) for response in responses])
        if has_versions
        else b"",
        b"".join([response.value_lengths for response in responses]),
        b"".join([response.values for response in responses]),
        tuple(
            (first + number, error)
            for first, response in zip(accumulate(requests, initial=0), responses, strict=False)
            for number, error in response.failures
        ),
    )


def _responses(part: BatchPart, ends: NDArray[np.intp] | None = None) -> Iterator[Response]:
    """Copy each request's results: one that waits to be sent must not hold the columns of its whole batch."""
    result = part.result
    status, values = np.ascontiguousarray(result.status).data, result.values.data
    lengths = np.ascontiguousarray(result.value_lengths, "<u4").data
    has_versions = not is_constant(result.versions)
    versions = result.versions.astype("<u8", copy=False).data if has_versions else memoryview(b"")
    for ops, gets, data in part.cuts(ends):
        own = bytes(status[ops])
        # Where the table has no versions the column is only there to tell what a failed condition found.
        tells = not result.has_numbers or Status.CONDITION_FAILED in own
        yield Response(own, bytes(versions[ops]) if tells else b"", bytes(lengths[gets]), bytes(values[data]))


def response_bytes(operations: int, value_bytes: int) -> int:
    """Return about what a response takes in memory or as a message."""
    return RESPONSE_BYTES + RESPONSE_BYTES_PER_OP * operations + value_bytes


def encode(request_id: int, response: Response) -> kv_pb2.BatchResponse:
    """Put a response's columns into a message."""
    return kv_pb2.BatchResponse(
        id=request_id,
        status=response.status,
        values=response.values,
        value_lengths=response.value_lengths,
        versions=response.versions,
    )
