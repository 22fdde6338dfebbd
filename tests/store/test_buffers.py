"""What `get_into` and `set_from` of a store in this process copy, and what they do with values of many megabytes."""

from __future__ import annotations

import threading
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import gpkvs
from gpkvs.batch import U8, Batch, BatchResult, Op
from gpkvs.errors import CorruptRecordError, InvalidArgumentError
from tests.conftest import SMALL

MIB = 1 << 20


def noted_batches(store: gpkvs.Store, monkeypatch: pytest.MonkeyPatch) -> list[tuple[Batch, BatchResult]]:
    """Return a list that gets every batch of columns of a store, and its result."""
    run: list[tuple[Batch, BatchResult]] = []
    execute = store.execute_requests

    def noted(batch: Batch) -> BatchResult:
        result = execute(batch)
        run.append((batch, result))
        return result

    monkeypatch.setattr(store, "execute_requests", noted)
    return run


def test_a_lone_value_is_not_copied(store: gpkvs.Store, monkeypatch: pytest.MonkeyPatch) -> None:
    batches = noted_batches(store, monkeypatch)
    value = np.arange(100_000, dtype=np.float32)
    store.set_from(b"k", value)
    store.set_from([b"k"], [value])
    for batch, _ in batches:
        assert np.shares_memory(batch.values, value)
    batches.clear()
    given = value.tobytes()
    store.set(b"k", given)  # nor is a long value that is bytes already
    ((batch, _),) = batches
    assert np.shares_memory(batch.values, np.frombuffer(given, np.uint8))


@pytest.mark.usefixtures("natively")
def test_values_go_into_the_buffers_at_once(store_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with gpkvs.open(store_path, backend="cpu", **SMALL) as store:
        store.set_from([b"a", b"b"], [np.full(70_000, 1, np.uint8), np.full(80_000, 2, np.uint8)])
        batches = noted_batches(store, monkeypatch)
        for size in (90_000, 2 * MIB):  # as a small request, and as columns
            buffers = [np.zeros(size, np.uint8) for _ in range(3)]
            assert store.get_into([b"b", b"none", b"a"], buffers) == [80_000, None, 70_000]
            assert [int(buffer.sum()) for buffer in buffers] == [160_000, 0, 70_000]
        ((_, result),) = batches
        assert not len(result.request(0).values)


def test_values_of_many_megabytes(tmp_path: Path) -> None:
    random = np.random.default_rng(5)
    values = [random.integers(0, 256, size, np.uint8) for size in (5 * MIB, 16 * MIB, 1, 3 * MIB)]
    keys = [b"%d" % number for number in range(len(values))]
    with gpkvs.open(tmp_path / "store") as store:
        assert len(store.set_from(keys, values)) == 4
        memory = bytearray(26 * MIB)  # not page by page: nobody's size is a multiple of anything
        into, at = [], 3
        for value in values:
            into.append(memoryview(memory)[at : at + len(value) + 7])
            at += len(value) + 7
        assert store.get_into(keys, into) == [len(value) for value in values]
        for value, buffer in zip(values, into, strict=True):
            assert buffer[:-7] == value.data
            assert bytes(buffer[-7:]) == bytes(7)
        with pytest.raises(InvalidArgumentError, match="key b'1' has 16,777,216 bytes, its buffer 5"):
            store.get_into(keys[1], into[1][:5])
        with pytest.raises(InvalidArgumentError, match="allowed are"):
            store.set_from([b"x", b"y"], [b"1", np.zeros(store.limits.value_bytes_max + 1, np.uint8)], atomic=False)
        assert not store.exists(b"x")


@pytest.mark.parametrize(
    ("into", "said"),
    [
        (np.zeros((1, 8), np.uint8), "into: 1 for 2 GETs"),
        (np.zeros((3, 8), np.uint8), "into: 3 for 2 GETs"),
        ([np.zeros(8, np.uint8)], "into: 1 for 2 GETs"),
        (np.zeros((2, 16), np.uint8)[:, ::2], "into: contiguous memory"),
        (np.zeros((2, 8), np.uint8)[:, ::-1], "into: contiguous memory"),
        (np.zeros((2, 8), np.int8), "into: contiguous memory"),
        (np.frombuffer(bytes(16), np.uint8).reshape(2, 8), "into: contiguous memory"),
        ([np.zeros(8, np.uint8), np.frombuffer(bytes(8), np.uint8)], "operation 1, into: contiguous memory"),
    ],
    ids=["few", "many", "few buffers", "gaps", "backwards", "signed", "read-only", "read-only buffer"],
)
def test_memory_of_a_batch_that_cannot_be_used(store: gpkvs.Store, into: Any, said: str) -> None:
    gets = Batch.of([(Op.GET, b"one"), (Op.GET, b"two")])
    with pytest.raises(InvalidArgumentError, match=said):
        store.execute(replace(gets, into=into))
    sets = Batch.of([(Op.SET, b"one", b"value"), (Op.GET, b"two")])
    with pytest.raises(InvalidArgumentError, match="into: 2 for 1 GET"):
        store.execute(replace(sets, into=np.zeros((2, 8), np.uint8)))


def test_threads_read_into_their_own_buffers(store: gpkvs.Store) -> None:
    values: list[U8] = [np.full(200_000 + number, number, np.uint8) for number in range(4)]
    wrong: list[int] = []

    def read(number: int) -> None:
        buffer, key = np.empty(300_000, np.uint8), b"%d" % number
        for _ in range(100):
            buffer[:] = 99
            size = store.get_into(key, buffer)
            if size != 200_000 + number or (buffer[:size] != number).any() or (buffer[size:] != 99).any():
                wrong.append(number)

    store.set_from([b"%d" % number for number in range(4)], values)
    threads = [threading.Thread(target=read, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong


@pytest.mark.usefixtures("natively")
def test_what_only_looks_expired_is_damaged(tmp_path: Path) -> None:
    with gpkvs.open(tmp_path / "store", backend="cpu", commit="undo", **SMALL) as store:
        store.set_from([b"good", b"bad"], [np.full(70_000, 7, np.uint8), np.full(70_000, 8, np.uint8)])
        store.expire(b"bad", 1000)
        expiry = store.execute(Batch.of([(Op.EXPIRY, b"bad")])).values.tobytes()
        heap = store._files.heap._view
        assert heap is not None
        at = heap.tobytes().index(expiry)
        heap[at + 4 : at + 8] = 0  # in the year 1970
        for size in (70_000, 3 * MIB):  # as a small request, and as columns
            buffers = [np.full(size, 99, np.uint8) for _ in range(2)]
            with pytest.raises(CorruptRecordError, match="operation 1"):
                store.get_into([b"good", b"bad"], buffers)
            assert all((buffer == 99).all() for buffer in buffers)
            assert store.get_into([b"good"], buffers[:1]) == [70_000]
