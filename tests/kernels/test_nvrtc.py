"""The same kernel files compile for GPUs: NVRTC needs no GPU to do it."""

from __future__ import annotations

import ctypes
import importlib.util
from pathlib import Path

import pytest

import gpkvs.kernels

KERNELS = Path(gpkvs.kernels.__file__).parent
SOURCES = sorted(KERNELS.glob("*.cu"))


def load_nvrtc() -> ctypes.CDLL | None:
    """Return NVIDIA's run-time compiler from its Python package, which `make check` installs."""
    found = importlib.util.find_spec("nvidia")
    for folder in found.submodule_search_locations or [] if found else []:
        for library in Path(folder).rglob("libnvrtc.so.*"):
            return ctypes.CDLL(str(library))
    return None


NVRTC = load_nvrtc()


@pytest.mark.skipif(NVRTC is None, reason="NVRTC is not installed: pip install nvidia-cuda-nvrtc (make check does)")
@pytest.mark.parametrize("architecture", ["sm_80", "sm_90"])
@pytest.mark.parametrize("source", SOURCES, ids=lambda path: path.name)
def test_kernel_compiles_for_a_gpu(source: Path, architecture: str) -> None:
    assert NVRTC is not None
    program = ctypes.c_void_p()
    text = source.read_bytes()
    assert NVRTC.nvrtcCreateProgram(ctypes.byref(program), text, source.name.encode(), 0, None, None) == 0
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
