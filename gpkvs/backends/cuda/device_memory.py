"""Memory of a GPU for a mirror. It grows: by chunks where it is, or by a copy to another place."""

from __future__ import annotations

import logging
from typing import Any

import cupy
import numpy as np
from cupy.cuda import runtime

from gpkvs.backends.cuda.virtual_memory import DriverRefusalError, VirtualMemory
from gpkvs.config import MIB
from gpkvs.errors import NoSpaceError

_log = logging.getLogger("gpkvs")

# Smaller memory is copied: it takes microseconds, and a chunk has 2 MiB at least.
_MAPPED_BYTES_MIN = 64 * MIB


class DeviceMemory:
    """Memory of a GPU.

    Parameters
    ----------
    size
        Bytes.

    Attributes
    ----------
    array : (size,) uint8
        The memory; another array when it has grown.
    """

    def __init__(self, size: int) -> None:
        self._mapped, self.array = _memory(size)

    def grow(self, size: int, spare: int) -> None:
        """Have `size` bytes; what was there stays, what is new has any contents.

        Parameters
        ----------
        size
            Bytes.
        spare
            Bytes that others need, which must be free besides.

        Raises
        ------
        NoSpaceError
            If the GPU has no memory for it; nothing has changed.
        """
        had = self.array.nbytes
        if size <= had:
            return
        try:
            if self._mapped:
                _require(size - had, spare)
                self._mapped.grow(size)
                self.array = self._mapped.array(size)
                return
            _require(size, spare)
            mapped, array = _memory(size)
        except (DriverRefusalError, cupy.cuda.memory.OutOfMemoryError) as error:
            raise NoSpaceError("gpu_memory", f"{size:,} bytes for a mirror: {error}") from error
        array[:had] = self.array
        runtime.deviceSynchronize()
        self._mapped, self.array = mapped, array

    def close(self) -> None:
        """Give it back, when no kernel uses it any more."""
        self.array = cupy.empty(0, np.uint8)
        if self._mapped:
            self._mapped.close()


def device_bytes() -> int:
    """Return how much memory the GPU has: no mirror is larger."""
    total: int = runtime.memGetInfo()[1]
    return total


def _require(needed: int, spare: int) -> None:
    """Have so much free memory, and what others need."""
    free, total = runtime.memGetInfo()
    if needed + spare > free:
        cupy.get_default_memory_pool().free_all_blocks()
        free, total = runtime.memGetInfo()
    if needed + spare > free:
        raise NoSpaceError(
            "gpu_memory",
            f"its mirror needs {needed:,} bytes more of GPU memory and the columns of a batch {spare:,}; "
            f"{free:,} of {total:,} are free",
        )


def _memory(size: int) -> tuple[VirtualMemory | None, Any]:
    """Return memory that can grow where it is, if it is worth it and the GPU can, and its array."""
    mapped = _virtual_memory() if size >= _MAPPED_BYTES_MIN else None
    if mapped is None:
        return None, cupy.empty(size, np.uint8)
    try:
        mapped.grow(size)
    except BaseException:
        mapped.close()
        raise
    return mapped, mapped.array(size)


def _virtual_memory() -> VirtualMemory | None:
    try:
        return VirtualMemory(device_bytes())
    except DriverRefusalError as refusal:
        _log.warning("a mirror that grows is copied, which takes half of its memory more for a moment: %s", refusal)
        return None
