"""Messages that hold several requests: each is atomic, and fails, by itself."""

from __future__ import annotations

import grpc
import pytest

from gpkvs.proto.v1 import admin_pb2, kv_pb2
from tests.server.wire import CHECK, EXISTS, GET, INCREMENT, SET, Refused, batch, i64, u32, u32s, u64, u64s, values_of
from tests.serving import Server, StartServer

ABORTED, FULL = 10, 8


def test_each_request_has_its_own_outcome(server: Server) -> None:
    version = server.kv.Set(kv_pb2.SetRequest(key=b"a", value=b"1")).version
    operations = [
        (SET, b"b", b"one"),
        (CHECK, b"a"),
        (SET, b"c", b"two"),
        (CHECK, b"a"),
        (INCREMENT, b"n", i64(-4)),
        (EXISTS, b"c"),
        (CHECK, b"none"),
        (SET, b"d", b"three"),
    ]
    message = batch(operations, conditions=bytes([0, 3, 0, 3, 0, 0, 2, 0]), request_ops=u32(2, 2, 2, 2), id=5)
    message.expected = u64(0, version, 0, version + 1, 0, 0, 0, 0)
    response = server.kv.Batch(message)
    assert (response.id, response.code) == (5, 0)
    assert [failure.request for failure in response.failures] == [1, 3]
    conflict, missing = response.failures
    assert (conflict.code, conflict.failed_check, conflict.found) == (ABORTED, 1, version)
    assert (missing.code, missing.failed_check, missing.HasField("found")) == (ABORTED, 0, False)
    assert "operation 1" in conflict.message
    assert response.status == bytes([0, 0, 0, 1])
    assert (values_of(response), u32s(response.value_lengths)) == ([i64(-4)], [8])
    versions = u64s(response.versions)
    assert versions[1] == version < versions[0] < versions[2]
    read = server.kv.MultiGet(kv_pb2.MultiGetRequest(keys=[b"b", b"c", b"n", b"d"]))
    assert [result.value for result in read.results] == [b"one", b"", b"-4", b""]
    assert server.metric("gpkvs_requests_refused_total", reason="conflict") == 2
    assert server.metric("gpkvs_batch_requests_sum") == 1 + 4 + 1


def test_a_lone_request_of_such_a_message_fails_like_one_of_several(server: Server) -> None:
    message = batch([(CHECK, b"a"), (SET, b"b", b"one")], conditions=bytes([2, 0]), request_ops=u32(2), id=5)
    response = server.kv.Batch(message)
    (failure,) = response.failures
    assert (response.id, response.code, response.status) == (5, 0, b"")
    assert (failure.request, failure.code, failure.failed_check) == (0, ABORTED, 0)
    server.kv.Set(kv_pb2.SetRequest(key=b"a", value=b"1"))
    assert server.kv.Batch(message).status == bytes(2)


def test_numbers_and_equal_lengths(server: Server) -> None:
    server.admin.CreateTable(admin_pb2.CreateTableRequest(name="n", layout="u64", index_bytes=1 << 20))
    message = kv_pb2.BatchRequest(table="n", ops=bytes([SET, SET, CHECK, SET]), keys=u64(1, 2, 1, 3), key_size=8)
    message.values, message.value_size, message.request_ops = u64(7, 8, 9), 8, u32(1, 1, 2)
    message.conditions, message.expected = bytes([0, 0, 3, 0]), u64(0, 0, 7, 0)
    response = server.kv.Batch(message)  # a check sees what earlier requests left
    assert (response.status, response.versions, len(response.failures)) == (bytes(4), b"", 0)
    message = kv_pb2.BatchRequest(table="n", ops=bytes([SET, SET]), keys=u64(1, 2), key_size=8, request_ops=u32(1, 1))
    message.values, message.value_size = u64(70, 80), 8
    message.conditions, message.expected = bytes([0, 3]), u64(0, 9)
    response = server.kv.Batch(message)
    assert (response.status, u64s(response.versions)) == (bytes([0, 3]), [0, 8])


def test_a_request_that_does_not_fit_fails_alone(start_server: StartServer) -> None:
    server = start_server("--heap-bytes", "1MiB")
    operations = [(SET, b"a", b"1")] + [(SET, b"%d" % i, bytes(40_000)) for i in range(50)] + [(SET, b"b", b"2")]
    response = server.kv.Batch(batch(operations, request_ops=u32(1, 50, 1)))
    assert [(failure.request, failure.code, failure.full) for failure in response.failures] == [(1, FULL, "heap")]
    assert response.status == bytes(2)


@pytest.mark.parametrize(
    ("request_ops", "words"),
    [
        (u32(1), "request_ops: they do not add up to 2"),
        (u32(2, 0), "request_ops: they do not add up to 2"),
        (u32(1, 2**32 - 1), "request_ops"),
        (b"\1\0\0", "request_ops: 3 bytes"),
        (u32(*[1] * 1025), "request_ops: 4,100 bytes"),
    ],
)
def test_wrong_cuts_are_refused(server: Server, request_ops: bytes, words: str) -> None:
    message = batch([(SET, b"a", b"1"), (SET, b"b", b"1")], request_ops=request_ops)
    with Refused(grpc.StatusCode.INVALID_ARGUMENT, words):
        server.kv.Batch(message)


def test_what_several_requests_may_not_do(server: Server) -> None:
    with Refused(grpc.StatusCode.INVALID_ARGUMENT, "operation 1, ops: a GET"):
        server.kv.Batch(batch([(SET, b"a", b"1"), (GET, b"b")], request_ops=u32(1, 1)))
    with Refused(grpc.StatusCode.INVALID_ARGUMENT, "operation 1, keys: a key of 0 bytes"):
        server.kv.Batch(batch([(SET, b"a", b"1"), (SET, b"", b"")], request_ops=u32(1, 1)))
    [response] = server.kv.Pipeline(iter([batch([(SET, b"a", b"1")], request_ops=u32(1))]))
    assert (response.code, "request_ops" in response.message) == (3, True)
    assert not server.kv.Get(kv_pb2.GetRequest(key=b"a")).found
