"""Which backend runs the kernels."""

from __future__ import annotations

import os
from importlib import import_module

from gpkvs.backends.base import Backend
from gpkvs.backends.cpu.backend import CpuBackend
from gpkvs.backends.cpu.pair import PairBackend
from gpkvs.config import BackendName
from gpkvs.errors import BackendError

VARIABLE = "GPKVS_BACKEND"
PAIR = "cpu-pair"  # in the environment: threads that stand for a GPU


def choose_backend(name: BackendName, threads: int) -> Backend:
    """Return the backend asked for; ``auto`` takes what ``GPKVS_BACKEND`` says, else the CPU.

    Raises
    ------
    BackendError
        If it cannot run here.
    """
    wanted = os.environ.get(VARIABLE, "cpu") if name == "auto" else name
    if wanted == "cpu":
        return CpuBackend(threads)
    if wanted == PAIR and name == "auto":  # for tests: nobody else has a use for it
        return PairBackend(threads)
    if wanted != "cuda":
        asked = f"{VARIABLE}={wanted}" if name == "auto" else f"backend={wanted}"
        raise BackendError(f"{asked}: there are cpu and cuda")
    try:
        # CuPy is optional, and takes half a second to load: only who asks for it has it.
        backend: Backend = import_module("gpkvs.backends.cuda.backend").CudaBackend(threads)
    except ModuleNotFoundError as error:
        raise BackendError(
            f"the backend cuda needs CuPy ({error}): pip install 'gpkvs[cuda13]' (or gpkvs[cuda12], by the driver), or "
            "use --backend cpu"
        ) from error
    return backend
