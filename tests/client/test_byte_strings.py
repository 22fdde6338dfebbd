"""Many byte strings in one call: `set_many`, `get_many`, `delete_many` of a store and of both clients."""

from __future__ import annotations

import os
import time
from collections import deque
from collections.abc import Callable
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

import gpkvs
from gpkvs.batch import RequestResult
from gpkvs.columns.buffers import RequestBounds
from gpkvs.columns.byte_strings import ByteStrings, byte_strings_of, column_given
from gpkvs.columns.string_requests import StringRequests
from gpkvs.errors import CorruptRecordError, InvalidArgumentError
from tests.client.faces import FACES, opened
from tests.serving import Server


@pytest.fixture
def pick() -> Random:
    seed = int(os.environ.get("GPKVS_SEED", Random().randrange(1 << 32)))
    print(f"GPKVS_SEED={seed}")
    return Random(seed)


class Foreign:
    """A column of another library: it speaks Arrow, and that is all."""

    def __init__(self, column: pa.ChunkedArray, *, only_once: bool = False) -> None:
        self._column = column
        self._stream = column.__arrow_c_stream__() if only_once else None

    def __arrow_c_stream__(self, requested_schema: object = None) -> object:
        return self._stream or self._column.__arrow_c_stream__(requested_schema)


def random_strings(pick: Random, count: int, longest: int, shortest: int = 0) -> list[bytes]:
    return [pick.randbytes(pick.randrange(shortest, longest)) for _ in range(count)]


def test_a_dictionary_has_the_same(db: Any, pick: Random) -> None:
    """The last of equal keys wins; what is not there is None."""
    model: dict[bytes, bytes] = {}
    for _ in range(20):
        keys = random_strings(pick, pick.randrange(1, 300), 3, 1)
        match pick.choice(["set", "get", "delete"]):
            case "set":
                values = random_strings(pick, len(keys), 200)
                db.set_many(keys, values)
                model.update(zip(keys, values, strict=True))
            case "get":
                read, found = db.get_many(keys)
                assert list(read) == [model.get(key) for key in keys]
                assert found.tolist() == [key in model for key in keys]
            case "delete":
                there = []
                for key in keys:
                    there.append(model.pop(key, None) is not None)
                assert db.delete_many(keys).tolist() == there
    assert db.get_all(list(model)) == model


@pytest.mark.parametrize(
    "form",
    [
        list,
        tuple,
        lambda keys: dict.fromkeys(keys).keys(),
        deque,
        iter,
        np.array,
        lambda keys: np.array(keys, object),
        lambda keys: np.array(keys, "V3"),
        lambda keys: np.frombuffer(b"".join(keys), np.uint8).reshape(-1, 3),
        lambda keys: [bytearray(key) for key in keys],
        lambda keys: byte_strings_of("keys", keys),
        pa.array,
        lambda keys: pa.array(keys, pa.large_binary()),
        lambda keys: pa.array(keys, pa.binary(3)),
        lambda keys: pa.array([b"x", *keys, b"y"])[1:-1],
        lambda keys: pa.chunked_array([pa.array(keys[:1]), pa.array(keys[1:])]),
        lambda keys: pa.array([key.decode() for key in keys]),
        lambda keys: Foreign(pa.chunked_array([pa.array(keys)])),
        lambda keys: Foreign(pa.chunked_array([pa.array(keys)]), only_once=True),
        lambda keys: pa.array(keys).dictionary_encode(),
    ],
)
def test_forms_of_a_column(form: Callable[[list[bytes]], Any]) -> None:
    keys = [b"abc", b"a\\b", b"xyz"]
    column = form(keys)
    found = column_given("keys", column)
    assert isinstance(found, ByteStrings)
    assert found == keys


def test_numbers_are_none() -> None:
    for column in (
        [1],
        np.arange(3),
        np.arange(3, dtype=np.uint8),
        pa.array([1, 2]),
        Foreign(pa.chunked_array([[1]])),
        [[1]],
    ):
        assert not isinstance(column_given("keys", column), ByteStrings)


def test_strings_of_numpy_end_before_their_last_zeros() -> None:
    """As NumPy itself has it; fixed bytes keep them."""
    given = [b"a\0\0", b"\0b\0", b"\0\0\0"]
    assert byte_strings_of("keys", np.array(given)) == [b"a", b"\0b", b""]
    assert byte_strings_of("keys", np.array(given, "V3")) == given


def test_a_column_of_results() -> None:
    column = ByteStrings(
        np.frombuffer(b"onethree", np.uint8), np.array([3, 0, 5, 0], np.uint32), np.array([True, False, True, True])
    )
    wanted = [b"one", None, b"three", b""]
    assert list(column) == wanted == [column[index] for index in range(4)]
    assert column[-1] == b""
    assert column[1:3] == wanted[1:3]
    assert column[3:1] == []
    assert column[1:].to_arrow().to_pylist() == wanted[1:]
    assert pa.array(wanted, pa.large_binary()).equals(column.to_arrow())
    assert repr(column) == "<ByteStrings of 4: [b'one', None, b'three', ...]>"
    with pytest.raises(IndexError):
        column[4]
    with pytest.raises(ValueError, match="a step of 1"):
        column[::2]
    with pytest.raises(InvalidArgumentError, match=r"operation 1, keys: some are missing"):
        byte_strings_of("keys", column)


def test_keys_expire(db: Any) -> None:
    db.set_many([b"a", b"b"], [b"1", b"2"], ttl=1000)
    db.set_many([b"b"], [b"3"])
    assert 990 < db.ttl(b"a") <= 1000
    assert db.ttl(b"b") == float("inf")
    with pytest.raises(InvalidArgumentError, match="must be positive"):
        db.set_many([b"a"], [b"1"], ttl=-1)


@pytest.mark.parametrize("kind", FACES)
def test_more_than_a_request_takes(kind: str, tmp_path: Path, serve: Callable[[], Server]) -> None:
    """They go in several, if they may; values that are too many to be read at once, too."""
    with opened(kind, tmp_path, serve) as db:
        base = db._awaited if kind == "async" else db
        own = base._request_bounds
        base._request_bounds = lambda *table: own(*table)._replace(bytes_max=2000)
        keys = [b"%d" % key for key in range(500)]
        db.set_many(keys, keys, atomic=False)
        assert db.get_many(keys, atomic=False)[0] == keys
        assert db.delete_many([*keys, b"none"], atomic=False).tolist() == [True] * 500 + [False]
        base._request_bounds = own
        with pytest.raises(InvalidArgumentError, match=r"500 keys, 499 values"):
            db.set_many(keys, keys[1:])


def test_what_reads_too_much_is_halved(tmp_path: Path) -> None:
    limits = gpkvs.Limits(result_bytes_max=1 << 20)
    with gpkvs.open(tmp_path / "store", index_bytes=1 << 16, heap_bytes=8 << 20, limits=limits) as store:
        keys = [b"%d" % key for key in range(40)]
        values = [b"%d" % key * (1 << 16 if key == 7 else 20000) for key in range(40)]
        store.set_many(keys, values, atomic=False)
        with pytest.raises(InvalidArgumentError, match="read too many bytes"):
            store.get_many(keys)
        read, found = store.get_many(keys, atomic=False)
        assert read == values
        assert found.all()


def test_requests_become_large_again(pick: Random) -> None:
    """Long values are at the beginning only."""
    bounds = RequestBounds(gpkvs.Limits(request_ops_max=10_000), 1 << 30)
    count = pick.randrange(10_000, 50_000)
    requests = StringRequests(gpkvs.Op.GET, byte_strings_of("keys", [b"k"] * count), None, bounds, atomic=False)
    asked = 0
    while batch := requests.next():
        asked += 1
        if requests._first < 10 and len(batch) > 1:
            requests.refused(InvalidArgumentError("too much", field="ops"))
            continue
        ok = np.zeros(len(batch), np.uint8)
        requests.took(RequestResult(ok, ok.astype(np.uint64), ok.astype(np.uint32), np.empty(0, np.uint8)))
    assert len(requests.values()) == count
    assert asked < 60


@pytest.mark.parametrize(
    ("keys", "error", "says"),
    [
        ([b"a", "b"], TypeError, "a key is bytes, not str: encode it first"),
        (["a"], TypeError, "a key is bytes, not str: encode it first"),
        ([b"a", None], TypeError, "a key is bytes, not NoneType"),
        (np.array(["a"]), InvalidArgumentError, "keys: an array of <U1 .*text must be encoded"),
        (np.array([[b"a"]]), InvalidArgumentError, "keys: an array of .S1 with 2 dimensions"),
        (pa.array([b"a", None]), InvalidArgumentError, r"operation 1, keys: some are missing \(null\)"),
        (pa.array([True]), InvalidArgumentError, "keys: a column of bool; one of binary or text is needed"),
        (pa.array([b"a", None]).dictionary_encode(), InvalidArgumentError, r"keys: some are missing \(null\)"),
        (np.ma.array(np.array([b"a"]), mask=[True]), InvalidArgumentError, "keys: some are masked"),
        (b"abc", InvalidArgumentError, "keys: one bytes; a list of bytes.* is needed.*take one key"),
        ({b"a": b"b"}, InvalidArgumentError, "keys: a dict; give its keys"),
        (None, InvalidArgumentError, "keys: NoneType; a list of bytes.* is needed"),
        (np.array(b"abc"), InvalidArgumentError, "keys: one .S3; a list of bytes.* is needed"),
        ([b"a", b""], InvalidArgumentError, "operation 1, keys: a key of 0 bytes"),
        ([b"a", b"k" * 5000], InvalidArgumentError, "operation 1, keys: a key of 5,000 bytes"),
    ],
)
def test_wrong_keys(db: Any, keys: Any, error: type[Exception], says: str) -> None:
    calls: list[Callable[[], object]] = [
        lambda: db.set_many(keys, [b"1", b"2"]),
        lambda: db.get_many(keys),
        lambda: db.delete_many(keys),
    ]
    for call in calls:
        with pytest.raises(error, match=says):
            call()
    assert db.count() == 0


def test_empty_columns(db: Any) -> None:
    """They are no request, whatever they are made of."""
    null = pa.nulls(0)
    for nothing in ([], (), {}.keys(), np.empty(0, "S1"), np.empty((0, 8), np.uint8), pa.array([], pa.binary()), null):
        values, found = db.get_many(nothing)
        assert isinstance(values, ByteStrings)
        assert (values.to_arrow().to_pylist(), found.tolist()) == ([], [])
        db.set_many(nothing, nothing, ttl=1)
        assert not len(db.delete_many(nothing))
        with pytest.raises(InvalidArgumentError, match="0 keys, 1 value"):
            db.set_many(nothing, [b"x"])
    for nothing in (np.array([]), np.array([], np.uint64), pa.array([], pa.uint64())):
        values, found = db.get_many(nothing)
        assert (list(values), found.tolist()) == ([], [])


def test_numbers_of_other_libraries_keep_their_sign(db: Any) -> None:
    name = f"n{time.monotonic_ns()}"
    db.create_table(name, layout="u64", index_bytes=1 << 16)
    numbers = db.table(name)
    for wrong in (pa.array([-1]), pa.chunked_array([[-1]]), np.array([-1])):
        with pytest.raises(InvalidArgumentError, match="-1 is out of range"):
            numbers.set_many(wrong, [1])
    numbers.set_many(pa.array([1], pa.int32()), pa.array([2], pa.int8()))
    assert numbers.get_many([1])[0].tolist() == [2]
    db.drop_table(name)


def test_indexes_of_errors_are_those_of_all_keys(db: Any) -> None:
    """And nothing is stored: lengths are looked at before."""
    base = db._awaited if hasattr(db, "_awaited") else db
    own = base._request_bounds
    base._request_bounds = lambda *table: own(*table)._replace(bytes_max=100)
    with pytest.raises(InvalidArgumentError, match="operation 300, keys: a key of 0 bytes"):
        db.set_many([b"k"] * 300 + [b""], [b"v"] * 301, atomic=False)
    base._request_bounds = own
    assert db.count() == 0


def test_a_damaged_record(tmp_path: Path, pick: Random) -> None:
    path, value = tmp_path / "store", pick.randbytes(500)
    with gpkvs.open(path, index_bytes=1 << 16, heap_bytes=1 << 20) as store:
        store.set_many([b"good", b"bad"], [b"value", value])
    (heap,) = [file for file in path.iterdir() if value in file.read_bytes()]
    with heap.open("r+b") as file:
        file.seek(heap.read_bytes().index(value) + 400)
        file.write(bytes([value[400] ^ 1]))
    with gpkvs.open(path) as store:
        for reader in (store, store.table("default")):
            with pytest.raises(
                CorruptRecordError, match=r"table 'default', operation 1: the record fails .*gpkvs check"
            ):
                reader.get_many([b"good", b"bad"])
        assert store.get_many([b"good"])[0] == [b"value"]


def test_a_table_as_arrow(db: Any) -> None:
    """Its pieces are record batches, which another table takes as they are."""
    db.set_many([b"a", b"b"], [b"1", b""], ttl=1000)
    db.set_many([b"c"], [b"3"])
    table = pa.Table.from_batches([piece.to_arrow() for piece in db.scan_pieces() if len(piece)])
    rows = {row.pop("key"): row for row in table.to_pylist()}
    assert {key: row["value"] for key, row in rows.items()} == {b"a": b"1", b"b": b"", b"c": b"3"}
    assert {key: row["version"] for key, row in rows.items()} == {
        key: db.get_with_version(key)[1] for key in (b"a", b"b", b"c")
    }
    assert rows[b"c"]["expires"] is None
    assert 990 < rows[b"a"]["expires"].timestamp() - time.time() <= 1000
    keys = pa.Table.from_batches([piece.to_arrow() for piece in db.scan_pieces(keys_only=True) if len(piece)])
    assert keys.column_names == ["key", "version", "expires"]
    db.delete_many(table["key"])
    db.set_many(table["key"], table["value"])
    assert db.get_many(table["key"])[0].to_arrow().equals(table["value"].combine_chunks())


def test_numbers_as_arrow(db: Any) -> None:
    name = f"n{time.monotonic_ns()}"
    db.create_table(name, layout="u64", index_bytes=1 << 16)
    numbers = db.table(name)
    numbers.set_many(pa.chunked_array([[1, 2], [3]]), pa.array([4, 5, 6], pa.uint64()))
    table = pa.Table.from_batches([piece.to_arrow() for piece in numbers.scan_pieces() if len(piece)])
    assert sorted(zip(*(column.to_pylist() for column in table), strict=True)) == [(1, 4), (2, 5), (3, 6)]
    assert numbers.get_many(table["key"])[0].tolist() == table["value"].to_pylist()
    with pytest.raises(InvalidArgumentError, match="some are missing"):
        numbers.set_many(pa.array([1, None]), [1, 2])
    db.drop_table(name)
