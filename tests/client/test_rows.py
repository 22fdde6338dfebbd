"""Rows as arrays: get, set, add, delete and scan, of a store and of both clients."""

from __future__ import annotations

import ctypes
import os
import platform
import re
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from itertools import count
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from numpy.lib.stride_tricks import as_strided
from numpy.typing import NDArray

import gpkvs
from gpkvs.batch import Batch, Op, constant
from gpkvs.columns import string_requests
from gpkvs.columns.arrow import rows_array, rows_type
from gpkvs.columns.row_layout import ELEMENTS, row_layout_of
from gpkvs.columns.string_requests import StringRequests
from gpkvs.errors import CorruptRecordError, GpkvsError, InvalidArgumentError
from gpkvs.recovery.startup.check import check
from tests.conftest import SMALL, assert_clean

LAYOUT = "float32[3]"
Rows = NDArray[Any]


class Foreign:
    """An array of another library: it speaks DLPack, and that is all."""

    def __init__(self, array: Rows) -> None:
        self._array = array

    def __dlpack__(self, **asked: Any) -> Any:
        return self._array.__dlpack__(**asked)

    def __dlpack_device__(self) -> Any:
        return self._array.__dlpack_device__()


@pytest.fixture
def pick() -> Random:
    seed = int(os.environ.get("GPKVS_SEED", Random().randrange(1 << 32)))
    print(f"GPKVS_SEED={seed}")
    return Random(seed)


def rows_in(db: Any, layout: str = LAYOUT) -> Any:
    """Return the rows of a new table."""
    name = "rows" + os.urandom(6).hex()
    store = db._db if hasattr(db, "_db") else db
    store.create_table(name, layout=layout, index_bytes=64 << 10)
    return db.rows(layout, table=name)


def some(layout: str, count: int, pick: Random) -> Rows:
    """Return rows of any bits, those of no number among them."""
    found = row_layout_of(layout)
    assert found
    return found.array_of(np.frombuffer(pick.randbytes(count * found.row_bytes), np.uint8)).copy()


def added(layout: str, row: Rows, delta: Rows) -> Rows:
    """Return a sum as the elements of a table make it."""
    with np.errstate(all="ignore"):
        if not layout.startswith("bfloat16"):
            return row + delta
        exact = (row.astype(np.uint32) << 16).view(np.float32) + (delta.astype(np.uint32) << 16).view(np.float32)
        bits = exact.view(np.uint32)
        rounded = ((bits + 0x7FFF + (bits >> 16 & 1)) >> 16).astype(np.uint16)
        return np.where(np.isnan(exact), np.uint16(0x7FC0), rounded)


def same(layout: str, left: Rows, right: Rows) -> bool:
    """Whether rows are equal, bit by bit; of what is no number only that it is none."""
    if layout.startswith("bfloat16"):
        left, right = ((rows.astype(np.uint32) << 16).view(np.float32) for rows in (left, right))
    if left.dtype.kind == "f":
        none = np.isnan(left)
        if (none != np.isnan(right)).any():
            return False
        left, right = np.where(none, 0, left), np.where(none, 0, right)
    return left.tobytes() == right.tobytes()


@pytest.mark.parametrize("layout", [f"{element}[3]" for element in ELEMENTS] + ["float32[2,5]", "uint8[1]"])
def test_a_dictionary_of_arrays_has_the_same(db: Any, layout: str, pick: Random) -> None:
    rows = rows_in(db, layout)
    of_rows = row_layout_of(layout)
    assert of_rows
    zeros = np.zeros(of_rows.shape, of_rows.dtype)
    model: dict[int, Rows] = {}
    for _ in range(15):
        keys = [pick.choice((0, 1, 2, 7, 2**64 - 1, pick.getrandbits(64))) for _ in range(pick.randrange(1, 40))]
        given = some(layout, len(keys), pick)
        match pick.choice(["set", "add", "absent", "get", "delete"]):
            case "set":
                rows.set(keys, given)
                model.update(zip(keys, given, strict=True))
            case "add":
                rows.add(keys, given)
                for key, row in zip(keys, given, strict=True):
                    model[key] = added(layout, model.get(key, zeros), row)
            case "absent":
                expected = []
                for key, row in zip(keys, given, strict=True):
                    expected.append(key not in model)
                    model.setdefault(key, row)
                assert rows.set_if_absent(keys, given).tolist() == expected
            case "get":
                read, found = rows.get(keys)
                assert found.tolist() == [key in model for key in keys]
                assert same(layout, read, np.array([model.get(key, zeros) for key in keys], of_rows.dtype))
            case "delete":
                there = []
                for key in keys:
                    there.append(model.pop(key, None) is not None)
                assert rows.delete(keys).tolist() == there
    assert rows.count() == len(model)
    scanned = {}
    for piece_keys, piece_rows in rows.scan():
        scanned.update(zip(piece_keys.tolist(), piece_rows, strict=True))
    assert scanned.keys() == model.keys()
    assert all(same(layout, scanned[key], row) for key, row in model.items())


@pytest.mark.parametrize("element", ["float16", "bfloat16"])
@pytest.mark.parametrize(
    "delta", [0x0001, 0x03FF, 0x0400, 0x3C00, 0x7BFF, 0x8001, 0xBC01, 0x3F81, 0x7F7F, 0x7C00, 0xFFFF]
)
def test_halves_are_rounded_as_numpy_rounds_them(tmp_path: Path, element: str, delta: int) -> None:
    """Every number that there is, plus one of those where rounding is hardest."""
    layout = f"{element}[65536]"
    of_rows = row_layout_of(layout)
    assert of_rows
    every = np.arange(65536, dtype=np.uint16).view(of_rows.dtype).reshape(1, -1)
    deltas = np.full((1, 65536), delta, np.uint16).view(of_rows.dtype)
    with gpkvs.open(tmp_path / "store", **SMALL) as store:
        rows = rows_in(store, layout)
        rows.set([1], every)
        rows.add([1], deltas)
        assert same(layout, rows.get([1])[0], added(layout, every, deltas))


def test_equal_keys_add_in_their_order(db: Any, pick: Random) -> None:
    """As ``numpy.add.at`` does it: no other order leaves these bits."""
    rows = rows_in(db)
    rng = np.random.default_rng(pick.getrandbits(32))
    keys = rng.integers(0, 5, 2000)
    deltas = (rng.standard_normal((2000, 3)) * 10.0 ** rng.integers(-6, 6, (2000, 1))).astype(np.float32)
    held = np.zeros((5, 3), np.float32)
    np.add.at(held, keys, deltas)
    rows.add(keys, deltas)
    assert rows.get(range(5))[0].tobytes() == held.tobytes()
    other = np.zeros((5, 3), np.float32)
    np.add.at(other, keys[::-1], deltas[::-1])
    assert other.tobytes() != held.tobytes()


@pytest.mark.parametrize("keys_max", [1000, 1 << 40])
def test_threads_share_large_sums(db: Any, pick: Random, keys_max: int) -> None:
    """Keys that come twice, or not; some are there, and some are not."""
    rows = rows_in(db, "float32[16]")
    rng = np.random.default_rng(pick.getrandbits(32))
    keys = rng.integers(0, keys_max, 3000)
    names, places = np.unique(keys, return_inverse=True)
    held = np.zeros((len(names), 16), np.float32)
    there = rng.random(len(names)) < 0.5
    held[there] = rng.standard_normal((there.sum(), 16), np.float32)
    rows.set(names[there], held[there])
    for _ in range(2):
        deltas = rng.standard_normal((len(keys), 16), np.float32)
        np.add.at(held, places, deltas)
        rows.add(keys, deltas)
        assert rows.get(names)[0].tobytes() == held.tobytes()


UPWARD = {"x86_64": 0x800, "aarch64": 0x400000}


@pytest.mark.skipif(platform.machine() not in UPWARD, reason="FE_UPWARD is another number")
def test_sums_do_not_depend_on_the_thread(tmp_path: Path) -> None:
    """A store adds in the thread of its caller, who may have other sums rounded in another way."""
    libm = ctypes.CDLL("libm.so.6")
    with gpkvs.open(tmp_path / "store", **SMALL) as store:
        rows = rows_in(store)
        rows.set([1], np.ones((1, 3), np.float32))
        delta = np.full((1, 3), 2.0**-30, np.float32)
        before = libm.fegetround()
        libm.fesetround(UPWARD[platform.machine()])
        try:
            rows.add([1], delta)
            assert libm.fegetround() == UPWARD[platform.machine()]
        finally:
            libm.fesetround(before)
        assert rows.get([1])[0].tolist() == [[1, 1, 1]]


def test_a_sum_sees_what_its_request_has_done(tmp_path: Path) -> None:
    """SETs, sums, GETs and DELETEs of one key in one request."""
    row = np.array([1, 2, 3], np.float32)
    with gpkvs.open(tmp_path / "store", **SMALL) as store:
        rows = rows_in(store)
        name = rows._table
        ops = [Op.ADD, Op.GET, Op.ADD, Op.ADD, Op.GET, Op.SET, Op.ADD, Op.DELETE, Op.GET, Op.ADD, Op.GET]
        brings = [op for op in ops if op in (Op.ADD, Op.SET)]
        batch = Batch(
            ops=np.array(ops, np.uint8),
            keys=np.tile(np.array([7], np.uint64).view(np.uint8), len(ops)),
            key_lengths=constant(np.uint32(8), len(ops)),
            values=np.tile(row.view(np.uint8), len(brings)),
            value_lengths=constant(np.uint32(12), len(brings)),
        )
        result = store.execute(batch, table=name)
        assert result.value_lengths.tolist() == [12, 12, 0, 12]
        assert (result.values.view(np.float32).reshape(-1, 3) == np.outer([1, 3, 1], row)).all()
        assert (rows.get([7])[0] == row).all()


@pytest.mark.parametrize(
    "form",
    [
        np.ascontiguousarray,
        np.asfortranarray,
        lambda rows: np.repeat(rows, 2, axis=0)[::2],
        lambda rows: rows.astype(">f4"),
        Foreign,
        lambda rows: rows.tolist(),
        lambda rows: [tuple(row) for row in rows.tolist()],
        list,
        lambda rows: pa.array(rows.tolist(), pa.list_(pa.float32(), 3)),
        lambda rows: pa.chunked_array([rows[:1].tolist(), rows[1:].tolist()], pa.list_(pa.float32(), 3)),
        lambda rows: pa.array([[0, 0, 0], *rows.tolist()], pa.list_(pa.float32(), 3))[1:],
        lambda rows: rows_array(row_layout_of(LAYOUT), rows.reshape(-1).view(np.uint8)),  # type: ignore[arg-type]
    ],
    ids=["rows", "columns", "strided", "other order of bytes", "dlpack", "lists", "tuples", "arrays", "arrow", "chunks",
         "a part", "as a scan has them"],
)  # fmt: skip
def test_rows_come_in_many_forms(db: Any, form: Callable[[Rows], Any]) -> None:
    given = np.array([[1, 2, 3], [4, 5, 6.5], [7, -0.0, np.inf]], np.float32)
    rows = rows_in(db)
    rows.set([3, 2, 1], form(given))
    assert rows.get([3, 2, 1])[0].tobytes() == given.tobytes()


@pytest.mark.parametrize(
    "form",
    [
        list,
        tuple,
        np.array,
        lambda keys: np.array(keys, np.uint8),
        lambda keys: np.repeat(np.array(keys, np.int64), 2)[::2],
        lambda keys: Foreign(np.array(keys, np.int64)),
        lambda keys: Foreign(np.array(keys, np.uint64)),
        lambda keys: pa.array(keys, pa.uint64()),
        iter,
    ],
    ids=["list", "tuple", "array", "bytes", "strided", "dlpack int64", "dlpack uint64", "arrow", "iterator"],
)
def test_keys_come_in_many_forms(db: Any, form: Callable[[list[int]], Any]) -> None:
    rows = rows_in(db)
    rows.set(form([3, 2, 100]), np.arange(9, dtype=np.float32).reshape(3, 3))
    assert rows.get([100, 3])[0].tolist() == [[6, 7, 8], [0, 1, 2]]


@pytest.mark.parametrize(
    ("layout", "rows"),
    [
        ("float32[2,3]", np.arange(12, dtype=np.float32).reshape(2, 2, 3)),
        ("bfloat16[3]", np.array([[1, 2, 3], [0x7FC0, 4, 5]], np.uint16)),
        ("int8[3]", [[-128, 0, 127], [1, 2, 3]]),
        ("uint64[1]", [[2**64 - 1], [0]]),
    ],
)
def test_other_layouts_take_their_rows_and_arrow_has_them(db: Any, layout: str, rows: Any) -> None:
    table = rows_in(db, layout)
    of_rows = row_layout_of(layout)
    assert of_rows
    table.set([1, 2], rows)
    expected = np.array(rows, of_rows.dtype)
    read, _ = table.get([1, 2])
    assert read.dtype == of_rows.dtype
    assert read.tobytes() == expected.tobytes()
    column = rows_array(of_rows, expected.reshape(-1).view(np.uint8))
    assert column.type == rows_type(of_rows)
    assert column.to_pylist() == expected.tolist()
    table.set([3, 4], column)
    assert table.get([3, 4])[0].tobytes() == expected.tobytes()


def test_a_piece_of_a_scan_is_arrow(tmp_path: Path) -> None:
    with gpkvs.open(tmp_path / "store", **SMALL) as store:
        rows = rows_in(store, "int16[2]")
        empty = pa.Table.from_batches(piece.to_arrow() for piece in store.scan_pieces(table=rows._table))
        rows.set([5, 6], [[1, 2], [3, 4]], ttl=100)
        table = pa.Table.from_batches(piece.to_arrow() for piece in store.scan_pieces(table=rows._table))
    assert table.schema == empty.schema
    assert table.schema.field("value").type == pa.list_(pa.int16(), 2)
    assert dict(zip(table["key"].to_pylist(), table["value"].to_pylist(), strict=True)) == {5: [1, 2], 6: [3, 4]}
    assert table["expires"].null_count == 0


def test_what_is_not_there_and_memory_of_the_callers(db: Any) -> None:
    rows = rows_in(db)
    rows.set([1], [[1, 2, 3]])
    read, found = rows.get([1, 2])
    assert read.tolist() == [[1, 2, 3], [0, 0, 0]]
    assert found.tolist() == [True, False]
    read[0] = 9  # it is the caller's, whether all were there or not
    whole, _ = rows.get([1])
    whole[0] = 9
    assert rows.get([2, 1])[0].tolist() == [[0, 0, 0], [1, 2, 3]]
    assert rows.get([1, 2], default=0.5)[0].tolist() == [[1, 2, 3], [0.5, 0.5, 0.5]]
    assert rows.get([1, 2], default=[7, 8, 9])[0].tolist() == [[1, 2, 3], [7, 8, 9]]
    out = np.full((4, 3), 5, np.float32)
    assert rows.get([2, 1], out=out[::2])[0].base is out
    assert out.tolist() == [[5, 5, 5], [5, 5, 5], [1, 2, 3], [5, 5, 5]]
    rows.get([2, 1], out=out[:2], default=0)
    assert out[:2].tolist() == [[0, 0, 0], [1, 2, 3]]
    foreign = np.zeros((1, 3), np.float32)
    kept = Foreign(foreign)
    assert rows.get([1], out=kept)[0] is kept
    assert foreign.tolist() == [[1, 2, 3]]


MEMORY: dict[str, Callable[[Rows], Rows]] = {
    "whole": lambda memory: memory[:, 0, :2],
    "every second row": lambda memory: memory[::2, 0, :2],
    "from the last on": lambda memory: memory[::-1, 0, :2],
    "every second element": lambda memory: memory[:, 0, ::2],
    "columns": lambda memory: memory[:, :2, 0],
    "one row for all": lambda memory: as_strided(memory, (len(memory), 2), (0, memory.itemsize)),
    "masked": lambda memory: np.ma.array(memory[:, 0, :2], mask=True, copy=False),
    "rows that overlap": lambda memory: as_strided(memory, (len(memory), 2), (memory.itemsize, memory.itemsize)),
}


@pytest.mark.parametrize("placed_bytes_min", [0, 256], ids=["placed", "copied"])
@pytest.mark.parametrize("of", MEMORY)
def test_rows_go_where_memory_says(
    db: Any, of: str, placed_bytes_min: int, pick: Random, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What is around them stays, and so do rows that are not there; of several requests, too."""
    monkeypatch.setattr(gpkvs.rows, "_PLACED_BYTES_MIN", placed_bytes_min)
    monkeypatch.setattr(string_requests, "PART_BYTES_MAX", 5 * 33)  # of five keys and rows
    requests: list[int] = []
    took = StringRequests.took
    monkeypatch.setattr(StringRequests, "took", lambda self, result: (requests.append(1), took(self, result))[1])
    rows = rows_in(db, "float32[2]")
    memory = some("float32[12]", 64, pick).reshape(64, 4, 3)
    count = len(MEMORY[of](memory))
    keys = [pick.randrange(40) for _ in range(count)]
    held = {key: some("float32[2]", 1, pick)[0] for key in range(30)}
    rows.set(list(held), np.array(list(held.values())))
    for atomic in (True, False):
        filled, expected = memory.copy(), memory.copy()
        for row, key in zip(MEMORY[of](expected), keys, strict=True):
            row[:] = held.get(key, row)
        requests.clear()
        found = rows.get(keys, out=MEMORY[of](filled), atomic=atomic)[1]
        assert len(requests) == (1 if atomic else -(-count // 5))
        assert found.tolist() == [key in held for key in keys]
        assert filled.tobytes() == expected.tobytes()


@pytest.mark.parametrize("layout", [LAYOUT, "int16[3]", "bfloat16[3]"])
def test_memory_has_any_order_of_bytes(db: Any, layout: str) -> None:
    """What is read is converted, as what is written is."""
    rows = rows_in(db, layout)
    of_rows = row_layout_of(layout)
    assert of_rows
    given = np.array([[1, 2, 3], [4, 5, 6]], of_rows.dtype)
    swapped = of_rows.dtype.newbyteorder(">")
    rows.set([1, 2], given.astype(swapped))
    out = np.zeros((2, 3), swapped)
    rows.get([1, 2], out=out)
    assert out.tolist() == given.tolist()
    rows.get([2, 9], out=out, default=given[0].astype(swapped))
    assert out.tolist() == given[::-1].tolist()


@pytest.mark.parametrize(
    ("layout", "default", "said"),
    [
        ("int8[2]", 1.5, "default: numbers that are none of int8"),
        ("int8[2]", 128, "default: numbers that are none of int8"),
        ("int8[2]", np.array([1.5, 2]), "default: an array of float64"),
        ("int8[2]", np.array([1, 2, 3], np.int8), r"default: an array of int8 with the shape \(1, 3\)"),
        ("float32[2]", [1, 2, 3], r"default: a list with the shape \(3,\); a number, or a row with the shape \(2,\)"),
        ("float32[2]", "x", "default: numbers that are none of float32"),
        ("bfloat16[2]", 1.0, "default: a number, which cannot say bits of bfloat16"),
    ],
)
def test_a_default_that_is_no_row_is_refused(db: Any, layout: str, default: Any, said: str) -> None:
    """Also where all rows are there, and before anything is written to memory."""
    rows = rows_in(db, layout)
    of_rows = row_layout_of(layout)
    assert of_rows
    rows.set([1], np.ones((1, 2), of_rows.dtype))
    out = np.full((2, 2), 7, of_rows.dtype)
    for keys in ([1, 1], [1, 2]):
        with pytest.raises(InvalidArgumentError, match=said):
            rows.get(keys, out=out, default=default)
    assert (out == 7).all()


def test_a_default_may_be_bits_of_bfloat16(db: Any) -> None:
    rows = rows_in(db, "bfloat16[2]")
    assert rows.get([1], default=np.array([0x3F80, 0x7FC0], np.uint16))[0].tolist() == [[0x3F80, 0x7FC0]]


def test_a_handle_of_a_table_has_its_rows(db: Any) -> None:
    rows = rows_in(db)
    handled = db.table(rows._table).rows(LAYOUT)
    handled.set([1], [[1, 2, 3]])
    assert [keys.tolist() for keys, _ in handled.scan()] == [[1]]
    assert handled.count() == rows.count() == 1
    assert rows.get([1])[0].tolist() == [[1, 2, 3]]
    assert LAYOUT in repr(handled)


def test_nothing_is_no_request(db: Any) -> None:
    rows = rows_in(db)
    rows.set([], np.empty((0, 3), np.float32))
    rows.set([], [])
    rows.add(np.empty(0, np.uint64), np.empty((0, 3), np.float32))
    read, found = rows.get([])
    assert read.shape == (0, 3)
    assert found.shape == (0,)
    assert rows.set_if_absent([], []).shape == rows.delete([]).shape == (0,)
    assert list(rows.scan()) == []


ONE = np.ones((1, 3), np.float32)
READ_ONLY = ONE.copy()
READ_ONLY.flags.writeable = False


@pytest.mark.parametrize(
    ("call", "said"),
    [
        (lambda rows: rows.set([1], np.ones((1, 3))), r"rows: an array of float64 with the shape \(1, 3\); one of f"),
        (lambda rows: rows.set([1], np.ones((1, 4), np.float32)), r"with the shape \(1, 3\) is needed"),
        (lambda rows: rows.set([1], np.ones(3, np.float32)), r"with the shape \(3,\)"),
        (lambda rows: rows.set([1], np.float32(1)), r"with the shape \(\)"),
        (lambda rows: rows.set([1, 2], ONE), "rows: 2 keys, 1 row"),
        (lambda rows: rows.set([1], Foreign(np.ones((1, 3), np.int32))), "an array of int32"),
        (lambda rows: rows.set([1], Foreign(np.ones((1, 6), np.float32)[:, ::2])), "rows: its memory is not"),
        (lambda rows: rows.set([1], [["a", "b", "c"]]), "rows: numbers that are none of float32"),
        (lambda rows: rows.set([1], [[1, 2], [3]]), "rows: lists that are no array"),
        (lambda rows: rows.set([1], None), "rows: numbers that are none of float32"),
        (lambda rows: rows.set([1], np.ma.masked_less(ONE, 2)), "rows: some are masked"),
        (lambda rows: rows.set([1], pa.array([[1, 2, 3]], pa.list_(pa.float32()))), "an array of list"),
        (lambda rows: rows.set([1], pa.array([[1, None, 3]], pa.list_(pa.float32(), 3))), "an element is missing"),
        (lambda rows: rows.set([1], pa.array([None], pa.list_(pa.float32(), 3))), "a row or an element is missing"),
        (lambda rows: rows.set([-1], ONE), "keys: -1 is out of range"),
        (lambda rows: rows.set([0.5], ONE), "0.5 is no whole number"),
        (lambda rows: rows.set([2**64], ONE), "keys: 18,446,744,073,709,551,616 is out of range"),
        (lambda rows: rows.set([b"a"], ONE), "keys: bytes: the keys of a table of rows are whole numbers"),
        (lambda rows: rows.set([[1]], ONE), "keys"),
        (lambda rows: rows.set(1, ONE), "keys"),
        (lambda rows: rows.set(Foreign(np.ones(1, np.float32)), ONE), "keys: an array of float32"),
        (lambda rows: rows.set([1], ONE, ttl=-1), "ttl"),
        (lambda rows: rows.get([1], out=np.ones((1, 3))), "out: an array of float64"),
        (lambda rows: rows.get([1], out=np.ones((2, 3), np.float32)), "out: 1 key, 2 rows"),
        (lambda rows: rows.get([1], out=READ_ONLY), "out: it cannot be written to"),
        (lambda rows: rows.get([1], out=[0, 0, 0]), "out: a list; an array of NumPy"),
        (lambda rows: rows.add([1], np.ones((1, 3), np.int32)), "rows: an array of int32"),
    ],
)  # fmt: skip
def test_what_is_wrong_is_said_and_changes_nothing(db: Any, call: Callable[[Any], Any], said: str) -> None:
    rows = rows_in(db)
    rows.set([1], [[4, 5, 6]])
    with pytest.raises((InvalidArgumentError, TypeError), match=said):
        call(rows)
    assert [[keys.tolist(), found.tolist()] for keys, found in rows.scan()] == [[[1], [[4, 5, 6]]]]


@pytest.mark.parametrize(
    ("layout", "values"),
    [
        ("int8[1]", [[128]]),
        ("uint8[1]", [[-1]]),
        ("int32[1]", [[0.5]]),
        ("int8[1]", [[True]]),
        ("float16[1]", [[65520.0]]),
        ("float32[1]", [[-1e39]]),
    ],
)
def test_numbers_of_lists_are_not_changed(db: Any, layout: str, values: Any) -> None:
    with pytest.raises(InvalidArgumentError, match="numbers that are none of"):
        rows_in(db, layout).set([1], values)


def test_rows_expire(db: Any) -> None:
    rows = rows_in(db)
    rows.set([3], ONE)
    ttl, took = 0.2, 1.0
    while took > ttl / 2:  # on a busy machine row 2 may have expired before something is added to it
        ttl, began = 2 * ttl, time.monotonic()
        rows.set([1, 2], np.ones((2, 3), np.float32), ttl=ttl)
        rows.add([2], ONE)  # it keeps its expiry
        took = time.monotonic() - began
    while rows.get([1, 2])[1].any():
        assert time.monotonic() - began < ttl + 60
    assert rows.get([3, 1, 2])[1].tolist() == [True, False, False]
    rows.add([2], ONE)
    assert rows.get([2])[0].tolist() == [[1, 1, 1]]


def test_too_much_for_one_request_goes_in_several(tmp_path: Path) -> None:
    limits = gpkvs.Limits(request_ops_max=100, result_bytes_max=4096)
    with gpkvs.open(tmp_path / "store", limits=limits, **SMALL) as store:
        rows = rows_in(store, "float32[32]")
        given = np.arange(250 * 32, dtype=np.float32).reshape(-1, 32)
        with pytest.raises(InvalidArgumentError, match=r"250 operations in one request.*atomic=False"):
            rows.set(range(250), given)
        rows.set(range(250), given, atomic=False)
        with pytest.raises(InvalidArgumentError, match="its GETs read too many bytes"):
            rows.get(range(50))
        assert rows.get(range(250), atomic=False)[0].tobytes() == given.tobytes()
        rows.add(range(250), given, atomic=False)
        assert (
            rows.set_if_absent(range(249, 500), np.zeros((251, 32), np.float32), atomic=False).tolist()
            == [False] + [True] * 250
        )
        assert (rows.get([7, 249])[0] == 2 * given[[7, 249]]).all()
        assert rows.delete(range(500), atomic=False).all()


def test_a_table_of_another_layout_is_refused(db: Any) -> None:
    """By a store at once, by a server with the first request."""
    name = rows_in(db)._table
    for layout in ("float32[4]", "int32[3]", "uint8[12]"):
        found = row_layout_of(layout)
        assert found
        with pytest.raises(InvalidArgumentError, match=re.escape(f"has the layout {LAYOUT}, not '{layout}'")):
            db.rows(layout, table=name).set([1], np.zeros((1, *found.shape), found.dtype))
    with pytest.raises(InvalidArgumentError, match="has the layout bytes, not 'float32"):
        db.rows(LAYOUT).get([1])
    for wrong in (
        "bytes",
        "float32",
        "float32[]",
        "float32[0]",
        "float32[01]",
        "float9[2]",
        "Float32[3]",
        "float32[3,]",
        "",
    ):
        with pytest.raises(InvalidArgumentError, match="is no layout of rows"):
            db.rows(wrong, table=name)
    with pytest.raises(InvalidArgumentError, match=re.escape('rows("float32[3]", table="')):
        db.get_many([1, 2], table=name)
    assert db.count(table=name) == 0


@pytest.mark.parametrize(
    ("operation", "said"),
    [
        (
            (Op.INCREMENT, b"12345678", 1),
            r"(layout int32\[2\]: its values are rows, which|layout is not u64|rows and w)",
        ),
        ((Op.APPEND, b"12345678", b"x" * 8), "neither incremented nor appended to"),
    ],
    ids=["increment", "append"],
)
def test_rows_keep_their_length(db: Any, operation: Any, said: str) -> None:
    rows = rows_in(db, "int32[2]")
    rows.set([1], [[4, 5]])
    for request in ([operation], [(Op.DELETE, (1).to_bytes(8, "little")), operation]):
        with pytest.raises(InvalidArgumentError, match=said):
            db.batch(request, table=rows._table)
    assert rows.get([1])[0].tolist() == [[4, 5]]
    key = (1).to_bytes(8, "little")
    assert db.get(key, table=rows._table) == np.array([4, 5], np.int32).tobytes()
    for wrong in (b"", b"1234567", b"123456789"):
        with pytest.raises(InvalidArgumentError, match="this table takes 8 only"):
            db.set(key, wrong, table=rows._table)


def test_only_rows_are_added(db: Any) -> None:
    store = db._db if hasattr(db, "_db") else db
    for layout in ("bytes", "u64"):
        name = f"no.rows.{layout}" + os.urandom(4).hex()
        store.create_table(name, layout=layout, index_bytes=64 << 10)
        batch = Batch.of_numbers(Op.ADD, np.zeros(8, np.uint8), np.zeros(8, np.uint8))
        with pytest.raises(InvalidArgumentError, match=r"only rows are added|no expiry, and values of 8 bytes"):
            db.execute(batch, table=name)
        assert db.count(table=name) == 0


def test_a_row_has_a_limit(tmp_path: Path) -> None:
    with gpkvs.open(tmp_path / "store", limits=gpkvs.Limits(value_bytes_max=1000), **SMALL) as store:
        with pytest.raises(InvalidArgumentError, match=r"float32\[251\]: a row of 1,004 bytes, the limit is 1,000"):
            store.create_table("long", layout="float32[251]")
        rows_in(store, "float32[250]").set([1], np.zeros((1, 250), np.float32))
    with gpkvs.open(tmp_path / "store", **SMALL) as store:  # rows may be longer than records of the heap
        rows = rows_in(store, "float32[50000]")
        given = np.arange(100_000, dtype=np.float32).reshape(2, -1)
        rows.set([1, 2], given)
        rows.add([2], given[:1])
        assert (rows.get([1, 2])[0] == [given[0], given[0] + given[1]]).all()


def test_rows_are_there_after_growth_and_a_restart(tmp_path: Path) -> None:
    """Overwritten so often that the heap is compacted."""
    path = tmp_path / "store"
    rng = np.random.default_rng(1)
    model = rng.standard_normal((30_000, 16)).astype(np.float32)
    with gpkvs.open(path, index_bytes=256 << 10, heap_bytes=4 << 20, journal_bytes_max=32 << 20) as store:
        store.create_table("items", layout="float32[16]", index_bytes=64 << 10)
        rows = store.rows("float32[16]", table="items")
        for part in np.array_split(np.arange(30_000), 20):
            rows.set(part, model[part])
        for _ in range(30):
            keys = rng.integers(0, 30_000, 2000)
            deltas = rng.standard_normal((2000, 16)).astype(np.float32)
            rows.add(keys, deltas)
            np.add.at(model, keys, deltas)
        while store.maintain():
            pass
        info = store.table("items")
        assert info.layout == "float32[16]"
    with gpkvs.open(path) as store:
        rows = store.rows("float32[16]", table="items")
        assert rows.get(range(30_000))[0].tobytes() == model.tobytes()
    assert_clean(path)


def test_a_row_of_another_length_is_found(tmp_path: Path) -> None:
    """By the check; and nothing is added to it."""
    path = tmp_path / "store"
    with gpkvs.open(path, **SMALL) as store:
        rows = rows_in(store)
        batch = Batch.of([(Op.SET, (1).to_bytes(8, "little"), b"short")])
        store.execute_requests(batch.on_table(store.table(rows._table).id))  # as no client could
        with pytest.raises(CorruptRecordError, match=rows._table):
            rows.add([1], ONE)
        with pytest.raises(CorruptRecordError, match="operation 1: a value of 5 bytes, which is no row of float32"):
            rows.get([2, 1])
        with pytest.raises(CorruptRecordError, match="operation 0: a value of 5 bytes"):
            rows.get([1], out=np.zeros((1, 3), np.float32))
    assert {violation.invariant for violation in check(path).violations} == {"row-size"}


def test_who_changes_rows_while_they_are_stored_damages_none(tmp_path: Path) -> None:
    """They are of one moment or of another, each word of them; nobody reads damage."""
    given, ends = np.zeros((400, 400), np.uint64), threading.Event()

    def change() -> int:
        for number in count(1):
            given[:] = number
            if ends.is_set():
                return number
        raise AssertionError

    with gpkvs.open(tmp_path / "store", **{**SMALL, "heap_bytes": 64 << 20}) as store, ThreadPoolExecutor(1) as other:
        rows = rows_in(store, "uint64[400]")
        changes = other.submit(change)
        try:
            for _ in range(60):
                rows.set(range(400), given)
                held = rows.get(range(400))[0]
        finally:
            ends.set()
        assert held.max() <= changes.result()


def test_a_layout_that_nobody_knows_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "store"
    with gpkvs.open(path, **SMALL) as store:
        store.create_table("items", layout=LAYOUT, index_bytes=64 << 10)
    before = {file.name: file.read_bytes() for file in path.iterdir()}
    monkeypatch.setattr("gpkvs.columns.index_size.row_layout_of", lambda _: None)
    with pytest.raises(GpkvsError, match=r"table 'items' has the layout 'float32\[3\]': a newer gpkvs made it"):
        gpkvs.open(path)
    assert {file.name: file.read_bytes() for file in path.iterdir()} == before
