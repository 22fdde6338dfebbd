"""Rows that a GPU keeps: beside a dictionary, on threads that stand for one, whatever happens to a table meanwhile."""

from __future__ import annotations

import os
import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import gpkvs
from gpkvs.backends.choose import PAIR, VARIABLE
from gpkvs.backends.row_cache import KnownRows, RowCaches
from gpkvs.batch import Condition, Op
from gpkvs.columns.row_layout import require_row_layout
from gpkvs.errors import CorruptRecordError, InvalidArgumentError
from gpkvs.process.own_timeout import OWN_TIMEOUT
from tests.conftest import SMALL
from tests.rows_left import by_host

ROW = 5  # of float32: a row of 20 bytes, in a cell of 32, of which 24 more say whose it is
ROW_BYTES = 4 * ROW
CELL = 32 + 24
LAYOUT = f"float32[{ROW}]"


@pytest.fixture
def store(store_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[gpkvs.Store]:
    monkeypatch.setenv(VARIABLE, PAIR)
    with gpkvs.open(store_path, **SMALL) as opened:
        opened.create_table("rows", layout=LAYOUT)
        yield opened


def caches_of(store: gpkvs.Store) -> RowCaches:
    caches = store._backend.row_caches
    assert caches is not None
    return caches


def read(
    store: gpkvs.Store, keys: Any, out: np.ndarray | None = None, default: np.ndarray | None = None
) -> tuple[np.ndarray, np.ndarray]:
    """Return rows and which are there, as a GPU reads them."""
    keys = keys if isinstance(keys, np.ndarray) else np.asarray(keys, np.uint64)
    given = [None if array is None else array.reshape(-1).view(np.uint8) for array in (out, default)]
    with store._mutex:
        found = store._engine.read_rows(store.table("rows").id, keys, ROW_BYTES, *given)
        store._engine.own_turn.end()
    assert found is not None
    return found[0].view(np.float32).reshape(-1, ROW), found[1]


def rows_of(keys: Any, salt: Any = 0) -> np.ndarray:
    return np.asarray(keys, np.float32)[:, None] * 8 + np.arange(ROW, dtype=np.float32) + np.float32(salt)


def test_rows_are_read_by_the_host_once(store: gpkvs.Store, monkeypatch: pytest.MonkeyPatch) -> None:
    left = by_host(monkeypatch)
    store.rows(LAYOUT, table="rows").set(np.arange(1000), rows_of(np.arange(1000)))
    for _ in range(3):
        got, there = read(store, [7, 2000, 999, 7])
        assert there.tolist() == [True, False, True, True]
        assert np.array_equal(got, [*rows_of([7]), [0] * ROW, *rows_of([999, 7])])
    assert left == [3, 0, 0]
    assert read(store, [])[0].shape == (0, ROW)


@pytest.mark.parametrize("dtype", [np.int32, np.int64, np.uint32, np.uint64])
def test_keys_of_other_types(store: gpkvs.Store, dtype: type[np.integer[Any]]) -> None:
    highest = int(np.iinfo(dtype).max)
    store.rows(LAYOUT, table="rows").set([7, highest], rows_of([7, 8]))
    assert np.array_equal(read(store, np.array([7, highest], dtype))[0], rows_of([7, 8]))
    if np.iinfo(dtype).min:
        with pytest.raises(InvalidArgumentError, match="keys: 2 negative ones"):
            read(store, np.array([-1, 7, -(1 << 20)], dtype))


def test_rows_that_are_not_there_stay_or_are_what_the_caller_says(store: gpkvs.Store) -> None:
    store.rows(LAYOUT, table="rows").set([1], rows_of([1]))
    out = np.full((3, ROW), 7, np.float32)
    for _ in range(2):
        got, there = read(store, [2, 1, 3], out)
        assert there.tolist() == [False, True, False]
        assert got.base is not None
        assert np.array_equal(out, [[7] * ROW, *rows_of([1]), [7] * ROW])
    read(store, [2, 1], out[:2], np.full(ROW, -1, np.float32))
    assert np.array_equal(out[:2], [[-1] * ROW, *rows_of([1])])


def test_a_new_row_is_another_one(store: gpkvs.Store, monkeypatch: pytest.MonkeyPatch) -> None:
    left = by_host(monkeypatch)
    rows = store.rows(LAYOUT, table="rows")
    for step in range(20):
        rows.set([1, 2], rows_of([1, 2], step))
        assert np.array_equal(read(store, [1, 2])[0], rows_of([1, 2], step))
    rows.add([1], np.ones((1, ROW), np.float32))
    assert np.array_equal(read(store, [1, 2])[0], [*rows_of([1], 20), *rows_of([2], 19)])
    rows.delete([1])
    assert read(store, [1, 2])[1].tolist() == [False, True]
    rows.set([1], rows_of([1], 0.5))
    assert np.array_equal(read(store, [1])[0], rows_of([1], 0.5))
    assert left == [2] * 20 + [1, 0, 1]


def test_rows_that_were_stored_are_kept(store: gpkvs.Store, monkeypatch: pytest.MonkeyPatch) -> None:
    left = by_host(monkeypatch)
    rows = store.rows(LAYOUT, table="rows")

    def stored(keys: list[int], values: np.ndarray, **how: Any) -> KnownRows:
        ran = rows._run(Op.SET, keys, values, atomic=True, timeout=OWN_TIMEOUT, **how)
        return KnownRows(values.reshape(-1).view(np.uint8), ran.found().view(np.uint8), ran.versions())

    def keep(keys: list[int], known: KnownRows) -> None:
        store._engine.keep_rows(store.table("rows").id, np.array(keys, np.uint64), ROW_BYTES, known)

    keep([1, 2, 3], stored([1, 2, 3], rows_of([1, 2, 3])))
    assert np.array_equal(read(store, [3, 2, 1])[0], rows_of([3, 2, 1]))
    assert left == [0]
    before = stored([2], rows_of([2], 1))
    stored([2], rows_of([2], 2))
    keep([2], before)  # another one was faster
    assert np.array_equal(read(store, [2])[0], rows_of([2], 2))
    assert left == [0, 1]
    keep([4, 4, 4], stored([4, 4, 4], rows_of([5, 6, 7])))  # of equal keys, any is kept, and the last one counts
    assert np.array_equal(read(store, [4])[0], rows_of([7]))
    keep([4, 8], stored([4, 8], rows_of([8, 8]), condition=Condition.ABSENT))  # only one of them was stored
    assert np.array_equal(read(store, [4, 8])[0], rows_of([7, 8]))
    assert left[3] <= 1
    rows.delete([1])
    assert read(store, [1, 3])[1].tolist() == [False, True]
    store._engine.keep_rows(12345, np.array([1], np.uint64), ROW_BYTES, before)  # of a table that is gone


def test_rows_that_expire_are_never_kept(store: gpkvs.Store, monkeypatch: pytest.MonkeyPatch) -> None:
    left = by_host(monkeypatch)
    rows = store.rows(LAYOUT, table="rows")
    rows.set([1], rows_of([1]), ttl=1000)
    rows.set([2], rows_of([2]))
    for _ in range(2):
        assert np.array_equal(read(store, [1, 2])[0], rows_of([1, 2]))
    assert left == [2, 1]
    rows.set([1], rows_of([1], 1), ttl=0.001)
    while store.get((1).to_bytes(8, "little"), table="rows") is not None:
        pass
    assert read(store, [1, 2])[1].tolist() == [False, True]


def test_a_cache_that_is_too_small_keeps_what_is_read_again(
    store: gpkvs.Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    left = by_host(monkeypatch)
    rows = store.rows(LAYOUT, table="rows")
    rows.set(np.arange(1000), rows_of(np.arange(1000)))
    caches_of(store).bytes_max = 400 * CELL
    generator = np.random.default_rng(7)
    for _ in range(60):
        keys = np.concatenate([generator.integers(0, 100, 100), generator.integers(100, 1000, 30)])
        assert np.array_equal(read(store, keys)[0], rows_of(keys))
    assert caches_of(store).bytes == 400 * CELL
    assert sum(left[-20:]) < 20 * 40  # 30 of 130 are of the many, and few of the others are given up
    for _ in range(5):  # all at once: more than there are cells for
        assert np.array_equal(read(store, np.arange(1000))[0], rows_of(np.arange(1000)))
        assert left[-1] >= 600


@pytest.mark.parametrize("bytes_max", [0, CELL, 16 * CELL])
def test_hardly_any_memory(store: gpkvs.Store, bytes_max: int) -> None:
    caches_of(store).bytes_max = bytes_max
    rows = store.rows(LAYOUT, table="rows")
    for step in range(5):
        rows.set(np.arange(100), rows_of(np.arange(100), step))
        for _ in range(3):
            keys = np.random.default_rng(step).integers(0, 100, 200)
            assert np.array_equal(read(store, keys)[0], rows_of(keys, step))
    assert caches_of(store).bytes == (bytes_max if bytes_max == 16 * CELL else 0)  # a set, or none


def test_a_table_that_grows_gets_more_cells(store: gpkvs.Store, monkeypatch: pytest.MonkeyPatch) -> None:
    left = by_host(monkeypatch)
    rows = store.rows(LAYOUT, table="rows")
    for many in (100, 120, 200, 3000, 40_000):
        rows.set(np.arange(many), rows_of(np.arange(many)))
        for _ in range(2):
            assert np.array_equal(read(store, np.arange(many))[0], rows_of(np.arange(many)))
    assert sum(left[1::2]) <= 2  # in sets that are full by chance
    assert caches_of(store).give_back()
    assert caches_of(store).bytes == 0
    assert np.array_equal(read(store, [5])[0], rows_of([5]))
    assert left[-1] == 1


def test_rows_are_right_while_a_table_grows(store: gpkvs.Store) -> None:
    """A block that has moved still holds what it held: no row is known by that."""
    store.drop_table("rows")
    store.create_table("rows", layout=LAYOUT, index_bytes=1 << 20)
    rows = store.rows(LAYOUT, table="rows")
    index = store._files.indexes[store.table("rows").id]
    generator, salts, midst = np.random.default_rng(5), np.zeros(0, np.float32), 0
    while index.blocks == 16 and len(salts) < 30_000:
        more = np.arange(len(salts), len(salts) + 400)
        salts = np.append(salts, np.zeros(len(more), np.float32))
        rows.set(more, rows_of(more))
        assert np.array_equal(read(store, np.arange(len(salts)))[0], rows_of(np.arange(len(salts)), salts[:, None]))
        some = np.unique(generator.integers(0, len(salts), 300))
        salts[some] += np.float32(0.125)
        rows.set(some, rows_of(some, salts[some, None]))
        assert np.array_equal(read(store, np.arange(len(salts)))[0], rows_of(np.arange(len(salts)), salts[:, None]))
        midst += 0 < index.unmoved < index.blocks
    assert midst > 3


def test_a_table_that_is_dropped_gives_its_memory_back(store: gpkvs.Store) -> None:
    store.rows(LAYOUT, table="rows").set(np.arange(100), rows_of(np.arange(100)))
    number = store.table("rows").id
    read(store, np.arange(100))
    assert caches_of(store).bytes
    store.drop_table("rows")
    assert store._engine.read_rows(number, np.arange(3, dtype=np.uint64), ROW_BYTES) is None
    assert caches_of(store).bytes == 0
    store.create_table("rows", layout=LAYOUT)
    assert not read(store, np.arange(100))[1].any()


def test_a_table_that_was_made_anew_with_other_rows(store: gpkvs.Store) -> None:
    """What a caller stored in the table before is kept for nobody, and rows have their own length."""
    store.rows(LAYOUT, table="rows").set(np.arange(50), rows_of(np.arange(50)))
    read(store, np.arange(50))
    index = store._files.indexes[store.table("rows").id]
    cache = caches_of(store).of(index, 50, ROW_BYTES)
    assert caches_of(store).of(index, 50, ROW_BYTES) is cache
    assert caches_of(store).of(index, 50, 2 * ROW_BYTES) is not cache
    store.drop_table("rows")
    store.create_table("rows", layout="uint8[3]")
    known = np.zeros(50 * ROW_BYTES, np.uint8), np.ones(50, np.bool_), np.arange(50, dtype=np.uint64)
    store._keep_rows(require_row_layout(LAYOUT), np.arange(50, dtype=np.uint64), *known, "rows")
    assert caches_of(store).bytes == 0


def test_a_round_comes_again(store: gpkvs.Store, monkeypatch: pytest.MonkeyPatch) -> None:
    left = by_host(monkeypatch)
    rows = store.rows(LAYOUT, table="rows")
    for step in range(40):
        keys = np.arange(step % 7 * 100, step % 7 * 100 + 100)
        rows.set(keys, rows_of(keys, step))
        for _ in range(2):
            assert np.array_equal(read(store, keys)[0], rows_of(keys, step))
    assert left[::2] == [100] * 40
    assert sum(left[1::2]) <= 4  # in sets that are full by chance


def test_tables_share_the_memory(store: gpkvs.Store, monkeypatch: pytest.MonkeyPatch) -> None:
    caches_of(store).bytes_max = 16 * CELL * 10
    left = by_host(monkeypatch)
    store.create_table("more", layout=LAYOUT)
    for name in ("rows", "more"):
        store.rows(LAYOUT, table=name).set(np.arange(100), rows_of(np.arange(100)))
    numbers = [store.table(name).id for name in ("rows", "more")]
    for _ in range(4):
        for number in numbers:
            store._engine.read_rows(number, np.arange(50, dtype=np.uint64), ROW_BYTES)
            assert caches_of(store).bytes <= 16 * CELL * 10
    assert left[:3] == [50, 50, 50]  # the first one gives half of it to the second one
    assert sum(left[3:]) <= 5  # in sets that are full by chance
    assert caches_of(store).bytes == 16 * CELL * 10


def test_a_damaged_row_is_never_returned(store: gpkvs.Store) -> None:
    rows = store.rows(LAYOUT, table="rows")
    rows.set([1, 2], rows_of([1, 2]))
    path = store._files.heap.path

    def flip() -> None:
        with path.open("r+b") as file:
            file.seek(file.read().index(rows_of([2]).tobytes()[1:]) if not at else at[0])
            at.append(file.tell())
            byte = file.read(1)[0]
            file.seek(-1, 1)
            file.write(bytes([byte ^ 1]))

    at: list[int] = []
    flip()
    assert np.array_equal(read(store, [1])[0], rows_of([1]))
    with pytest.raises(CorruptRecordError, match="operation 1: the record fails its checksum"):
        read(store, [1, 2])
    flip()
    assert np.array_equal(read(store, [1, 2])[0], rows_of([1, 2]))


def test_as_a_dictionary(store: gpkvs.Store) -> None:
    seed = int(os.environ.get("GPKVS_SEED", random.randrange(1 << 32)))
    print(f"GPKVS_SEED={seed}")
    generator = np.random.default_rng(seed)
    rows, model = store.rows(LAYOUT, table="rows"), dict[int, np.ndarray]()
    caches_of(store).bytes_max = int(generator.integers(0, 60_000))
    keys_max = int(generator.integers(20, 3000))
    for step in range(120):
        keys = generator.integers(0, keys_max, int(generator.integers(1, 200)))
        if (choice := generator.integers(0, 10)) < 3:
            rows.set(keys, values := rows_of(keys, step))
            model.update(zip(keys.tolist(), values, strict=True))
        elif choice == 3:
            rows.delete(keys)
            for key in keys.tolist():
                model.pop(key, None)
        elif choice == 4:
            rows.add(keys, values := rows_of(keys, 0.25))
            for key, value in zip(keys.tolist(), values, strict=True):
                model[key] = model.get(key, np.zeros(ROW, np.float32)) + value
        elif choice == 5:
            store.maintain()
        else:
            got, there = read(store, keys)
            assert there.tolist() == [key in model for key in keys.tolist()]
            expected = [model.get(key, np.zeros(ROW, np.float32)) for key in keys.tolist()]
            assert np.array_equal(got, expected), step


def test_without_a_gpu_nothing_is_read_there(store_path: Path) -> None:
    with gpkvs.open(store_path, backend="cpu", **SMALL) as store:
        store.create_table("rows", layout=LAYOUT)
        assert store._engine.read_rows(store.table("rows").id, np.arange(3, dtype=np.uint64), ROW_BYTES) is None
