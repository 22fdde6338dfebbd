"""The face that a store and both clients share: the same calls, the same results, the same errors."""

from __future__ import annotations

import asyncio
import inspect
import math
import socket
import threading
import time
import uuid
from collections.abc import Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from datetime import timedelta
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import gpkvs
from gpkvs import Op
from gpkvs.client import (
    AsyncClient,
    AsyncTransaction,
    Client,
    ClientClosedError,
    DeadlineError,
    OutcomeUnknownError,
    RetryPolicy,
    TableInfo,
    UnavailableError,
)
from gpkvs.errors import (
    ConditionFailedError,
    ConflictError,
    CorruptRecordError,
    GpkvsError,
    InvalidArgumentError,
    NotANumberError,
    NumberOverflowError,
    StoreClosedError,
    TableExistsError,
    UnknownTableError,
)
from gpkvs.scan import Scan, ScanPiece
from gpkvs.transaction import delay_s
from tests.client.dict_server import lose_response, serving
from tests.client.faces import FACES, opened
from tests.serving import Server


def failed(version: int | None, call: Callable[[], object]) -> None:
    with pytest.raises(ConditionFailedError) as caught:
        call()
    assert caught.value.version == version


def test_keys_and_values(db: Any) -> None:
    assert db.get(b"k") is None
    assert db.get(b"k", b"default") == b"default"
    assert db.get_with_version(b"k") is None
    assert not db.exists(b"k")
    first = db.set(b"k", b"one")
    assert db.get(b"k", b"default") == b"one"
    assert db.get_with_version(b"k") == (b"one", first)
    assert db.exists(b"k")
    assert db.set(b"k", b"two") > first
    db.set(b"empty", b"")
    assert db.get(b"empty", b"default") == b""
    assert db.get_all([b"k", b"none", b"empty"]) == {b"k": b"two", b"empty": b""}
    assert db.get_all([]) == {}
    assert db.append(b"k", b"!") == db.get_with_version(b"k")[1]
    assert db.get(b"k") == b"two!"
    db.append(b"new", b"made")
    assert db.get(b"new") == b"made"
    assert db.delete(b"k")
    assert not db.delete(b"k")


def test_conditions(db: Any) -> None:
    version = db.set(b"k", b"one", if_absent=True)
    failed(version, lambda: db.set(b"k", b"two", if_absent=True))
    failed(None, lambda: db.set(b"none", b"x", if_present=True))
    failed(None, lambda: db.set(b"none", b"x", if_version=version))
    failed(version, lambda: db.set(b"k", b"x", if_version=version + 1))
    failed(version, lambda: db.delete(b"k", if_version=version + 1))
    failed(None, lambda: db.delete(b"none", if_version=version))
    assert db.get_all([b"k", b"none"]) == {b"k": b"one"}
    second = db.set(b"k", b"two", if_version=version)
    third = db.set(b"k", b"three", if_present=True)
    assert version < second < third
    assert db.delete(b"k", if_version=third)
    with pytest.raises(InvalidArgumentError, match="one condition"):
        db.set(b"k", b"v", if_absent=True, if_version=1)
    for wrong in (True, "1", 1.5):
        with pytest.raises(TypeError, match="version is an int"):
            db.set(b"k", b"v", if_version=wrong)
    assert not db.exists(b"k")


def test_counters(db: Any) -> None:
    assert db.incr(b"n") == 1
    assert db.incr(b"n", 41) == 42
    assert db.incr(b"n", -50) == -8
    assert db.get(b"n") == b"-8"
    db.set(b"text", b"12 apples")
    with pytest.raises(NotANumberError):
        db.incr(b"text")
    db.set(b"large", b"%d" % (2**63 - 1))
    with pytest.raises(NumberOverflowError):
        db.incr(b"large")
    assert db.get_all([b"text", b"large"]) == {b"text": b"12 apples", b"large": b"%d" % (2**63 - 1)}
    with pytest.raises(TypeError, match="delta is an int"):
        db.incr(b"n", 1.5)
    with pytest.raises(InvalidArgumentError, match="delta"):
        db.incr(b"n", 2**63)


def test_what_is_like_bytes_and_what_is_not(db: Any) -> None:
    for key in (bytearray(b"k"), memoryview(b"k"), np.frombuffer(b"k", np.uint8), memoryview(b"k-k")[::2][:1]):
        db.set(key, key)
        assert db.get(key) == b"k"
        assert db.delete(key)
    for wrong, hint in (("text", "encode"), (np.arange(2), "int64"), (None, "NoneType")):
        calls: list[Callable[[], object]] = [
            lambda wrong=wrong: db.get(wrong),
            lambda wrong=wrong: db.exists(wrong),
            lambda wrong=wrong: db.delete(wrong),
            lambda wrong=wrong: db.get_all([wrong]),
            lambda wrong=wrong: db.incr(wrong),
            lambda wrong=wrong: db.batch([(Op.GET, wrong)]),
        ]
        for call in calls:
            with pytest.raises(TypeError, match=f"a key is bytes, not .*{hint}"):
                call()
        for call in (lambda wrong=wrong: db.set(b"k", wrong), lambda wrong=wrong: db.append(b"k", wrong)):
            with pytest.raises(TypeError, match=f"a value is bytes, not .*{hint}"):
                call()
    for call in (lambda: db.set(b"k", 7), lambda: db.append(b"k", 7), lambda: db.scan(7), lambda: db.count(7)):
        with pytest.raises(TypeError, match=r"is bytes, not int: .*b'%d' % number\. Only a table of the layout u64"):
            call()
    with pytest.raises(InvalidArgumentError, match="0 bytes"):
        db.get(b"")
    assert not db.exists(b"k")


def test_what_a_value_cannot_be_says_how_to_pack_it(db: Any) -> None:
    told = r"a value is bytes, not \w+: pack it, as json\.dumps.* gpkvs\.client\.Objects"
    for wrong in ({"a": 1}, [1], (1,), {1}, 1.5, None):
        with pytest.raises(TypeError, match=told):
            db.set(b"k", wrong)
    with pytest.raises(TypeError, match=r"not object: convert it with bytes"):
        db.set(b"k", object())


@pytest.mark.parametrize("make", [Client, AsyncClient])
def test_a_timeout_is_a_number(make: Any) -> None:
    async def main() -> None:
        client = make("127.0.0.1:1")
        with pytest.raises(TypeError, match="a timeout is a number of seconds, or None, not str"):
            found = client.get(b"k", timeout="5")
            if inspect.isawaitable(found):
                await found

    asyncio.run(main())


def table_of_numbers(db: Any) -> Any:
    """Return a new table of the layout u64; all tests share one server."""
    name = f"n{uuid.uuid4().hex}"
    db.create_table(name, layout="u64", index_bytes=1 << 16)
    return db.table(name)


def test_ints_in_a_table_of_numbers(db: Any) -> None:
    numbers = table_of_numbers(db)
    largest = 2**64 - 1
    assert numbers.get(7) is None
    assert numbers.get(7, "none") == "none"
    assert numbers.get_with_version(7) is None
    numbers.set(7, 42)
    numbers.set(largest, largest, if_absent=True)
    numbers.set(np.uint64(0), np.int32(5))
    db.set(8, 80, table=numbers.name)
    assert (numbers.get(7), numbers.get(largest), numbers.get(np.int64(0))) == (42, largest, 5)
    assert type(numbers.get(np.uint64(7))) is int
    assert numbers.get(7, "none") == 42
    assert numbers.get((7).to_bytes(8, "little")) == (42).to_bytes(8, "little")  # bytes for bytes, as ever
    assert numbers.get_with_version(7) == (42, 42)
    assert numbers.exists(7)
    assert not numbers.exists(9)
    assert numbers.get_all([7, 9, largest, np.uint8(0)]) == {7: 42, largest: largest, 0: 5}
    assert numbers.get_many([7, 8])[0].tolist() == [42, 80]
    assert numbers.incr(7) == 43
    assert numbers.incr(9, -2) == -2
    assert numbers.get(9) == 2**64 - 2
    failed(43, lambda: numbers.set(7, 1, if_version=42))
    failed(43, lambda: numbers.delete(7, if_version=42))
    assert numbers.delete(9)
    assert not numbers.delete(9)
    operations = [(Op.SET, 9, 1), (Op.GET, 9), (Op.INCREMENT, 9, 4), (Op.GET, 10), (Op.EXISTS, 7), (Op.DELETE, 9)]
    assert numbers.batch(operations)[1:] == [1, 5, None, True, True]
    with numbers.batch() as batch:
        batch.check(7, version=43)
        batch.set(10, 100)
        batch.get(10)
        batch.get((10).to_bytes(8, "little"))
    assert batch.results[2:] == [100, (100).to_bytes(8, "little")]
    with pytest.raises(ConflictError):
        numbers.batch([(Op.CHECK, 7, 44), (Op.SET, 7, 0)])
    assert numbers.get(7) == 43


def test_ints_in_transactions(db: Any) -> None:
    numbers = table_of_numbers(db)
    numbers.set(1, 100)

    def move(t: Any) -> int:
        there = t.get_all([1, 2])
        assert there == {1: 100}
        t.set(1, there[1] - 30)
        t.set(2, t.get(2, 0) + 30)
        t.delete(3)
        assert (t.get(2), t.get((2).to_bytes(8, "little"))) == (30, (30).to_bytes(8, "little"))
        return int(t.get(1))

    assert numbers.transact(move) == 70
    assert numbers.get_all([1, 2, 3]) == {1: 70, 2: 30}
    with pytest.raises(ConflictError), numbers.transaction() as t:
        t.set(2, t.get(1))
        numbers.incr(1)
    assert numbers.get(2) == 30
    with pytest.raises(InvalidArgumentError, match="has the layout bytes"), db.transaction() as t:
        t.set(1, 2)


def test_ints_are_refused_where_they_are_none(db: Any) -> None:
    eight = (7).to_bytes(8, "little")
    db.set(eight, eight)
    calls: list[Callable[[], object]] = [
        lambda: db.get(7),
        lambda: db.get_with_version(7),
        lambda: db.get_all([7]),
        lambda: db.exists(7),
        lambda: db.set(7, 8),
        lambda: db.set(7, 8, if_absent=True),
        lambda: db.delete(7),
        lambda: db.incr(7),
        lambda: db.append(7, b"!"),
        lambda: db.expire(7, 1),
        lambda: db.ttl(7),
        lambda: db.batch([(Op.GET, b"k"), (Op.DELETE, 7)]),
        lambda: db.batch([(Op.SET, 7, 8), (Op.GET, 7)]),
        lambda: db.batch([(Op.CHECK, 7, None)]),
        lambda: db.transact(lambda t: t.get(7)),
    ]
    for call in calls:
        with pytest.raises(InvalidArgumentError, match=r"table: table '.*' has the layout bytes: .* --layout u64"):
            call()
    assert db.get(eight) == eight
    assert db.count() == 1
    numbers = table_of_numbers(db)
    for key, value in ((7, b"12345678"), (eight, 7), (7, "8"), (7, 1.5), (True, 1), (7, False)):
        with pytest.raises(TypeError, match="int"):
            numbers.set(key, value)
    for key, value, field in ((-1, 1, "key"), (2**64, 1, "key"), (1, -1, "value"), (1, 2**64, "value")):
        with pytest.raises(InvalidArgumentError, match=f"{field}: .*allowed are 0 to 18,446,744,073,709,551,615"):
            numbers.set(key, value)
    for call in (
        lambda: numbers.expire(7, 1),
        lambda: numbers.ttl(7),
        lambda: numbers.set(7, 1, ttl=1),
        lambda: numbers.set_many([7], [1], ttl=1),
    ):
        with pytest.raises(InvalidArgumentError, match="u64 has no expiry"):
            call()
    for many in (numbers.set_many, db.set_many):
        with pytest.raises(InvalidArgumentError, match="must be positive"):
            many([], [], ttl=0)
        many([], [], ttl=1)
    assert numbers.count() == 0
    with pytest.raises(InvalidArgumentError, match=r"key of 1 byte, this table takes 8 only: .*Bytes take a table"):
        numbers.set(b"a", b"12345678")
    with pytest.raises(TypeError, match=r"a value is bytes, not int"):
        numbers.set_many([b"a"], [1])
    with pytest.raises(InvalidArgumentError, match=r"key of 1 byte, this table takes 8 only: .*Bytes take a table"):
        numbers.set_many([b"a"], [b"12345678"])
    with pytest.raises(
        InvalidArgumentError, match=r"values: an array of [|]S1 with 1 dimensions; .* layout bytes, set_many"
    ):
        numbers.set_many([1], np.array([b"a"]))


def test_concurrent_ints_and_bytes_of_one_client(serve: Callable[[], Server]) -> None:
    """Calls with ints share no message with others: a table of bytes refuses those alone, each with its own error."""

    async def run() -> tuple[list[Any], list[Any]]:
        async with AsyncClient(serve().target) as client:
            await client.create_table("together", index_bytes=1 << 16)
            await client.create_table("apart", layout="u64", index_bytes=1 << 16)
            bytes_, ints = client.table("together"), client.table("apart")
            calls = [table.set(key, key) for key in range(200) for table in (bytes_, ints)]
            plain = [bytes_.set(b"%d" % key, b"v") for key in range(200)]
            outcomes = await asyncio.gather(*calls, *plain, return_exceptions=True)
            return outcomes, await asyncio.gather(*(ints.get(key) for key in range(200)), bytes_.count())

    outcomes, held = asyncio.run(run())
    assert [type(outcome) for outcome in outcomes[:400:2]] == [InvalidArgumentError] * 200
    assert [type(outcome) for outcome in outcomes[1:400:2]] == [int] * 200
    assert [type(outcome) for outcome in outcomes[400:]] == [int] * 200
    assert held == [*range(200), 200]


def test_a_batch_says_of_each_operation_what_became_of_it(db: Any) -> None:
    version = db.set(b"there", b"x")
    results = db.batch(
        [
            (Op.SET, b"k", b"5"),
            (Op.GET, b"k"),
            (Op.GET, b"none"),
            (Op.INCREMENT, b"k", 2),
            (Op.INCREMENT, b"there", 1),
            (Op.APPEND, b"there", b"y"),
            (Op.EXISTS, b"none"),
            (Op.CHECK, b"none", None),
            (Op.CHECK, b"there", version),  # as it was before the request
            (Op.DELETE, b"none"),
        ]
    )
    error = results.pop(4)
    assert isinstance(error, NotANumberError)
    assert results[1:4] == [b"5", None, 7]
    assert results[5:] == [False, True, True, False]
    with db.batch() as batch:
        batch.set(b"k", b"v", if_absent=True)
        batch.set(b"new", b"v", if_absent=True)
        batch.delete(b"k", if_version=0)
        batch.get(b"k")
        batch.incr(b"count", 3)
        batch.exists(b"new")
    assert isinstance(batch.results[0], ConditionFailedError)
    assert isinstance(batch.results[2], ConditionFailedError)
    assert batch.results[3:] == [b"7", 3, True]
    with pytest.raises(ZeroDivisionError), db.batch() as batch:
        batch.set(b"k", b"never")
        raise ZeroDivisionError
    assert db.get(b"k") == b"7"
    assert db.batch([]) == []
    for wrong in ((Op.SET, b"k"), (Op.GET, b"k", b"v"), (Op.CHECK, b"k"), (77, b"k")):
        with pytest.raises(InvalidArgumentError, match="an operation is"):
            db.batch([wrong])


def test_a_failed_check_refuses_all(db: Any) -> None:
    version = db.set(b"a", b"1")
    for checks, index, found in (
        ([("a", {"version": version + 1})], 0, version),
        ([("a", {"version": version}), ("a", {"absent": True})], 1, version),
        ([("none", {"present": True})], 0, None),
    ):
        with pytest.raises(ConflictError) as caught, db.batch() as batch:
            for key, condition in checks:
                batch.check(key.encode(), **condition)
            batch.set(b"b", b"2")
        assert (caught.value.index, caught.value.found) == (index, found)
    assert not db.exists(b"b")
    with db.batch() as batch:
        batch.check(b"a", version=version)
        batch.check(b"b", absent=True)
        batch.set(b"b", b"2")
    assert batch.results[:2] == [True, True]
    assert db.get(b"b") == b"2"
    with pytest.raises(InvalidArgumentError, match="a check needs"), db.batch() as batch:
        batch.check(b"a")


@pytest.mark.parametrize(("layout", "block_records"), [("bytes", 1331), ("u64", 2662)])  # 0.65 of the slots of 64 KiB
def test_a_table_holds_the_records_that_it_is_made_for_before_it_grows(
    db: Any, layout: str, block_records: int
) -> None:
    name = f"sized-{uuid.uuid4().hex}"
    made = db.create_table(name, layout=layout, records=2 * block_records)
    assert made.index_bytes == 2 * 65536
    keys = [number.to_bytes(8, "little") for number in range(3 * block_records)]

    def load(first: int, last: int) -> TableInfo:
        for begin in range(first, last, 400):
            db.batch([(Op.SET, key, key) for key in keys[begin : min(begin + 400, last)]], table=name)
        (info,) = (table for table in db.list_tables() if table.name == name)
        return info

    full = load(0, 2 * block_records)
    assert (full.records, full.index_bytes, full.growing_blocks) == (2 * block_records, 2 * 65536, 0)
    over = load(2 * block_records, 3 * block_records)
    assert over.index_bytes > 2 * 65536 or over.growing_blocks > 0
    assert db.create_table(name, layout=layout, records=1, exist_ok=True).name == name
    other = f"more-{uuid.uuid4().hex}"
    assert db.create_table(other, layout=layout, records=2 * block_records + 1).index_bytes == 3 * 65536
    for wrong, message in (
        ({"records": 5, "index_bytes": 1 << 16}, "records: give the expected records, or the bytes of the index"),
        ({"records": 0}, "records: 0, allowed are 1 to"),
        ({"records": 1 << 60}, "records: 1,152,921,504,606,846,976, allowed are 1 to"),
        ({"records": 1 << 48}, "index_bytes: .* bytes, allowed are"),
    ):
        with pytest.raises(InvalidArgumentError, match=message):
            db.create_table("wrong", layout=layout, **wrong)
    with pytest.raises(InvalidArgumentError, match="layout: 'i32': there are bytes, u64"):
        db.create_table("wrong", layout="i32", records=1)


def test_a_store_is_made_for_records(tmp_path: Path) -> None:
    with gpkvs.open(tmp_path, records=3000) as store:
        assert store.info().tables[0].index_bytes == 3 * 65536
    with gpkvs.open(tmp_path, records=3000) as store:
        assert store.info().tables[0].index_bytes == 3 * 65536
    with pytest.raises(InvalidArgumentError, match="not both"):
        gpkvs.open(tmp_path, records=3000, index_bytes=1 << 20)


def test_tables_and_their_handles(db: Any) -> None:
    made = db.create_table("users", index_bytes=1 << 16)
    assert db.create_table("users", index_bytes=1 << 20, exist_ok=True) == made
    with pytest.raises(TableExistsError, match="users"):
        db.create_table("users")
    with pytest.raises(TableExistsError, match="layout bytes, not u64"):
        db.create_table("users", layout="u64", exist_ok=True)
    users = db.table("users")
    assert "users" in repr(users)
    users.set(b"k", b"of users")
    db.set(b"k", b"of default")
    assert (users.get(b"k"), db.get(b"k"), db.get(b"k", table="users")) == (b"of users", b"of default", b"of users")
    assert users.batch([(Op.GET, b"k")]) == [b"of users"]
    assert users.incr(b"n") == 1
    assert users.transact(lambda t: t.get(b"k")) == b"of users"
    assert {"default", "users"} <= {table.name for table in db.list_tables()}
    db.drop_table("users")
    db.drop_table("users", missing_ok=True)
    for call in (lambda: users.get(b"k"), lambda: db.drop_table("users")):
        with pytest.raises(UnknownTableError, match="users"):
            call()
    assert "users" not in {table.name for table in db.info().tables}


def test_numbers(db: Any) -> None:
    db.create_table("n", layout="u64", index_bytes=1 << 16)
    numbers = db.table("n")
    wide = np.arange(12, dtype=np.int64).reshape(6, 2)
    numbers.set_many(wide[:, 0], wide[:, 1])  # strided and signed
    numbers.set_many([2**64 - 1, 100], [2**63, 7])
    values, found = numbers.get_many([0, 2, 4, 2**64 - 1, 100, 1])
    assert values.tolist() == [1, 3, 5, 2**63, 7, 0]
    assert found.tolist() == [True] * 5 + [False]
    assert values.dtype == np.uint64
    sums, done = numbers.incr_many([0, 100, 100, 9], [-3, 1, 1, 5])
    assert sums.tolist() == [-2, 8, 9, 5]
    assert sums.dtype == np.int64
    assert done.all()
    assert numbers.incr_many(np.array([100, 9]))[0].tolist() == [10, 6]
    numbers.set_many([1], [2**63 - 1])
    sums, done = numbers.incr_many([1, 9])
    assert (sums.tolist(), done.tolist()) == ([0, 7], [False, True])
    assert numbers.get_many([0])[0].tolist() == [2**64 - 2]
    key = (9).to_bytes(8, "little")
    assert numbers.get_with_version(key) == ((7).to_bytes(8, "little"), 7)
    assert numbers.incr(key, 3) == 10
    failed(10, lambda: numbers.set(key, bytes(8), if_version=7))
    numbers.set(key, bytes(8), if_version=10)
    assert numbers.delete_many([9, 11]).tolist() == [True, False]
    for nothing in ([], np.array([]), np.empty(0, np.uint64)):  # the second one is of floats
        numbers.set_many(nothing, nothing)
        values, found = numbers.get_many(nothing, atomic=False)
        assert (values.tolist(), found.tolist(), found.dtype) == ([], [], np.bool_)
        if isinstance(nothing, np.ndarray) or isinstance(db, gpkvs.Store):  # a client takes a list for one of bytes
            assert values.dtype == np.uint64
        sums, done = numbers.incr_many(nothing, nothing)
        assert (sums.tolist(), sums.dtype, done.tolist(), done.dtype) == ([], np.int64, [], np.bool_)
        found = numbers.delete_many(nothing)
        assert (found.tolist(), found.dtype) == ([], np.bool_)
    for call in (  # of bytes: nothing is done
        lambda: db.set_many([0], [1]),
        lambda: db.get_many([0]),
        lambda: db.delete_many([0]),
        lambda: db.incr_many([0]),
    ):
        with pytest.raises(InvalidArgumentError, match=r"table: table '.*' has the layout bytes: .* --layout u64"):
            call()
        assert db.count() == 0
    for wrong in ([-1], np.array([-1]), [0.5], np.zeros(2), [2**64], [[1]], [True], np.zeros((1, 1), np.uint64)):
        with pytest.raises(InvalidArgumentError, match=r"out of range|whole number"):
            numbers.get_many(wrong)
    with pytest.raises(InvalidArgumentError):  # it has no room for an expiry
        numbers.set(key, bytes(8), ttl=100)
    with pytest.raises(InvalidArgumentError, match="2 keys, 1 delta"):
        numbers.incr_many([1, 2], [1])
    with pytest.raises(InvalidArgumentError, match="2 keys, 1 value"):
        numbers.set_many([1, 2], [1], atomic=False)
    db.drop_table("n")


@pytest.mark.parametrize("kind", ["store", "client", "async"])
def test_more_numbers_than_a_request_takes(kind: str, tmp_path: Path, serve: Callable[[], Server]) -> None:
    with opened(kind, tmp_path, serve) as db:
        db.create_table(f"n-{kind}", layout="u64", index_bytes=1 << 16)
        base = db._awaited if kind == "async" else db
        base._numbers_max = lambda *_: 100
        numbers, keys = db.table(f"n-{kind}"), np.arange(250, dtype=np.uint64)
        for call in (
            lambda: numbers.set_many(keys, keys),
            lambda: numbers.get_many(keys),
            lambda: numbers.delete_many(keys),
            lambda: numbers.incr_many(keys),
        ):
            with pytest.raises(InvalidArgumentError, match=r"250 operations .* atomic=False"):
                call()
        numbers.set_many(keys, keys * 2, atomic=False)
        assert numbers.incr_many(keys, -1, atomic=False)[0].tolist() == [2 * key - 1 for key in range(250)]
        values, found = numbers.get_many(np.arange(300), atomic=False)
        assert (values[:2].tolist(), values[249], found.sum()) == ([2**64 - 1, 1], 497, 250)
        assert numbers.delete_many(keys, atomic=False).all()


def wait_until_gone(db: Any, key: bytes) -> None:
    give_up = time.monotonic() + 30
    while db.exists(key):
        assert time.monotonic() < give_up
        time.sleep(0.01)


def test_keys_expire(db: Any) -> None:
    assert db.ttl(b"k") is None
    assert not db.expire(b"k", 1)
    db.set(b"k", b"v", ttl=0.05)
    wait_until_gone(db, b"k")
    assert (db.get(b"k"), db.ttl(b"k"), db.delete(b"k")) == (None, None, False)
    db.set(b"k", b"v", ttl=timedelta(hours=1), if_absent=True)
    assert 3500 < db.ttl(b"k") <= 3601
    db.append(b"k", b"w", ttl=5)  # a key that is there keeps what it has
    assert 3500 < db.ttl(b"k") <= 3601
    assert db.expire(b"k", 100)
    assert 90 < db.ttl(b"k") <= 101
    assert db.expire(b"k", None)
    assert db.ttl(b"k") == math.inf
    db.expire(b"k", 100)
    db.set(b"k", b"v")
    assert db.ttl(b"k") == math.inf
    assert db.incr(b"n", ttl=100) == 1
    assert db.incr(b"n", ttl=5) == 2
    assert 90 < db.ttl(b"n") <= 101
    db.set(b"k", b"v", ttl=math.inf)
    assert db.ttl(b"k") == math.inf
    with db.transaction() as t:
        t.get(b"k")
        t.set(b"k", b"w", ttl=100)
    assert 90 < db.ttl(b"k") <= 101
    with db.batch() as batch:
        batch.set(b"k", b"v", ttl=50, if_present=True)
        batch.ttl(b"k")
        batch.ttl(b"none")
        batch.expire(b"k", 0.05)
        batch.append(b"new", b"v", ttl=0.05)
    assert 40 < batch.results[1] <= 51
    assert batch.results[2:4] == [None, True]
    assert len(db.batch([(Op.EXPIRY, b"k"), (Op.EXPIRE, b"n", None), (Op.EXPIRY, b"n")])) == 3
    assert db.ttl(b"n") == math.inf
    wait_until_gone(db, b"k")
    wait_until_gone(db, b"new")
    assert sorted(db.scan(keys_only=True)) == [b"n"]
    for wrong in (0, -1, math.nan, 1e300, timedelta(0)):
        with pytest.raises(InvalidArgumentError, match="ttl"):
            db.set(b"k", b"v", ttl=wrong)
    for wrong in ("1", True, b"1"):
        with pytest.raises(TypeError, match="ttl"):
            db.expire(b"n", wrong)
    assert not db.exists(b"k")


def test_a_transaction_that_read_a_key_which_expires_meanwhile_conflicts(db: Any) -> None:
    db.set(b"k", b"v", ttl=2)
    with pytest.raises(ConflictError) as caught, db.transaction() as t:
        assert t.get(b"k") == b"v"
        wait_until_gone(db, b"k")
        t.set(b"k", b"w")
    assert caught.value.found is None
    assert not db.exists(b"k")


def test_a_scan(db: Any) -> None:
    expected = {b"%s:%d" % (prefix, i): bytes(i % 7) for prefix in (b"a", b"b") for i in range(500)}
    db.batch([(Op.SET, key, value) for key, value in expected.items()])
    pairs = list(db.scan())
    assert len(pairs) == len(expected)
    assert dict(pairs) == expected
    assert sorted(db.scan(b"a:", keys_only=True)) == sorted(key for key in expected if key.startswith(b"a:"))
    assert len(list(db.scan(bytearray(b"b:"), limit=123))) == 123
    assert (db.count(), db.count(b"a:"), db.count(b"none")) == (1000, 500, 0)
    begun = db.scan(keys_only=True, limit=300)
    first = list(begun)
    rest = list(db.scan(keys_only=True, cursor=begun.cursor))
    assert sorted(first + rest) == sorted(expected)
    assert list(db.scan(cursor=None, prefix=b"none")) == []
    with pytest.raises(InvalidArgumentError, match="cursor"):
        next(iter(db.scan(cursor=b"nonsense")))
    with pytest.raises(InvalidArgumentError, match="limit"):
        next(iter(db.scan(limit=0)))
    with pytest.raises(TypeError, match="a prefix is bytes, not str"):
        db.scan("text")
    with pytest.raises(TypeError, match="a prefix is bytes, not str"):
        db.count("text")
    handle = db.table(db.list_tables()[0].name)
    assert handle.count() == len(list(handle.scan()))


def test_a_scan_of_numbers(db: Any) -> None:
    db.create_table("scanned", layout="u64", index_bytes=1 << 16, exist_ok=True)
    numbers = db.table("scanned")
    given = {key: (key << 40) + 7 for key in (0, 1, 42, (1 << 64) - 1) for key in (key, key // 3)}
    given = {key: value % (1 << 64) for key, value in given.items()}
    numbers.set_many(list(given), list(given.values()))
    found: dict[int, int] = {}
    for piece in numbers.scan_pieces():
        keys, values = piece.numbers()
        assert (keys.dtype, values.dtype) == (np.uint64, np.uint64)
        found |= dict(zip(keys.tolist(), values.tolist(), strict=True))
    assert found == given
    bare = [piece.numbers() for piece in numbers.scan_pieces(keys_only=True)]
    assert sorted(key for keys, _ in bare for key in keys.tolist()) == sorted(given)
    assert not any(len(values) for _, values in bare)
    # One by one they are bytes, as they are stored.
    assert {int.from_bytes(key, "little") for key in numbers.scan(keys_only=True)} == given.keys()
    db.set(b"8 bytes.", b"8 bytes.")
    for piece in db.scan_pieces():
        with pytest.raises(InvalidArgumentError, match="table: these are of a table of the layout bytes, not u64"):
            piece.numbers()


def test_a_scan_tells_of_damaged_records_at_its_end() -> None:
    def piece(keys: list[bytes], damaged: int, cursor: bytes) -> ScanPiece:
        lengths, none = np.array([len(key) for key in keys], np.uint32), np.empty(0, np.uint64)
        column = np.frombuffer(b"".join(keys), np.uint8)
        return ScanPiece(column, lengths, column, lengths, none, none, damaged, cursor)

    pieces = [piece([b"a", b"bc"], 1, b"1"), piece([], 0, b"2"), piece([b"d"], 2, b"")]
    scan: Scan[tuple[bytes, bytes]] = Scan(iter(pieces), b"", keys_only=False)
    assert [next(scan) for _ in range(3)] == [(b"a", b"a"), (b"bc", b"bc"), (b"d", b"d")]
    assert scan.cursor == b"2"  # the last piece might not be read to its end
    with pytest.raises(CorruptRecordError, match="3 records fail"):
        next(scan)
    with pytest.raises(StopIteration):
        next(scan)


def test_a_transaction_sees_what_it_wrote_and_reads_once(db: Any) -> None:
    db.set(b"a", b"1")

    def work(t: Any) -> bytes:
        assert t.get(b"a") == b"1"
        db.set(b"unread", b"of another")
        t.set(b"b", b"2")
        assert t.get(b"b") == b"2"
        t.delete(b"a")
        assert t.get(b"a", b"gone") == b"gone"
        assert t.get_all([b"a", b"b", b"c"]) == {b"b": b"2"}
        assert db.get(b"b") is None  # nothing is written before the end
        t.set(b"unread", b"of the transaction")
        return b"returned"

    assert db.transact(work) == b"returned"
    assert db.get_all([b"a", b"b", b"unread"]) == {b"b": b"2", b"unread": b"of the transaction"}


def test_a_transaction_whose_reads_changed_writes_nothing(db: Any) -> None:
    db.set(b"a", b"1")
    changes: tuple[tuple[bytes, str, Callable[[], object]], ...] = (
        (b"a", "has the version", lambda: db.set(b"a", b"1")),
        (b"none", "has the version", lambda: db.set(b"none", b"x")),
        (b"a", "is not there now; nothing was written", lambda: db.delete(b"a")),
    )
    for key, text, change in changes:
        with pytest.raises(ConflictError, match=text) as conflict, db.transaction() as t:
            t.get(b"a")
            t.get(b"none")
            change()
            t.set(b"written", b"x")
        assert conflict.value.key == key
        with pytest.raises(InvalidArgumentError, match="over"):
            t.get(b"a")
    with pytest.raises(ConflictError), db.transaction() as t:  # nothing to write: the reads are checked all the same
        t.get(b"a")
        db.set(b"a", b"2")
    assert not db.exists(b"written")
    with pytest.raises(ZeroDivisionError), db.transaction() as t:
        t.set(b"written", b"x")
        raise ZeroDivisionError
    assert not db.exists(b"written")


def test_transact_runs_again_up_to_a_bound(db: Any) -> None:
    db.set(b"n", b"0")
    runs = []

    def work(t: Any) -> int:
        runs.append(int(t.get(b"n")))
        if len(runs) < 3:
            db.incr(b"n")
        t.set(b"n", b"%d" % (runs[-1] + 100))
        return runs[-1]

    assert db.transact(work) == 2
    assert runs == [0, 1, 2]
    assert db.get(b"n") == b"102"
    runs.clear()

    def beaten(t: Any) -> None:
        runs.append(int(t.get(b"n")))
        db.incr(b"n")

    with pytest.raises(ConflictError):
        db.transact(beaten, attempts=4)
    assert runs == [102, 103, 104, 105]
    with pytest.raises(InvalidArgumentError, match="attempts"):
        db.transact(beaten, attempts=0)


def test_pauses_between_attempts_grow_from_what_one_took_up_to_a_second() -> None:
    for attempt, longest in ((1, 0.002), (2, 0.004), (9, 0.512), (10, 1.0), (10_000, 1.0)):
        pauses = [delay_s(attempt, 0.001) for _ in range(200)]
        assert 0.5 * longest < max(pauses) <= longest  # by chance once in 2**200


def test_an_exception_of_what_does_not_fit_together_is_not_raised(db: Any) -> None:
    """`work` reads a and b while another moves 1 between them: the sum it finds was never there."""
    db.batch([(Op.SET, b"a", b"1"), (Op.SET, b"b", b"1")])
    runs = []

    def work(t: Any) -> None:
        first = int(t.get(b"a"))
        if not runs:
            db.batch([(Op.SET, b"a", b"0"), (Op.SET, b"b", b"2")])
        runs.append(first + int(t.get(b"b")))
        if runs[-1] != 2:
            raise AssertionError(runs)

    db.transact(work)
    assert runs == [3, 2]

    def wrong(t: Any) -> None:
        runs.append(int(t.get(b"a")))
        t.set(b"a", b"lost")
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):  # all it has read is still so
        db.transact(wrong)
    assert len(runs) == 3
    assert db.get(b"a") == b"0"


def test_transfers_keep_the_sum(db: Any) -> None:
    """Each account has what all transfers together gave it: none was lost, none done twice or by half."""
    accounts, threads, each = [b"%d" % i for i in range(4)], 6, 12
    db.batch([(Op.SET, account, b"100") for account in accounts])
    moved: list[tuple[int, int]] = []

    def transfers(number: int) -> None:
        random = np.random.default_rng(number)
        for _ in range(each):
            one, other = random.choice(len(accounts), 2, replace=False).tolist()
            amount = int(random.integers(1, 30))

            def move(t: Any, one: int = one, other: int = other, amount: int = amount) -> None:
                have, has = int(t.get(accounts[one])), int(t.get(accounts[other]))
                t.set(accounts[one], b"%d" % (have - amount))
                t.set(accounts[other], b"%d" % (has + amount))

            db.transact(move, attempts=10_000)
            moved.append((one, -amount))
            moved.append((other, amount))

    running = [threading.Thread(target=transfers, args=(number,)) for number in range(threads)]
    for thread in running:
        thread.start()
    for thread in running:
        thread.join()
    assert len(moved) == 2 * threads * each
    expected = [100 + sum(amount for account, amount in moved if account == i) for i in range(len(accounts))]
    assert [int(db.get(account)) for account in accounts] == expected
    assert sum(expected) == 400


@pytest.mark.parametrize("kind", FACES)
def test_what_is_closed_says_so_in_every_method(kind: str, tmp_path: Path, serve: Callable[[], Server]) -> None:
    error = StoreClosedError if kind == "store" else ClientClosedError
    with opened(kind, tmp_path, serve) as db:
        assert "closed>" not in repr(db)
        handle, block, transaction = db.table("default"), db.batch(), db.transaction()
        block.get(b"k")
        db.close()
        assert "closed>" in repr(db)
        calls: dict[str, Callable[[Any], object]] = {
            "get": lambda face: face.get(b"k"),
            "get_with_version": lambda face: face.get_with_version(b"k"),
            "get_all": lambda face: face.get_all([]),
            "exists": lambda face: face.exists(b"k"),
            "set": lambda face: face.set(b"k", b"v"),
            "delete": lambda face: face.delete(b"k"),
            "incr": lambda face: face.incr(b"k"),
            "append": lambda face: face.append(b"k", b"v"),
            "expire": lambda face: face.expire(b"k", 1),
            "ttl": lambda face: face.ttl(b"k"),
            "batch": lambda face: face.batch([]),
            "transaction": lambda face: face.transaction(),
            "transact": lambda face: face.transact(lambda t: t.get(b"k")),
            "scan": lambda face: next(iter(face.scan())),
            "count": lambda face: face.count(),
            "set_many": lambda face: face.set_many([1], [1]),
            "get_many": lambda face: face.get_many([1]),
            "delete_many": lambda face: face.delete_many([1]),
            "incr_many": lambda face: face.incr_many([1]),
            "set_many of nothing": lambda face: face.set_many([], []),
            "get_many of nothing": lambda face: face.get_many([]),
            "get_into": lambda face: face.get_into(b"k", bytearray(1)),
            "set_from": lambda face: face.set_from(b"k", b"v"),
            "get_into of nothing": lambda face: face.get_into([], []),
            "set_from of nothing": lambda face: face.set_from([], []),
        }
        own: dict[str, Callable[[Any], object]] = {
            "create_table": lambda face: face.create_table("t"),
            "drop_table": lambda face: face.drop_table("t", missing_ok=True),
            "list_tables": lambda face: face.list_tables(),
            "info": lambda face: face.info(),
            "table": lambda face: face.table("default"),
        }
        if kind != "store":
            own["wait_ready"] = lambda face: face.wait_ready()
        for name, call in (calls | own).items():
            for face in (db, handle) if name in calls else (db,):
                with pytest.raises(error):
                    call(face)
        with pytest.raises(error):
            block.__exit__(None, None, None)
        with pytest.raises(error), transaction as t:
            t.get(b"k")


def test_two_hundred_callers_take_two_hundred_codes(serve: Callable[[], Server]) -> None:
    """The story of a URL shortener: each caller takes the first code that is free, and no two take the same."""

    async def take(client: AsyncClient, url: bytes) -> bytes:
        for number in range(1000):
            code = b"%03d" % number
            try:
                await client.set(code, url, if_absent=True)
            except ConditionFailedError:
                continue
            return code
        raise AssertionError

    async def main() -> None:
        target = serve().target
        async with AsyncClient(target, table="codes") as one, AsyncClient(target, table="codes") as other:
            await one.create_table("codes", index_bytes=1 << 16)
            urls = [b"https://example.org/%d" % i for i in range(200)]
            codes = await asyncio.gather(*(take((one, other)[i % 2], url) for i, url in enumerate(urls)))
            assert sorted(codes) == [b"%03d" % i for i in range(200)]
            assert await one.get_all(codes) == dict(zip(codes, urls, strict=True))

    asyncio.run(main())


def test_a_commit_whose_response_is_lost_is_not_repeated() -> None:
    async def main() -> None:
        async with serving() as server, AsyncClient(server.target) as client:
            runs = []

            async def work(t: AsyncTransaction) -> None:
                runs.append(await t.get(b"k"))
                t.set(b"k", b"v")
                server.faults = [lose_response]

            with pytest.raises(OutcomeUnknownError):
                await client.transact(work)
            assert runs == [None]
            assert len(server.messages) == 2

    asyncio.run(main())


def test_each_call_has_its_own_timeout(shared: Server, serve: Callable[[], Server], tmp_path: Path) -> None:
    for kind in ("client", "async"):
        with opened(kind, tmp_path, serve) as db:
            for late in (0, -1.0, math.nan):
                for call in (
                    lambda late=late: db.set(b"late", b"v", timeout=late),
                    lambda late=late: db.get(b"late", timeout=late),
                    lambda late=late: db.set_from(b"late", bytes(1 << 17), timeout=late),
                    lambda late=late: db.info(timeout=late),
                ):
                    with pytest.raises(DeadlineError, match="before it began"):
                        call()
            assert not db.exists(b"late")
            shared.freeze()
            try:
                for call in (
                    lambda: db.get(b"k", timeout=0.01),
                    lambda: db.exists(b"k", timeout=0.01),
                    lambda: db.batch([(Op.GET, b"k")], timeout=0.01),
                    lambda: db.get_many([1], timeout=0.01),
                    lambda: db.get_into(b"k", bytearray(1), timeout=0.01),
                    lambda: db.transact(lambda t: t.get(b"k"), timeout=0.01),
                    lambda: db.list_tables(timeout=0.01),
                    lambda: db.info(timeout=0.01),
                ):
                    with pytest.raises(DeadlineError):
                        call()
                with pytest.raises(OutcomeUnknownError):
                    db.incr(b"k", timeout=0.01)
                with pytest.raises(OutcomeUnknownError):
                    db.set_from(b"k", bytes(1 << 17), timeout=0.01)
                with pytest.raises(UnavailableError):
                    db.wait_ready(0.01)
            finally:
                shared.thaw()
            db.wait_ready()
            assert db.get(b"none", timeout=None) is None
    with opened("store", tmp_path, serve) as db:
        for call in (
            lambda: db.get(b"k", timeout=1),
            lambda: db.get_all([], timeout=1),
            lambda: db.batch([], timeout=1),
            lambda: db.batch(timeout=1),
            lambda: db.get_many([], timeout=1),
            lambda: db.get_into([], [], timeout=1),
            lambda: db.set_from([], [], timeout=1),
            lambda: db.transaction(timeout=1),
            lambda: db.transact(lambda _: None, timeout=1),
            lambda: db.table("default").transact(lambda _: None, timeout=None),
        ):
            with pytest.raises(TypeError, match="no timeout"):
                call()


@pytest.mark.parametrize("kind", ["store", "client"])
def test_it_is_like_a_dictionary_without_iteration(kind: str, tmp_path: Path, serve: Callable[[], Server]) -> None:
    with opened(kind, tmp_path, serve) as db:
        db[b"k"] = b"v"
        assert b"k" in db
        assert b"none" not in db
        assert db[b"k"] == b"v"
        del db[b"k"]
        with pytest.raises(KeyError):
            db[b"k"]
        with pytest.raises(KeyError):
            del db[b"k"]
        with pytest.raises(TypeError, match="not iterable"):
            iter(db)
        with pytest.raises(TypeError, match="len"):
            len(db)
        assert db


@pytest.mark.parametrize("limit", [1.5, 0, -1, 1 << 70])
def test_a_wrong_limit_of_a_scan_harms_nobody(limit: float, tmp_path: Path) -> None:
    with gpkvs.open(tmp_path / "store", index_bytes=64 << 10) as store:
        with pytest.raises((TypeError, InvalidArgumentError), match="limit"):
            list(store.scan(limit=limit))  # type: ignore[call-overload]
        assert store.incr(b"sum") == 1
        assert list(store.scan()) == [(b"sum", b"1")]
        with pytest.raises(InvalidArgumentError, match="ttl: at most 1,125,899,906,842 seconds"):
            store.set(b"key", b"value", ttl=10**5000)


def test_scans_of_a_closed_client_say_so(serve: Callable[[], Server]) -> None:
    """Those that were not begun, and those in the middle."""
    target = serve().target
    with Client(target) as client:
        client.create_table("large", exist_ok=True)
        for number in range(8):
            client.set(b"%d" % number, bytes(1_000_000), table="large")
        not_begun, begun = client.scan(table="large"), client.scan(table="large")
        next(begun)
        client.close()
        with pytest.raises(ClientClosedError):
            list(not_begun)
        with suppress(ClientClosedError):  # the rest may have come before
            assert len(list(begun)) == 7

    async def main() -> None:
        client = AsyncClient(target, table="large")
        not_begun, begun = client.scan(), client.scan()
        await anext(begun)
        await client.close()
        with pytest.raises(ClientClosedError):
            await anext(not_begun)
        with suppress(ClientClosedError):
            assert len([item async for item in begun]) == 7

    asyncio.run(main())


def test_a_client_that_is_closed_between_two_attempts_says_so() -> None:
    async def main() -> None:
        client = AsyncClient("127.0.0.1:1", retry=RetryPolicy(attempts_max=1000, delay_ms_max=50.0))
        async with asyncio.TaskGroup() as group:
            batch = client.batch()
            batch.set(b"k", b"v")
            batch.set(b"l", b"v")
            guarded = client.batch()
            guarded.check(b"k", absent=True)
            guarded.set(b"k", b"v")
            calls = [group.create_task(outcome_of(call)) for call in (batch, guarded)]
            calls.append(group.create_task(outcome_of(anext(client.scan()))))
            await asyncio.sleep(0.3)
            await client.close()
        assert [type(call.result()) for call in calls] == [ClientClosedError] * 3

    asyncio.run(main())


def test_calls_in_flight_when_the_client_is_closed_say_so() -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:  # it takes connections and says nothing
        target = f"127.0.0.1:{silent.getsockname()[1]}"

        async def main() -> None:
            client = AsyncClient(target)
            batches = client.batch([(Op.GET, b"k"), (Op.GET, b"l")]), client.batch([(Op.SET, b"k", b"v")])
            async with asyncio.TaskGroup() as group:
                reads = (client.wait_ready(), client.info(), batches[0])
                calls = [group.create_task(outcome_of(call)) for call in (*reads, batches[1])]
                await asyncio.sleep(0.1)
                await client.close()
            assert [type(call.result()) for call in calls] == [ClientClosedError] * 3 + [OutcomeUnknownError]

        asyncio.run(main())
        client = Client(target)
        with ThreadPoolExecutor() as pool:
            done = [pool.submit(call) for call in (client.wait_ready, client.info, lambda: client.get(b"k"))]
            write = pool.submit(client.set, b"k", b"v")
            time.sleep(0.1)
            client.close()
        assert [type(call.exception()) for call in done] == [ClientClosedError] * 3
        assert isinstance(write.exception(), OutcomeUnknownError | ClientClosedError)  # it may not have begun


def test_a_wait_of_no_seconds_asks_once(shared: Server) -> None:
    refused = r"not ready after 0 s; last heard: .*cannot connect"

    async def main() -> None:
        async with AsyncClient(shared.target) as client:
            await client.get(b"none")  # it is connected
            await client.wait_ready(0)
        async with AsyncClient("127.0.0.1:1") as client:
            with pytest.raises(UnavailableError, match=refused):
                await client.wait_ready(0)

    asyncio.run(main())
    with Client(shared.target) as client:
        client.get(b"none")
        client.wait_ready(0)
    with Client("127.0.0.1:1") as client, pytest.raises(UnavailableError, match=refused):
        client.wait_ready(0)


async def outcome_of(call: Awaitable[object]) -> object:
    try:
        return await call
    except GpkvsError as error:
        return error
