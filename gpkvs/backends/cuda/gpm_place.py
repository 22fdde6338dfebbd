"""A GPU as a place for kernels of a user (`gpkvs.gpm`)."""

from __future__ import annotations

import ctypes
import logging
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from functools import cache, cached_property
from pathlib import Path
from types import ModuleType
from typing import Any

import cupy
import numpy as np
from cupy.cuda import runtime
from cupy_backends.cuda.api.driver import CUDADriverError
from numpy.typing import NDArray

from gpkvs.backends.cuda.compiler import compile_kernels
from gpkvs.backends.cuda.errors import explained
from gpkvs.backends.cuda.gpus import Gpus
from gpkvs.backends.cuda.host_memory import HostMemory, pinned
from gpkvs.backends.cuda.kernel import driver_launch
from gpkvs.backends.fields import KernelFields, fields_of_user
from gpkvs.backends.user_kernel import UserKernel
from gpkvs.errors import BackendError, InvalidArgumentError
from gpkvs.kernels.gpu_source import translation_unit, with_headers
from gpkvs.native import library
from gpkvs.pm.ddio import Ddio, ddio_of
from gpkvs.pm.region import Region

_log = logging.getLogger("gpkvs")

_THREADS = 256  # of a block, where the kernel does not say it
_PIECE_BYTES = 16 << 20  # of what crosses the link through pinned memory
_FIELDS_BYTES = 1024  # GPM_DESCRIBED in kernels/gpm/gpm.cuh
# From so many bytes on, the copy engine stores what a save finds changed: multiprocessors go on computing. With fewer,
# the kernel that finds it has stored it before a copy would begin.
_COPIES_FROM = 32 << 20


class GpuPlace:
    """One GPU.

    Parameters
    ----------
    number
        As CUDA counts it.

    Attributes
    ----------
    copies_from
        From how many bytes on the copy engine stores what differs, not the kernel.

    Raises
    ------
    BackendError
        If there is no such GPU.
    """

    is_gpu = True
    xp: ModuleType = cupy

    def __init__(self, number: int) -> None:
        gpus = Gpus(str(number))
        self.number = number
        self.gpu_name = gpus.name(number)
        self.name = f"cuda:{number}"
        self._registered: dict[int, HostMemory] = {}
        self._has_warned = False
        self.copies_from = _COPIES_FROM
        self._beside = cupy.cuda.Stream(non_blocking=True)
        self._used: dict[int, cupy.cuda.Stream] = {}  # streams of the caller, since `settle`

    def can_reach(self, region: Region, /) -> bool:
        """See `Place.can_reach`."""
        return not region.is_paged and region.is_writable

    @explained
    def reach(self, region: Region, /) -> None:
        """See `Place.reach`."""
        if not self.can_reach(region):
            raise BackendError(
                f"{region.path} is on an ordinary disk, or opened to be read only: a GPU does not reach it; use a file "
                "on persistent memory or tmpfs, or a checkpoint, which goes to disks, too"
            )
        self._registered[region.address] = HostMemory(region.address, region.bytes)
        if region.needs_ddio_off:
            self._warn_of_ddio(region)

    def _warn_of_ddio(self, region: Region) -> None:
        # Told, not switched: a process that is killed would leave it off.
        ddio = ddio_of(Path("/sys/bus/pci/devices") / runtime.deviceGetPCIBusId(self.number).lower())
        if ddio is not Ddio.OFF and not self._has_warned:
            self._has_warned = True
            _log.warning(
                "%s, %s: %s: what it stores may be lost with the power", region.path, self.gpu_name, ddio.value
            )

    @explained
    def leave(self, region: Region, /) -> None:
        """See `Place.leave`."""
        self._registered.pop(region.address).close()

    def require_stores(self, region: Region, /) -> None:
        """See `Place.require_stores`."""
        if not region.takes_gpu_stores:
            raise BackendError(
                f"{region.path}: what a GPU stores there is not durable when its fence returns (docs/persistence.md): "
                "use place='cpu', or a checkpoint"
            )

    def view(self, address: int, dtype: np.dtype[Any], shape: tuple[int, ...], owner: object, /) -> Any:
        """See `Place.view`."""
        count = int(np.prod(shape, dtype=np.int64))
        memory = cupy.cuda.UnownedMemory(address, max(1, count * dtype.itemsize), owner, self.number)
        return cupy.ndarray(shape, dtype, cupy.cuda.MemoryPointer(memory, 0))

    @explained
    def compile(self, source: str, name: str, /) -> Callable[[str], UserKernel]:
        """See `Place.compile`."""
        module = compile_kernels(with_headers(source, name))

        def find(kernel: str) -> UserKernel:
            try:
                function = module.get_function(kernel).kernel.ptr
                text = _global(module, f"gpm_fields_{kernel}", _FIELDS_BYTES)
            except CUDADriverError as error:
                raise KeyError(kernel) from error
            return UserKernel(
                fields_of_user(kernel, text.rstrip(b"\0")), _block_threads(module, kernel), (module, function)
            )

        return explained(find)

    @explained
    def own_kernels(self) -> Callable[[str], UserKernel]:
        """See `Place.own_kernels`."""
        module = compile_kernels(translation_unit("gpm/*.cu"))

        def find(kernel: str) -> UserKernel:
            code = module, module.get_function(kernel).kernel.ptr
            threads = 0
            with suppress(CUDADriverError):  # it is no block kernel
                threads = _block_threads(module, kernel)
            return UserKernel(KernelFields(kernel).fields, threads, code)

        return explained(find)

    @explained
    def launch(self, kernel: UserKernel, items: int, words: Sequence[int], /) -> None:
        """See `Place.launch`."""
        arguments = np.array(words, np.uint64)
        count, limit = ctypes.c_uint64(items), ctypes.c_void_p()
        threads = kernel.block_threads or _THREADS
        blocks = items if kernel.block_threads else -(-items // threads)
        addresses = arguments.ctypes.data, ctypes.addressof(count), ctypes.addressof(limit)
        parameters = (ctypes.c_void_p * 3)(*addresses)
        current = cupy.cuda.get_current_stream()
        stream = current.ptr
        self._used[stream] = current
        blocks = min(blocks, (1 << 31) - 1)  # threads go on from there by the grid's stride
        status = driver_launch()(kernel.handle[1], blocks, 1, 1, threads, 1, 1, 0, stream, parameters, None)
        if status:
            raise CUDADriverError(status)

    @explained
    def settle(self) -> None:
        """See `Place.settle`."""
        current = cupy.cuda.get_current_stream()
        current.synchronize()
        if current.ptr != self._beside.ptr:  # a save in the background waits for itself only, and nobody here for it
            used, self._used = self._used, {}
            for stream in used.values():
                if stream.ptr not in (current.ptr, self._beside.ptr):
                    stream.synchronize()

    def address(self, array: Any, /) -> int:
        """See `Place.address`."""
        if not isinstance(array, cupy.ndarray):
            raise InvalidArgumentError(f"a {type(array).__name__}: kernels of a GPU take arrays of CuPy (cupy.asarray)")
        if not array.flags.c_contiguous:
            raise InvalidArgumentError("an array that is not contiguous: use cupy.ascontiguousarray")
        return int(array.data.ptr)

    @explained
    def words(self, values: Sequence[int] | NDArray[np.uint64], /) -> Any:
        """See `Place.words`."""
        return cupy.asarray(np.array(values, np.uint64))

    def marks(self, count: int, /) -> NDArray[np.uint8]:
        """See `Place.marks`: pinned memory."""
        marks: NDArray[np.uint8] = pinned(count, np.uint8)
        return marks

    @explained
    def save(self, call: int, count: int, /) -> int:
        """See `Place.save`."""
        kernel, stream = self._save_kernel, cupy.cuda.get_current_stream().ptr
        said = kernel.handle[1], kernel.block_threads, stream, count >= self.copies_from
        queue = (ctypes.c_uint64 * 7)(*_driver_calls(), *said)
        differing = ctypes.c_uint64()
        if status := library.gpkvs_gpm_save_on_gpu(queue, call, ctypes.byref(differing)):
            raise CUDADriverError(status)
        return differing.value

    @cached_property
    def _save_kernel(self) -> UserKernel:
        return self.own_kernels()("gpm_save")

    @explained
    def to_host(self, array: Any, /) -> NDArray[Any]:
        """See `Place.to_host`."""
        host: NDArray[Any] = cupy.asnumpy(array)
        return host

    @explained
    def adopt(self, array: Any, /) -> Any:
        """See `Place.adopt`."""
        if isinstance(array, cupy.ndarray):
            return array
        try:
            return cupy.from_dlpack(array)
        except (AttributeError, BufferError, TypeError, RuntimeError, ValueError) as error:
            raise InvalidArgumentError(
                f"a {type(array).__name__} that the GPU cannot reach ({error}): bring it there first (cupy.asarray)"
            ) from error

    @explained
    def snapshot(self, columns: Sequence[Any], /) -> list[Any] | None:
        """See `Place.snapshot`: the calling thread's stream makes them."""
        try:
            return [column.copy() for column in columns]
        except cupy.cuda.memory.OutOfMemoryError:
            return None

    @explained
    def beside(self, work: Callable[[], None], /) -> Callable[[], None]:
        """See `Place.beside`: on a stream of its own."""
        before = cupy.cuda.get_current_stream().record()

        def follow() -> None:
            runtime.setDevice(self.number)
            with self._beside:
                self._beside.wait_event(before)
                work()

        return follow

    @explained
    def copy_in(self, column: Any, address: int, /) -> None:
        """See `Place.copy_in`."""
        _copy(column.data.ptr, address, len(column), runtime.memcpyHostToDevice)

    def pieces(self, column: Any, first: int, last: int, /) -> Iterator[tuple[int, memoryview]]:
        """See `Place.pieces`: through pinned memory."""
        starts = list(range(first, last, _PIECE_BYTES))
        staged = [pinned(_PIECE_BYTES, np.uint8) for _ in range(2)]

        def bring(number: int) -> Any:
            start, count = starts[number], min(_PIECE_BYTES, last - starts[number])
            _copy(staged[number % 2].ctypes.data, column.data.ptr + start, count, runtime.memcpyDeviceToHost)
            return cupy.cuda.get_current_stream().record()

        arrived = [bring(0)] if starts else []
        for number, start in enumerate(starts):
            if number + 1 < len(starts):
                arrived.append(bring(number + 1))
            arrived[number].synchronize()
            yield start, memoryview(staged[number % 2][: min(_PIECE_BYTES, last - start)])

    def fill(self, column: Any, read: Callable[[int, memoryview], None], /) -> None:
        """See `Place.fill`: through pinned memory."""
        staged = [pinned(_PIECE_BYTES, np.uint8) for _ in range(2)]
        gone: list[Any] = [None, None]
        for number, start in enumerate(range(0, len(column), _PIECE_BYTES)):
            count, turn = min(_PIECE_BYTES, len(column) - start), number % 2
            if gone[turn]:
                gone[turn].synchronize()
            read(start, memoryview(staged[turn][:count]))
            _copy(column.data.ptr + start, staged[turn].ctypes.data, count, runtime.memcpyHostToDevice)
            gone[turn] = cupy.cuda.get_current_stream().record()
        self.settle()  # the pinned memory goes back

    @explained
    def free_bytes(self) -> int:
        """See `Place.free_bytes`."""
        with cupy.cuda.Device(self.number):
            return int(runtime.memGetInfo()[0]) + int(cupy.get_default_memory_pool().free_bytes())


@cache
def _driver_calls() -> tuple[int, ...]:
    """Return where the driver's functions are that a save calls (`GpmQueue` in kernels/gpm/gpm_save.hpp)."""
    driver = ctypes.CDLL("libcuda.so.1")
    calls = driver.cuLaunchKernel, driver.cuMemcpyAsync, driver.cuStreamSynchronize
    return tuple(ctypes.cast(call, ctypes.c_void_p).value or 0 for call in calls)


def _copy(to: int, source: int, count: int, kind: int) -> None:
    if count:
        runtime.memcpyAsync(to, source, count, kind, cupy.cuda.get_current_stream().ptr)


def _block_threads(module: cupy.RawModule, kernel: str) -> int:
    """Return how many threads a block has, or 0 for a kernel without blocks, of what `gpm.cuh` describes."""
    return int.from_bytes(_global(module, f"gpm_threads_{kernel}", 4), "little")


def _global(module: cupy.RawModule, name: str, count: int) -> bytes:
    """Return bytes of a variable of a module."""
    found = bytearray(count)
    pointer = module.get_global(name)
    host = (ctypes.c_uint8 * count).from_buffer(found)
    runtime.memcpy(ctypes.addressof(host), pointer.ptr, count, runtime.memcpyDeviceToHost)
    return bytes(found)
