"""The kernels on an NVIDIA GPU: the only file that imports CuPy.

The files of a store that kernels store to (its log, its indexes) are registered with CUDA, so that kernels store to PM
directly; every index is mirrored in device memory, so that kernels never read it over the link. A kernel that stores to
an index runs twice, on PM and on the mirror.

On the host's threads run, with the kernels of the CPU: what works on records, which come from the host and go back to
it; what is one serial item; small batches, for which a launch costs more than the work; and stores to PM where those of
a GPU would not be durable (an ordinary disk, or caches that must be written back). docs/gpu.md has the figures.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from functools import cache, wraps
from itertools import pairwise
from pathlib import Path
from types import ModuleType
from typing import Any, ParamSpec, TypeVar

import cupy
import cupyx
import numpy as np
from cupy.cuda import runtime
from cupy.cuda.compiler import CompileException
from cupy_backends.cuda.api.driver import CUDADriverError
from cupy_backends.cuda.api.runtime import CUDARuntimeError
from numpy.typing import NDArray

from gpkvs.backends.base import Argument, Column
from gpkvs.backends.cpu.backend import CpuBackend, adopt_on_host, host_ops_asked
from gpkvs.backends.cuda.break_even import break_even
from gpkvs.backends.cuda.kernel import GpuKernel
from gpkvs.backends.cuda.mirror import Mirror
from gpkvs.backends.cuda.order import order_on_gpu
from gpkvs.backends.cuda.sums import total_on_gpu, warm_up
from gpkvs.batch import U8, U32, U64, Batch
from gpkvs.errors import BackendError
from gpkvs.fatal import stop_process
from gpkvs.kernels.source import translation_unit
from gpkvs.media.layout import SlotLayout
from gpkvs.pm.ddio import Ddio, ddio_of
from gpkvs.pm.region import Region

_log = logging.getLogger("gpkvs")

_THREADS = 256  # of a thread block
_OPTIONS = ("--std=c++17", "-default-device", "--generate-line-info")
_REGISTER_MAPPED = 0x02  # cudaHostRegisterMapped
_DLPACK_CUDA = 2  # kDLCUDA
_SPARE_BYTES = 1 << 30  # of device memory, for the columns of a batch
_LATE_SLOTS_MAX = 1 << 20  # in which a mirror lags behind, before it is brought up to date whoever reads it
# Batches that only read cross the link in parts: it carries both directions at once. More parts gain nothing.
_PARTS, _PART_OPS_MIN = 4, 1 << 17

P = ParamSpec("P")
T = TypeVar("T")


def _explained(call: Callable[P, T]) -> Callable[P, T]:
    """Turn an error of CUDA into ours; a GPU that does not answer any more ends the process."""

    @wraps(call)
    def guarded(*args: P.args, **kwargs: P.kwargs) -> T:
        try:
            return call(*args, **kwargs)
        except (CUDARuntimeError, CUDADriverError, cupy.cuda.memory.OutOfMemoryError) as error:
            what = next((argument for argument in args if isinstance(argument, str)), call.__name__)
            reason = BackendError(f"CUDA, {what}: {error}")
            if _is_lost():
                # The context is gone for good.
                stop_process("the GPU does not answer any more", reason)
            raise reason from error

    return guarded


def _is_lost() -> bool:
    try:
        runtime.deviceSynchronize()
    except (CUDARuntimeError, CUDADriverError):
        return True
    return False


@cache
def _own_kernels() -> cupy.RawModule:
    return compile_kernels(translation_unit())


def driver() -> str:
    """Return the version of CUDA that the driver speaks, and that of the run-time."""
    return f"driver for CUDA {runtime.driverGetVersion()}, run-time {runtime.runtimeGetVersion()}"


def compile_kernels(source: str) -> cupy.RawModule:
    """Compile kernels for the GPU at hand; CuPy keeps the result on disk.

    Raises
    ------
    BackendError
        With the compiler's log, which names file and line.
    """
    module = cupy.RawModule(code=source, options=_OPTIONS)
    try:
        module.compile()
    except CompileException as error:
        raise BackendError(f"the kernels do not compile for this GPU:\n{error}") from error
    return module


class HostMemory:
    """Memory of the host that kernels can reach, at the addresses that it has for the host.

    Parameters
    ----------
    address, size
        Of a shared mapping, in whole pages.

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


class CudaBackend:
    """Runs the kernels on one GPU, and on the host's threads what is better done there.

    Parameters
    ----------
    threads
        Of the host; 0 takes one for each processor.

    Raises
    ------
    BackendError
        If there is no GPU that can be used, or the kernels do not compile for it.
    """

    name = "cuda"

    def __init__(self, threads: int = 0) -> None:
        try:
            self.device = runtime.getDeviceProperties(0)["name"].decode()
        except CUDARuntimeError as error:
            raise BackendError(
                f"no NVIDIA GPU can be used: {error}; look at CUDA_VISIBLE_DEVICES, or use --backend cpu"
            ) from error
        self.host = CpuBackend(threads)
        self.host_threads = self.host.host_threads
        self._module = _own_kernels()
        self._kernels: dict[str, GpuKernel] = {}
        self._registered: dict[int, HostMemory] = {}
        self._mirrors: dict[int, Mirror] = {}
        self._stores_directly = True
        self._warning = ""
        self._is_small = False
        self._uploads, self._downloads = cupy.cuda.Stream(non_blocking=True), cupy.cuda.Stream(non_blocking=True)
        self._beside = cupy.cuda.Stream(non_blocking=True, priority=-1)  # ahead of the long queue of stores to PM
        self._arrived: cupy.cuda.Event | None = None
        self._delivered: cupy.cuda.Event | None = None
        warm_up(cupy)
        asked = host_ops_asked()
        self.host_ops_max = break_even(self, self.host) if asked is None else asked

    @property
    def description(self) -> str:
        """What runs the kernels, and who stores to PM."""
        who = "it stores to PM directly" if self._stores_directly else "the host's threads store to PM (CAP-mm)"
        return f"cuda ({self.device}; {who}{self._warning})"

    @property
    def xp(self) -> ModuleType:
        """See `Backend.xp`; NumPy during a small batch."""
        module: ModuleType = np if self._is_small else cupy
        return module

    @_explained
    def attach(self, region: Region, *, slots: SlotLayout | None) -> None:
        """See `Backend.attach`; a `BackendError` if the GPU has no memory for the mirror."""
        mirror = self._new_mirror(region, slots) if slots else None
        if region.takes_gpu_stores:
            self._registered[region.address] = HostMemory(region.address, region.bytes)
            if region.needs_ddio_off and not self._warning:
                self._warn_of_ddio()
        else:
            self._stores_directly = False
        if mirror:
            # Registered memory crosses the link at its full speed, other memory at a seventh of it.
            mirror.array.data.copy_from_host(region.address, region.bytes)
            self._mirrors[region.address] = mirror

    def _warn_of_ddio(self) -> None:
        ddio = ddio_of(Path("/sys/bus/pci/devices") / runtime.deviceGetPCIBusId(0).lower())
        if ddio is not Ddio.OFF:
            self._warning = f"; {ddio.value}: what it stored may be lost with the power"
            _log.warning("backend %s", self.description)

    def _new_mirror(self, region: Region, slots: SlotLayout) -> Mirror:
        free, total = runtime.memGetInfo()
        if region.bytes + _SPARE_BYTES > free + cupy.get_default_memory_pool().free_bytes():
            raise BackendError(
                f"{region.path.name}: its mirror needs {region.bytes:,} bytes of GPU memory and the columns of a batch "
                f"{_SPARE_BYTES:,}; {free:,} of {total:,} are free on {self.device}: use --backend cpu, a smaller "
                "--index-bytes, or a GPU with more memory"
            )
        return Mirror(region, slots, cupy.empty(region.bytes, np.uint8))

    @_explained
    def detach(self, region: Region) -> None:
        """See `Backend.detach`."""
        self._mirrors.pop(region.address, None)
        registered = self._registered.pop(region.address, None)
        if registered:
            registered.close()

    def begin(self, batch: Batch, /) -> None:
        """See `Backend.begin`; a small batch of the host runs there, where PM is as near."""
        # Columns of a transaction that was given up may still be on their way, into memory that is free now.
        if self._arrived is not None:
            cupy.cuda.get_current_stream().wait_event(self._arrived)
            self._arrived = None
        if self._delivered is not None:
            self._delivered.synchronize()
            self._delivered = None
        self._is_small = len(batch) <= self.host_ops_max and isinstance(batch.keys, np.ndarray)
        self.host.begin(batch)

    def parts(self, batch: Batch, /) -> list[tuple[int, int]]:
        """See `Backend.parts`."""
        count = len(batch)
        if self._is_small or count < _PARTS * _PART_OPS_MIN or not isinstance(batch.keys, np.ndarray):
            return [(0, count)]
        bounds = [count * part // _PARTS for part in range(_PARTS + 1)]
        return list(pairwise(bounds))

    def adopt(self, column: Any, /) -> NDArray[Any]:
        """See `Backend.adopt`."""
        if isinstance(column, np.ndarray):
            return column
        if not hasattr(column, "__dlpack_device__") or column.__dlpack_device__()[0] != _DLPACK_CUDA:
            return adopt_on_host(column)
        adopted: NDArray[Any] = cupy.from_dlpack(column)
        return adopted

    @property
    def kept_bytes(self) -> int:
        """See `Backend.kept_bytes`."""
        return self.host.kept_bytes

    def upload(self, column: Column, /) -> Column:
        """See `Backend.upload`."""
        if self._is_small:
            return self.host.upload(self.download(column))
        if isinstance(column, cupy.ndarray):
            return column
        uploaded: Column = self._upload(column)
        return uploaded

    @_explained
    def upload_later(self, column: Column, /) -> Callable[[], Column]:
        """See `Backend.upload_later`."""
        if self._is_small or isinstance(column, cupy.ndarray) or column.strides == (0,):
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

    @_explained
    def _upload(self, column: Any) -> Any:
        if column.strides == (0,):  # one value, broadcast
            return cupy.full(column.shape, column[0], column.dtype) if len(column) else cupy.empty(0, column.dtype)
        device = cupy.empty(column.shape, column.dtype)
        if column.nbytes:
            device.data.copy_from_host_async(column.ctypes.data, column.nbytes)
        return device

    @_explained
    def download(self, column: Column, /) -> Column:
        """See `Backend.download`."""
        if not isinstance(column, cupy.ndarray):
            return column
        host: Column = self.pinned(column.size, column.dtype).reshape(column.shape)
        if column.nbytes:
            column.get(out=host)
        return host

    @_explained
    def download_later(self, column: Column, into: Column, /) -> Callable[[], None]:
        """See `Backend.download_later`."""
        device: Any = column
        self._downloads.wait_event(cupy.cuda.get_current_stream().record())
        device.data.copy_to_host_async(into.ctypes.data, into.nbytes, self._downloads)
        delivered = self._delivered = self._downloads.record()
        wait: Callable[[], None] = delivered.synchronize
        return wait

    def result_column(self, count: int, dtype: type[np.generic], /) -> NDArray[Any]:
        """See `Backend.result_column`."""
        column: NDArray[Any] = self.host.result_column(count, dtype) if self._is_small else self.pinned(count, dtype)
        return column

    @staticmethod
    def pinned(count: int, dtype: type[np.generic]) -> Any:
        """Return an uninitialised column of the host that crosses the link at full speed, while other things run."""
        # CuPy keeps what is given back by its size: of sizes that are all different, it would use none again.
        size = count * np.dtype(dtype).itemsize
        return cupyx.empty_pinned(1 << (size - 1).bit_length() if size else 0, np.uint8)[:size].view(dtype)

    @_explained
    def total(self, column: NDArray[Any], /) -> int:
        """See `Backend.total`."""
        return self.host.total(column) if isinstance(column, np.ndarray) else total_on_gpu(cupy, column)

    def scratch(self, count: int, dtype: type[np.generic], /) -> NDArray[Any]:
        """See `Backend.scratch`."""
        return self.host.scratch(count, dtype) if self._is_small else cupy.empty(count, dtype)

    @_explained
    def launch(self, kernel: str, items: int, /, *, keys_per_item: int = 1, **arguments: Argument) -> None:
        """See `Backend.launch`."""
        stored = self._launch(kernel, items, keys_per_item, arguments)
        if stored:
            stored.synchronize()  # what it stored to PM is there now: the next phase may begin

    @_explained
    def launch_unawaited(self, kernel: str, items: int, /, **arguments: Argument) -> None:
        """See `Backend.launch_unawaited`: a download waits for all kernels before it."""
        self._launch(kernel, items, 1, arguments)

    def _launch(self, kernel: str, items: int, keys_per_item: int, arguments: dict[str, Argument]) -> Any:
        """Launch a kernel; return an event to wait for, if it stores to PM from the GPU."""
        if items == 0:
            return None
        code = self._kernels.get(kernel) or self._kernel(kernel)
        if self._is_small and code.stores_to_index and "changed_slot" in arguments:
            self.host.launch(kernel, items, keys_per_item=keys_per_item, **arguments)
            self.host_stored(arguments["index"], arguments["changed_slot"])  # type: ignore[arg-type]
            return None
        stream = cupy.cuda.get_current_stream()
        before = stream.record() if code.stores_to_index else None
        if self._is_small or code.is_serial or not self._reaches(code, arguments):
            self._run_on_host(code, items, keys_per_item, arguments)
        else:
            self._run(code, items, arguments)
        stored = stream.record() if code.stores_to_pm and not self._is_small else None
        if before:
            self._follow(code, items, arguments, before)
        return stored

    def _kernel(self, name: str) -> GpuKernel:
        return self._kernels.setdefault(name, GpuKernel(name, self._module.get_function(name)))

    def _reaches(self, code: GpuKernel, arguments: dict[str, Argument]) -> bool:
        """Whether the GPU can reach all PM that a kernel is given; an index it reads, it has."""
        for field in code.fields.pointers:
            address = arguments[field.name]
            reads_mirror = field.name == "index" and not field.is_stored_to
            if isinstance(address, int) and address and not reads_mirror and not self._is_registered(address):
                return False
        return True

    def _is_registered(self, address: int) -> bool:
        return any(memory.address <= address < memory.address + memory.bytes for memory in self._registered.values())

    def _follow(self, code: GpuKernel, items: int, arguments: dict[str, Argument], after: Any) -> None:
        """Do to an index's mirror what is done to the index, beside it: both begin after an event."""
        index = arguments["index"]
        assert isinstance(index, int)
        mirror = self._mirrors[index].array
        mirrored = {**arguments, "index": mirror}
        if self._reaches(code, mirrored):
            self._beside.wait_event(after)
            with self._beside:
                self._run(code, items, mirrored)
            cupy.cuda.get_current_stream().wait_event(self._beside.record())
        else:  # recovery, where the log cannot be reached
            mirror.data.copy_from_host(index, mirror.nbytes)

    def host_stored(self, index: int, slots: U64, /) -> None:
        """See `Backend.host_stored`; the mirror follows when it is read next."""
        mirror = self._mirrors[index]
        mirror.note(slots)
        if mirror.late_slots > _LATE_SLOTS_MAX:
            self._catch_up(mirror)

    def _catch_up(self, mirror: Mirror) -> None:
        """Bring a mirror up to date in the slots that only the host stored to."""
        slots, layout = mirror.take_late(), mirror.layout
        changed, contents = np.empty_like(slots), np.empty(len(slots) * layout.slot_bytes // 8, np.uint64)
        # The kernel of displaced occupants reads slots of PM, with all threads.
        self.host.launch(
            f"stage_moved_{layout.name}",
            len(slots),
            vacated=slots,
            moved_to=slots,
            index=mirror.region.address,
            changed_slot=changed,
            contents=contents,
        )
        self._run(
            self._kernel(f"apply_{layout.name}"),
            len(slots),
            {"changed_slot": changed, "contents": contents, "index": mirror.array},
        )

    def mirror(self, index: int) -> Any:
        """Return the mirror of the index at an address, on the device, as the index is now."""
        mirror = self._mirrors[index]
        if mirror.late_slots:
            self._catch_up(mirror)
        return mirror.array

    def _run(self, code: GpuKernel, items: int, arguments: dict[str, Argument]) -> None:
        """Run a kernel on the GPU; columns of the host travel there, and back if they are stored to."""
        words = code.words
        uploaded: list[tuple[Any, Any, bool]] = []  # kept until the launch: memory given back may be handed out again
        for at, field in enumerate(code.fields.check(arguments)):
            argument = arguments[field.name]
            if type(argument) is int:
                is_read = field.name == "index" and not field.is_stored_to
                words[at] = self.mirror(argument).data.ptr if is_read else argument
                continue
            column: Any = argument
            if isinstance(column, np.ndarray):
                column = self._upload(column)
                uploaded.append((column, argument, field.is_stored_to))
            assert field.dtype in (None, column.dtype), f"{code.fields.kernel}.{field.name} is {column.dtype}"
            assert column.flags.c_contiguous
            words[at] = column.data.ptr
        # One thread an item or lane: stores to PM from many short threads go faster than from few long ones.
        code.code((-(-items * code.lanes // _THREADS),), (_THREADS,), (code.struct, np.uint64(items)))
        for device, host, is_stored_to in uploaded:
            if is_stored_to:
                device.get(out=host)

    def _run_on_host(self, code: GpuKernel, items: int, keys_per_item: int, arguments: dict[str, Argument]) -> None:
        """Run a kernel on the host's threads; columns of the device travel there, and back if they are stored to."""
        on_host = {name: value if isinstance(value, int) else self.download(value) for name, value in arguments.items()}
        self.host.launch(code.fields.kernel, items, keys_per_item=keys_per_item, **on_host)
        for label in code.fields.stored_to:
            device, host = arguments[label], on_host[label]
            if isinstance(device, cupy.ndarray) and isinstance(host, np.ndarray):
                device.set(host)

    @_explained
    def order(self, fingerprint0: U64, fingerprint1: U64, ops: U8) -> tuple[U32, U32, U32, U32]:
        """See `Backend.order`."""
        if self._is_small:
            return self.host.order(fingerprint0, fingerprint1, ops)
        return order_on_gpu(self, fingerprint0, fingerprint1, ops)

    def mirror_only(self, kernel: str, items: int, arguments: dict[str, Argument]) -> None:
        """Run a kernel that stores to an index on its mirror alone; for benchmarks, nothing is durable."""
        self._follow(self._kernel(kernel), items, arguments, cupy.cuda.get_current_stream().record())

    def registered(self, address: int) -> HostMemory:
        """Return what was registered of an attached file.

        Raises
        ------
        BackendError
            If it was not: its file system does not take the stores of a GPU.
        """
        found = self._registered.get(address)
        if found is None:
            raise BackendError("the files are not on a tmpfs or on persistent memory: the GPU cannot store to them")
        return found

    @staticmethod
    @_explained
    def wait() -> None:
        """Return when the GPU has done all that was launched."""
        runtime.deviceSynchronize()

    def close(self) -> None:
        """See `Backend.close`."""
        self._mirrors.clear()
        for memory in self._registered.values():
            memory.close()
        self._registered.clear()
        self.host.close()
