"""Conditions, checks, counters and what else asks before it acts, over the wire, as any gRPC client sees them."""

from __future__ import annotations

import time

import grpc
import pytest

from gpkvs.errors import NotANumberError, NumberOverflowError
from gpkvs.proto.v1 import admin_pb2, kv_pb2
from tests.server.wire import (
    ABSENT,
    APPEND,
    CHECK,
    DELETE,
    EQUALS,
    EXISTS,
    EXPIRE,
    EXPIRY,
    GET,
    INCREMENT,
    PRESENT,
    SET,
    Refused,
    batch,
    i64,
    u32s,
    u64,
    u64s,
    values_of,
)
from tests.serving import Server, StartServer

OK, NOT_FOUND, CORRUPT, FAILED, OVERFLOW, NOT_A_NUMBER = range(6)
LARGEST = 2**63 - 1
HOUR = 3_600_000


def test_unary_set_and_delete_with_conditions(server: Server) -> None:
    kv = server.kv
    first = kv.Set(kv_pb2.SetRequest(key=b"a", value=b"1", condition=ABSENT))
    assert (first.version > 0, first.status) == (True, OK)
    again = kv.Set(kv_pb2.SetRequest(key=b"a", value=b"2", condition=ABSENT))
    assert (again.version, again.status) == (first.version, FAILED)
    assert kv.Set(kv_pb2.SetRequest(key=b"b", value=b"2", condition=PRESENT)) == kv_pb2.SetResponse(status=NOT_FOUND)
    second = kv.Set(kv_pb2.SetRequest(key=b"a", value=b"3", condition=EQUALS, expected=first.version))
    assert second.version > first.version
    assert kv.Get(kv_pb2.GetRequest(key=b"a")).value == b"3"
    failed = kv.Delete(kv_pb2.DeleteRequest(key=b"a", condition=EQUALS, expected=first.version))
    assert failed == kv_pb2.DeleteResponse(version=second.version, status=FAILED)
    done = kv.Delete(kv_pb2.DeleteRequest(key=b"a", condition=EQUALS, expected=second.version))
    assert done == kv_pb2.DeleteResponse(found=True, version=second.version)
    assert kv.Delete(kv_pb2.DeleteRequest(key=b"a")) == kv_pb2.DeleteResponse(status=NOT_FOUND)
    with Refused(grpc.StatusCode.INVALID_ARGUMENT, "condition: unknown condition 4"):
        kv.Set(kv_pb2.SetRequest(key=b"a", condition=4))


def test_unary_increment(server: Server) -> None:
    kv = server.kv
    assert kv.Increment(kv_pb2.IncrementRequest(key=b"n", delta=-5)).number == -5
    response = kv.Increment(kv_pb2.IncrementRequest(key=b"n", delta=LARGEST))
    assert response.number == LARGEST - 5
    stored = kv.Get(kv_pb2.GetRequest(key=b"n"))
    assert (stored.value, stored.version) == (b"%d" % (LARGEST - 5), response.version)
    with Refused(grpc.StatusCode.OUT_OF_RANGE, str(NumberOverflowError())):
        kv.Increment(kv_pb2.IncrementRequest(key=b"n", delta=6))
    kv.Set(kv_pb2.SetRequest(key=b"n", value=b"five"))
    with Refused(grpc.StatusCode.FAILED_PRECONDITION, str(NotANumberError())):
        kv.Increment(kv_pb2.IncrementRequest(key=b"n", delta=1))
    assert kv.Get(kv_pb2.GetRequest(key=b"n")).value == b"five"
    assert server.metric("gpkvs_operations_total", op="increment", status="ok") == 2
    assert server.metric("gpkvs_operations_total", op="increment", status="overflow") == 1
    assert server.metric("gpkvs_operations_total", op="increment", status="not_a_number") == 1
    assert server.metric("gpkvs_requests_refused_total") == 0


def test_operations_of_all_kinds_in_one_request(server: Server) -> None:
    operations = [
        (SET, b"k", b"one"),
        (SET, b"k", b"two"),
        (APPEND, b"k", b"!"),
        (GET, b"k"),
        (INCREMENT, b"n", i64(-7)),
        (EXISTS, b"n"),
        (DELETE, b"none"),
        (INCREMENT, b"k", i64(1)),
        (GET, b"n"),
        (CHECK, b"k"),  # of what is there before the request
    ]
    conditions = [0, ABSENT, PRESENT, 0, ABSENT, 0, PRESENT, 0, 0, ABSENT]
    response = server.kv.Batch(batch(operations, conditions=bytes(conditions)))  # type: ignore[arg-type]
    assert list(response.status) == [OK, FAILED, OK, OK, OK, OK, NOT_FOUND, NOT_A_NUMBER, OK, OK]
    assert values_of(response) == [b"one!", i64(-7), b"", b"-7"]
    versions = u64s(response.versions)
    assert versions[0] == versions[1] < versions[2] == versions[3] == versions[7]
    assert versions[4] == versions[5] == versions[8]


def test_tables_of_numbers_tell_versions_only_of_failed_conditions(server: Server) -> None:
    server.admin.CreateTable(admin_pb2.CreateTableRequest(name="n", layout="u64", index_bytes=1 << 20))
    key = u64(1)
    assert server.kv.Increment(kv_pb2.IncrementRequest(table="n", key=key, delta=-2)).number == -2
    assert server.kv.Get(kv_pb2.GetRequest(table="n", key=key)).value == i64(-2)
    requests = [
        batch([(SET, key, u64(7)), (GET, key)], table="n"),
        batch([(INCREMENT, key, i64(1))], table="n"),
        batch([(SET, key, u64(9)), (GET, key)], table="n", conditions=b"\3\0", expected=u64(5, 0)),
        batch([(SET, key, u64(9)), (GET, key)], table="n", conditions=b"\3\0", expected=u64(8, 0)),
        batch([(GET, u64(2))], table="n"),
    ]
    responses = list(server.kv.Pipeline(iter(requests)))
    assert [u64s(response.versions) for response in responses] == [[], [], [8, 0], [], []]
    assert [response.status for response in responses] == [b"\0\0", b"\0", b"\3\0", b"\0\0", b"\1"]
    assert [response.values for response in responses] == [u64(7), i64(8), u64(8), u64(9), b""]
    failed = server.kv.Set(kv_pb2.SetRequest(table="n", key=key, value=u64(1), condition=ABSENT))
    assert failed == kv_pb2.SetResponse(version=9, status=FAILED)


def test_a_failed_check_refuses_its_request_and_no_other(server: Server) -> None:
    kv = server.kv
    version = kv.Set(kv_pb2.SetRequest(key=b"a", value=b"1")).version
    good = batch([(CHECK, b"a"), (SET, b"b", b"x")], conditions=b"\3\0", expected=u64(version, 0), id=1)
    other = batch([(SET, b"c", b"y"), (CHECK, b"a"), (CHECK, b"b")], conditions=b"\0\3\1", id=2)
    other.expected = u64(0, version + 1, 0)
    missing = batch([(CHECK, b"none"), (SET, b"c", b"z")], conditions=b"\2\0", id=3)
    responses = list(kv.Pipeline(iter([good, other, missing, batch([(GET, b"b"), (GET, b"c")], id=4)])))
    assert [response.id for response in responses] == [1, 2, 3, 4]
    assert [response.code for response in responses] == [0, 10, 10, 0]
    assert [response.HasField("failed_check") for response in responses] == [False, True, True, False]
    assert (responses[1].failed_check, responses[1].found) == (1, version)
    assert (responses[2].failed_check, responses[2].HasField("found")) == (0, False)
    assert responses[3].status == bytes([OK, NOT_FOUND])
    with Refused(grpc.StatusCode.ABORTED, "operation 1", failed_check="1", found=str(version)):
        kv.Batch(other)
    with Refused(grpc.StatusCode.ABORTED, "its key is not there", failed_check="0", found=None):
        kv.Batch(missing)
    assert server.metric("gpkvs_requests_refused_total", reason="conflict") == 4
    assert server.metric("gpkvs_operations_total", op="check", status="ok") == 1
    assert server.metric("gpkvs_operations_total", op="set") == 2


def test_multi_get(start_server: StartServer) -> None:
    server = start_server("--message-bytes-max", "1MiB")
    kv = server.kv
    version = kv.Set(kv_pb2.SetRequest(key=b"a", value=b"1")).version
    kv.Set(kv_pb2.SetRequest(key=b"large", value=bytes(60_000)))
    response = kv.MultiGet(kv_pb2.MultiGetRequest(keys=[b"a", b"none", b"a"]))
    one = kv_pb2.GetResponse(found=True, value=b"1", version=version)
    assert list(response.results) == [one, kv_pb2.GetResponse(), one]
    assert server.metric("gpkvs_batch_requests_sum") == 3
    with Refused(grpc.StatusCode.INVALID_ARGUMENT, "operation 1, keys: a key of 0 bytes"):
        kv.MultiGet(kv_pb2.MultiGetRequest(keys=[b"a", b""]))
    with Refused(grpc.StatusCode.INVALID_ARGUMENT, "at least one"):
        kv.MultiGet(kv_pb2.MultiGetRequest())
    with Refused(grpc.StatusCode.INVALID_ARGUMENT, "keys: 16,385 keys"):
        kv.MultiGet(kv_pb2.MultiGetRequest(keys=[b"a"] * 16_385))
    with Refused(grpc.StatusCode.NOT_FOUND, "no table"):
        kv.MultiGet(kv_pb2.MultiGetRequest(table="none", keys=[b"a"]))
    with Refused(grpc.StatusCode.INVALID_ARGUMENT):
        kv.MultiGet(kv_pb2.MultiGetRequest(keys=[b"large"] * 20))
    assert len(kv.MultiGet(kv_pb2.MultiGetRequest(keys=[b"large"] * 10)).results[1].value) == 60_000


COLUMNS = {
    "conditions: 1 for 2 operations": {"conditions": b"\1"},
    "expected: 8 bytes for 2 operations": {"conditions": b"\3\0", "expected": u64(1)},
    "expiries: 9 bytes for 2 operations": {"expiries": bytes(9)},
    "ttls: 1 bytes for 2 operations": {"ttls": b"1"},
    "ttls: given beside expiries": {"ttls": u64(0, 1), "expiries": u64(1, 0)},
    "operation 1, ttls: 18,446,744,073,709,551,615 ms": {"ttls": u64(0, 2**64 - 1)},
    "operation 1, conditions: unknown condition": {"conditions": b"\0\4"},
    "operation 0, expected: nothing is expected": {"conditions": b"\3\0"},
    "operation 1, conditions: a GET has no condition": {"conditions": b"\0\1"},
    "operation 1, ops: unknown operation 11": {"ops": bytes([SET, 11])},
    "operation 0, value_lengths: an increment": {"ops": bytes([INCREMENT, GET])},
    "operation 1, conditions: a check needs one": {"ops": bytes([SET, CHECK])},
}


def test_wrong_columns_are_refused_with_their_names(server: Server) -> None:
    for words, columns in COLUMNS.items():
        request = batch([(SET, b"a", b"1"), (GET, b"b")])
        request.MergeFrom(kv_pb2.BatchRequest(**columns))
        with Refused(grpc.StatusCode.INVALID_ARGUMENT, words):
            server.kv.Batch(request)
    assert server.kv.Batch(batch([(GET, b"a")])).status == bytes([NOT_FOUND])


def test_columns_of_zeros_are_none(server: Server) -> None:
    request = batch([(SET, b"a", b"1"), (GET, b"a")], conditions=bytes(2), expected=bytes(16), ttls=bytes(16))
    response = server.kv.Batch(request)
    assert (response.status, values_of(response), u32s(response.value_lengths)) == (bytes(2), [b"1"], [1])


@pytest.mark.parametrize("count", [100, 5000])
def test_requests_with_and_without_options_share_batches(server: Server, count: int) -> None:
    """Every second one has them; each gets its own results."""
    requests = [
        batch([(INCREMENT, b"n", i64(2))], conditions=bytes([0 if i % 3 else PRESENT]), id=i)
        if i % 2
        else batch([(SET, b"k%d" % i, b"v"), (GET, b"k%d" % i)], id=i)
        for i in range(count)
    ]
    requests.insert(0, batch([(INCREMENT, b"n", i64(0))]))
    responses = list(server.kv.Pipeline(iter(requests)))[1:]
    assert [response.values for response in responses] == [i64(i + 1) if i % 2 else b"v" for i in range(count)]


def expiries(server: Server, *keys: bytes) -> list[int | None]:
    """Return when keys expire; None where one is not there."""
    response = server.kv.Batch(batch([(EXPIRY, key) for key in keys]))
    values = iter(values_of(response))
    return [u64s(value)[0] if status == OK else None for status, value in zip(response.status, values, strict=True)]


def test_keys_expire_when_they_are_told_to(server: Server) -> None:
    kv = server.kv
    before = time.time_ns() // 1_000_000
    kv.Set(kv_pb2.SetRequest(key=b"soon", value=b"1", ttl_ms=1))
    kv.Set(kv_pb2.SetRequest(key=b"hour", value=b"1", ttl_ms=HOUR))
    kv.Set(kv_pb2.SetRequest(key=b"then", value=b"1", expiry_ms=before + 2 * HOUR))
    kv.Set(kv_pb2.SetRequest(key=b"never", value=b"1"))
    kv.Increment(kv_pb2.IncrementRequest(key=b"n", delta=1, ttl_ms=HOUR))
    kv.Increment(kv_pb2.IncrementRequest(key=b"n", delta=1, ttl_ms=9 * HOUR))  # it keeps what it has
    after = time.time_ns() // 1_000_000
    time.sleep(0.005)
    soon, hour, then, never, number = expiries(server, b"soon", b"hour", b"then", b"never", b"n")
    assert soon is None
    assert hour is not None
    assert number is not None
    assert before + HOUR <= hour <= number <= after + HOUR
    assert (then, never) == (before + 2 * HOUR, 0)
    changes = batch([(EXPIRE, b"hour"), (EXPIRE, b"never"), (EXPIRE, b"soon"), (SET, b"then", b"2")])
    changes.ttls = u64(0, HOUR, HOUR, 0)
    response = kv.Batch(changes)
    assert list(response.status) == [OK, OK, NOT_FOUND, OK]
    hour, then, never = expiries(server, b"hour", b"then", b"never")
    assert (hour, then) == (0, 0)
    assert never is not None
    assert never >= before + HOUR


def test_expiries_that_make_no_sense_are_refused(server: Server) -> None:
    kv = server.kv
    with Refused(grpc.StatusCode.INVALID_ARGUMENT, "ttl_ms: given beside expiry_ms"):
        kv.Set(kv_pb2.SetRequest(key=b"a", ttl_ms=1, expiry_ms=1))
    with Refused(grpc.StatusCode.INVALID_ARGUMENT, "ttl_ms", "past the end of time"):
        kv.Set(kv_pb2.SetRequest(key=b"a", ttl_ms=2**64 - 1))
    server.admin.CreateTable(admin_pb2.CreateTableRequest(name="n", layout="u64", index_bytes=1 << 20))
    with Refused(grpc.StatusCode.INVALID_ARGUMENT):
        kv.Set(kv_pb2.SetRequest(table="n", key=bytes(8), value=bytes(8), ttl_ms=1))
    with Refused(grpc.StatusCode.INVALID_ARGUMENT):
        kv.Batch(batch([(EXPIRY, bytes(8))], table="n"))
    assert not kv.Get(kv_pb2.GetRequest(key=b"a")).found
