"""Columns to and from messages."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from gpkvs.batch import Batch, Condition, Op, Status
from gpkvs.client.codec import Options, decode, encode, encode_lists
from gpkvs.client.errors import ServerError
from gpkvs.errors import (
    ConditionFailedError,
    CorruptRecordError,
    InvalidArgumentError,
    NotANumberError,
    NumberOverflowError,
)
from gpkvs.outcome import outcome_of
from gpkvs.proto.v1 import kv_pb2


def test_columns_of_unequal_lengths_travel_with_their_lengths() -> None:
    message = encode(Batch.of([(Op.SET, b"a", b"one"), (Op.GET, b"bcd"), (Op.SET, b"ef", b"")]), "t")
    assert (message.table, message.ops, message.keys, message.values) == ("t", b"\2\1\2", b"abcdef", b"one")
    assert message.key_lengths == b"\1\0\0\0\3\0\0\0\2\0\0\0"
    assert message.value_lengths == b"\3\0\0\0\0\0\0\0"
    assert message.key_size == message.value_size == 0


def test_columns_of_equal_lengths_travel_with_one_size() -> None:
    message = encode(Batch.of([(Op.SET, b"ab", b"one"), (Op.SET, b"cd", b"two")]), "")
    assert (message.key_size, message.key_lengths) == (2, b"")
    assert (message.value_size, message.value_lengths) == (3, b"")


def test_empty_values_are_said_to_be_empty() -> None:
    message = encode(Batch.of([(Op.SET, b"ab", b""), (Op.SET, b"cd", b"")]), "")
    assert (message.value_size, message.value_lengths) == (0, bytes(8))


def test_lists_make_the_same_message_as_columns() -> None:
    operations = [(Op.GET, b"a"), (Op.SET, b"bc", b"value"), (Op.DELETE, b"d")]
    lists = encode_lists(b"\1\2\3", [b"a", b"bc", b"d"], [b"value"], "t")
    assert lists == encode(Batch.of(operations), "t")


def test_a_message_is_one_request() -> None:
    one = Batch.of([(Op.GET, b"a")])
    with pytest.raises(InvalidArgumentError, match="2 requests in one call"):
        encode(Batch.concatenate([one, one]), "")


def test_a_response_becomes_columns() -> None:
    response = kv_pb2.BatchResponse(
        status=b"\0\1\0",
        values=b"value",
        value_lengths=np.array([5, 0], "<u4").tobytes(),
        versions=np.array([7, 0, 2**60 - 1], "<u8").tobytes(),
    )
    result = decode(response, bytes([Op.GET, Op.GET, Op.SET]))
    assert result.status.tolist() == [0, 1, 0]
    assert result.versions.tolist() == [7, 0, 2**60 - 1]
    assert result.value_list() == [b"value", b""]


@pytest.mark.parametrize(
    "change",
    [
        {"status": b"\0\0"},
        {"versions": bytes(7)},
        {"value_lengths": b""},
        {"value_lengths": b"\4\0\0\0"},
        {"values": b"longer"},
        {"code": 13, "message": "broken"},
    ],
)
def test_a_response_that_does_not_add_up_is_refused(change: dict[str, bytes]) -> None:
    columns = {"status": b"\0", "versions": bytes(8), "value_lengths": b"\5\0\0\0", "values": b"value"}
    assert decode(kv_pb2.BatchResponse(**columns), b"\1").value_list() == [b"value"]
    with pytest.raises(ServerError):
        decode(kv_pb2.BatchResponse(**{**columns, **change}), b"\1")


def test_columns_of_conditions_and_expiries_travel_where_there_are_some() -> None:
    plain = Batch.of([(Op.SET, b"a", b"one"), (Op.DELETE, b"b")])
    conditions, expected = np.array([3, 0], np.uint8), np.array([7, 0], np.uint64)
    message = encode(replace(plain, conditions=conditions, expected=expected), "", ttls=np.array([5, 0], np.uint64))
    assert (message.conditions, message.expiries) == (b"\3\0", b"")
    assert message.expected == (7).to_bytes(8, "little") + bytes(8)
    assert message.ttls == (5).to_bytes(8, "little") + bytes(8)
    message = encode(replace(plain, expiries=np.array([0, 2**40], np.uint64)), "")
    assert (message.conditions, message.expected, message.ttls) == (b"", b"", b"")
    assert message.expiries == bytes(8) + (2**40).to_bytes(8, "little")


def test_options_of_lists_make_the_same_columns() -> None:
    operations = [(Op.SET, b"a", b"one"), (Op.GET, b"b"), (Op.DELETE, b"c")]
    lists = [b"\2\1\3", [b"a", b"b", b"c"], [b"one"], "t"]
    batch = Batch.of(operations)
    batch = replace(batch, conditions=np.array([1, 0, 3], np.uint8), expected=np.array([0, 0, 2**64 - 1], np.uint64))
    options = [Options(Condition.ABSENT, ttl_ms=9), None, Options(Condition.EQUALS, 2**64 - 1)]
    assert encode_lists(*lists, options) == encode(batch, "t", ttls=np.array([9, 0, 0], np.uint64))
    assert encode_lists(*lists, [None, None, None]) == encode_lists(*lists)
    assert encode_lists(*lists, [Options(Condition.PRESENT), None, None]).expected == b""
    with pytest.raises(InvalidArgumentError, match="operation 2, ttls: -1"):
        encode_lists(*lists, [None, None, Options(ttl_ms=-1)])


def test_increments_and_expiries_return_values_too() -> None:
    columns = {"status": bytes(3), "versions": bytes(24), "value_lengths": b"\x08\0\0\0" * 2, "values": bytes(16)}
    ops = bytes([Op.INCREMENT, Op.APPEND, Op.EXPIRY])
    assert decode(kv_pb2.BatchResponse(**columns), ops).value_list() == [bytes(8), bytes(8)]
    with pytest.raises(ServerError):
        decode(kv_pb2.BatchResponse(**columns), bytes([Op.INCREMENT, Op.APPEND, Op.EXISTS]))


@pytest.mark.parametrize(
    ("op", "status", "version", "value", "outcome"),
    [
        (Op.GET, 0, 7, b"v", b"v"),
        (Op.GET, 1, 0, b"", None),
        (Op.SET, 0, 7, b"", 7),
        (Op.APPEND, 0, 7, b"", 7),
        (Op.DELETE, 0, 7, b"", True),
        (Op.DELETE, 1, 0, b"", False),
        (Op.EXISTS, 1, 0, b"", False),
        (Op.EXPIRE, 0, 8, b"", True),
        (Op.EXPIRY, 0, 8, bytes(8), 0),
        (Op.EXPIRY, 1, 0, b"", None),
        (Op.INCREMENT, 0, 8, b"\xff" * 8, -1),
    ],
)
def test_outcomes(op: Op, status: int, version: int, value: bytes, outcome: object) -> None:
    assert outcome_of(op, status, version, value) is outcome or outcome_of(op, status, version, value) == outcome


def test_outcomes_that_are_errors() -> None:
    failed = outcome_of(Op.SET, Status.CONDITION_FAILED, 7, has_condition=True)
    assert isinstance(failed, ConditionFailedError)
    assert failed.version == 7
    missing = outcome_of(Op.DELETE, Status.NOT_FOUND, 0, has_condition=True)
    assert isinstance(missing, ConditionFailedError)
    assert missing.version is None
    assert isinstance(outcome_of(Op.INCREMENT, Status.OVERFLOW, 0), NumberOverflowError)
    assert isinstance(outcome_of(Op.APPEND, Status.OVERFLOW, 0), InvalidArgumentError)
    assert isinstance(outcome_of(Op.INCREMENT, Status.NOT_A_NUMBER, 0), NotANumberError)
    assert isinstance(outcome_of(Op.GET, Status.CORRUPT, 0), CorruptRecordError)
