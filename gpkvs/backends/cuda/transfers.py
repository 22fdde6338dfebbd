"""Columns on their way between the host and a GPU."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future
from typing import Any

import cupy
import numpy as np

from gpkvs.backends.base import Column, Leaving
from gpkvs.backends.cuda.host_memory import pinned
from gpkvs.backends.cuda.staging import Staging, is_plain
from gpkvs.config import MIB

_COPIED_BYTES_MAX = 2 * MIB  # of a plain column that the calling thread copies to pinned memory itself


class Transfers:
    """Moves columns over the link; the two directions run at the same time, and beside the kernels."""

    def __init__(self) -> None:
        self._uploads, self._downloads = cupy.cuda.Stream(non_blocking=True), cupy.cuda.Stream(non_blocking=True)
        self._staging: Staging | None = None  # until a plain array comes
        self._staged: Future[Any] | None = None
        self._arrived: cupy.cuda.Event | None = None
        self._copied: list[tuple[Any, Any]] = []  # pinned copies of short plain arrays, and what says that they arrived
        self._delivered: cupy.cuda.Event | None = None
        self._to_leave: list[tuple[Any, Any]] = []  # columns, and where they go
        self._leaving: list[Any] = []  # columns whose memory may not be used again before they are delivered

    def finish(self) -> None:
        """Wait for the columns of a transaction that was given up: they may go to memory that is free now."""
        if self._staged is not None:
            staged, self._staged = self._staged, None
            if staged.exception() is None:  # else who waited for it was told
                cupy.cuda.get_current_stream().wait_event(staged.result())
        if self._arrived is not None:
            cupy.cuda.get_current_stream().wait_event(self._arrived)
            self._arrived = None
        self._to_leave.clear()
        self.delivered()

    def delivered(self) -> None:
        """See `Processor.delivered`."""
        self.start_delivery()
        if self._delivered is not None:
            self._delivered.synchronize()
            self._delivered = None
            self._leaving.clear()

    def upload(self, column: Any) -> Any:
        """Return a column on the GPU; it may be the same."""
        if isinstance(column, cupy.ndarray):
            return column
        if column.strides == (0,):  # one value, broadcast
            return cupy.full(column.shape, column[0], column.dtype) if len(column) else cupy.empty(0, column.dtype)
        if is_plain(column):
            return self.upload_later(column)()
        device = cupy.empty(column.shape, column.dtype)
        if column.nbytes:
            device.data.copy_from_host_async(column.ctypes.data, column.nbytes)
        return device

    def upload_later(self, column: Any) -> Callable[[], Any]:
        """See `Processor.upload_later`."""
        if isinstance(column, cupy.ndarray) or column.strides == (0,):
            return lambda: self.upload(column)
        is_copied = is_plain(column)
        if is_copied and column.nbytes > _COPIED_BYTES_MAX:
            return self._stage(column)
        device = cupy.empty(column.shape, column.dtype)
        # Memory that was just given back may still be in use by the kernels launched before.
        self._uploads.wait_event(cupy.cuda.get_current_stream().record())
        sent = None if is_copied else self._send(column, device)

        def wait() -> Any:
            arrived = sent
            if arrived is None:  # this thread copies it while the GPU does what was launched meanwhile
                copy = self._pinned_copy(column)
                arrived = self._send(copy, device)
                self._copied.append((copy, arrived))
            cupy.cuda.get_current_stream().wait_event(arrived)
            return device

        return wait

    def _send(self, column: Any, device: Any) -> Any:
        """Have a column of the host cross the link; return the event that says that it has arrived."""
        if column.nbytes:
            device.data.copy_from_host_async(column.ctypes.data, column.nbytes, self._uploads)
        self._arrived = self._uploads.record()
        return self._arrived

    def _pinned_copy(self, column: Any) -> Any:
        """Return a short column in pinned memory; to wake other threads for it takes as long as to copy it here."""
        self._copied = [(copy, arrived) for copy, arrived in self._copied if not arrived.done]
        copy = pinned(column.size, column.dtype).reshape(column.shape)
        np.copyto(copy, column)
        return copy

    def _stage(self, column: Any) -> Callable[[], Any]:
        """Begin to bring a plain array over."""
        if self._staging is None:
            self._staging = Staging()
        device = cupy.empty(column.shape, column.dtype)
        staged = self._staged = self._staging.upload(column, device, cupy.cuda.get_current_stream().record())

        def wait() -> Any:
            cupy.cuda.get_current_stream().wait_event(staged.result())
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

    def deliver(self, column: Column) -> Column:
        """See `Processor.deliver`."""
        if not isinstance(column, cupy.ndarray):
            return column
        host: Column = pinned(column.size, column.dtype).reshape(column.shape)
        if column.nbytes:
            self._to_leave.append((column, host))
        return host

    def start_delivery(self) -> None:
        """See `Processor.start_delivery`."""
        for column, host in self._to_leave:
            self.download_later(column, host)
            self._leaving.append(column)
        self._to_leave.clear()

    def leaving(self) -> Leaving:
        """See `Processor.leaving`."""
        self.start_delivery()
        delivered, self._delivered = self._delivered, None
        columns, self._leaving = self._leaving, []
        return Leaving(delivered.ptr if delivered else 0, (delivered, *columns))

    def download_later(self, column: Any, into: Any) -> Callable[[], None]:
        """See `Processor.download_later`."""
        self._downloads.wait_event(cupy.cuda.get_current_stream().record())
        column.data.copy_to_host_async(into.ctypes.data, into.nbytes, self._downloads)
        delivered = self._delivered = self._downloads.record()
        wait: Callable[[], None] = delivered.synchronize
        return wait

    def close(self) -> None:
        """End what brings plain arrays."""
        if self._staging is not None:
            self._staging.close()
            self._staging = None
