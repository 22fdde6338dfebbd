"""Columns to and from messages."""

from __future__ import annotations

import numpy as np
import pytest

from gpkvs.batch import Batch, Op
from gpkvs.client.codec import decode, encode, encode_lists
from gpkvs.client.errors import ServerError
from gpkvs.errors import InvalidArgumentError
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
