"""Expiries and times to live that the native door gives to the engine by itself, over both protocols."""

from __future__ import annotations

import time
from typing import Any

import pytest

from gpkvs.batch import Op
from gpkvs.engine.seam.counted_time import MACHINE, CountedTime
from gpkvs.proto.v1 import kv_pb2
from gpkvs.server.door.library import Turn
from tests.door.held_door import HeldDoor
from tests.door.resp_client import client
from tests.door.resp_door import answers
from tests.server.wire import u32, u64

LATER = 4 * 10**12  # than any clock says
HOUR = 3_600_000


@pytest.fixture
def counted() -> CountedTime:
    """Return the time that counts, as a store keeps it: it goes on from a later one than the clock's."""
    counted = CountedTime(MACHINE)
    counted.begin_at(LATER)
    return counted


def require_about(found: list[int], expected: list[int], counted: CountedTime) -> None:
    """Compare expiries with those that were given as of `LATER`; some time has passed since."""
    passed = counted.now_ms() - LATER
    for one, other in zip(found, expected, strict=True):
        assert other <= one <= other + (passed if other >= LATER else 0)


def test_commands_give_times_to_live(counted: CountedTime) -> None:
    with client() as one:
        one.library.set_clock(counted.address)
        one.send(
            [b"SET", b"a", b"1", b"EX", b"9"],
            [b"set", b"b", b"22", b"px", b"10"],
            [b"SET", b"c", b"3"],
            [b"SETEX", b"d", b"123456789012", b"4444"],
            [b"psetex", b"e", b"1", b""],
            [b"DEL", b"f", b"g"],
            [b"MSET", b"h", b"8", b"i", b"99"],
        )
        assert one.library.turn(10) is Turn.LEFT
        batch = one.library.left()
        assert batch.keys.tobytes() == b"abcdefghi"
        assert batch.values.tobytes() == b"12234444899"
        assert batch.value_lengths.tolist() == [1, 2, 1, 4, 0, 1, 2]
        assert batch.expiries is not None
        lifetimes = [9000, 10, 0, 123456789012000, 1, 0, 0, 0, 0]
        expected = [LATER + lifetime if lifetime else 0 for lifetime in lifetimes]
        require_about(batch.expiries.tolist(), expected, counted)
        assert len({int(batch.expiries[n]) - lifetimes[n] for n in (0, 1, 3, 4)}) == 1, "a batch has one time"
        one.execute_left()
        assert answers(one.connection, 7) == b"+OK\r\n" * 5 + b":2\r\n+OK\r\n"
        one.send([b"SET", b"a", b"1"])
        assert one.library.turn(10) is Turn.LEFT
        assert one.library.left().expiries is None


def test_a_transaction_lives_from_its_execution_on(counted: CountedTime) -> None:
    with client() as one:
        one.library.set_clock(counted.address)
        one.send([b"MULTI"], [b"SET", b"a", b"1", b"EX", b"9"], [b"GET", b"a"], [b"SETEX", b"b", b"1", b"2"])
        assert answers(one.connection, 4) == b"+OK\r\n" + b"+QUEUED\r\n" * 3
        counted.begin_at(LATER + HOUR)
        one.send([b"EXEC"])
        assert one.library.turn(10) is Turn.LEFT
        batch = one.library.left()
        assert batch.ops.tolist() == [Op.SET, Op.GET, Op.SET]
        assert batch.values.tobytes() == b"12"
        assert batch.expiries is not None
        require_about(batch.expiries.tolist(), [LATER + HOUR + 9000, 0, LATER + HOUR + 1000], counted)


def test_the_time_is_the_clocks_if_it_is_later(counted: CountedTime) -> None:
    with client() as one:
        counted.begin_at(5)
        one.library.set_clock(counted.address)
        began = time.time_ns() // 1_000_000
        one.send([b"SETEX", b"a", b"9", b"1"])
        assert one.library.turn(10) is Turn.LEFT
        batch = one.library.left()
        assert batch.expiries is not None
        assert began + 9000 <= batch.expiries[0] <= time.time_ns() // 1_000_000 + 9000
        assert began <= counted.now_ms() <= time.time_ns() // 1_000_000


SINGLE = [({"ttl_ms": 7}, LATER + 7), ({"expiry_ms": 7}, 7), ({"ttl_ms": 10**15}, LATER + 10**15), ({}, None)]


@pytest.mark.parametrize(("fields", "expiry"), SINGLE)
def test_a_single_set_over_grpc(fields: dict[str, int], expiry: int | None, counted: CountedTime) -> None:
    with HeldDoor() as door, door.client() as kv:
        door.library.set_clock(counted.address)
        call = kv.Set.future(kv_pb2.SetRequest(key=b"k", value=b"v", **fields), timeout=20)
        door.leave()
        expiries = door.library.left().expiries
        assert (expiries is None) == (expiry is None)
        if expiries is not None and expiry is not None:
            require_about(expiries.tolist(), [expiry], counted)
        door.execute_left()
        assert call.result().status == 0
        assert not door.handed


COLUMNS: list[tuple[dict[str, bytes], list[int]]] = [
    ({"ttls": u64(0, 0, 9)}, [0, 0, LATER + 9]),
    ({"expiries": u64(3, 4, 5)}, [3, 4, 5]),
]


@pytest.mark.parametrize(("fields", "expiries"), COLUMNS)
def test_columns_over_grpc(fields: dict[str, bytes], expiries: list[int], counted: CountedTime) -> None:
    with HeldDoor() as door, door.client() as kv:
        door.library.set_clock(counted.address)
        ops = bytes([Op.SET, Op.DELETE, Op.SET])
        message = kv_pb2.BatchRequest(ops=ops, keys=b"abc", key_size=1, values=b"12", value_lengths=u32(1, 1), **fields)
        call = kv.Batch.future(message, timeout=20)
        door.leave()
        found = door.library.left().expiries
        assert found is not None
        require_about(found.tolist(), expiries, counted)
        door.execute_left()
        assert call.result().status == bytes(3)


NOT_PLAIN: list[dict[str, Any]] = [
    {"ttl_ms": 1, "expiry_ms": 1},
    {"ttl_ms": 10**15 + 1},
    {"ttl_ms": 1, "condition": 4},
]


@pytest.mark.parametrize("fields", NOT_PLAIN)
def test_what_may_be_wrong_is_python_s(fields: dict[str, Any]) -> None:
    with HeldDoor() as door, door.client() as kv:
        call = kv.Set.future(kv_pb2.SetRequest(key=b"k", value=b"v", **fields), timeout=20)
        door.wait(lambda: bool(door.handed))
        call.cancel()
