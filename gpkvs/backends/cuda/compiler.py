"""The kernels, compiled for the GPU at hand."""

from __future__ import annotations

from functools import cache

import cupy
from cupy.cuda import runtime
from cupy.cuda.compiler import CompileException

from gpkvs.errors import BackendError
from gpkvs.kernels.gpu_source import translation_unit

_OPTIONS = ("--std=c++17", "-default-device", "--generate-line-info")


@cache
def own_kernels() -> cupy.RawModule:
    """Return the kernels of gpkvs, compiled once in a process."""
    return compile_kernels(translation_unit())


def compile_kernels(source: str) -> cupy.RawModule:
    """Compile kernels for the GPU at hand; CuPy keeps the result on disk.

    Raises
    ------
    BackendError
        With the compiler's log, which names file and line.
    """
    module = cupy.RawModule(code=source, options=_OPTIONS)
    try:
        module.compile()
    except CompileException as error:
        raise BackendError(f"the kernels do not compile for this GPU:\n{error}") from error
    return module


def driver() -> str:
    """Return the version of CUDA that the driver speaks, and that of the run-time."""
    return f"driver for CUDA {runtime.driverGetVersion()}, run-time {runtime.runtimeGetVersion()}"
