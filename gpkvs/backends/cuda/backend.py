"""The kernels on one NVIDIA GPU.

CUDA registers the files that kernels store to (the log, the indexes), so that kernels store to PM directly. Every
index has a mirror in device memory, so that kernels never read it over the link. A kernel that stores to an index runs
twice, on PM and on the mirror.

Some kernels run on the host's threads, compiled for the CPU: those that read records, which come from the host and go
back to it; serial ones; and those that store to PM where a GPU's stores would not be durable (an ordinary disk, or
caches that must be written back). docs/gpu.md has the figures.
"""

from __future__ import annotations

import logging
import weakref
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from types import ModuleType
from typing import Any

import cupy
import numpy as np
from cupy.cuda import runtime
from cupy_backends.cuda.api.runtime import CUDARuntimeError
from numpy.typing import NDArray

from gpkvs.backends.base import Argument, Column
from gpkvs.backends.cpu.backend import CpuBackend, adopt_on_host, host_ops_asked
from gpkvs.backends.cuda.break_even import break_even
from gpkvs.backends.cuda.compiler import own_kernels
from gpkvs.backends.cuda.device_memory import DeviceMemory, device_bytes
from gpkvs.backends.cuda.errors import explained
from gpkvs.backends.cuda.host_memory import GrowingHostMemory, HostMemory, pinned
from gpkvs.backends.cuda.kernel import GpuKernel
from gpkvs.backends.cuda.mirror import Mirror
from gpkvs.backends.cuda.order import order_on_gpu
from gpkvs.backends.cuda.sums import total_on_gpu, warm_up
from gpkvs.backends.cuda.transfers import Transfers
from gpkvs.backends.fields import KernelFields
from gpkvs.batch import U8, U32, U64, Batch
from gpkvs.errors import BackendError, NoSpaceError
from gpkvs.fatal import stop_process
from gpkvs.media.image import Image
from gpkvs.media.index import Index
from gpkvs.media.layout import BLOCK_BYTES
from gpkvs.pm.ddio import Ddio, ddio_of
from gpkvs.pm.region import Region

_log = logging.getLogger("gpkvs")

_HOST_AWAKE_NS = 100_000  # the host's shares of log and slots follow each other: to wake a thread takes as long
_THREADS = 256  # of a thread block
_DLPACK_CUDA = 2  # kDLCUDA
_SPARE_BYTES = 1 << 30  # of device memory, for the columns of a batch
_LATE_SLOTS_MAX = 1 << 20  # with so many late slots, a mirror catches up even if nobody reads it
# Batches that only read cross the link in parts: it carries both directions at once. More parts gain nothing.
_PARTS, _PART_OPS_MIN = 4, 1 << 17


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
    xp: ModuleType = cupy
    shared_slots_min = 1 << 13  # fewer take the GPU less time than it takes to divide them

    def __init__(self, threads: int = 0) -> None:
        try:
            self.device = runtime.getDeviceProperties(0)["name"].decode()
        except CUDARuntimeError as error:
            raise BackendError(
                f"no NVIDIA GPU can be used: {error}; look at CUDA_VISIBLE_DEVICES, or use --backend cpu"
            ) from error
        self.host = CpuBackend(threads, _HOST_AWAKE_NS)
        self.host_threads = self.host.host_threads
        self._module = own_kernels()
        self._kernels: dict[str, GpuKernel] = {}
        self._registered: dict[int, HostMemory | GrowingHostMemory] = {}
        self._mirrors: dict[Index, Mirror] = {}
        self._stores_directly = True
        self._warning = ""
        self._transfers = Transfers()
        self._beside = cupy.cuda.Stream(non_blocking=True, priority=-1)  # ahead of the long queue of stores to PM
        warm_up()
        asked = host_ops_asked()
        self.host_ops_max = break_even(self, self.host) if asked is None else asked

    @property
    def description(self) -> str:
        """What runs the kernels, and who stores to PM."""
        who = "it stores to PM directly" if self._stores_directly else "the host's threads store to PM (CAP-mm)"
        return f"cuda ({self.device}; {who}{self._warning})"

    @property
    def kept_bytes(self) -> int:
        """See `Backend.kept_bytes`."""
        return self.host.kept_bytes

    @explained
    def attach(self, region: Region | Image, /) -> None:
        """See `Backend.attach`."""
        if not region.takes_gpu_stores:
            self._stores_directly = False
            return
        self._registered[region.address] = HostMemory(region.address, region.bytes)
        if region.needs_ddio_off and not self._warning:
            self._warn_of_ddio()

    @explained
    def detach(self, region: Region | Image, /) -> None:
        """See `Backend.detach`."""
        self._forget_memory(region.address)

    @explained
    def attach_memory(self, memory: U8, /) -> None:
        """See `Backend.attach_memory`."""
        address = int(memory.ctypes.data)
        self._registered[address] = HostMemory(address, len(memory))
        # Memory that is dropped must not stay registered: the next mapping may get its address.
        weakref.finalize(memory, self._forget_memory, address).atexit = False

    def _forget_memory(self, address: int) -> None:
        registered = self._registered.pop(address, None)
        if registered:
            registered.close()

    @explained
    def attach_index(self, index: Index, /) -> None:
        """See `Backend.attach_index`; a `BackendError` if the GPU has no memory for the mirror."""
        memory = self._mirror_memory(index)
        try:
            # Registered memory crosses the link at its full speed, other memory at a seventh of it.
            mirror = Mirror(index, memory, self._register_index(index))
            mirror.copy_whole()
        except BaseException:
            memory.close()
            self._forget_memory(index.address)
            raise
        self._mirrors[index] = mirror

    def _register_index(self, index: Index) -> GrowingHostMemory | None:
        """Have the GPU reach an index, which may grow later; None if the GPU cannot store to it."""
        region = index.region
        if not region.takes_gpu_stores:
            self._stores_directly = False
            return None
        index.reserve(device_bytes() // BLOCK_BYTES * BLOCK_BYTES)
        registered = self._registered[index.address] = GrowingHostMemory(index.address, region.bytes)
        if region.needs_ddio_off and not self._warning:
            self._warn_of_ddio()
        return registered

    @explained
    def detach_index(self, index: Index, /) -> None:
        """See `Backend.detach_index`."""
        mirror = self._mirrors.pop(index, None)
        self._forget_memory(index.address)
        if mirror:
            self.wait()
            mirror.memory.close()

    def _warn_of_ddio(self) -> None:
        ddio = ddio_of(Path("/sys/bus/pci/devices") / runtime.deviceGetPCIBusId(0).lower())
        if ddio is not Ddio.OFF:
            self._warning = f"; {ddio.value}: what it stored may be lost with the power"
            _log.warning("backend %s", self.description)

    def _mirror_memory(self, index: Index) -> DeviceMemory:
        region = index.region
        free, total = runtime.memGetInfo()
        if region.bytes + _SPARE_BYTES > free + cupy.get_default_memory_pool().free_bytes():
            raise BackendError(
                f"{region.path.name}: its mirror needs {region.bytes:,} bytes of GPU memory and the columns of a batch "
                f"{_SPARE_BYTES:,}; {free:,} of {total:,} are free on {self.device}: use --backend cpu, a smaller "
                "index (gpkvs copy OLD NEW), or a GPU with more memory"
            )
        return DeviceMemory(region.bytes)

    def begin(self) -> None:
        """See `Backend.begin`."""
        self._transfers.finish()
        self.host.begin()

    def parts(self, batch: Batch, /) -> list[tuple[int, int]]:
        """See `Backend.parts`."""
        count = len(batch)
        if count < _PARTS * _PART_OPS_MIN or not isinstance(batch.keys, np.ndarray):
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

    @explained
    def upload(self, column: Column, /) -> Column:
        """See `Backend.upload`."""
        uploaded: Column = self._transfers.upload(column)
        return uploaded

    @explained
    def upload_later(self, column: Column, /) -> Callable[[], Column]:
        """See `Backend.upload_later`."""
        return explained(self._transfers.upload_later(column))

    @explained
    def download(self, column: Column, /) -> Column:
        """See `Backend.download`."""
        return self._transfers.download(column)

    @explained
    def deliver(self, column: Column, /) -> Column:
        """See `Backend.deliver`."""
        return self._transfers.deliver(column)

    @explained
    def delivered(self) -> None:
        """See `Backend.delivered`."""
        self._transfers.delivered()

    @explained
    def download_later(self, column: Column, into: Column, /) -> Callable[[], None]:
        """See `Backend.download_later`."""
        return self._transfers.download_later(column, into)

    @staticmethod
    def result_column(count: int, dtype: type[np.generic], /) -> NDArray[Any]:
        """See `Backend.result_column`."""
        column: NDArray[Any] = pinned(count, dtype)
        return column

    @explained
    def total(self, column: NDArray[Any], /) -> int:
        """See `Backend.total`."""
        return self.host.total(column) if isinstance(column, np.ndarray) else total_on_gpu(column)

    @staticmethod
    def scratch(count: int, dtype: type[np.generic], /) -> NDArray[Any]:
        """See `Backend.scratch`."""
        column: NDArray[Any] = cupy.empty(count, dtype)
        return column

    @explained
    def launch(self, kernel: str, items: int, /, *, keys_per_item: int = 1, **arguments: Argument) -> None:
        """See `Backend.launch`."""
        stored = self._launch(kernel, items, keys_per_item, arguments)
        if stored:
            stored[1].synchronize()  # its stores to PM are there now: the next phase may begin

    @explained
    def launch_unawaited(
        self, kernel: str, items: int, /, *, mirrored: int | None = None, **arguments: Argument
    ) -> Callable[[], float]:
        """See `Backend.launch_unawaited`: a download waits for all kernels before it."""
        stored = self._launch(kernel, items, 1, arguments, mirrored)
        return lambda: _seconds_between(*stored) if stored else 0.0

    def _launch(
        self,
        kernel: str,
        items: int,
        keys_per_item: int,
        arguments: dict[str, Argument],
        mirrored: int | None = None,
    ) -> tuple[Any, Any] | None:
        """Launch a kernel; if it stores to PM, return events before and after it."""
        if items == 0:
            return None
        code = self._kernels.get(kernel) or self._kernel(kernel)
        stored_to = _index_stored_to(code.fields, arguments)
        stream = cupy.cuda.get_current_stream()
        if stored_to:
            self.mirror(stored_to[1])  # a kernel may read the mirror and store to it: slots that lag behind come before
        before = stream.record() if code.fields.stores_to_pm or stored_to else None
        if code.fields.is_serial or not self._reaches(code, arguments):
            self._run_on_host(code, items, keys_per_item, arguments)
        else:
            self._run(code, items, arguments)
        stored = stream.record() if code.fields.stores_to_pm else None
        if stored_to:
            self._follow(code, items if mirrored is None else mirrored, arguments, stored_to, before)
        return (before, stored) if stored else None

    def _kernel(self, name: str) -> GpuKernel:
        fields = KernelFields(name)
        code = None if fields.is_serial else self._module.get_function(name)
        return self._kernels.setdefault(name, GpuKernel(fields, code))

    def _reaches(self, code: GpuKernel, arguments: dict[str, Argument]) -> bool:
        """Whether the GPU can reach all PM that a kernel is given; the mirror serves a read-only index."""
        for field in code.fields.pointers:
            argument = arguments[field.name]
            if isinstance(argument, Index):
                if field.is_stored_to and not self._is_registered(argument.address):
                    return False
            elif isinstance(argument, int) and argument and not self._is_registered(argument):
                return False
        return True

    def _is_registered(self, address: int) -> bool:
        return any(memory.address <= address < memory.address + memory.bytes for memory in self._registered.values())

    def _follow(
        self, code: GpuKernel, items: int, arguments: dict[str, Argument], stored_to: tuple[str, Index], after: Any
    ) -> None:
        """Do to an index's mirror what is done to the index, beside it: both begin after an event."""
        name, index = stored_to
        mirror = self._mirrors[index]
        mirrored = {**arguments, name: mirror.array}
        if self._reaches(code, mirrored):
            self._beside.wait_event(after)
            with self._beside:
                self._run(code, items, mirrored)
            cupy.cuda.get_current_stream().wait_event(self._beside.record())
        else:  # recovery, where the log cannot be reached
            mirror.copy_whole()

    def shares_slots(self, region: Region | Image, count: int, /) -> bool:
        """See `Backend.shares_slots`.

        What the host stores may stay in its caches: not durable where only a GPU's stores pass them by.
        """
        return count >= self.shared_slots_min and region.takes_gpu_stores and not region.needs_ddio_off

    @explained
    def host_stored(self, index: Index, slots: U64, /) -> None:
        """See `Backend.host_stored`; the mirror follows when it is read next."""
        mirror = self._mirrors[index]
        mirror.note(slots)
        if mirror.late_slots > _LATE_SLOTS_MAX:
            self._catch_up(mirror)

    @explained
    def host_stored_blocks(self, index: Index, first: int, last: int, /) -> None:
        """See `Backend.host_stored_blocks`: the mirror gets them at once.

        Slots that were noted before stay noted: they are read from PM when the mirror is read next, as they are then.
        """
        self.wait()
        self._mirrors[index].copy_blocks(first, last)

    def prepare_growth(self, index: Index, /) -> None:
        """See `Backend.prepare_growth`: a thread registers what the file has more; an image would take its memory."""
        registered = self._mirrors[index].registered
        if registered and isinstance(index.region, Region) and index.region.map_ahead(index.grown_bytes):
            registered.prepare(index.grown_bytes)

    @explained
    def grow_index(self, index: Index, /) -> None:
        """See `Backend.grow_index`: the mirror grows, then what was registered; neither is copied if it is large."""
        mirror, size = self._mirrors[index], index.grown_bytes
        mirror.memory.grow(size, _SPARE_BYTES)
        registered = mirror.registered
        if registered is None:
            index.grow_region()
        elif index.region.map_ahead(size):
            index.grow_region()
            registered.grow(size)
        else:
            self._move_index(index, mirror)

    def _move_index(self, index: Index, mirror: Mirror) -> None:
        """Have an index grow that has no room where it is: it is registered anew."""
        self.wait()
        self._forget_memory(index.address)
        try:
            index.grow_region()
        finally:
            try:
                mirror.registered = self._register_index(index)
            except BaseException as error:  # noqa: BLE001 - the next batch stores to it
                stop_process("CUDA could not register a growing index", error)

    def reach_blocks(self, index: Index, first: int, /) -> None:
        """See `Backend.reach_blocks`."""
        registered = self._mirrors[index].registered
        if registered:
            try:
                registered.reach(first * BLOCK_BYTES)
            except BackendError as error:
                raise NoSpaceError("memory", f"the GPU cannot reach {index.region.path.name}: {error}") from error

    def _catch_up(self, mirror: Mirror) -> None:
        """Bring a mirror up to date in the slots that only the host stored to."""
        slots, layout = mirror.take_late(), mirror.index.layout
        contents = np.empty(len(slots) * layout.slot_bytes // 8, np.uint64)
        self.host.launch(f"load_slots_{layout.name}", len(slots), slot=slots, index=mirror.index, contents=contents)
        self._run(
            self._kernel(f"apply_{layout.name}"),
            len(slots),
            {"changed_slot": slots, "contents": contents, "index": mirror.array},
        )

    @explained
    def mirror(self, index: Index) -> Any:
        """Return the mirror of an index, on the device, as the index is now."""
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
            if isinstance(argument, Index):
                words[at] = argument.address if field.is_stored_to else self.mirror(argument).data.ptr
                continue
            if type(argument) is int:
                words[at] = argument
                continue
            column: Any = argument
            if isinstance(column, np.ndarray):
                column = self._transfers.upload(column)
                uploaded.append((column, argument, field.is_stored_to))
            assert field.dtype in (None, column.dtype), f"{code.fields.kernel}.{field.name} is {column.dtype}"
            assert column.flags.c_contiguous
            words[at] = column.data.ptr
        # One thread an item or lane: stores to PM from many short threads go faster than from few long ones.
        code.code((-(-items * code.fields.lanes // _THREADS),), (_THREADS,), (code.struct, np.uint64(items)))
        for device, host, is_stored_to in uploaded:
            if is_stored_to:
                device.get(out=host)

    def _run_on_host(self, code: GpuKernel, items: int, keys_per_item: int, arguments: dict[str, Argument]) -> None:
        """Run a kernel on the host's threads; columns of the device travel there, and back if they are stored to."""
        on_host = {
            name: value if isinstance(value, (int, Index)) else self.download(value)
            for name, value in arguments.items()
        }
        self.host.launch(code.fields.kernel, items, keys_per_item=keys_per_item, **on_host)
        for label in code.fields.stored_to:
            device, host = arguments[label], on_host[label]
            if isinstance(device, cupy.ndarray) and isinstance(host, np.ndarray):
                device.set(host)

    @explained
    def order(self, fingerprint0: U64, fingerprint1: U64, ops: U8) -> tuple[U32, U32, U32, U32]:
        """See `Backend.order`."""
        return order_on_gpu(self, fingerprint0, fingerprint1, ops)

    def mirror_only(self, kernel: str, items: int, arguments: dict[str, Argument]) -> None:
        """Run a kernel that stores to an index on its mirror alone; for benchmarks, nothing is durable."""
        code = self._kernel(kernel)
        stored_to = _index_stored_to(code.fields, arguments)
        assert stored_to
        self._follow(code, items, arguments, stored_to, cupy.cuda.get_current_stream().record())

    def registered(self, address: int) -> HostMemory | GrowingHostMemory:
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
    @explained
    def wait() -> None:
        """Return when the GPU has done all that was launched."""
        runtime.deviceSynchronize()

    def close(self) -> None:
        """See `Backend.close`."""
        for mirror in self._mirrors.values():
            mirror.memory.close()
        self._mirrors.clear()
        for memory in self._registered.values():
            memory.close()
        self._registered.clear()
        self._transfers.close()
        self.host.close()


@explained
def _seconds_between(before: Any, after: Any) -> float:
    """Wait for the second event; return how long after the first one it was."""
    after.synchronize()
    return float(cupy.cuda.get_elapsed_time(before, after)) / 1e3


def _index_stored_to(fields: KernelFields, arguments: dict[str, Argument]) -> tuple[str, Index] | None:
    """Return the index that a kernel stores to, and the name of its argument."""
    for name in fields.stored_to:
        argument = arguments[name]
        if isinstance(argument, Index):
            return name, argument
    return None
