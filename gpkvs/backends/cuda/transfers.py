"""Columns on their way between the host and a GPU."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import cupy

from gpkvs.backends.base import Column
from gpkvs.backends.cuda.host_memory import pinned


class Transfers:
    """Moves columns over the link; the two directions run at the same time, and beside the kernels."""

    def __init__(self) -> None:
        self._uploads, self._downloads = cupy.cuda.Stream(non_blocking=True), cupy.cuda.Stream(non_blocking=True)
        self._arrived: cupy.cuda.Event | None = None
        self._delivered: cupy.cuda.Event | None = None

    def finish(self) -> None:
        """Wait for the columns of a transaction that was given up: they may go to memory that is free now."""
        if self._arrived is not None:
            cupy.cuda.get_current_stream().wait_event(self._arrived)
            self._arrived = None
        if self._delivered is not None:
            self._delivered.synchronize()
            self._delivered = None

    def upload(self, column: Any) -> Any:
        """Return a column on the GPU; it may be the same."""
        if isinstance(column, cupy.ndarray):
            return column
        if column.strides == (0,):  # one value, broadcast
            return cupy.full(column.shape, column[0], column.dtype) if len(column) else cupy.empty(0, column.dtype)
        device = cupy.empty(column.shape, column.dtype)
        if column.nbytes:
            device.data.copy_from_host_async(column.ctypes.data, column.nbytes)
        return device

    def upload_later(self, column: Any) -> Callable[[], Any]:
        """See `Backend.upload_later`."""
        if isinstance(column, cupy.ndarray) or column.strides == (0,):
            return lambda: self.upload(column)
        device = cupy.empty(column.shape, column.dtype)
        # Memory that was just given back may still be in use by the kernels launched before.
        self._uploads.wait_event(cupy.cuda.get_current_stream().record())
        if column.nbytes:
            device.data.copy_from_host_async(column.ctypes.data, column.nbytes, self._uploads)
        arrived = self._arrived = self._uploads.record()

        def wait() -> Any:
            cupy.cuda.get_current_stream().wait_event(arrived)
            return device

        return wait

    def download(self, column: Column) -> Column:
        """Return a column on the host; it may be the same."""
        if not isinstance(column, cupy.ndarray):
            return column
        host: Column = pinned(column.size, column.dtype).reshape(column.shape)
        if column.nbytes:
            column.get(out=host)
        return host

    def download_later(self, column: Any, into: Any) -> Callable[[], None]:
        """See `Backend.download_later`."""
        self._downloads.wait_event(cupy.cuda.get_current_stream().record())
        column.data.copy_to_host_async(into.ctypes.data, into.nbytes, self._downloads)
        delivered = self._delivered = self._downloads.record()
        wait: Callable[[], None] = delivered.synchronize
        return wait
