"""What is wrong with a message, and the requests that handlers make."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpkvs.batch import Op
from gpkvs.config import Limits
from gpkvs.errors import InvalidArgumentError
from gpkvs.server.calls import codec
from gpkvs.server.calls.options import options_of
from tests.door.probes import BATCH, parse
from tests.server.wire import DELETE, SET, Operation, batch, i64, u64

NOW_MS = 1_000_000
KEYS = st.binary(min_size=1, max_size=3)
OPERATIONS = st.one_of(
    st.tuples(st.just(1), KEYS),
    st.tuples(st.just(2), KEYS, st.binary(max_size=20)),
    st.tuples(st.just(3), KEYS),
    st.tuples(st.just(5), KEYS, st.just(i64(-7))),
)


@given(st.lists(OPERATIONS, min_size=1, max_size=6))
def test_what_is_checked_is_plain_to_the_door(operations: list[Operation]) -> None:
    message = batch(operations)
    codec.check(message, Limits(), lambda: NOW_MS)
    assert parse(BATCH, message.SerializeToString(), Limits(), "bytes")


@given(OPERATIONS)
def test_a_single_operation_is_a_batch_of_one(operation: Operation) -> None:
    made = codec.single(Op(operation[0]), operation[1], operation[2] if len(operation) == 3 else b"", Limits())
    found = parse(BATCH, made.SerializeToString(), Limits(), "bytes")
    assert found
    written_out = parse(BATCH, batch([operation]).SerializeToString(), Limits(), "bytes")
    assert written_out
    sizes = {"key_size": 0, "value_size": 0, "key_lengths": b"", "value_lengths": b""}
    assert found._replace(**sizes) == written_out._replace(**sizes)  # type: ignore[arg-type]


def test_times_to_live_count_from_now_on() -> None:
    """However long they are: only Python knows which of them are past all time."""
    message = batch([(SET, b"a", b""), (SET, b"b", b""), (DELETE, b"c")], ttls=u64(5, 0, 0))
    codec.check(message, Limits(), lambda: NOW_MS)
    assert (message.expiries, message.ttls) == (u64(NOW_MS + 5, 0, 0), b"")
    message = batch([(SET, b"a", b"")], ttls=u64(2**64 - 1))
    with pytest.raises(InvalidArgumentError, match=r"operation 0, ttls: .* past the end of time"):
        codec.check(message, Limits(), lambda: NOW_MS)
    single = codec.single(Op.SET, b"a", b"", Limits(), options_of(lambda: NOW_MS, ttl_ms=2**62))
    assert single.expiries == u64(NOW_MS + 2**62)


def test_columns_that_say_nothing_are_none() -> None:
    message = batch([(SET, b"a", b"")] * 2, conditions=bytes(2), expiries=u64(0, 0), expected=u64(0, 0))
    codec.check(message, Limits(), lambda: NOW_MS)
    assert (message.conditions, message.expected, message.expiries) == (b"", b"", b"")


@pytest.mark.parametrize(
    ("fields", "text"),
    [
        ({"ops": b""}, "ops"),
        ({"keys": b"abc"}, "key"),
        ({"key_size": 2}, "key_lengths: given beside key_size = 2"),
        ({"key_lengths": b"123"}, "no whole number of u32"),
        ({"conditions": b"\3\0"}, "operation 0, expected: nothing is expected"),
        ({"conditions": b"\1"}, "1 for 2 operations"),
        ({"expiries": u64(1)}, "8 bytes for 2 operations"),
        ({"expiries": u64(1, 0), "ttls": u64(1, 0)}, "fill in one of the two"),
    ],
)
def test_what_is_wrong_is_named(fields: dict[str, Any], text: str) -> None:
    message = batch([(SET, b"a", b"x"), (SET, b"b", b"y")])
    for name, value in fields.items():
        setattr(message, name, value)
    with pytest.raises(InvalidArgumentError, match=text):
        codec.check(message, Limits(), lambda: NOW_MS)
