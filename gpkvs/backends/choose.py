"""Which backend runs the kernels."""

from __future__ import annotations

from gpkvs.backends.base import Backend
from gpkvs.backends.cpu import CpuBackend
from gpkvs.config import BackendName
from gpkvs.errors import BackendError


def choose_backend(name: BackendName, threads: int) -> Backend:
    """Return the backend asked for; ``auto`` takes the CPU.

    Raises
    ------
    BackendError
        If it cannot run here.
    """
    if name == "cuda":
        raise BackendError(
            "this version runs its kernels on the CPU only: use --backend cpu (or auto). "
            "The same kernels compile for NVIDIA GPUs, but the backend that launches them is not part of it yet"
        )
    return CpuBackend(threads)
