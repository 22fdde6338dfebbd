"""Batches that look first, by the native engine: as a dictionary does, and what is left."""

from __future__ import annotations

import ctypes
import secrets
from pathlib import Path

import pytest

import gpkvs
from gpkvs.batch import Condition, Op, Status
from gpkvs.config import Limits, StoreConfig
from gpkvs.engine.host.native_engine import Ran
from gpkvs.recovery.proof.batch_runner import BatchRunner
from gpkvs.store import Store
from tests.conftest import SMALL, assert_clean
from tests.engine.native_driver import NO_BOUND, NativeDriver
from tests.engine.test_resolve import Asked, Chooser, Model, batch_of, expect

pytestmark = pytest.mark.usefixtures("natively")


def increment(key: bytes, by: int = 1) -> Asked:
    return Op.INCREMENT, key, by.to_bytes(8, "little", signed=True), Condition.NONE, 0


def plain(op: Op, key: bytes, value: bytes = b"") -> Asked:
    return op, key, value, Condition.NONE, 0


@pytest.mark.parametrize("layout", ["bytes", "u64"])
def test_any_operations_do_what_a_dictionary_does(store_path: Path, layout: str) -> None:
    seed = secrets.randbelow(1 << 32)
    print(f"seed {seed}")
    with gpkvs.open(store_path, backend="cpu", **SMALL) as store:
        store.create_table("t", layout=layout, index_bytes=64 << 10)
        table = store.table("t").id
        runner = BatchRunner(store, "native")
        model = Model(layout == "bytes")
        chooser = Chooser(seed, model)
        for _ in range(300):
            requests = chooser.requests()
            # Each request has a version for each of its operations, also where it was left.
            first = store._engine.next_sequence
            expect(model, requests, runner.run(batch_of(requests, table)), first)
        assert runner.natively > 250
        held = {key: value for key, (value, _) in model.held.items()}
        assert {key: store.get(key, table="t") for key in held} == held
    assert_clean(store_path)


def test_a_check_that_fails_stops_its_request_alone(store_path: Path) -> None:
    check: Asked = (Op.CHECK, b"key", b"", Condition.PRESENT, 0)
    absent: Asked = (Op.CHECK, b"key", b"", Condition.ABSENT, 0)
    read, value = plain(Op.GET, b"key"), plain(Op.SET, b"key", b"value")
    one, two = (number.to_bytes(8, "little") for number in (1, 2))
    with gpkvs.open(store_path, backend="cpu", **SMALL) as store:
        driver = NativeDriver(store)
        driver.native.begin_turn()
        requests = [
            [increment(b"sum"), check, read],
            [increment(b"sum"), read, value],
            [read, increment(b"sum"), absent],
            [read, check, increment(b"sum")],
        ]
        answer = driver.run(batch_of(requests, 0))
        version = answer.versions[2]
        assert [(number, error.index, error.found) for number, error in answer.conflicts.items()] == [
            (0, 1, None),
            (2, 2, version),
        ]
        assert answer.requests == 4
        assert answer.status == [0, Status.NOT_FOUND, 0, 0, 0, 0]
        assert answer.values == [one, b"", b"value", two]
        stopped = driver.run(batch_of([[absent, read, value]] * 2, 0))
        assert list(stopped.conflicts) == [0, 1]
        assert (stopped.requests, stopped.status, stopped.values) == (2, [], [])


def test_a_check_stops_one_of_several_requests_of_a_message(store_path: Path) -> None:
    check: Asked = (Op.CHECK, b"key", b"", Condition.PRESENT, 0)
    with gpkvs.open(store_path, backend="cpu", **SMALL) as store:
        driver = NativeDriver(store)
        driver.native.begin_turn()
        requests = [[increment(b"sum")], [check, increment(b"sum")]]
        for message_requests in ([2], [1, 1]):
            assert list(driver.run(batch_of(requests, 0), message_requests=message_requests).conflicts) == [1]
        store.set(b"key", b"value")
        answer = driver.run(batch_of(requests, 0), message_requests=[2])
        assert answer.values == [(number).to_bytes(8, "little") for number in (3, 4)]


def test_what_a_table_of_numbers_has_not_is_python_s(store_path: Path) -> None:
    with gpkvs.open(store_path, backend="cpu", **SMALL) as store:
        store.create_table("numbers", layout="u64", index_bytes=64 << 10)
        driver, table = NativeDriver(store), store.table("numbers").id
        driver.native.begin_turn()
        for op in (Op.APPEND, Op.EXPIRE, Op.EXPIRY):
            assert driver.run(batch_of([[plain(op, b"01234567", bytes(8 * (op is Op.APPEND)))]], table)).ran is Ran.LEFT
        assert driver.run(batch_of([[increment(b"01234567")]], table)).ran is not Ran.LEFT


def test_a_batch_may_bring_no_values(store_path: Path) -> None:
    """Its column of values is null then, and so is the room for values if it returns none."""
    with gpkvs.open(store_path, backend="cpu", **SMALL) as store:
        store.execute(batch_of([[plain(Op.SET, b"a", b"held"), plain(Op.SET, b"empty", b"")]], 0))
        driver = NativeDriver(store)
        driver.native.begin_turn()
        asked = [
            *(plain(Op.EXPIRE, key) for key in (b"a", b"empty", b"missing")),
            *(plain(Op.APPEND, key) for key in (b"a", b"empty", b"new")),
        ]
        answer = driver.run(batch_of([asked], 0))
        assert answer.status == [0, 0, Status.NOT_FOUND, 0, 0, 0]
        assert driver.run(batch_of([[plain(Op.SET, b"set", b"")]], 0)).ran is Ran.DONE
        read = [plain(Op.GET, key) for key in (b"a", b"empty", b"new", b"set")]
        assert driver.run(batch_of([read], 0)).values == [b"held", b"", b"", b""]


def test_values_stand_in_the_order_of_their_operations(store_path: Path) -> None:
    with gpkvs.open(store_path, backend="cpu", **SMALL) as store:
        store.execute(
            batch_of([[plain(Op.SET, b"a", b"first"), plain(Op.SET, b"n", b"41"), plain(Op.SET, b"x", b"no")]], 0)
        )
        driver = NativeDriver(store)
        driver.native.begin_turn()
        asked = [
            plain(Op.GET, b"a"),
            increment(b"n"),
            increment(b"x"),
            plain(Op.GET, b"missing"),
            plain(Op.GET, b"n"),
            plain(Op.EXPIRY, b"a"),
            plain(Op.APPEND, b"a", b"!"),
            plain(Op.GET, b"a"),
        ]
        answer = driver.run(batch_of([asked], 0))
        number = (42).to_bytes(8, "little")
        assert answer.values == [b"first", number, b"", b"", b"42", bytes(8), b"first!"]
        assert answer.status == [0, 0, Status.NOT_A_NUMBER, Status.NOT_FOUND, 0, 0, 0, 0]


def test_a_batch_is_cut_where_it_brings_too_many_values(store_path: Path) -> None:
    """What is left of it must not count: the second increment is another batch's."""
    with gpkvs.open(store_path, backend="cpu", **SMALL) as store:
        store.set(b"long", b"v" * 1000)
        driver = NativeDriver(store)
        driver.native.begin_turn()
        request = [increment(b"n"), plain(Op.GET, b"long")]
        for bound, done in ((NO_BOUND, 3), (2500, 2), (1500, 1), (10, 1)):
            store.delete(b"n")
            answer = driver.run(batch_of([request] * 3, 0), bound)
            assert answer.requests == done
            assert answer.values[0::2] == [number.to_bytes(8, "little") for number in range(1, done + 1)]
            assert store.get(b"n") == b"%d" % done


def test_what_a_batch_makes_has_a_limit(store_path: Path) -> None:
    limits = Limits(value_bytes_max=500, result_bytes_max=1000)
    config = StoreConfig(backend="cpu", limits=limits, batch_result_bytes_max=1000, **SMALL)
    with Store(store_path, config) as store:
        for number in range(3):
            store.set(b"%d" % number, bytes(400))
        driver = NativeDriver(store)
        driver.native.begin_turn()
        appends = [[plain(Op.APPEND, b"%d" % number, b"!")] for number in range(3)]
        assert driver.run(batch_of([[one for [one] in appends]], 0)).ran is Ran.LEFT
        assert driver.run(batch_of(appends, 0)).requests == 1
        assert driver.run(batch_of(appends[:2], 0)).requests == 2
        assert driver.run(batch_of(appends[:2], 0), 500).requests == 1
        assert driver.run(batch_of(appends[:1], 0), 500).requests == 1
        assert [len(store.get(b"%d" % number) or b"") for number in range(3)] == [404, 401, 400]
        assert driver.run(batch_of([[plain(Op.APPEND, b"2", bytes(200))]], 0)).status == [Status.OVERFLOW]


def test_a_damaged_record_is_not_incremented(store_path: Path) -> None:
    with gpkvs.open(store_path, backend="cpu", durability="process", commit="undo", **SMALL) as store:
        store.set(b"n", b"41")
        heap = store._engine._files.heap
        memory = (ctypes.c_ubyte * heap.bytes).from_address(heap.address)
        at = bytes(memory).index(b"n41") + 1
        memory[at] ^= 1
        driver = NativeDriver(store)
        driver.native.begin_turn()
        answer = driver.run(batch_of([[increment(b"n"), increment(b"other")]], 0))
        assert answer.status == [Status.CORRUPT, Status.OK]
        assert answer.values == [b"", (1).to_bytes(8, "little")]
        memory[at] ^= 1
