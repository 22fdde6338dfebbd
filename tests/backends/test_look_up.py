"""GETs of numbers alone, launched by native code: on a driver that only takes notes, and on the host's threads."""

from __future__ import annotations

import ctypes
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import gpkvs
from gpkvs.backends.cpu.backend import CpuBackend, address_of
from gpkvs.backends.fields import KernelFields
from gpkvs.backends.look_up import LookUp
from tests.backends.noted_driver import NotedDriver
from tests.conftest import SMALL

QUEUE, BESIDE, BEFORE, AFTER, DONE = 11, 12, 21, 22, 23
HANDLES = {"queue": QUEUE, "beside": BESIDE, "before": BEFORE, "after": AFTER, "done": DONE}
PIECE = 1 << 17  # keys of a MiB
ALONE = 2 * PIECE  # so many the calling thread copies
ROUND = 32 * PIECE  # so many are copied before the threads begin anew
KEYS = tuple(field.name for field in KernelFields("get_u64").fields).index("keys")


@pytest.fixture
def threads() -> Iterator[CpuBackend]:
    backend = CpuBackend(2)
    yield backend
    backend.close()


def launched() -> tuple[str, str, int]:
    return ("launch", "get_u64", QUEUE)


def test_keys_that_a_gpu_reaches_are_looked_up_by_one_kernel(driver: NotedDriver) -> None:
    look_up = LookUp(launcher=driver.launcher, **HANDLES, count=5 * PIECE, keys=8)
    assert look_up.launch() == 0
    assert driver.calls == [launched(), ("record", DONE, QUEUE)]


def test_keys_that_are_missed_are_counted(driver: NotedDriver) -> None:
    look_up = LookUp(launcher=driver.launcher, **HANDLES, count=5, keys=8, missed=16, told=24)
    assert look_up.launch() == 0
    assert driver.calls == [("fill", 0, QUEUE), launched(), ("bring", 8, QUEUE), ("record", DONE, QUEUE)]


@pytest.mark.parametrize("count", [1, ALONE, ALONE + 1, 5 * PIECE, ROUND, ROUND + 3 * PIECE + 7])
def test_a_piece_of_plain_keys_is_looked_up_once_it_is_copied(
    driver: NotedDriver, threads: CpuBackend, count: int
) -> None:
    plain = np.arange(1, count + 1, dtype=np.uint64)
    keys = np.zeros(count + 2, np.uint64)
    keys = keys[address_of(keys) // 8 % 2 :]  # at a multiple of 16, as pinned memory is
    ends = [0]

    def launching(arguments: int, items: int) -> None:
        first = (ctypes.c_uint64 * (KEYS + 1)).from_address(arguments)[KEYS] - address_of(keys)
        assert first == 8 * ends[-1]
        ends.append(ends[-1] + items)
        assert np.array_equal(keys[ends[-2] : ends[-1]], plain[ends[-2] : ends[-1]])

    driver.launching = launching
    look_up = LookUp(launcher=driver.launcher, pool=threads.host_threads, **HANDLES, count=count)
    look_up.set(plain=address_of(plain), keys=address_of(keys))
    assert look_up.launch() == 0
    assert ends[-1] == count
    assert not keys[count:].any()
    if count <= ALONE:
        assert driver.calls == [launched(), ("record", DONE, QUEUE)]
        return
    assert len(ends) - 1 == -(-count // PIECE)
    turns = [("launch", "get_u64", BESIDE if turn % 2 else QUEUE) for turn in range(len(ends) - 1)]
    assert driver.calls == [
        ("record", BEFORE, QUEUE),
        ("wait", BEFORE, BESIDE),  # what was launched before may change the index
        *turns,
        ("record", AFTER, BESIDE),
        ("wait", AFTER, QUEUE),
        ("record", DONE, QUEUE),
    ]


@pytest.mark.parametrize("fails_at", range(1, 9))
def test_nothing_is_done_after_an_error(driver: NotedDriver, threads: CpuBackend, fails_at: int) -> None:
    plain, keys = np.zeros(3 * PIECE, np.uint64), np.zeros(3 * PIECE + 1, np.uint64)
    look_up = LookUp(launcher=driver.launcher, pool=threads.host_threads, **HANDLES, count=len(plain))
    look_up.set(plain=address_of(plain), keys=-(-address_of(keys) // 16) * 16)
    driver.fails_at = fails_at
    assert look_up.launch() == 700
    assert len(driver.calls) == fails_at
    assert look_up.launch() == 0  # the error was told once


@pytest.mark.parametrize("is_plain", [False, True])
@pytest.mark.parametrize("count", [1, 1000, ALONE + 5])
def test_what_is_looked_up_is_what_the_table_holds(
    store_path: Path, threads: CpuBackend, in_place_of_a_gpu: CpuBackend, count: int, is_plain: bool
) -> None:
    with gpkvs.open(store_path, backend="cpu", **SMALL) as store:
        table = store.create_table("t", layout="u64", index_bytes=1 << 20)
        held = np.arange(30_000, dtype=np.uint64)
        store.set_many(held, held * np.uint64(3), table="t")
        index: Any = store._files.indexes[store.table("t").id]
        given = np.random.default_rng(count).integers(0, 60_000, count).astype(np.uint64)
        found, values = np.full(count, 7, np.uint8), np.full(count, 7, np.uint64)
        missed, told, reached = np.full(1, 9, np.uint64), np.zeros(1, np.uint64), np.zeros(count + 1, np.uint64)
        look_up = LookUp(
            launcher=in_place_of_a_gpu.launcher,
            pool=threads.host_threads,
            count=count,
            plain=address_of(given) if is_plain else 0,
            keys=-(-address_of(reached) // 16) * 16 if is_plain else address_of(given),
            hash_key0=index.hash_keys[0],
            hash_key1=index.hash_keys[1],
            index=index.image,
            **index.geometry,
            if_there=1,
            seen=address_of(found),
            values=address_of(values),
            missed=address_of(missed),
            told=address_of(told),
        )
        assert look_up.launch() == 0
        assert table.name == "t"
        is_there = given < len(held)
        assert np.array_equal(found, is_there)
        assert np.array_equal(values, np.where(is_there, given * np.uint64(3), 0))
        assert told[0] == np.count_nonzero(~is_there)
