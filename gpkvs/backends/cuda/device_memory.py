"""Memory of GPUs for a mirror. It grows: by chunks where it is, or by a copy to another place."""

from __future__ import annotations

import logging
from typing import Any

import cupy
import numpy as np
from cupy.cuda import runtime

from gpkvs.backends.cuda.gpus import STRIPE_BYTES, Gpus
from gpkvs.backends.cuda.virtual_memory import DriverRefusalError, VirtualMemory
from gpkvs.config import MIB
from gpkvs.errors import NoSpaceError

_log = logging.getLogger("gpkvs")

# Smaller memory is copied: it takes microseconds, and a chunk has 2 MiB at least.
_MAPPED_BYTES_MIN = 64 * MIB


class DeviceMemory:
    """Memory of one GPU, or of several.

    Parameters
    ----------
    size
        Bytes.
    gpus
        Where it lies.

    Attributes
    ----------
    array : (size,) uint8
        The memory; another array when it has grown.
    """

    def __init__(self, size: int, gpus: Gpus) -> None:
        self._gpus = gpus
        self._mapped, self.array = self._memory(size)

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
                self._require(size - had, spare)
                self._mapped.grow(size)
                self.array = self._mapped.array(size)
                return
            self._require(size, spare)
            mapped, array = self._memory(size)
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

    def _require(self, needed: int, spare: int) -> None:
        """Have so much free memory, and what others need on each GPU."""
        spare *= len(self._gpus)
        free, total = self._gpus.free_and_total()
        if needed + spare > free:
            self._gpus.give_back_unused()
            free, total = self._gpus.free_and_total()
        if needed + spare > free:
            raise NoSpaceError(
                "gpu_memory",
                f"its mirror needs {needed:,} bytes more of GPU memory and the columns of a batch {spare:,}; "
                f"{free:,} of {total:,} are free",
            )

    def _memory(self, size: int) -> tuple[VirtualMemory | None, Any]:
        """Return memory that can grow where it is, if it is worth it and the GPU can, and its array.

        Raises
        ------
        DriverRefusalError
            If there are several GPUs, and their memory cannot be one.
        """
        mapped = self._virtual_memory() if size >= _MAPPED_BYTES_MIN or len(self._gpus) > 1 else None
        if mapped is None:
            return None, cupy.empty(size, np.uint8)
        try:
            mapped.grow(size)
        except BaseException:
            mapped.close()
            raise
        return mapped, mapped.array(size)

    def _virtual_memory(self) -> VirtualMemory | None:
        try:
            return VirtualMemory(self._gpus.free_and_total()[1], self._gpus.numbers, STRIPE_BYTES)
        except DriverRefusalError as refusal:
            if len(self._gpus) > 1:
                raise
            _log.warning("a mirror that grows is copied, which takes half of its memory more for a moment: %s", refusal)
            return None
