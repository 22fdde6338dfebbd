"""The way of plain arrays to a GPU: through pinned memory that several threads fill.

The link reads pinned memory at its full speed, and other memory at a seventh of it, since CUDA copies that with one
thread. Here several threads copy a column, and what is copied crosses the link meanwhile.
"""

from __future__ import annotations

import ctypes
import os
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import cupy
import numpy as np
from cupy.cuda import runtime

from gpkvs.backends.cuda.host_memory import pinned
from gpkvs.errors import BackendError, NoMemoryError
from gpkvs.native import library

_HALVES = 2  # of the pinned memory: one is filled while the other one is read
_HALF_BYTES = library.gpkvs_stage_max()
_THREADS_MAX = 16
_AWAKE_NS = 200_000  # a column comes in parts, and the next column soon after
_BYTES_MIN = 64 << 10  # of a column: CUDA itself takes less at once; for more it waits for all kernels before
_NOT_REGISTERED = 0  # cudaMemoryTypeUnregistered


def is_plain(column: Any) -> bool:
    """Whether a contiguous column of the host is worth a way through pinned memory: it is long, and not pinned."""
    return column.nbytes >= _BYTES_MIN and not is_pinned(column)


def is_pinned(column: Any) -> bool:
    """Whether kernels reach a column of the host where it is."""
    return bool(runtime.pointerGetAttributes(column.ctypes.data).type != _NOT_REGISTERED)


class Staging:
    """Pinned memory, and the threads that fill it. Columns go through it one after the other.

    Raises
    ------
    NoMemoryError
        If the system gives none.
    """

    def __init__(self) -> None:
        self._stream = cupy.cuda.Stream(non_blocking=True)
        self._halves = [pinned(_HALF_BYTES, np.uint8) for _ in range(_HALVES)]
        self._read: list[Any] = [None] * _HALVES  # events: it may be filled again
        self._turn = 0
        self._copy = ctypes.cast(ctypes.CDLL("libcuda.so.1").cuMemcpyHtoDAsync_v2, ctypes.c_void_p)
        self._threads = library.gpkvs_pool_new(min(_THREADS_MAX, len(os.sched_getaffinity(0))), _AWAKE_NS)
        if not self._threads:
            raise NoMemoryError
        # The driver's function needs a context, which a thread has once it has chosen its device.
        self._worker = ThreadPoolExecutor(1, "gpkvs-staging", initializer=cupy.cuda.Device().use)

    def upload(self, column: Any, device: Any, after: Any) -> Future[Any]:
        """Begin to bring a column to the GPU.

        Parameters
        ----------
        column
            Contiguous, of the host; unchanged until it is there.
        device
            As large, on the GPU.
        after
            The event that `device` waits for: its memory may still be in use.

        Returns
        -------
        Future
            Of the event that says that it is there; a `BackendError` if the driver refuses.
        """
        return self._worker.submit(self._upload, column, device, after)

    def _upload(self, column: Any, device: Any, after: Any) -> Any:
        self._stream.wait_event(after)
        for first in range(0, column.nbytes, _HALF_BYTES):
            size = min(_HALF_BYTES, column.nbytes - first)
            at = self._turn = (self._turn + 1) % _HALVES
            if self._read[at]:
                self._read[at].synchronize()
            error = library.gpkvs_stage(
                self._threads,
                self._halves[at].ctypes.data,
                column.ctypes.data + first,
                size,
                device.data.ptr + first,
                self._copy,
                self._stream.ptr,
            )
            self._read[at] = self._stream.record()
            if error:
                raise BackendError(f"cuMemcpyHtoDAsync of {size:,} bytes: CUDA error {error}")
        return self._read[self._turn]

    def close(self) -> None:
        """End the threads."""
        self._worker.shutdown()
        library.gpkvs_pool_delete(self._threads)
