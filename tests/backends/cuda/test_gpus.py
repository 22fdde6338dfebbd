"""A store on several GPUs; one GPU that is named twice has two shares, which goes through the same steps."""

from __future__ import annotations

import os
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
import pytest

import gpkvs
from gpkvs.errors import BackendError, InvalidArgumentError
from tests.engine.numbers_model import NumbersModel, random_batch

pytestmark = pytest.mark.gpu

LARGE = 150_000  # operations: several GPUs plan such a batch
SIZES: dict[str, Any] = {"log_bytes": 64 << 20, "heap_bytes": 16 << 20, "journal_bytes": 256 << 20}


def gpu_count() -> int:
    """Return how many GPUs there are."""
    from cupy.cuda import runtime  # noqa: PLC0415 - CuPy is where a GPU is

    count: int = runtime.getDeviceCount()
    return count


@pytest.fixture
def _two_gpus() -> None:
    if gpu_count() < 2:
        pytest.skip("there is one GPU")


@pytest.fixture(params=["0,0", "0,0,0", "all"])
def gpus(request: pytest.FixtureRequest) -> str:
    if request.param == "all" and gpu_count() < 2:
        pytest.skip("there is one GPU")
    return str(request.param)


def same_mirror(store: gpkvs.Store, table: int) -> bool:
    """Return whether the mirror, on all GPUs, is what the index is."""
    backend: Any = store._backend
    backend.meet()
    backend.wait()
    index = store._files.indexes[table]
    live = index.region.bytes
    mirrored = backend.mirror(index).get()[:live]
    held = np.frombuffer(index.region.words(0, live // 8).tobytes(), np.uint8)
    return bool((mirrored == held).all())


@pytest.mark.parametrize("commit", ["undo", "journal"])
def test_batches_are_answered_as_by_a_dictionary(gpus: str, store_path: Path, commit: Any) -> None:
    seed = int(os.environ.get("GPKVS_SEED", Random().randrange(1 << 32)))
    print(f"GPKVS_SEED={seed}")
    pick, model = Random(seed), NumbersModel()
    with gpkvs.open(store_path, backend="cuda", gpus=gpus, commit=commit, **SIZES) as store:
        store.create_table("t", layout="u64", index_bytes=32 << 20)  # two stripes, and more when it has grown
        table = store.table("t")
        for number in range(14):
            # Small batches run on the host, others on one GPU: all mirrors follow.
            count = pick.choice((30, 20_000, LARGE, 2 * LARGE, 4 * LARGE))
            gets = pick.choice((0.0, 0.3, 0.9, 1.0)) if number else 0.0
            batch = random_batch(pick, model, table.id, count=count, gets=gets)
            model.check(batch, store.execute_requests(batch).request(0))
        assert store._files.indexes[table.id].blocks >= 512
        keys, values = model.keys, model.values
        found, there = table.get_many(keys, atomic=False)
        assert there.all()
        assert (found == values).all()
        if commit == "undo":
            assert same_mirror(store, table.id)


@pytest.mark.usefixtures("_two_gpus")  # it skips before there is a store_path that would miss its store
def test_rows_of_another_gpu(store_path: Path) -> None:
    """Keys and rows may lie on any GPU; rows are read on the first one."""
    import cupy  # noqa: PLC0415

    with gpkvs.open(store_path, backend="cuda", gpus="all", **SIZES) as store:
        store.create_table("rows", layout="float32[4]")
        rows = store.rows("float32[4]", table="rows")
        with cupy.cuda.Device(1):
            keys = cupy.arange(1000)
            given = cupy.arange(4000, dtype=np.float32).reshape(1000, 4)
            out = cupy.empty((1000, 4), np.float32)
        rows.set(keys, given)
        read, found = rows.get(keys)
        assert read.device.id == 0
        assert np.array_equal(read.get(), given.get())
        assert found.all()
        with pytest.raises(InvalidArgumentError, match="out: it is on GPU 1, and rows are read on GPU 0"):
            rows.get(keys, out=out)


def test_arrays_on_a_gpu_stay_there(gpus: str, store_path: Path) -> None:
    import cupy  # noqa: PLC0415

    keys = cupy.random.randint(0, 1 << 62, 3 * LARGE).astype(cupy.uint64)
    with gpkvs.open(store_path, backend="cuda", gpus=gpus, commit="undo", **SIZES) as store:
        store.create_table("t", layout="u64", index_bytes=64 << 20)
        store.set_many(keys, keys + 1, table="t")
        store.set_many(keys[::2].copy(), keys[::2] + 7, table="t")
        values, there = store.get_many(keys, table="t")
        assert isinstance(values, cupy.ndarray)
        assert bool(there.all())
        wanted = dict(zip(keys.get().tolist(), (keys + 1).get().tolist(), strict=True))
        wanted |= dict(zip(keys[::2].get().tolist(), (keys[::2] + 7).get().tolist(), strict=True))
        assert values.get().tolist() == [wanted[key] for key in keys.get().tolist()]
        missing, there = store.get_many(keys ^ cupy.uint64(1 << 63), table="t")
        assert not bool(there.any())
        assert not bool(missing.any())


def test_a_store_opens_with_any_gpus_or_none(gpus: str, store_path: Path) -> None:
    keys = np.random.default_rng(5).integers(0, 1 << 63, 2 * LARGE, np.uint64)
    add = 0
    for number, options in enumerate(
        ({"gpus": gpus}, {"gpus": "0"}, {"backend": "cpu"}, {"gpus": "0,0,0,0"}, {"gpus": gpus})
    ):
        with gpkvs.open(store_path, **{"backend": "cuda", **SIZES, **options}) as store:  # type: ignore[arg-type]
            if number == 0:
                store.create_table("t", layout="u64", index_bytes=64 << 20)
            else:
                values, there = store.get_many(keys, table="t")
                assert there.all()
                assert (values == keys + np.uint64(add)).all()
            add = number + 1
            store.set_many(keys, keys + np.uint64(add), table="t")


@pytest.mark.parametrize(("asked", "named"), [("9", "no GPU 9"), ("0,x", "numbers are needed"), ("", "numbers are")])
def test_gpus_that_are_not_there_are_named(tmp_path: Path, asked: str, named: str) -> None:
    with pytest.raises(BackendError, match=named):
        gpkvs.open(tmp_path / "store", backend="cuda", gpus=asked)
