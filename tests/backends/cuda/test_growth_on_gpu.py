"""Tables that grow on a GPU: the mirror stays the index, however both become larger, and whatever is refused."""

from __future__ import annotations

import random
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import gpkvs
from gpkvs.backends.choose import GPUS_VARIABLE
from gpkvs.batch import Op
from gpkvs.errors import BackendError, NoSpaceError
from gpkvs.media.layout import BLOCK_BYTES
from tests.conftest import assert_clean
from tests.engine.tables.test_growth import COMMITS, LAYOUTS, SIZES, Grown, sets

pytestmark = pytest.mark.gpu

BLOCKS = 3


@pytest.fixture(params=["memory", "disk"])
def path(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Path]:
    """Return a place for a store: where the GPU stores directly, and where the host's threads store for it."""
    if request.param == "disk":
        yield tmp_path / "store"
        return
    with tempfile.TemporaryDirectory(dir="/dev/shm") as folder:
        yield Path(folder) / "store"


@pytest.fixture
def path_in_memory() -> Iterator[Path]:
    """Return a place for a store that must be clean when the test ends, where the GPU stores directly."""
    with tempfile.TemporaryDirectory(dir="/dev/shm") as folder:
        yield Path(folder) / "store"
        assert_clean(Path(folder) / "store")


def assert_mirrored(grown: Grown) -> None:
    """Fail unless the mirror is the index, in all blocks that hold keys."""
    backend: Any = grown.store._backend
    backend.wait()
    held = backend.mirror(grown.index).get()
    for first, last in grown.index.live_ranges:
        begin, end = first * BLOCK_BYTES, last * BLOCK_BYTES
        assert held[begin:end].tobytes() == grown.index.region.read(begin, end - begin), grown.index.geometry


def grow(path: Path, layout: str, commit: Any, *, host_ops_max: int = 0) -> Grown:
    """Have a table grow twice, by steps between batches, some of them of the host's threads; return it."""
    seed = random.randrange(1 << 30)
    print("seed", seed)
    rng = random.Random(seed)
    grown = Grown(path, layout, BLOCKS, commit=commit)
    backend: Any = grown.store._backend
    keys = [rng.getrandbits(64).to_bytes(8, "little") for _ in range(1500)]
    while grown.index.blocks < 4 * BLOCKS:
        backend.host_ops_max = rng.choice([0, host_ops_max])
        some = rng.sample(keys, 300)
        grown.run([(Op.SET, key, rng.getrandbits(64).to_bytes(8, "little")) for key in some])
        grown.run([(Op.DELETE, key) for key in rng.sample(keys, 20)])
        grown.step(rng)
        assert_mirrored(grown)
        grown.verify()
    return grown


def closed(grown: Grown) -> None:
    grown.reopen()
    assert_mirrored(grown)
    grown.verify()
    grown.store.close()
    assert_clean(grown.path)


@LAYOUTS
@COMMITS
@pytest.mark.parametrize("host_ops_max", [0, 100, 1 << 40])
@pytest.mark.parametrize("mapped_bytes_min", [0, 1 << 40])
def test_the_mirror_is_the_index_after_each_step(
    path: Path, monkeypatch: pytest.MonkeyPatch, layout: str, commit: Any, host_ops_max: int, mapped_bytes_min: int
) -> None:
    """In chunks that are mapped, and by copies; registered in many pieces."""
    monkeypatch.setattr("gpkvs.backends.cuda.device_memory._MAPPED_BYTES_MIN", mapped_bytes_min)
    monkeypatch.setattr("gpkvs.backends.cuda.host_memory._PIECE_BYTES", BLOCK_BYTES)
    closed(grow(path, layout, commit, host_ops_max=host_ops_max))


@LAYOUTS
@COMMITS
def test_a_gpu_without_virtual_memory_copies_the_mirror(
    path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, layout: str, commit: Any
) -> None:
    from gpkvs.backends.cuda.virtual_memory import DriverRefusalError  # noqa: PLC0415 - needs CuPy

    def refuse(room: int, *_: object) -> None:
        raise DriverRefusalError(f"no addresses for {room:,} bytes")

    monkeypatch.setenv(GPUS_VARIABLE, "0")  # several need it
    monkeypatch.setattr("gpkvs.backends.cuda.device_memory._MAPPED_BYTES_MIN", 0)
    monkeypatch.setattr("gpkvs.backends.cuda.device_memory.VirtualMemory", refuse)
    closed(grow(path, layout, commit))
    assert "a mirror that grows is copied" in caplog.text


@LAYOUTS
@COMMITS
def test_an_index_without_free_addresses_moves(
    path: Path, monkeypatch: pytest.MonkeyPatch, layout: str, commit: Any
) -> None:
    def refuse(*_: object) -> None:
        raise OSError

    monkeypatch.setattr("gpkvs.pm.region.reserve_room", refuse)
    monkeypatch.setattr("gpkvs.media.image.reserve_room", refuse)
    closed(grow(path, layout, commit))


def test_an_index_and_its_mirror_stay_where_they_are(path_in_memory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gpkvs.backends.cuda.device_memory._MAPPED_BYTES_MIN", 0)
    grown = Grown(path_in_memory, "u64", 1, commit="undo")
    backend: Any = grown.store._backend
    before = grown.index.address, backend.mirror(grown.index).data.ptr
    while grown.index.blocks < 64:
        grown.step(random.Random(1))
    assert (grown.index.address, backend.mirror(grown.index).data.ptr) == before
    closed(grown)


def test_what_was_prepared_is_registered_before_growth(path_in_memory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gpkvs.backends.cuda.host_memory._PIECE_BYTES", BLOCK_BYTES)
    with gpkvs.open(path_in_memory, **{**SIZES, "index_bytes": 8 * BLOCK_BYTES}, commit="undo") as store:
        backend: Any = store._backend
        index = store._engine.tables[0].index
        registered = backend._attached.mirrors[index].registered
        store.execute(sets(list(range(int(0.55 * index.slots)))))
        registered._helper.join()
        assert not registered._missing
        assert len(registered._pieces) == 9
        assert index.region.bytes == 8 * BLOCK_BYTES  # it has not grown
        with pytest.raises(AssertionError):
            index.region.read(8 * BLOCK_BYTES, 8)
        store.execute(sets(list(range(index.slots))))
        assert index.blocks == 16


@COMMITS
def test_growth_waits_for_memory_of_the_gpu(store_path: Path, monkeypatch: pytest.MonkeyPatch, commit: Any) -> None:
    monkeypatch.setattr("gpkvs.engine.tables.growth._RETRY_SECONDS", 0.0)
    with gpkvs.open(store_path, **SIZES, commit=commit) as store:
        store.execute(sets(list(range(1000))))
        with monkeypatch.context() as patch:
            patch.setattr("gpkvs.backends.cuda.backend._SPARE_BYTES", 1 << 50)
            with pytest.raises(NoSpaceError, match="GPU memory"):
                store.execute(sets(list(range(3000))))
            assert "GPU memory" in store.info().tables[0].growth_waits
            store.execute(sets(list(range(1000)), 8))  # what needs no room goes on
        store.execute(sets(list(range(3000)), 9))
        assert store.info().tables[0].growth_waits == ""
        keys = [key.to_bytes(8, "little") for key in range(3000)]
        assert [store.get(key) for key in keys[::97]] == [(9).to_bytes(8, "little")] * len(keys[::97])


@COMMITS
def test_growth_waits_for_what_cuda_refuses_to_register(
    path_in_memory: Path, monkeypatch: pytest.MonkeyPatch, commit: Any
) -> None:
    def refuse(_address: int, size: int) -> None:
        raise BackendError(f"CUDA, cudaHostRegister of {size:,} bytes")

    monkeypatch.setattr("gpkvs.engine.tables.growth._RETRY_SECONDS", 0.0)
    with gpkvs.open(path_in_memory, **SIZES, commit=commit) as store:
        store.execute(sets(list(range(900))))
        with monkeypatch.context() as patch:
            patch.setattr("gpkvs.backends.cuda.host_memory.HostMemory", refuse)
            with pytest.raises(NoSpaceError, match="cudaHostRegister"):
                store.execute(sets(list(range(3000))))
            store.execute(sets(list(range(900)), 8))
        store.execute(sets(list(range(3000)), 9))
        assert store.get((2999).to_bytes(8, "little")) == (9).to_bytes(8, "little")


def test_memory_that_grows_keeps_what_it_has() -> None:
    from gpkvs.backends.cuda.virtual_memory import DriverRefusalError, VirtualMemory  # noqa: PLC0415 - needs CuPy

    memory = VirtualMemory(1 << 30, (0, 0), 16 << 20)  # in chunks, as on several GPUs
    memory.grow(5 << 20)
    array = memory.array(5 << 20)
    array[:] = 7
    memory.grow(64 << 20)
    grown = memory.array(64 << 20)
    assert grown.data.ptr == array.data.ptr
    grown[5 << 20 :] = 9
    held = grown.get()
    assert np.all(held[: 5 << 20] == 7)
    assert np.all(held[5 << 20 :] == 9)
    with pytest.raises(DriverRefusalError, match="addresses"):
        memory.grow(2 << 30)
    memory.close()
    too_much = VirtualMemory(1 << 44, (0,), 16 << 20)
    with pytest.raises(DriverRefusalError, match="cuMemCreate"):
        too_much.grow(1 << 43)
    assert too_much.bytes == 0
    too_much.close()
