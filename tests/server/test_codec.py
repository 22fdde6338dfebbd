"""Columns from the wire into a batch, and results back to the requests they belong to."""

from __future__ import annotations

import tempfile

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import gpkvs
from gpkvs.batch import Batch, Op, is_constant
from gpkvs.config import Limits
from gpkvs.errors import GpkvsError
from gpkvs.proto.v1 import kv_pb2
from gpkvs.server import codec
from tests.server.wire import Operation, batch

KEYS = st.binary(min_size=1, max_size=3)
OPERATIONS = st.one_of(
    st.tuples(st.just(1), KEYS),
    st.tuples(st.just(2), KEYS, st.binary(max_size=20)),
    st.tuples(st.just(3), KEYS),
)
REQUESTS = st.lists(st.lists(OPERATIONS, min_size=1, max_size=6), min_size=1, max_size=6)


def columns_equal(first: Batch, second: Batch) -> bool:
    return all(
        np.array_equal(getattr(first, name), getattr(second, name))
        for name in ("ops", "keys", "key_lengths", "values", "value_lengths", "request_ops")
    )


def one(operation: Operation) -> codec.Request:
    """Return the request that a unary call makes of an operation."""
    return codec.single(Op(operation[0]), operation[1], operation[2] if len(operation) == 3 else b"", Limits())


@given(REQUESTS)
def test_joined_requests_are_the_concatenated_batches(requests: list[list[Operation]]) -> None:
    joined = codec.batch_of([codec.decode(batch(request), Limits()) for request in requests])
    expected = Batch.concatenate([Batch.of([(Op(op), *rest) for op, *rest in request]) for request in requests])  # type: ignore[misc]
    assert columns_equal(joined, expected)
    joined.validate(Limits())


@given(OPERATIONS)
def test_a_single_operation_is_a_batch_of_one(operation: Operation) -> None:
    assert columns_equal(codec.batch_of([one(operation)]), codec.batch_of([codec.decode(batch([operation]), Limits())]))


def test_one_length_may_stand_for_all() -> None:
    message = kv_pb2.BatchRequest(ops=b"\x02\x01\x02", keys=b"aabbcc", key_size=2, values=b"xyz123", value_size=3)
    alone = codec.decode(message, Limits())
    written_out = codec.decode(batch([(2, b"aa", b"xyz"), (1, b"bb"), (2, b"cc", b"123")]), Limits())
    assert is_constant(codec.batch_of([alone, alone]).key_lengths)
    for first in (alone, written_out):
        for second in (alone, written_out, one((2, b"k", b"v"))):
            expected = [2, 2, 2, *([1] if second.operations == 1 else [2, 2, 2])]
            assert codec.batch_of([first, second]).key_lengths.tolist() == expected


def test_one_request_is_not_copied() -> None:
    message = batch([(2, b"key", b"value")])
    request = codec.decode(message, Limits())
    joined = codec.batch_of([request])
    for column, data in ((joined.keys, request.keys), (joined.values, request.values), (joined.ops, request.ops)):
        assert column.ctypes.data == np.frombuffer(data, np.uint8).ctypes.data


@settings(max_examples=25, deadline=None)
@given(requests=REQUESTS)
def test_split_gives_each_request_its_own_results(requests: list[list[Operation]]) -> None:
    """As they are when each request runs alone, in the same order."""
    with tempfile.TemporaryDirectory(dir="/dev/shm") as folder:
        sizes = {"index_bytes": 64 << 10, "heap_bytes": 1 << 20, "log_bytes": 256 << 10}
        with gpkvs.open(f"{folder}/together", **sizes) as together, gpkvs.open(f"{folder}/alone", **sizes) as alone:
            decoded = [codec.decode(batch(request), Limits()) for request in requests]
            responses = codec.responses_of(together.execute_requests(codec.batch_of(decoded)))
            for request, response in zip(decoded, responses, strict=True):
                [expected] = codec.responses_of(alone.execute_requests(codec.batch_of([request])))
                assert response._replace(versions=b"") == expected._replace(versions=b"")  # type: ignore[union-attr]


@pytest.mark.format3
def test_split_puts_rejections_in_their_places(store: gpkvs.Store) -> None:
    def large(name: str) -> list[Operation]:  # 8 MB: the heap of 16 MiB holds one of them
        return [(2, b"%s-%d" % (name.encode(), i), bytes(200_000)) for i in range(40)]

    requests = [
        codec.decode(batch(operations), Limits())
        for operations in (large("x"), [(2, b"a", b"1"), (1, b"a")], large("y"), [(1, b"a")])
    ]
    responses = codec.responses_of(store.execute_requests(codec.batch_of(requests)))
    assert [isinstance(response, GpkvsError) for response in responses] == [False, False, True, False]
    assert [response.values for response in responses if isinstance(response, codec.Response)] == [b"", b"1", b"1"]


def test_encode_echoes_the_id() -> None:
    response = codec.Response(b"\x00", bytes(8), b"", b"")
    assert codec.encode(9, response) == kv_pb2.BatchResponse(id=9, status=b"\x00", versions=bytes(8))
