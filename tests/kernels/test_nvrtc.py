"""The same kernel files compile for GPUs: NVRTC needs no GPU to do it."""

from __future__ import annotations

import ctypes
import importlib.util
import os
from pathlib import Path
from types import ModuleType

import pytest

import gpkvs.kernels
from gpkvs.bench.gpm import logs
from gpkvs.bench.gpm.workloads import bfs, black_scholes, gpdb, prefix_sum, srad
from gpkvs.kernels.gpu_source import with_headers

KERNELS = Path(gpkvs.kernels.__file__).parent
SOURCES = sorted(KERNELS.glob("*/*.cu"))
# No source asks for which one it is compiled: in CI the older one is enough, for what it knows both know.
ARCHITECTURES = ["sm_80"] if os.environ.get("CI") else ["sm_80", "sm_90"]
WORKLOADS = (prefix_sum, bfs, srad, gpdb, black_scholes, logs)


def load_nvrtc() -> ctypes.CDLL | None:
    """Return NVIDIA's run-time compiler from its Python package, which `make check` installs."""
    found = importlib.util.find_spec("nvidia")
    for folder in found.submodule_search_locations or [] if found else []:
        for library in Path(folder).rglob("libnvrtc.so.*"):
            return ctypes.CDLL(str(library))
    return None


NVRTC = load_nvrtc()


needs_nvrtc = pytest.mark.skipif(
    NVRTC is None, reason="NVRTC is not installed: pip install nvidia-cuda-nvrtc (make install-test does)"
)


def compile_for_gpu(text: str, name: str, architecture: str) -> None:
    """Compile kernels, and fail with the compiler's messages."""
    assert NVRTC is not None
    program = ctypes.c_void_p()
    assert NVRTC.nvrtcCreateProgram(ctypes.byref(program), text.encode(), name.encode(), 0, None, None) == 0
    options = [f"--gpu-architecture={architecture}", f"--include-path={KERNELS}", "--std=c++17", "-default-device"]
    status = NVRTC.nvrtcCompileProgram(
        program, len(options), (ctypes.c_char_p * len(options))(*[option.encode() for option in options])
    )
    size = ctypes.c_size_t()
    NVRTC.nvrtcGetProgramLogSize(program, ctypes.byref(size))
    log = ctypes.create_string_buffer(size.value)
    NVRTC.nvrtcGetProgramLog(program, log)
    assert status == 0, log.value.decode()
    NVRTC.nvrtcGetCUBINSize(program, ctypes.byref(size))
    assert size.value > 0


@needs_nvrtc
@pytest.mark.parametrize("architecture", ARCHITECTURES)
@pytest.mark.parametrize("source", SOURCES, ids=lambda path: path.name)
def test_kernel_compiles_for_a_gpu(source: Path, architecture: str) -> None:
    compile_for_gpu(source.read_text(), source.name, architecture)


@needs_nvrtc
@pytest.mark.parametrize("workload", WORKLOADS, ids=lambda workload: workload.__name__.rpartition(".")[2])
def test_workload_compiles_for_a_gpu(workload: ModuleType) -> None:
    compile_for_gpu(with_headers(workload.SOURCE, workload.__name__), workload.__name__, "sm_80")
