"""The u64 layout: every 8-byte key is legal, values are in the slot, arrays go in and come out."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import pytest

import gpkvs
from gpkvs.batch import Batch, Op, Status
from gpkvs.errors import InvalidArgumentError, NoSpaceError, TableExistsError, UnknownTableError
from tests.conftest import SMALL, assert_clean

LAST = 2**64 - 1
BLOCK_SLOTS = 4096


def numbers(*values: int) -> np.ndarray:  # type: ignore[type-arg]
    return np.array(values, np.uint64)


@pytest.fixture
def counters(store: gpkvs.Store) -> gpkvs.Store:
    """Return a store with a u64 table of one block, `counters`."""
    store.create_table("counters", layout="u64", index_bytes=64 << 10)
    return store


def test_arrays_in_and_out(counters: gpkvs.Store) -> None:
    keys = numbers(0, 1, 7, LAST)
    counters.set_many(keys, numbers(10, 0, LAST, 3), table="counters")
    values, found = counters.get_many(numbers(7, 0, 5, LAST, 1), table="counters")
    assert values.tolist() == [LAST, 10, 0, 3, 0]
    assert found.tolist() == [True, True, False, True, True]
    assert counters.delete_many(numbers(0, 5), table="counters").tolist() == [True, False]
    assert counters.get_many(keys, table="counters")[1].tolist() == [False, True, True, True]


def test_every_key_that_an_empty_marker_could_hide(counters: gpkvs.Store) -> None:
    """0 and the next numbers mark empty ways in some buckets: each must be storable, absent before and after."""
    index = counters._files.indexes[1].region
    markers = np.unique(index.words(0, BLOCK_SLOTS * 2)[::2])
    assert 0 in markers.tolist()
    assert len(markers) >= 2, "the two buckets where 0 may live need another marker"
    keys = np.unique(np.concatenate([markers, np.arange(64, dtype=np.uint64), numbers(LAST, LAST - 1)]))
    assert not counters.get_many(keys, table="counters")[1].any()
    counters.set_many(keys, keys, table="counters")
    values, found = counters.get_many(keys, table="counters")
    assert found.all()
    assert np.array_equal(values, keys)
    assert counters.delete_many(keys, table="counters").all()
    assert not counters.get_many(keys, table="counters")[1].any()
    assert counters.info().tables[1].records == 0


def test_last_of_equal_keys_wins(counters: gpkvs.Store) -> None:
    counters.set_many(numbers(4, 4, 4), numbers(1, 2, 3), table="counters")
    assert counters.get_many(numbers(4), table="counters")[0].tolist() == [3]


def test_against_a_dictionary(store_path: Path) -> None:
    seed = int.from_bytes(os.urandom(4))
    print(f"seed {seed}")
    rng = np.random.default_rng(seed)
    model: dict[int, int] = {}
    with gpkvs.open(store_path, **SMALL) as store:
        store.create_table("t", layout="u64", index_bytes=128 << 10)
        for _ in range(30):
            ops = rng.integers(1, 4, 3000).astype(np.uint8)
            keys = rng.integers(0, 3000, 3000).astype(np.uint64)
            values = rng.integers(0, 2**63, int((ops == Op.SET).sum()), np.uint64)
            result = store.execute(
                Batch(
                    ops, keys.view(np.uint8), np.full(3000, 8, np.uint32), values.view(np.uint8),
                    np.full(len(values), 8, np.uint32),
                ),
                table="t",
            )  # fmt: skip
            status, read, following = [], [], iter(values.tolist())
            for op, key in zip(ops.tolist(), keys.tolist(), strict=True):
                held = model.get(key)
                if op == Op.SET:
                    model[key] = next(following)
                    status.append(Status.OK)
                    continue
                status.append(Status.NOT_FOUND if held is None else Status.OK)
                if op == Op.DELETE:
                    model.pop(key, None)
                elif held is not None:
                    read.append(held)
            assert result.status.tolist() == status
            assert result.values.view(np.uint64).tolist() == read
            assert not result.versions.any()
        assert store.info().tables[1].records == len(model)
    with gpkvs.open(store_path) as store:
        keys = np.array(sorted(model), np.uint64)
        values, found = store.get_many(keys, table="t")
        assert found.all()
        assert values.tolist() == [model[key] for key in keys.tolist()]


def test_fills_to_80_percent_and_then_refuses_whole(store_path: Path) -> None:
    with gpkvs.open(store_path, **SMALL, index_bytes_max=64 << 10) as store:
        store.create_table("counters", layout="u64", index_bytes=64 << 10)
        _fill_to_80_percent(store)


def _fill_to_80_percent(counters: gpkvs.Store) -> None:
    rng = np.random.default_rng(8)
    filled: list[int] = []
    refused = ""
    while not refused:
        keys = rng.integers(0, LAST, 64, np.uint64, endpoint=True)
        try:
            counters.set_many(keys, keys, table="counters")
            filled.extend(keys.tolist())
        except NoSpaceError as full:
            refused = full.resource
    assert refused == "index"
    assert 0.8 * BLOCK_SLOTS <= len(filled) <= BLOCK_SLOTS
    keys = np.array(filled, np.uint64)
    values, found = counters.get_many(keys, table="counters")
    assert found.all()
    assert np.array_equal(values, keys)
    assert counters.info().tables[1].records == len(filled)


@pytest.mark.parametrize(
    ("keys", "values", "message"),
    [
        (np.zeros(2, np.float64), np.zeros(2, np.uint64), "keys: an array of float64"),
        (np.array([1, -1]), np.zeros(2, np.uint64), "keys: .*-1"),
        (np.zeros(2, np.uint64), np.zeros(3, np.uint64), "values: 2 keys, 3 values"),
        (np.zeros((2, 2), np.uint64), np.zeros(2, np.uint64), "2 dimensions"),
    ],
)
def test_bad_arrays(counters: gpkvs.Store, keys: np.ndarray, values: np.ndarray, message: str) -> None:  # type: ignore[type-arg]
    with pytest.raises(InvalidArgumentError, match=message):
        counters.set_many(keys, values, table="counters")


def test_u64_table_takes_8_bytes_only(counters: gpkvs.Store) -> None:
    with pytest.raises(InvalidArgumentError, match="operation 0, keys: a key of 3 bytes, this table takes 8 only"):
        counters.get(b"abc", table="counters")
    with pytest.raises(InvalidArgumentError, match="values: a value of 1 byte, this table takes 8 only"):
        counters.set(b"12345678", b"1", table="counters")
    with pytest.raises(InvalidArgumentError, match="table 'default' has the layout bytes: its keys and"):
        counters.get_many(numbers(1), table="default")


def test_tables_do_not_share_keys(counters: gpkvs.Store) -> None:
    key = (5).to_bytes(8, "little")
    counters.create_table("other")
    counters.set(key, b"in default")
    counters.set(key, (9).to_bytes(8, "little"), table="counters")
    assert counters.get(key, table="other") is None
    assert counters.get(key) == b"in default"
    assert counters.get_many(numbers(5), table="counters")[0].tolist() == [9]


@pytest.mark.undo
def test_names_and_layouts(store: gpkvs.Store) -> None:
    for name in ("", "A", "a/b", "x" * 65, "ü"):
        with pytest.raises(InvalidArgumentError, match="name"):
            store.create_table(name)
    with pytest.raises(InvalidArgumentError, match="layout: 'rows': there are bytes, u64"):
        store.create_table("t", layout="rows")
    with pytest.raises(InvalidArgumentError, match="index_bytes"):
        store.create_table("t", index_bytes=1)
    store.create_table("t", index_bytes=64 << 10)
    with pytest.raises(TableExistsError, match="there is a table 't' already"):
        store.create_table("t")
    with pytest.raises(InvalidArgumentError, match="cannot be dropped"):
        store.drop_table("default")
    with pytest.raises(UnknownTableError, match="no table 'nope'"):
        store.drop_table("nope")


def test_dropped_table_gives_back_its_space_and_its_id_is_not_reused(store_path: Path) -> None:
    with gpkvs.open(store_path, **SMALL) as store:
        store.create_table("t", index_bytes=64 << 10)
        first_id = store.table("t").id
        store.set(b"k", b"x" * 1000, table="t")
        live = store.info().heap_live_bytes
        store.drop_table("t")
        assert store.info().heap_live_bytes < live
        with pytest.raises(UnknownTableError):
            store.get(b"k", table="t")
        store.create_table("t", index_bytes=64 << 10)
        assert store.table("t").id > first_id
        assert store.get(b"k", table="t") is None
    assert not (store_path / f"index-{first_id}-0").exists()
    with gpkvs.open(store_path) as store:
        assert [table.name for table in store.info().tables] == ["default", "t"]
    assert_clean(store_path)


def test_table_that_does_not_fit_the_disk_changes_nothing(store: gpkvs.Store, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gpkvs.recovery.startup.memory.free_bytes", lambda: 1 << 62)
    asked: list[int] = []
    fallocate = os.posix_fallocate

    def noted(file: int, offset: int, size: int) -> None:
        asked.append(size)
        fallocate(file, offset, size)

    monkeypatch.setattr(os, "posix_fallocate", noted)
    with pytest.raises(NoSpaceError, match="disk"):
        store.create_table("huge", index_bytes=1 << 44)
    assert not asked  # the disk would be full for a moment, for everybody
    assert [table.name for table in store.info().tables] == ["default"]
    assert [file.name for file in store.path.glob("index-*")] == ["index-0-0"]
    store.create_table("huge", index_bytes=64 << 10)


def test_a_batch_of_gets_alone_by_phases(store: gpkvs.Store, monkeypatch: pytest.MonkeyPatch) -> None:
    store.create_table("gets", layout="u64", index_bytes=1 << 20)
    keys = np.random.default_rng(7).integers(0, 1 << 63, 3001, np.uint64)
    values = np.append(~keys[:3000], np.uint64(0))  # kept: memory that is free again might hold what is expected
    store.set_many(keys[:3000], values[:3000], table="gets")
    monkeypatch.setattr(store._backend, "host_ops_max", 0)  # phase by phase
    held, found = store.get_many(keys[:3000], table="gets")  # all are there: the columns go out as they came
    assert found.all()
    assert np.array_equal(held, values[:3000])
    held, found = store.get_many(keys, table="gets")
    assert found.tolist() == [True] * 3000 + [False]
    assert np.array_equal(held, values)


def test_new_keys_lie_in_all_ways(counters: gpkvs.Store) -> None:
    keys = np.arange(1, 400, dtype=np.uint64)  # a tenth of the slots: first ways would hold nearly all
    counters.set_many(keys, keys, table="counters")
    index = counters._files.indexes[counters.table("counters").id].region
    slots = index.words(0, index.bytes // 8).reshape(-1, 8, 2)
    by_way = np.count_nonzero(slots[:, :, 1], axis=0)
    assert by_way.sum() == len(keys)
    assert by_way.min() > 20, by_way
