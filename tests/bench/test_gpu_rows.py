"""`gpkvs bench rows --part gpu` as far as it goes without a GPU.

The backend of the host's threads and NumPy stand in for the GPU and CuPy: so each step is run, and figures mean
nothing.
"""

from __future__ import annotations

import ctypes
import json
import shutil
from importlib import import_module
from importlib.resources import files
from importlib.util import find_spec
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

import gpkvs
from gpkvs.bench.peers.contender import BenchError
from gpkvs.bench.report.plot import draw
from gpkvs.bench.report.results import Measurement, Run
from gpkvs.bench.report.tables import tables_of
from gpkvs.bench.rows import gpu_benchmark, hkv, training
from gpkvs.bench.rows.gpu_benchmark import added_rows, of_get_and_set, of_limit, run_gpu_rows
from gpkvs.bench.rows.gpu_options import GpuRowsOptions
from gpkvs.bench.rows.gpu_table import BATCHES, GpuRowTable
from gpkvs.bench.rows.gpu_turns import measured
from gpkvs.bench.rows.options import layout_of
from gpkvs.config import Limits
from tests.serving import run_gpkvs

ANSWER = (
    '{"device": "NVIDIA H200", '
    '"gpu": {"capacity": 8192, "find": [[3, 0.25], [4, 0.5]], "insert_or_assign": [[3, 0.5], [3, 0.75]]}, '
    '"host": {"capacity": 8192, "find": [[3, 2.5], [3, 3.0]], "insert_or_assign": [[3, 5.0], [3, 6.0]]}}'
)


class _Pointer:
    """Memory with the copies that CuPy's has."""

    def __init__(self, array: np.ndarray) -> None:
        self.address = array.ctypes.data

    def copy_from_device_async(self, source: _Pointer, size: int) -> None:
        ctypes.memmove(self.address, source.address, size)

    def copy_from_host_async(self, source: int, size: int) -> None:
        ctypes.memmove(self.address, source, size)

    def copy_to_host_async(self, to: int, size: int) -> None:
        ctypes.memmove(to, self.address, size)


class _OnGpu(np.ndarray):
    """An array that stands for one of CuPy."""

    @property
    def data(self) -> Any:
        return _Pointer(self)


class _Cupy:
    """NumPy, as far as the benchmark uses CuPy."""

    def __init__(self) -> None:
        device = SimpleNamespace(synchronize=lambda: None, compute_capability="90")
        self.cuda = SimpleNamespace(Device=lambda: device)

    def asarray(self, array: Any) -> Any:
        return np.array(array).view(_OnGpu)

    def empty(self, shape: Any, dtype: Any) -> Any:
        return np.empty(shape, dtype).view(_OnGpu)

    def take(self, array: Any, places: Any, axis: int, out: Any) -> Any:
        return np.take(array, places, axis=axis, out=out)

    def get_default_memory_pool(self) -> Any:
        return SimpleNamespace(free_all_blocks=lambda: None)


@pytest.fixture
def stand_in(monkeypatch: pytest.MonkeyPatch) -> list[dict[str, Any]]:
    """Let the host's threads stand for a GPU; return what stores were opened with."""
    real, opened = gpkvs.open, []

    def opening(path: Path, **settings: Any) -> gpkvs.Store:
        opened.append(settings)
        assert settings["backend"] == "cuda"
        host = {name: value for name, value in settings.items() if name not in ("backend", "gpu_rows_bytes")}
        return real(path, backend="cpu", **host)

    monkeypatch.setattr(gpkvs, "open", opening)
    monkeypatch.setattr(gpu_benchmark, "_cupy", lambda backend: _Cupy())
    monkeypatch.setattr(gpu_benchmark, "_kept_bytes", lambda store: 4096)
    return opened


def tiny(folder: Path, **others: Any) -> GpuRowsOptions:
    return GpuRowsOptions(folder, (8, 128), rows_max=3000, batch=1000, runs=2, seconds=0.001, **others)


def checkout_at(folder: Path) -> Path:
    (folder / "include").mkdir(parents=True)
    (folder / "include" / "merlin_hashtable.cuh").touch()
    return folder


def script_at(path: Path, text: str) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f"#!/bin/sh\n{text}\n")
    path.chmod(0o755)
    return path


def test_each_task_is_measured(stand_in: list[dict[str, Any]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gpu_benchmark, "measure_training", lambda *_: ([], []))
    told: list[str] = []
    answer = tmp_path / "answer"
    answer.write_text(ANSWER)
    program = script_at(tmp_path / "bin" / "program", f"echo loaded; cat {answer}; echo; exit 0")
    script_at(tmp_path / "bin" / "nvcc", f'while [ "$1" != -o ]; do shift; done; cp {program} "$2"')
    monkeypatch.setenv("PATH", str(tmp_path / "bin"), prepend=":")
    checkout = checkout_at(tmp_path / "hkv")
    stores = tmp_path / "stores"
    stores.mkdir()
    kept: list[set[str]] = []
    result = run_gpu_rows(
        tiny(stores, hkv=checkout), told.append, lambda result: kept.append(set(result["contenders"]))
    )
    assert kept == [{"gpkvs"}, {"gpkvs"}, {"gpkvs", "HierarchicalKV"}, {"gpkvs", "HierarchicalKV"}]
    assert not list(stores.iterdir())
    assert "left_out" not in result
    assert result["parameters"]["rows"] == {"float32[8]": 3000, "float32[128]": 3000}
    assert [settings.get("gpu_rows_bytes") for settings in stand_in[:5]] == [None, None, 0, None, 0]
    measurements = {(one["task"], one["contender"]) for one in result["measurements"]}
    for layout in ("float32[8]", "float32[128]"):
        assert {
            (f"get, {layout}", "gpkvs"),
            (f"get, {layout}", "device copy"),
            (f"get, {layout}", "X[ids]"),
            (f"get, {layout}", "HierarchicalKV"),
            (f"get, rows on the host, {layout}", "link"),
            (f"get, rows on the host, {layout}", "HierarchicalKV"),
            (f"set, {layout}", "link"),
            (f"set, {layout}", "HierarchicalKV"),
            (f"add of 1,000, {layout}", "gpkvs"),
            (f"add of 1,000, {layout}", "host arrays"),
        } < measurements
    found = {(one["what"], one["store"], one["beside"]): one["aim"] for one in result["comparisons"]}
    assert found["get, float32[8]", "gpkvs", "device copy"] is None
    assert found["get, float32[128]", "gpkvs", "device copy"] == 0.8
    assert found["get, float32[8]", "gpkvs", "HierarchicalKV"] == 1.5
    assert found["get, float32[128]", "gpkvs", "HierarchicalKV"] is None
    assert found["get, rows on the host, float32[8]", "gpkvs", "link"] == 0.85
    assert found["set, float32[8]", "gpkvs", "link"] == 0.8
    assert found["add of 1,000, float32[128]", "gpkvs", "get and set"] == 0.7
    assert found["add of 1,000, float32[128]", "host arrays", "get and set"] == 0.7
    assert result["contenders"]["HierarchicalKV"]["version"] == "unknown"
    assert "room for 8,192 rows" in result["contenders"]["HierarchicalKV"]["float32[8]"]["settings"]
    assert result["kept_bytes"] == {"float32[8]": 4096, "float32[128]": 4096}
    assert "record" in result["phases"]["set, float32[128]"]
    assert "float32[128]: loading 3,000 rows, and overwriting each" in told
    json.dumps(result)
    assert all(table.markdown() for table in tables_of(result, profile=True))
    assert "</svg>" in draw(result)


def test_a_part_that_fails_leaves_the_others(
    stand_in: list[dict[str, Any]],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    def failing(*_: object) -> None:
        raise RuntimeError("out of luck")

    monkeypatch.setattr(gpu_benchmark, "measure_training", failing)
    script_at(tmp_path / "bin" / "nvcc", "echo 'hkv.cu(3): error: no such thing' >&2; exit 2")
    monkeypatch.setenv("PATH", str(tmp_path / "bin"), prepend=":")
    told: list[str] = []
    result = run_gpu_rows(tiny(tmp_path, hkv=checkout_at(tmp_path / "hkv")), told.append)
    assert result["left_out"]["training"] == "RuntimeError: out of luck"
    assert "hkv.cu(3): error: no such thing" in result["left_out"]["HierarchicalKV"]
    assert result["measurements"]
    assert "training is left out: RuntimeError: out of luck" in told
    assert "in failing" in capsys.readouterr().err


def test_rows_that_are_wrong_are_not_timed(
    stand_in: list[dict[str, Any]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(gpu_benchmark, "measure_training", lambda *_: ([], []))
    monkeypatch.setattr(_Cupy, "take", lambda self, array, places, axis, out: out.fill(1))
    result = run_gpu_rows(tiny(tmp_path), lambda step: None)
    assert "does not return the rows" in result["left_out"]["float32[8]"]
    assert not any(one["task"].startswith("get") for one in result["measurements"])


@pytest.mark.machine
@pytest.mark.skipif(find_spec("torch") is None, reason="PyTorch is not installed")
def test_training(stand_in: list[dict[str, Any]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    torch: Any = import_module("torch")
    for of, name in ((torch.Tensor, "cuda"), (torch.nn.Module, "cuda")):
        monkeypatch.setattr(of, name, lambda self: self)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "synchronize", lambda: None)
    for name, value in (("_ROWS", 500), ("_EXAMPLES", 16), ("_IDS", 256)):
        monkeypatch.setattr(training, name, value)
    measurements, comparisons = training.measure_training(tmp_path, lambda step: None, 2, 0.001)
    assert [one.contender for one in measurements] == ["gpkvs", "durability none", "PyTorch"]
    assert [one.aim for one in comparisons] == [1.10, None, None]
    assert [settings["durability"] for settings in stand_in] == ["auto", "none"]


def test_the_time_of_a_step_has_its_part_of_a_checkpoint() -> None:
    ids = training._IDS
    found = {
        name: Measurement("training", name, [Run(100 * ids, seconds), Run(100 * ids, 2 * seconds)])
        for name, seconds in (("gpkvs", 3.0), ("durability none", 1.5), ("PyTorch", 1.0))
    }
    plain, saving, none = training.compared(found, save_seconds=1.0, saved_bytes=5_000_000)
    assert plain.ratios == pytest.approx([3.0, 3.0])
    assert not plain.as_json()["is_met"]
    assert saving.ratios == pytest.approx([1.5, 2.0])  # a save is as long as 100 steps
    assert none.ratios == pytest.approx([2.0, 2.0])
    assert "a save of 5 MB takes 1000 ms" in saving.note


def test_comparisons() -> None:
    get, put, add, limit = (
        Measurement("get", name, [Run(100, 1.0), Run(100, seconds)])
        for name, seconds in (("gpkvs", 2.0), ("put", 4.0), ("gpkvs", 6.0), ("link", 1.0))
    )
    assert of_limit(get, limit, 8, 0.85).ratios == [1.0, 0.5]
    assert of_limit(get, limit, 10_000_000, None, passes=2).note == "1.50 GB/s, 2.00 GB/s"
    assert of_get_and_set(get, put, add).ratios == pytest.approx([2.0, 1.0])
    assert added_rows(layout_of(128), 1 << 20) == 200_000
    assert added_rows(layout_of(768), 1 << 20) == 33_333
    assert added_rows(layout_of(8), 1000) == 1000
    assert Limits.value_bytes_max > 0.8 * 200_000 * 512


def test_tables_have_four_million_rows_or_a_gibibyte() -> None:
    options = GpuRowsOptions(Path())
    assert [options.rows(layout_of(dim)) for dim in options.dims] == [1 << 22, 1 << 22, 1 << 21]


def test_batches() -> None:
    table = GpuRowTable(layout_of(2), 5000, _Cupy())
    distinct, doubled = table.distinct(1000), table.with_duplicates(1000)
    assert len(distinct) == len(doubled) == BATCHES
    assert all(len(np.unique(batch.keys)) == 1000 for batch in distinct)
    assert len({batch.places.tobytes() for batch in distinct}) == BATCHES
    assert all(len(batch.keys) == 1000 and len(np.unique(batch.keys)) == 800 for batch in doubled)
    assert all(0 <= batch.first <= 4000 for batch in distinct)
    parts = table.in_order(2000)
    assert [(part.first, len(part.keys)) for part in parts] == [(0, 2000), (2000, 2000), (4000, 1000)]
    assert np.array_equal(parts[1].places, np.arange(2000, 4000))


def test_calls_have_other_keys_each_time() -> None:
    numbers: list[int] = []
    waits: list[None] = []
    found = measured("task", 10, {"a": numbers.append, "b": numbers.append}, lambda: waits.append(None), 2, 0.0)
    assert len(set(numbers)) == len(numbers) == len(waits) == 2 * 2 * 4
    assert [run.operations for run in found["b"].runs] == [30, 30]


class TestHierarchicalKV:
    """What runs it, without it."""

    def test_its_program_is_in_the_package(self) -> None:
        text = files("gpkvs.bench.rows").joinpath("hkv.cu").read_text()
        assert '#include "merlin_hashtable.cuh"' in text
        assert hkv._SOURCE.is_file()

    def test_figures(self) -> None:
        figures = hkv.figures_of(f"the library says something\n{ANSWER}\n", batch=100)
        assert figures.device == "NVIDIA H200"
        assert figures.capacity == 8192
        measurement = figures.measurement("get, float32[8]", "gpu", "find")
        assert (measurement.task, measurement.contender) == ("get, float32[8]", "HierarchicalKV")
        assert [run.rate for run in measurement.runs] == [1200, 800]
        assert figures.runs["host", "insert_or_assign"][1].seconds == 6.0

    @pytest.mark.parametrize("text", ["", "nothing", '{"device": "NVIDIA H200"}', "[]"])
    def test_what_is_no_figures_is_refused(self, text: str) -> None:
        with pytest.raises(BenchError, match="HierarchicalKV gave no figures"):
            hkv.figures_of(text, batch=1)

    def test_a_folder_that_is_none_is_refused(self, tmp_path: Path) -> None:
        done = run_gpkvs("bench", "rows", "--part", "gpu", "--hkv", str(tmp_path))
        assert done.returncode == 1
        assert b"has no include/merlin_hashtable.cuh: --hkv names a checkout of https://github.com" in done.stderr

    def test_a_missing_compiler_is_told(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(hkv, "_USUAL_NVCC", tmp_path / "cuda" / "bin" / "nvcc")
        monkeypatch.setenv("PATH", str(tmp_path))
        with pytest.raises(BenchError, match=r"there is no nvcc in PATH or .*install the CUDA toolkit, or leave --hkv"):
            hkv.compiled(checkout_at(tmp_path / "hkv"), tmp_path, "sm_90")

    @pytest.mark.parametrize("wrong", [0, 1])
    def test_the_program_itself(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, wrong: int) -> None:
        compiler = shutil.which("g++")
        if compiler is None:
            pytest.skip("there is no g++")
        checkout = tmp_path / "hkv"
        shutil.copytree(Path(__file__).with_name("hkv"), checkout / "include")
        options = f"-DWRONG={wrong} -x c++ -std=c++17 -Wall -Wextra -Werror -fsanitize=address,undefined"
        script_at(tmp_path / "bin" / "nvcc", f'shift 3; exec {compiler} {options} "$@"')  # without nvcc's own options
        monkeypatch.setenv("PATH", str(tmp_path / "bin"), prepend=":")
        program = hkv.compiled(checkout, tmp_path / "bin", "sm_90")
        if wrong:
            with pytest.raises(BenchError, match="it returns wrong rows"):
                hkv.run_hkv(program, 3, 1000, 300, 2, 0.001)
            return
        figures = hkv.run_hkv(program, 3, 1000, 300, 2, 0.001)
        assert (figures.device, figures.capacity) == ("a stand-in", 2048)
        assert all(len(runs) == 2 and runs[0].operations >= 900 for runs in figures.runs.values())
        assert all(run.seconds > 0 and run.operations % 300 == 0 for runs in figures.runs.values() for run in runs)

    def test_how_it_ends_is_told(self, tmp_path: Path) -> None:
        program = script_at(tmp_path / "program", "echo 'hkv: it returns wrong rows' >&2; exit 1")
        with pytest.raises(BenchError, match="rows of 8 ended with status 1: hkv: it returns wrong rows"):
            hkv.run_hkv(program, 8, 100, 10, 2, 0.1)
        with pytest.raises(BenchError, match=r"cannot run .*: No such file"):
            hkv.run_hkv(tmp_path / "missing", 8, 100, 10, 2, 0.1)

    def test_its_commit(self, tmp_path: Path) -> None:
        if shutil.which("git") is None:
            pytest.skip("there is no git")
        top = Path(gpkvs.__file__).resolve().parent.parent
        assert hkv.revision_of(top / "tests") == "unknown"  # git's data is that of the repository above
        assert hkv.revision_of(tmp_path) == "unknown"


def test_without_a_gpu_the_command_says_what_it_needs(tmp_path: Path) -> None:
    done = run_gpkvs("bench", "rows", "--part", "gpu", "--directory", str(tmp_path), env={"CUDA_VISIBLE_DEVICES": ""})
    assert done.returncode == 1
    assert b"CUDA" in done.stderr or b"CuPy" in done.stderr
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("options", "told"),
    [(("--part", "gpu", "--peer", "lmdb"), b"only --part peers"), (("--hkv", "/"), b"only --part gpu")],
)
def test_options_of_the_other_part_are_refused(options: tuple[str, ...], told: bytes) -> None:
    done = run_gpkvs("bench", "rows", *options)
    assert done.returncode == 2
    assert told in done.stderr
