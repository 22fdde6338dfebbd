"""Arrays of a GPU as keys, rows and `out`, where threads stand for it: arrays that say that they lie there."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import gpkvs
from gpkvs.backends.choose import PAIR, VARIABLE
from gpkvs.backends.cpu.pair import PairBackend
from gpkvs.columns import dlpack
from gpkvs.errors import CorruptRecordError, InvalidArgumentError, StoreClosedError
from tests.conftest import SMALL

LAYOUT = "float32[5]"


class OnGpu:
    """An array that says that it is on a GPU; its memory is the host's."""

    def __init__(self, array: Any) -> None:
        self.array = np.asarray(array)

    def __dlpack_device__(self) -> tuple[int, int]:
        return 2, 0

    def __dlpack__(self, **how: Any) -> object:
        return self.array.__dlpack__(max_version=how.get("max_version"))


def adopted(backend: PairBackend, given: Any) -> np.ndarray:
    """Return what `CudaBackend.adopt` does of what DLPack has told."""
    del backend
    return np.asarray(dlpack._Lent(given.capsule, given.address, given.size, read_only=given.read_only))


@pytest.fixture
def store(store_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[gpkvs.Store]:
    monkeypatch.setenv(VARIABLE, PAIR)
    monkeypatch.setattr(PairBackend, "adopt", adopted)
    with gpkvs.open(store_path, **SMALL) as opened:
        opened.create_table("rows", layout=LAYOUT)
        yield opened


def rows_of(keys: Any) -> np.ndarray:
    return (np.asarray(keys)[:, None] * 8 + np.arange(5)).astype(np.float32)


@pytest.mark.parametrize("in_turns", [False, True], ids=["alone", "in turns"])
def test_arrays_go_in_and_come_out(store: gpkvs.Store, in_turns: bool) -> None:
    if in_turns:  # as a server has them
        store.begin_turns(lambda: None)
    rows = store.rows(LAYOUT, table="rows")
    assert rows.takes_gpu_arrays
    keys = np.arange(100)
    rows.set(OnGpu(keys), OnGpu(rows_of(keys)))
    for asked in (OnGpu(keys[::-1].copy()), OnGpu(keys[::-1].astype(np.uint32))):
        read, found = rows.get(asked)
        assert np.array_equal(read, rows_of(keys[::-1]))
        assert found.all()
    out = np.full((3, 5), 7, np.float32)
    given = OnGpu(out)
    assert rows.get(OnGpu([1, 200, 2]), out=given)[0] is given
    assert np.array_equal(out, [*rows_of([1]), [7] * 5, *rows_of([2])])
    rows.get([200, 3], out=OnGpu(out[:2]), default=OnGpu(np.arange(5, dtype=np.float32)))
    assert np.array_equal(out[:2], [np.arange(5), *rows_of([3])])
    assert rows.set_if_absent(OnGpu([1, 300]), OnGpu(rows_of([8, 9]))).tolist() == [False, True]
    rows.add(OnGpu([1, 1]), OnGpu(np.ones((2, 5), np.float32)))
    assert np.array_equal(rows.get(OnGpu([1, 300]))[0], [rows_of([1])[0] + 2, rows_of([9])[0]])
    assert rows.delete(OnGpu([1, 400])).tolist() == [True, False]
    assert rows.get([1, 2])[1].tolist() == [False, True]


def test_wrong_arrays_are_refused(store: gpkvs.Store) -> None:
    rows, keys = store.rows(LAYOUT, table="rows"), OnGpu(np.arange(10))
    for wrong, said in (
        ({"keys": OnGpu(np.zeros(3, np.float32))}, "keys: an array of float32"),
        ({"keys": OnGpu(np.zeros((2, 2), np.int64))}, "keys: an array of int64 with 2 dimensions"),
        ({"keys": OnGpu(np.arange(10)[::2])}, "keys: its memory is not contiguous"),
        ({"keys": OnGpu([-1, 3])}, "keys: 1 negative ones"),
        ({"keys": keys, "out": np.zeros((10, 5), np.float32)}, "out: it is on the host"),
        ({"keys": keys, "out": OnGpu(np.zeros((10, 5)))}, "out: an array of float64"),
        ({"keys": keys, "out": OnGpu(np.zeros((9, 5), np.float32))}, "out: 10 keys, 9 rows"),
        ({"keys": keys, "default": OnGpu(np.zeros(3, np.float32))}, "default: an array of float32"),
    ):
        with pytest.raises(InvalidArgumentError, match=said):
            rows.get(**wrong)
    with pytest.raises(InvalidArgumentError, match="rows: an array of int32"):
        rows.set(keys, OnGpu(np.zeros((10, 5), np.int32)))
    assert rows.count() == 0


def test_a_closed_store_and_a_damaged_row(store: gpkvs.Store) -> None:
    rows = store.rows(LAYOUT, table="rows")
    rows.set([1, 2], rows_of([1, 2]))
    path = store._files.heap.path
    data = bytearray(path.read_bytes())
    at = data.index(rows_of([2]).tobytes())
    with path.open("r+b") as file:
        file.seek(at)
        file.write(bytes([data[at] ^ 1]))
    with pytest.raises(CorruptRecordError, match="operation 1"):
        rows.get(OnGpu([1, 2]))
    assert np.array_equal(rows.get(OnGpu([1]))[0], rows_of([1]))
    with path.open("r+b") as file:
        file.seek(at)
        file.write(bytes(data[at : at + 1]))
    store.close()
    for call in (lambda: rows.get(OnGpu([1])), lambda: rows.set(OnGpu([1]), OnGpu(rows_of([1])))):
        with pytest.raises(StoreClosedError):
            call()
