"""Which backend runs the kernels."""

from __future__ import annotations

import os
from importlib import import_module

from gpkvs.backends.base import Backend
from gpkvs.backends.cpu.backend import CpuBackend
from gpkvs.backends.cpu.pair import PairBackend
from gpkvs.backends.cpu.shards import ShardsBackend
from gpkvs.config import BackendName
from gpkvs.config_checks import BACKEND_VARIABLE, backend_named, gpus_faults, raise_faults
from gpkvs.errors import BackendError

VARIABLE = BACKEND_VARIABLE
GPUS_VARIABLE = "GPKVS_GPUS"
# In the environment, for tests: nobody else has a use for threads that stand for a GPU, or for several.
PAIR, SHARDS = "cpu-pair", "cpu-shards"
_STAND_INS = {PAIR: PairBackend, SHARDS: ShardsBackend}


def choose_backend(name: BackendName, threads: int, gpus: str) -> Backend:
    """Return the backend asked for; ``auto`` takes what ``GPKVS_BACKEND`` says, else the CPU.

    Parameters
    ----------
    name, threads, gpus
        As `StoreConfig` has them.

    Raises
    ------
    BackendError
        If it cannot run here.
    """
    wanted = backend_named(name)
    raise_faults(gpus_faults(wanted, gpus))
    if wanted == "cpu":
        return CpuBackend(threads)
    if wanted in _STAND_INS and name == "auto":
        return _STAND_INS[wanted](threads)
    if wanted != "cuda":
        asked = f"{VARIABLE}={wanted}" if name == "auto" else f"backend={wanted}"
        raise BackendError(f"{asked}: there are cpu and cuda")
    asked_gpus = os.environ.get(GPUS_VARIABLE) or "0" if gpus == "auto" else gpus
    try:
        # CuPy is optional, and takes half a second to load: only who asks for it has it.
        backend: Backend = import_module("gpkvs.backends.cuda.backend").CudaBackend(threads, asked_gpus)
    except ModuleNotFoundError as error:
        raise BackendError(
            f"the backend cuda needs CuPy ({error}): pip install 'gpkvs[cuda13]' (or gpkvs[cuda12], by the driver), or "
            "use --backend cpu"
        ) from error
    return backend
