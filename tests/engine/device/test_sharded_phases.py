"""Several processors plan a batch together, and each logs and stores the slots of its own stripes."""

from __future__ import annotations

import os
from collections import defaultdict
from collections.abc import Callable
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
import pytest

import gpkvs
from gpkvs.backends.choose import PAIR, SHARDS, VARIABLE
from gpkvs.backends.cpu.backend import CpuBackend
from gpkvs.backends.cpu.shards import ShardsBackend
from gpkvs.batch import Batch, Op, Status
from gpkvs.config import Limits
from gpkvs.engine.commit.chunked_slots import ChunkedSlots
from gpkvs.engine.device.batch_plan import BatchPlan, Step
from gpkvs.engine.seam.write_set import TableWrites
from gpkvs.errors import InvalidArgumentError, NoSpaceError
from tests.engine.numbers_model import NumbersModel, random_batch

SIZES: dict[str, Any] = {"index_bytes": 1 << 20, "heap_bytes": 1 << 22, "log_bytes": 1 << 22, "durability": "process"}


@pytest.fixture
def pick() -> Random:
    seed = int(os.environ.get("GPKVS_SEED", Random().randrange(1 << 32)))
    print(f"GPKVS_SEED={seed}")
    return Random(seed)


@pytest.fixture(autouse=True)
def _shards(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(VARIABLE, SHARDS)


@pytest.mark.parametrize("commit", ["undo", "journal"])
@pytest.mark.parametrize("gets", [0.0, 0.3, 0.9, 1.0])
def test_batches_are_answered_as_by_a_dictionary(store_path: Path, pick: Random, gets: float, commit: Any) -> None:
    model = NumbersModel()
    with gpkvs.open(store_path, **SIZES, commit=commit, journal_bytes=8 << 20) as store:
        store.create_table("t", layout="u64", index_bytes=64 << 10)  # it grows meanwhile, to 16 blocks at least
        table = store.table("t")
        for _ in range(20):
            keys = np.array([pick.randrange(1 << 40) for _ in range(3000)], np.uint64)
            table.set_many(keys, keys + np.uint64(1))
            model.set_many(keys, keys + np.uint64(1))
            batch = random_batch(pick, model, table.id, count=pick.randrange(1, 3000), gets=gets)
            model.check(batch, store.execute_requests(batch).request(0))
        assert store._files.indexes[table.id].blocks >= 16
    with gpkvs.open(store_path) as store:
        values, there = store.table("t").get_many(model.keys)
        assert there.all()
        assert values.tolist() == model.values.tolist()


def test_each_processor_plans_and_stores_its_own_stripes(store_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    items: dict[tuple[int, str], int] = defaultdict(int)

    def counted(launch: Callable[..., Any]) -> Callable[..., Any]:
        def run(self: CpuBackend, kernel: str, count: int, /, **arguments: Any) -> Any:
            items[id(self), kernel] += count
            return launch(self, kernel, count, **arguments)

        return run

    keys = np.arange(9000, dtype=np.uint64)
    with gpkvs.open(store_path, **SIZES, commit="undo") as store:
        store.create_table("t", layout="u64", index_bytes=3 * 4 * (64 << 10))
        processors = store._backend.processors
        assert isinstance(store._backend, ShardsBackend)
        store.set_many(keys, keys, table="t")
        planned, run = [], BatchPlan.run

        def noted(self: BatchPlan, steps: int) -> None:
            if steps & Step.ORDER:
                planned.append(self.get("ordered"))
            run(self, steps)

        stored, prepare = [], ChunkedSlots.prepare

        def prepare_noted(self: ChunkedSlots, writes: TableWrites) -> Any:
            stored.append(writes)
            return prepare(self, writes)

        monkeypatch.setattr(BatchPlan, "run", noted)
        monkeypatch.setattr(ChunkedSlots, "prepare", prepare_noted)
        for name in ("launch", "launch_unawaited"):
            monkeypatch.setattr(CpuBackend, name, counted(getattr(CpuBackend, name)))
        store.set_many(keys, keys + np.uint64(2), table="t")
        assert len(planned) == 3
        assert sum(planned) == len(keys)
        assert min(planned) > 0.25 * len(keys)
        shares = [len(columns) for writes in stored for columns in writes.device]
        assert len(shares) == 3
        assert sum(shares) == len(keys)
        assert min(shares) > 0.25 * len(keys), shares
        assert sum(items[id(processor), "get_u64"] for processor in processors) == 0
        store.get_many(keys, table="t")
        assert [items[id(processor), "get_u64"] for processor in processors] == [3000] * 3
        monkeypatch.undo()
        values, there = store.get_many(keys, table="t")
        assert there.all()
        assert (values == keys + np.uint64(2)).all()


def test_a_store_is_the_same_whoever_plans(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, pick: Random) -> None:
    """Three processors, then one, then three again: each goes on where the other ended."""
    model = NumbersModel()
    for backend in (SHARDS, PAIR, "cpu", SHARDS):
        monkeypatch.setenv(VARIABLE, backend)
        with gpkvs.open(tmp_path / "store", **SIZES, commit="undo") as store:
            if not len(model.keys):
                store.create_table("t", layout="u64", index_bytes=512 << 10)
            table = store.table("t")
            for _ in range(5):
                batch = random_batch(pick, model, table.id, count=2000, gets=0.3)
                model.check(batch, store.execute_requests(batch).request(0))
            values, there = table.get_many(model.keys)
            assert there.all()
            assert values.tolist() == model.values.tolist()


def test_requests_that_do_not_fit_are_refused_whole(store_path: Path) -> None:
    """A table that may not grow: some request's keys find no way in the stripes of some processor."""
    done = refused = 0
    with gpkvs.open(store_path, **SIZES, index_bytes_max=192 << 10) as store:
        store.create_table("t", layout="u64", index_bytes=192 << 10)
        for first in range(0, 14_000, 1000):
            keys = np.arange(first, first + 1000, dtype=np.uint64)
            batches = [
                Batch.of_numbers(Op.SET, *[half.view(np.uint8)] * 2, table=1) for half in (keys[:500], keys[500:])
            ]
            result = store.execute_requests(
                Batch.concatenate([batch.on_table(store.table("t").id) for batch in batches])
            )
            for number, half in enumerate((keys[:500], keys[500:])):
                _, there = store.get_many(half, table="t")
                if number in result.rejected:
                    assert isinstance(result.rejected[number], NoSpaceError)
                    assert not there.any()
                    refused += 1
                else:
                    assert there.all()
                    done += 1
    assert done > 15
    assert refused > 0


def test_a_table_grows_for_the_keys_of_all_processors(store_path: Path, pick: Random) -> None:
    keys = np.array([pick.randrange(1 << 60) for _ in range(60_000)], np.uint64)
    with gpkvs.open(store_path, **SIZES) as store:
        store.create_table("t", layout="u64", index_bytes=768 << 10)  # 49,152 slots
        store.set_many(keys, keys, table="t")  # no processor alone has so many that it would grow
        _, there = store.get_many(keys, table="t")
        assert there.all()


def test_overwrites_in_a_full_table_are_not_refused(store_path: Path, pick: Random) -> None:
    """A request of new keys finds no way; those beside it need none."""
    with gpkvs.open(store_path, **SIZES, index_bytes_max=192 << 10) as store:
        store.create_table("t", layout="u64", index_bytes=192 << 10)
        table = store.table("t")
        held = np.arange(10_500, dtype=np.uint64)
        for first in range(0, len(held), 500):
            try:
                table.set_many(held[first : first + 500], held[first : first + 500])
            except NoSpaceError:
                held = held[:first]
                break
        refused = 0
        for number in range(20):
            new = np.array([pick.randrange(1 << 50, 1 << 60) for _ in range(1500)], np.uint64)
            old = np.array(pick.sample(held.tolist(), 300), np.uint64)
            requests = [Batch.of_numbers(Op.SET, *[keys.view(np.uint8)] * 2, table.id) for keys in (new, old)]
            result = store.execute_requests(Batch.concatenate(requests))
            assert 1 not in result.rejected, number
            refused += 0 in result.rejected
        assert refused > 10


def test_a_request_that_reads_too_much_is_refused(store_path: Path) -> None:
    keys = np.arange(2000, dtype=np.uint64)
    with gpkvs.open(store_path, **SIZES, limits=Limits(result_bytes_max=8 * 1500)) as store:
        store.create_table("t", layout="u64", index_bytes=512 << 10)
        store.set_many(keys, keys, table="t")
        with pytest.raises(InvalidArgumentError, match="result_bytes_max"):
            store.get_many(keys, table="t")
        _, there = store.get_many(keys[:1500], table="t")
        assert there.all()
        _, there = store.get_many(keys + np.uint64(700), table="t")  # 1,300 of them are there
        assert int(there.sum()) == 1300
        operations: list[Any] = [(Op.SET, int(key).to_bytes(8, "little"), b"12345678") for key in keys[:200]]
        operations += [(Op.GET, int(key).to_bytes(8, "little")) for key in keys[:1600]]
        with pytest.raises(InvalidArgumentError, match="result_bytes_max"):
            store.execute(Batch.of(operations), table="t")


def test_an_error_of_one_processor_ends_nothing_else() -> None:
    backend, ended = ShardsBackend(1), []

    def call(number: int) -> int:
        if number != 1:
            ended.append(number)
            return number
        raise ValueError(number)

    try:
        with pytest.raises(ValueError, match="1"):
            backend.each([lambda number=number: call(number) for number in range(3)])  # type: ignore[misc]
        assert sorted(ended) == [0, 2]
        assert backend.each([lambda number=number: 10 * number for number in range(3)]) == [0, 10, 20]  # type: ignore[misc]
    finally:
        backend.close()


def test_misses_are_told(store_path: Path) -> None:
    keys = np.arange(1000, dtype=np.uint64)
    with gpkvs.open(store_path, **SIZES) as store:
        store.create_table("t", layout="u64", index_bytes=512 << 10)
        store.set_many(keys[::2], keys[::2], table="t")
        result = store.execute(Batch.of_numbers(Op.GET, keys.view(np.uint8), keys[:0].view(np.uint8)), table="t")
        assert (result.status == np.where(keys % 2, Status.NOT_FOUND, Status.OK)).all()
        assert result.value_lengths.tolist() == [8, 0] * 500
        assert result.values.view(np.uint64).tolist() == keys[::2].tolist()
