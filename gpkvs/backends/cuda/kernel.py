"""A kernel as it is launched on a GPU."""

from __future__ import annotations

import ctypes
from functools import cache
from typing import Any

import cupy
import numpy as np
from cupy_backends.cuda.api.driver import CUDADriverError

from gpkvs.backends.fields import KernelFields
from gpkvs.errors import NoMemoryError
from gpkvs.native import launched_kernels, library

_THREADS = 256  # of a thread block


class GpuKernel:
    """One kernel: its code for the GPU, and how its arguments are packed.

    Parameters
    ----------
    fields
        What it takes, and what it is.
    function
        The driver's handle of its code; 0 of a kernel that runs on the host only.
    """

    def __init__(self, fields: KernelFields, function: int) -> None:
        self.fields = fields
        self.words = np.empty(len(fields.fields), np.uint64)  # the arguments
        self._function = function
        self._items = ctypes.c_uint64()
        self._limit = ctypes.c_void_p()  # the host knows how many items there are
        parameters = self.words.ctypes.data, ctypes.addressof(self._items), ctypes.addressof(self._limit)
        self._parameters = (ctypes.c_void_p * 3)(*parameters)

    def launch(self, items: int) -> None:
        """Launch it over so many items, with `words` as they are now; the driver copies them.

        By the driver's own function: CuPy's launch takes three times as long, and a batch has a dozen of them.
        """
        # One thread an item or lane: stores to PM from many short threads go faster than from few long ones.
        blocks = -(-items * self.fields.lanes // _THREADS)
        self._items.value = items
        stream = cupy.cuda.get_current_stream().ptr
        status = driver_launch()(self._function, blocks, 1, 1, _THREADS, 1, 1, 0, stream, self._parameters, None)
        if status:
            raise CUDADriverError(status)


def new_launcher(module: cupy.RawModule) -> int:
    """Return what native code launches kernels with on the calling thread's GPU (``kernels/base/launcher.hpp``).

    Raises
    ------
    NoMemoryError
        If the system gives none.
    """
    driver = ctypes.CDLL("libcuda.so.1")
    names = launched_kernels()
    functions = (ctypes.c_void_p * len(names))(*[module.get_function(name).kernel.ptr for name in names])
    calls = (
        *(driver.cuLaunchKernel, driver.cuMemsetD8Async, driver.cuEventRecord, driver.cuStreamWaitEvent),
        *(driver.cuMemcpyDtoHAsync_v2, driver.cuEventSynchronize, driver.cuEventElapsedTime),
        *(driver.cuCtxGetCurrent, driver.cuCtxSetCurrent),
    )
    addresses = (ctypes.c_void_p * len(calls))(*[ctypes.cast(call, ctypes.c_void_p) for call in calls])
    context = ctypes.c_void_p()
    if status := driver.cuCtxGetCurrent(ctypes.byref(context)):
        raise CUDADriverError(status)
    launcher: int | None = library.gpkvs_gpu_launcher_new(addresses, functions, context)
    if not launcher:
        raise NoMemoryError
    return launcher


@cache
def driver_launch() -> Any:
    """Return the driver's function that launches a kernel; it keeps Python's lock, since it takes microseconds."""
    launch = ctypes.PyDLL("libcuda.so.1").cuLaunchKernel
    size, handle = ctypes.c_uint, ctypes.c_void_p
    launch.argtypes = (handle, *[size] * 7, handle, handle, handle)
    return launch
