"""Kernels of a user: one source for every place."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from gpkvs.errors import BackendError, InvalidArgumentError
from gpkvs.gpm import CoalescedLog, Kernels, PersistentArray, Place, header

SOURCE = """
#include "gpm.cuh"

#define SCALE_ARGS(F) F(const float*, in) F(float*, out) F(double, by) F(i64, plus)
GPM_KERNEL(scale, SCALE_ARGS) { gpm_store(&a.out[i], (float)(a.in[i] * a.by + a.plus)); }

#define SUMS_ARGS(F) F(const u32*, in) F(u64*, out)
GPM_BLOCK_KERNEL(sums, SUMS_ARGS, 64) {
    GPM_SHARED(u32, part, 64);
    GPM_THREADS(t, 64) { part[t] = a.in[b * 64 + t]; }
    for (u32 half = 32; half; half /= 2) {
        GPM_SYNC();
        GPM_THREADS(t, half) { part[t] += part[t + half]; }
    }
    GPM_SYNC();
    GPM_THREADS(t, 1) {
        gpm_store(&a.out[b], (u64)part[t]);
        gpm_persist();
    }
}
"""

LOGGED = """
#include "gpm.cuh"
#define COUNT_ARGS(F) F(const GpmLog*, log) F(u32*, out)
GPM_KERNEL(count, COUNT_ARGS) { gpm_store(&a.out[i], (u32)gpm_log_count(a.log, i)); }
#define SINGLE_ARGS(F) F(u32*, out) F(float, by)
GPM_KERNEL(single, SINGLE_ARGS) { gpm_store(&a.out[i], (u32)a.by); }
"""


@pytest.fixture(scope="module")
def kernels(place: Place) -> Kernels:
    return Kernels(SOURCE, place)


def test_threads(kernels: Kernels, place: Place, memory: Path) -> None:
    with PersistentArray.create(memory / "a.gpm", 10_000, "f4", place=place) as out:
        given = place.xp.arange(10_000, dtype="f4")
        kernels.launch("scale", 10_000, **{"in": given}, out=out, by=0.5, plus=-3)
        assert np.array_equal(out.host, np.arange(10_000, dtype="f4") * 0.5 - 3)
        assert np.array_equal(place.xp.asarray(out.device).tolist(), out.host)
        kernels.launch("scale", 0, **{"in": given}, out=out, by=0.5, plus=0)
        kernels.launch("scale", 10, **{"in": given}, out=out, by=1, plus=0, wait=False)
        kernels.settle()
        assert out.host[:11].tolist() == [*range(10), 2]


def test_blocks(kernels: Kernels, place: Place, memory: Path) -> None:
    given = np.random.default_rng(1).integers(0, 1 << 20, 64 * 300, np.uint32)
    with PersistentArray.create(memory / "a.gpm", 300, "u8", place=place) as out:
        kernels.launch("sums", 300, **{"in": place.xp.asarray(given)}, out=out)
        assert np.array_equal(out.host, given.reshape(300, 64).sum(1, dtype=np.uint64))


def test_mistakes_are_named(kernels: Kernels, place: Place, memory: Path) -> None:
    xp = place.xp
    good: dict[str, Any] = {"in": xp.zeros(4, "f4"), "out": xp.zeros(4, "f4"), "by": 1.0, "plus": 0}
    kernels.launch("scale", 4, **good)
    for name, change, words in (
        ("nothing", {}, "no kernel nothing"),
        ("scale", {"more": 1}, "takes in, out, by, plus"),
        ("scale", {"in": 1.5}, "in is a pointer"),
        ("scale", {"in": 1}, "in is a pointer"),
        ("scale", {"plus": 1.5}, "plus is a i64, and got 1.5"),
        ("scale", {"plus": 1 << 63}, "does not fit"),
        ("scale", {"by": xp.zeros(4, "f4")}, "by is a number"),
        ("scale", {"in": [1, 2]}, "a list"),
        ("scale", {"in": xp.zeros(8, "f4")[::2]}, "not contiguous"),
    ):
        with pytest.raises(InvalidArgumentError, match=words):
            kernels.launch(name, 4, **{**good, **change})
    with pytest.raises(InvalidArgumentError, match="of uint32, and got uint64"):
        kernels.launch("sums", 1, **{"in": xp.zeros(64, "u8")}, out=xp.zeros(1, "u8"))
    for items, words in ((-1, "items: it must be at least 0, not -1"), (1.5, "whole number")):
        with pytest.raises(InvalidArgumentError, match=words):
            kernels.launch("scale", items, **good)  # type: ignore[arg-type]
    with (
        PersistentArray.create(memory / "a.gpm", 4, "u4", place=place) as array,
        CoalescedLog.create(memory / "l.gpm", 4, 8, place=place) as log,
    ):
        for change, words in (
            ({"in": array}, "in is of float32, and got uint32"),
            ({"in": log}, "in is of float32, and got GpmLog"),
            ({"by": log}, "by is a number, and got a CoalescedLog"),
        ):
            with pytest.raises(InvalidArgumentError, match=words):
                kernels.launch("scale", 4, **{**good, **change})
        logged = Kernels(LOGGED, place)
        logged.launch("count", 4, log=log, out=array)
        for wrong, words in ((array, "log is of GpmLog, and got uint32"), (xp.zeros(4, "u8"), "got uint64")):
            with pytest.raises(InvalidArgumentError, match=words):
                logged.launch("count", 4, log=wrong, out=array)
        with pytest.raises(InvalidArgumentError, match="by is a float: numbers are u64, i64 or double"):
            logged.launch("single", 4, out=array, by=1.5)
    if not place.is_gpu:  # arrays of CuPy have no such flag
        kept = np.zeros(4, "f4")
        kept.flags.writeable = False
        kernels.launch("scale", 4, **{**good, "in": kept})
        with pytest.raises(InvalidArgumentError, match="out is stored to, and got an array that is read only"):
            kernels.launch("scale", 4, **{**good, "out": kept})
    with pytest.raises(BackendError, match="nonsense"):
        Kernels('#include "gpm.cuh"\nnonsense\n', place)


def test_a_missing_compiler_says_what_to_install(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("CXX", str(tmp_path / "none"))
    with pytest.raises(BackendError, match="apt-get install"):
        Kernels(SOURCE, "cpu")


def test_compiled_once(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("GPKVS_CACHE_DIR", str(tmp_path / "cache"))
    for _ in range(2):
        Kernels(SOURCE + "// of its own\n", "cpu")
    assert len(list((tmp_path / "cache").iterdir())) == 1


def test_a_header_of_the_users_own_counts(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Kernels that were kept are not those of a header that has changed since; what cannot be loaded is built anew."""
    monkeypatch.setenv("GPKVS_CACHE_DIR", str(tmp_path / "cache"))
    source = f'#include "gpm.cuh"\n#include "{tmp_path}/mine.h"\n#define ARGS(F) F(u64*, out)\n'
    source += "GPM_KERNEL(put, ARGS) { gpm_store(&a.out[i], (u64)VALUE); }\n"
    for value in (1, 2):
        (tmp_path / "mine.h").write_text(f"#define VALUE {value}\n")
        out = np.zeros(3, np.uint64)
        Kernels(source).launch("put", 3, out=out)
        assert out.tolist() == [value] * 3
    (tmp_path / "mine.h").write_text("#define VALUE 3\n")
    built = set((tmp_path / "cache").glob("*.so"))
    assert len(built) == 2
    text = source.replace(f'#include "{tmp_path}/mine.h"', "#define VALUE 4")
    Kernels(text)
    (new,) = set((tmp_path / "cache").glob("*.so")) - built
    whole = new.read_bytes()
    launch = "import sys; from gpkvs.gpm import Kernels; import numpy; out = numpy.zeros(3, 'u8')\n"
    launch += "Kernels(sys.argv[1]).launch('put', 3, out=out); print(out.tolist())"
    for left in (b"", bytes(4), whole[: len(whole) // 2], whole[:-1]):  # by a power failure, or a full disk
        new.unlink()  # what is loaded stays as it is
        new.write_bytes(left)
        done = subprocess.run([sys.executable, "-c", launch, text], capture_output=True, text=True, check=False)
        assert done.stdout == "[4, 4, 4]\n", done.stderr
        assert new.stat().st_size == len(whole)


@pytest.mark.gpu
def test_a_raw_module(place: Place, memory: Path) -> None:
    mine = """
    extern "C" __global__ void fill(u64* out, u64 n) {
        const u64 i = (u64)blockIdx.x * blockDim.x + threadIdx.x;
        if (i < n) gpm_store(&out[i], i * i);
        gpm_persist();
    }
    """
    module = place.xp.RawModule(code=header() + mine, options=("--std=c++17",))
    with PersistentArray.create(memory / "a.gpm", 1000, "u8", place=place) as array:
        module.get_function("fill")((4,), (256,), (array.device, np.uint64(1000)))
        place.settle()
        assert np.array_equal(array.host, np.arange(1000, dtype=np.uint64) ** 2)
