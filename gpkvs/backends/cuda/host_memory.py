"""Memory of the host that a GPU reaches: registered mappings, and pinned columns."""

from __future__ import annotations

from typing import Any

import cupyx
import numpy as np
from cupy.cuda import runtime
from cupy_backends.cuda.api.runtime import CUDARuntimeError

from gpkvs.errors import BackendError

_REGISTER_MAPPED = 0x02  # cudaHostRegisterMapped


class HostMemory:
    """Memory of the host that kernels can reach, at the addresses that it has for the host.

    Parameters
    ----------
    address, size
        Of a mapping, in whole pages.

    Raises
    ------
    BackendError
        If CUDA refuses, as it does for a file of an ordinary disk.
    """

    def __init__(self, address: int, size: int) -> None:
        self.address = address
        self.bytes = size
        try:
            runtime.hostRegister(address, size, _REGISTER_MAPPED)
        except CUDARuntimeError as error:
            raise BackendError(f"CUDA, cudaHostRegister of {size:,} bytes: {error}") from error

    def close(self) -> None:
        """Let go of it; needed before it is unmapped."""
        runtime.hostUnregister(self.address)


def pinned(count: int, dtype: type[np.generic]) -> Any:
    """Return an uninitialised column of the host that crosses the link at full speed, while other things run."""
    # CuPy keeps returned memory by its size. If all sizes differed, it would use none of it again.
    size = count * np.dtype(dtype).itemsize
    return cupyx.empty_pinned(1 << (size - 1).bit_length() if size else 0, np.uint8)[:size].view(dtype)
