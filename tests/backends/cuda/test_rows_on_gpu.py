"""Rows by arrays of a GPU: CuPy and PyTorch, in and out."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import gpkvs
from gpkvs.errors import InvalidArgumentError
from tests.conftest import SMALL
from tests.rows_left import by_host

pytestmark = pytest.mark.gpu

COUNT = 20_000
SIZES = {**SMALL, "heap_bytes": 64 << 20}


@pytest.fixture
def store(store_path: Path) -> Iterator[gpkvs.Store]:
    with gpkvs.open(store_path, backend="cuda", **SIZES) as opened:
        yield opened


def made(store: gpkvs.Store, layout: str) -> gpkvs.Rows:
    store.create_table("rows", layout=layout)
    return store.rows(layout, table="rows")


def random_rows(rows: gpkvs.Rows, count: int, seed: int = 7) -> np.ndarray:
    data = np.random.default_rng(seed).integers(0, 256, count * rows.layout.row_bytes, np.uint8)
    if rows.layout.element.startswith("float"):
        numbers = data[: count * rows.layout.row_bytes : 1].view(np.uint8).astype(np.float32)
        return (
            numbers[: count * int(np.prod(rows.layout.shape))]
            .reshape(count, *rows.layout.shape)
            .astype(rows.layout.dtype)
        )
    return rows.layout.array_of(data)


@pytest.mark.parametrize(
    "layout", ["float32[8]", "float32[128]", "float32[3,5]", "uint8[5]", "float16[3]", "bfloat16[6]", "int64[700]"]
)
def test_arrays_of_cupy(store: gpkvs.Store, layout: str) -> None:
    import cupy  # noqa: PLC0415 - only where there is a GPU

    rows = made(store, layout)
    assert rows.takes_gpu_arrays
    keys, given = np.arange(3, 3 + 5000), random_rows(rows, 5000)
    rows.set(cupy.asarray(keys), cupy.asarray(given))
    assert np.array_equal(rows.get(keys)[0], given)
    asked = np.random.default_rng(3).integers(0, 6000, 7000)
    expected = np.zeros((7000, *rows.layout.shape), rows.layout.dtype)
    there = (asked >= 3) & (asked < 5003)
    expected[there] = given[asked[there] - 3]
    for _ in range(3):
        got, found = rows.get(cupy.asarray(asked))
        assert isinstance(got, cupy.ndarray)
        assert isinstance(found, cupy.ndarray)
        assert np.array_equal(found.get(), there)
        assert np.array_equal(got.get(), expected)
    out = cupy.full((7000, *rows.layout.shape), 9, rows.layout.dtype)
    returned, _ = rows.get(cupy.asarray(asked, np.uint64), out=out)
    assert returned is out
    expected[~there] = 9
    assert np.array_equal(out.get(), expected)
    deleted = rows.delete(cupy.asarray(asked[:100]))
    assert isinstance(deleted, cupy.ndarray)
    assert rows.set_if_absent(cupy.asarray([4, 1 << 40]), cupy.asarray(given[:2])).tolist()[1]
    assert np.array_equal(rows.get(cupy.asarray([1 << 40]))[0].get(), given[1:2])


def test_out_that_begins_anywhere(store: gpkvs.Store) -> None:
    import cupy  # noqa: PLC0415

    rows = made(store, "uint8[16]")
    given = random_rows(rows, 100)
    rows.set(np.arange(100), given)
    for at in range(20):
        memory = cupy.zeros(100 * 16 + 32, np.uint8)
        rows.get(cupy.arange(100), out=memory[at : at + 1600].reshape(100, 16))
        assert np.array_equal(memory[at : at + 1600].get(), given.reshape(-1))
        assert not memory[:at].any()
        assert not memory[at + 1600 :].any()


def test_writes_are_seen(store: gpkvs.Store) -> None:
    import cupy  # noqa: PLC0415

    rows = made(store, "float32[16]")
    keys = cupy.arange(COUNT)
    model = np.zeros((COUNT, 16), np.float32)
    generator = np.random.default_rng(11)
    for step in range(20):
        some = np.unique(generator.integers(0, COUNT, 3000))
        values = generator.random((len(some), 16), np.float32)
        if step % 3:
            rows.set(cupy.asarray(some), cupy.asarray(values))
            model[some] = values
        else:
            rows.add(cupy.asarray(some), cupy.asarray(values))
            model[some] += values
        assert np.array_equal(rows.get(keys)[0].get(), model)
    store.table("rows").set((5).to_bytes(8, "little"), b"\7" * 64)
    assert (rows.get(keys[5:6])[0].view(np.uint8) == 7).all()


def test_rows_that_were_stored_are_not_read_again(store: gpkvs.Store, monkeypatch: pytest.MonkeyPatch) -> None:
    import cupy  # noqa: PLC0415

    left = by_host(monkeypatch)
    rows, keys = made(store, "float32[16]"), cupy.arange(COUNT)
    for step in range(3):
        given = cupy.full((COUNT, 16), step, np.float32)
        rows.set(keys, given)
        given[:] = 99
        assert (rows.get(keys)[0] == step).all()
    assert max(left) <= 2  # few find no cell while all ask at once


def test_wrong_arrays_are_refused(store: gpkvs.Store) -> None:
    import cupy  # noqa: PLC0415

    rows = made(store, "float32[4]")
    keys = cupy.arange(10)
    for wrong, field in (
        ({"keys": cupy.zeros(3, np.float32)}, "keys: an array of float32"),
        ({"keys": cupy.zeros((2, 2), np.int64)}, "keys: an array of int64 with 2 dimensions"),
        ({"keys": -keys}, "keys: 9 negative ones"),
        ({"keys": keys[::2]}, "keys: its memory is not contiguous"),
        ({"keys": keys, "out": np.zeros((10, 4), np.float32)}, "out: it is on the host"),
        ({"keys": keys, "out": cupy.zeros((10, 4), np.float64)}, "out: an array of float64"),
        ({"keys": keys, "out": cupy.zeros((9, 4), np.float32)}, "out: 10 keys, 9 rows"),
        ({"keys": keys, "out": cupy.zeros((10, 5), np.float32)}, "out: an array of float32"),
        ({"keys": keys, "default": [1, 2]}, "default: a list with the shape"),
        ({"keys": keys, "default": cupy.zeros(3, np.float32)}, "default: an array of float32"),
        ({"keys": cupy.zeros(3, np.bool_)}, "keys: an array of another type"),
        ({"keys": keys, "out": cupy.zeros((10, 4), np.complex64)}, "out: an array of another type"),
    ):
        with pytest.raises(InvalidArgumentError, match=field):
            rows.get(**wrong)
    with pytest.raises(InvalidArgumentError, match="rows: an array of int32"):
        rows.set(keys, cupy.zeros((10, 4), np.int32))
    with pytest.raises(InvalidArgumentError, match=r"keys: -9 is out of range"):
        rows.set(-keys, cupy.zeros((10, 4), np.float32))
    assert rows.count() == 0
    given = cupy.arange(4, dtype=np.float32)
    assert (rows.get(keys, default=given)[0] == given).all()
    assert (rows.get(keys, default=given[2])[0] == 2).all()


def test_an_array_of_the_gpu_is_refused_by_the_other_backend(store_path: Path) -> None:
    import cupy  # noqa: PLC0415

    with gpkvs.open(store_path, backend="cpu", **SIZES) as store:
        rows = made(store, "float32[4]")
        assert not rows.takes_gpu_arrays
        for call in (rows.get, rows.delete):
            with pytest.raises(InvalidArgumentError, match=r"copy it there|backend cuda"):
                call(cupy.arange(10))


@pytest.mark.parametrize("gpu_rows_bytes", [0, 100_000, None])
def test_memory_for_rows(store_path: Path, gpu_rows_bytes: int | None) -> None:
    import cupy  # noqa: PLC0415

    with gpkvs.open(store_path, backend="cuda", gpu_rows_bytes=gpu_rows_bytes, **SIZES) as store:
        rows = made(store, "float32[16]")
        given = random_rows(rows, COUNT)
        rows.set(np.arange(COUNT), given)
        for _ in range(3):
            assert np.array_equal(rows.get(cupy.arange(COUNT))[0].get(), given)
        caches: Any = store._backend.row_caches
        assert caches.bytes <= gpu_rows_bytes if gpu_rows_bytes is not None else caches.bytes > COUNT * 88


class TestPytorch:
    """Tensors in, tensors out, on streams of their own."""

    def test_tensors(self, store: gpkvs.Store) -> None:
        torch = pytest.importorskip("torch")
        rows = made(store, "bfloat16[8]")
        keys = torch.randperm(1 << 20, device="cuda")[:COUNT]
        given = torch.randn(COUNT, 8, device="cuda").to(torch.bfloat16)
        rows.set(keys, given)
        out = torch.empty_like(given)
        returned, found = rows.get(keys, out=out)
        assert returned is out
        assert torch.from_dlpack(found).all()
        assert torch.equal(out, given)
        held, _ = rows.get(keys)  # bits, as NumPy has them
        assert torch.equal(torch.from_dlpack(held).view(torch.bfloat16), given)
        assert torch.equal(torch.from_numpy(rows.get(keys.cpu())[0]).view(torch.bfloat16), given.cpu())

    def test_another_stream(self, store: gpkvs.Store) -> None:
        torch = pytest.importorskip("torch")
        rows = made(store, "float32[64]")
        stream = torch.cuda.Stream()
        with torch.cuda.stream(stream):
            for step in range(20):
                torch.cuda._sleep(3_000_000)
                keys = torch.arange(COUNT, device="cuda")
                given = torch.full((COUNT, 64), float(step), device="cuda")
                rows.set(keys, given)
                out = torch.zeros(COUNT, 64, device="cuda")
                rows.get(keys, out=out)
                assert (out == step).all()

    @pytest.mark.parametrize("device", ["cpu", "cuda"])
    def test_training(self, store: gpkvs.Store, device: str) -> None:
        torch = pytest.importorskip("torch")
        from gpkvs.torch import Adagrad, EmbeddingTable, uniform  # noqa: PLC0415 - only where PyTorch is

        optimizer = Adagrad(0.1)
        layout = optimizer.layout(8)
        store.create_table("items", layout=layout)
        table = EmbeddingTable(store.rows(layout, table="items"), optimizer, initial=uniform(0.5, seed=3))
        dense = torch.nn.Embedding(200, 8)
        with torch.no_grad():
            dense.weight.copy_(uniform(0.5, seed=3)(torch.arange(200), 8))
        dense.to(device)
        peer = torch.optim.Adagrad(dense.parameters(), lr=0.1)
        for step in range(10):
            ids = torch.randint(0, 200, (64,), generator=torch.Generator().manual_seed(step)).to(device)
            assert table(ids).device.type == device
            for module in (table, dense):
                (module(ids) * torch.arange(8, device=device)).square().sum().backward()
            table._lookups.pop(0)  # of the look at its device
            peer.step()
            peer.zero_grad()
            assert table.step() == len(ids.unique())
        with torch.no_grad():
            assert torch.allclose(table(torch.arange(200, device=device)), dense.weight, atol=1e-5)
