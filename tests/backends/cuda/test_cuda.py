"""What only the backend cuda has: a mirror, arrays of the GPU, errors of CUDA. The rest: the suite, --backend cuda."""

from __future__ import annotations

import random
import re
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import gpkvs
from gpkvs.backends.choose import choose_backend
from gpkvs.errors import BackendError, InvalidArgumentError
from gpkvs.pm.ddio import Ddio
from gpkvs.process.fatal import EXIT_FATAL
from tests.conftest import SMALL, assert_clean

pytestmark = pytest.mark.gpu
TABLE = "numbers"
ROWS = 50_000


def open_numbers(path: Path, backend: Any = "cuda") -> gpkvs.Store:
    store = gpkvs.open(path, backend=backend, **{**SMALL, "log_bytes": 16 << 20, "journal_bytes": 128 << 20})
    if not any(table.name == TABLE for table in store.info().tables):
        store.create_table(TABLE, layout="u64", index_bytes=4 << 20)
    return store


def numbers(seed: int, count: int = ROWS) -> np.ndarray[Any, np.dtype[np.uint64]]:
    return np.random.default_rng(seed).integers(0, 1 << 63, count, np.uint64)


def mirror(store: gpkvs.Store, table: int) -> bytes:
    backend: Any = store._backend
    backend.wait()
    data: bytes = backend.mirror(store._files.indexes[table]).get().tobytes()
    return data


@pytest.mark.parametrize("host_ops_max", [0, 1000, 1 << 40])
def test_the_mirror_is_the_index(store_path: Path, host_ops_max: int) -> None:
    seed = random.randrange(1 << 30)
    print("seed", seed)
    rng = np.random.default_rng(seed)
    pool = numbers(seed, 150_000)
    with open_numbers(store_path) as store:
        backend: Any = store._backend
        backend.host_ops_max = host_ops_max
        model: dict[int, int] = {}
        for _ in range(12):
            keys = rng.choice(pool, int(rng.integers(1, 30_000)))
            if rng.random() < 0.3:
                store.delete_many(keys, table=TABLE)
                for key in keys.tolist():
                    model.pop(key, None)
            else:
                values = rng.integers(0, 1 << 63, len(keys), np.uint64)
                store.set_many(keys, values, table=TABLE)
                model.update(zip(keys.tolist(), values.tolist(), strict=True))
        table = store.table(TABLE).id
        index = store._files.indexes[table].region
        assert mirror(store, table) == index.read(0, index.bytes)
        held, found = store.get_many(pool, table=TABLE)
        assert found.tolist() == [key in model for key in pool.tolist()]
        assert held.tolist() == [model.get(key, 0) for key in pool.tolist()]


@pytest.mark.parametrize(("first", "second"), [("cpu", "cuda"), ("cuda", "cpu")])
def test_a_store_of_one_backend_opens_on_the_other(store_path: Path, first: str, second: str) -> None:
    keys, values = numbers(1), numbers(2)
    with open_numbers(store_path, first) as store:
        store.set_many(keys, values, table=TABLE)
        store.set(b"key", b"value")
    with open_numbers(store_path, second) as store:
        assert np.array_equal(store.get_many(keys, table=TABLE)[0], values)
        assert store.get(b"key") == b"value"
        store.set_many(keys, values + np.uint64(1), table=TABLE)
    with open_numbers(store_path, first) as store:
        assert np.array_equal(store.get_many(keys, table=TABLE)[0], values + np.uint64(1))


@pytest.mark.parametrize("n", [1, 2047, 2048, 2049, 3_000_000])
@pytest.mark.parametrize("first", [0, 21, 63])
def test_words_are_sorted_as_on_the_host(n: int, first: int) -> None:
    rng = np.random.default_rng(n)
    gpu: Any = choose_backend("cuda", 2, "0")
    for words in (rng.integers(0, 1 << 64, n, np.uint64), rng.integers(0, 3, n).astype(np.uint64) << np.uint64(40)):
        numbered = words | np.arange(n, dtype=np.uint64)  # what is alike from `first` on keeps its order
        column = gpu.upload(numbered.copy())
        gpu.sort(column, first)
        assert np.array_equal(gpu.download(column), numbered[np.argsort(numbered >> np.uint64(first), kind="stable")])
    gpu.close()


@pytest.mark.parametrize("n", [1, 2047, 2048, 2049, 3_000_000])
def test_sums_are_those_of_the_host(n: int) -> None:
    rng = np.random.default_rng(n)
    numbers, marks = rng.integers(0, 1 << 64, n, np.uint64), rng.integers(0, 2, n).astype(np.uint8)
    gpu = choose_backend("cuda", 2, "0")
    assert gpu.total(gpu.upload(numbers)) == int(numbers.sum(dtype=np.uint64))
    assert gpu.total(gpu.upload(marks)) == int(marks.sum())
    assert gpu.total(gpu.upload(marks.view(np.bool_))) == int(marks.sum())
    gpu.close()


def test_arrays_of_the_gpu_go_in_and_come_out(store_path: Path) -> None:
    with open_numbers(store_path) as store:
        xp: Any = store._backend.xp
        keys, values = xp.asarray(numbers(1)), xp.asarray(numbers(2))
        store.set_many(keys[:40_000], values[:40_000], table=TABLE)
        held, found = store.get_many(keys, table=TABLE)
        assert isinstance(held, xp.ndarray)
        assert found.get().tolist() == [True] * 40_000 + [False] * 10_000
        assert (held[:40_000] == values[:40_000]).all()
        assert not held[40_000:].any()
        assert store.delete_many(keys[:5], table=TABLE).all()
        # One on the host, one on the GPU; few enough for the host's threads, if they are not on the GPU.
        store.set_many(keys[:5].get(), values[:5], table=TABLE)
        assert (store.get_many(keys[:5], table=TABLE)[0] == values[:5]).all()


def test_tensors_of_pytorch_go_in_and_come_out(store_path: Path) -> None:
    torch = pytest.importorskip("torch")
    with open_numbers(store_path) as store:
        keys = torch.randperm(1 << 20, device="cuda")[:ROWS]
        store.set_many(keys, keys * 3, table=TABLE)
        held, found = store.get_many(keys, table=TABLE)
        assert found.all()
        assert torch.equal(torch.from_dlpack(held).view(torch.int64), keys * 3)
        on_host, _ = store.get_many(keys.cpu(), table=TABLE)
        assert isinstance(on_host, np.ndarray)


def test_an_array_of_the_gpu_is_refused_by_the_other_backend(store_path: Path) -> None:
    with open_numbers(store_path) as store:
        keys = store._backend.xp.arange(10, dtype=np.uint64)
    with open_numbers(store_path, "cpu") as store, pytest.raises(InvalidArgumentError, match="backend cuda"):
        store.get_many(keys, table=TABLE)


def test_too_little_memory_for_the_mirror(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gpkvs.backends.cuda.backend._SPARE_BYTES", 1 << 50)
    with pytest.raises(BackendError, match=r"index-0-0: its mirror needs 1,048,576 bytes of GPU memory.*--backend cpu"):
        gpkvs.open(tmp_path / "store", backend="cuda", **SMALL)
    monkeypatch.undo()
    gpkvs.open(tmp_path / "store", backend="cuda", **SMALL).close()


def test_a_table_without_memory_for_its_mirror_is_not_made(store_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with gpkvs.open(store_path, backend="cuda", **SMALL) as store:
        with monkeypatch.context() as patch:
            patch.setattr("gpkvs.backends.cuda.backend._SPARE_BYTES", 1 << 50)
            with pytest.raises(BackendError, match="its mirror needs"):
                store.create_table(TABLE, layout="u64")
        assert [table.name for table in store.info().tables] == ["default"]
        store.create_table(TABLE, layout="u64", index_bytes=1 << 20)


def test_a_compile_error_carries_the_log() -> None:
    from gpkvs.backends.cuda.compiler import compile_kernels  # noqa: PLC0415 - needs CuPy

    with pytest.raises(BackendError, match=r"nonsense"):
        compile_kernels('extern "C" __global__ void kernel() { nonsense }')


WILD = """
import sys, gpkvs
store = gpkvs.open(sys.argv[1], backend="cuda", index_bytes=1 << 20, heap_bytes=16 << 20, log_bytes=4 << 20)
xp = store._backend.xp
words = xp.zeros(64, "u8")
store._backend.launch("route_u64", 1 << 20, keys=words.view("u1")[:8], hash_key0=1, hash_key1=2,
                      fingerprint0=words, fingerprint1=words)
store._backend.launch("route_u64", 1 << 30, keys=words.view("u1")[:8], hash_key0=1, hash_key1=2,
                      fingerprint0=words, fingerprint1=words)
store._backend.wait()
print("still here")
"""


def test_a_lost_gpu_ends_the_process(store_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-c", WILD, str(store_path)], capture_output=True, text=True, timeout=120, check=False
    )
    assert done.returncode == EXIT_FATAL, done.stderr
    assert re.search(r"GPU \d+ \(", done.stderr)
    assert "does not answer any more" in done.stderr
    assert "CUDA, wait" in done.stderr


WRITER = """
import sys, numpy as np, gpkvs
from gpkvs.config import Limits
store = gpkvs.open(sys.argv[1], backend="cuda", create=False)
keys = np.arange(400_000, dtype=np.uint64)
print("open", flush=True)
for number in range(1, 100_000):
    store.set_many(keys, np.full(len(keys), number, np.uint64), table="numbers")
    print(number, flush=True)
"""


@pytest.mark.parametrize("after_ms", [5, 40, 90, 140, 200])
def test_killed_while_kernels_run(store_path: Path, after_ms: int) -> None:
    sizes = {**SMALL, "log_bytes": 32 << 20, "journal_bytes": 256 << 20}
    with gpkvs.open(store_path, backend="cuda", **sizes) as store:
        store.create_table(TABLE, layout="u64", index_bytes=16 << 20)
        keys = np.arange(400_000, dtype=np.uint64)
        store.set_many(keys, np.zeros(len(keys), np.uint64), table=TABLE)
    writer = subprocess.Popen([sys.executable, "-c", WRITER, str(store_path)], stdout=subprocess.PIPE, text=True)
    assert writer.stdout is not None
    assert writer.stdout.readline() == "open\n"
    time.sleep(after_ms / 1e3)
    writer.send_signal(signal.SIGKILL)
    acknowledged = [int(line) for line in writer.stdout]
    writer.wait()
    with gpkvs.open(store_path, backend="cuda") as store:
        held, found = store.get_many(keys, table=TABLE)
        assert found.all()
        (value,) = np.unique(held).tolist()
        last = acknowledged[-1] if acknowledged else 0
        assert value in (last, last + 1)
    assert_clean(store_path)


def test_ddio_is_warned_of_where_it_matters(monkeypatch: pytest.MonkeyPatch) -> None:
    with tempfile.TemporaryDirectory(dir="/dev/shm") as folder:  # where the GPU stores directly
        check_ddio(Path(folder), monkeypatch)


def check_ddio(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with gpkvs.open(folder / "store", backend="cuda", commit="undo", **SMALL) as store:
        assert "DDIO" not in store.info().backend
    # As if the platform's caches were lost with the power; the register of this machine is what it is.
    monkeypatch.setattr("gpkvs.pm.domain.Domain.needs_ddio_off", property(lambda _: True))
    for state, warned in ((Ddio.ON, True), (Ddio.UNKNOWN, True), (Ddio.OFF, False)):
        monkeypatch.setattr("gpkvs.backends.cuda.backend.ddio_of", lambda _, state=state: state)
        with gpkvs.open(folder / "store", backend="cuda", **SMALL) as store:
            assert (state.value in store.info().backend) is warned


@pytest.mark.parametrize("count", [5, 9_000, 300_000])  # copied by one thread; by several, a MiB at a time
@pytest.mark.parametrize("missing", [False, True])
def test_gets_of_plain_pinned_and_device_arrays_agree(store_path: Path, count: int, missing: bool) -> None:
    import cupy  # noqa: PLC0415 - only where there is a GPU
    import cupyx  # noqa: PLC0415

    with open_numbers(store_path) as store:
        store.create_table("gets", layout="u64", index_bytes=16 << 20)
        store._backend.host_ops_max = 0
        keys = numbers(6, count)
        store.set_many(keys, ~keys, table="gets")
        if missing:
            keys[count // 2] = keys[0] ^ np.uint64(1 << 63)
        on_gpu, in_pinned = cupy.asarray(keys), cupyx.empty_pinned(count, np.uint64)
        in_pinned[:] = keys
        for column in (keys, in_pinned, on_gpu):
            held, found = store.get_many(column, table="gets")
            assert isinstance(held, cupy.ndarray if column is on_gpu else np.ndarray)
            held, found = cupy.asnumpy(held), cupy.asnumpy(found)
            there = np.arange(count) != count // 2 if missing else np.ones(count, np.bool_)
            assert np.array_equal(found, there)
            assert np.array_equal(held, np.where(there, ~keys, np.uint64(0)))


@pytest.mark.parametrize("room", [1 << 20, 10_000])
def test_a_mirror_that_lags_far_behind_catches_up(store_path: Path, room: int) -> None:
    """With slots that it knows, or with the whole index, since there were too many."""
    with open_numbers(store_path) as store:
        backend: Any = store._backend
        index = store._files.indexes[store.table(TABLE).id]
        late = backend._attached.mirrors[index].late
        late.room = room
        backend.host_ops_max = 1 << 40
        keys = numbers(5, 30_000)
        for first in range(0, len(keys), 3_000):
            store.set_many(keys[first : first + 3_000], ~keys[first : first + 3_000], table=TABLE)
            store.set_many(keys[:7], ~keys[:7], table=TABLE)  # the same slots again and again
        assert late.are_too_many is (room == 10_000)
        assert backend.catch_up_seconds(index) > 0
        backend.catch_up(index)
        assert backend.catch_up_seconds(index) == 0
        assert mirror(store, store.table(TABLE).id) == index.region.read(0, index.region.bytes)
        backend.host_ops_max = 0
        held, found = store.get_many(keys, table=TABLE)
        assert found.all()
        assert np.array_equal(held, ~keys)
