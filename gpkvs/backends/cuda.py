"""The kernels on an NVIDIA GPU: the only file that imports CuPy.

The files of a store that kernels store to (its log, its indexes) are registered with CUDA, so that kernels store to PM
directly; every index is mirrored in device memory, so that kernels never read it over the link. A kernel that stores to
an index runs twice, on PM and on the mirror.

On the host's threads run, with the kernels of the CPU: what works on records, which come from the host and go back to
it; what is one serial item; small batches, for which a launch costs more than the work; and stores to PM where those of
a GPU would not be durable (an ordinary disk, or caches that must be written back). docs/gpu.md has the figures.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from functools import cache, wraps
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
from gpkvs.backends.cpu import CpuBackend, adopt_on_host
from gpkvs.backends.fields import KernelFields
from gpkvs.batch import U8, U32, U64, Batch, Op
from gpkvs.errors import BackendError
from gpkvs.fatal import stop_process
from gpkvs.kernels.source import group_kernels, pm_kernels, translation_unit
from gpkvs.pm.region import Region

_THREADS = 256  # of a thread block
_LANES = 8  # of an item of a group kernel
_OPTIONS = ("--std=c++17", "-default-device", "--generate-line-info")
_REGISTER_MAPPED = 0x02  # cudaHostRegisterMapped
_DLPACK_CUDA = 2  # kDLCUDA
_SPARE_BYTES = 1 << 30  # of device memory, for the columns of a batch

_SERIAL = frozenset({"admit_bytes", "admit_u64", "admit_records"})

# In the environment: the largest batch that runs on the host, in place of what is measured. Tests set it to 0.
SMALL_OPS_MAX = "GPKVS_SMALL_OPS_MAX"

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
                # The context is gone for good: nothing in this process can run a batch any more.
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


class _Kernel:
    """One kernel: its code for the GPU, and how its arguments are packed."""

    def __init__(self, module: cupy.RawModule, name: str) -> None:
        self.fields = KernelFields(name)
        self.code = module.get_function(name)
        self.lanes = _LANES if name in group_kernels() else 1
        self.is_serial = name in _SERIAL
        self.stores_to_pm = name in pm_kernels()
        self.stores_to_index = "index" in self.fields.stored_to
        # The arguments as words, and the same memory as the struct that a launch copies.
        self.words = np.empty(len(self.fields.fields), np.uint64)
        self.struct = self.words.view(np.dtype((np.void, self.words.nbytes)))


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
        self._module = _own_kernels()
        self._kernels: dict[str, _Kernel] = {}
        self._registered: dict[int, HostMemory] = {}
        self._mirrors: dict[int, cupy.ndarray] = {}
        self._stores_directly = True
        self._is_small = False
        self._copies = cupy.cuda.Stream(non_blocking=True)
        self._arrived: cupy.cuda.Event | None = None
        asked = os.environ.get(SMALL_OPS_MAX, "")
        if asked and not asked.isdecimal():
            raise BackendError(f"{SMALL_OPS_MAX}={asked}: it must be a number of operations")
        self.small_ops_max = int(asked) if asked else _break_even(self)

    @property
    def description(self) -> str:
        """What runs the kernels, and who stores to PM."""
        who = "it stores to PM directly" if self._stores_directly else "the host's threads store to PM (CAP-mm)"
        return f"cuda ({self.device}; {who})"

    @property
    def xp(self) -> ModuleType:
        """See `Backend.xp`; NumPy during a small batch."""
        module: ModuleType = np if self._is_small else cupy
        return module

    @_explained
    def attach(self, region: Region, *, mirrored: bool) -> None:
        """See `Backend.attach`.

        Raises
        ------
        BackendError
            If the GPU has no memory for the mirror.
        """
        if mirrored:
            self._mirrors[region.address] = self._mirror(region)
        if not region.takes_gpu_stores:
            self._stores_directly = False
            return
        self._registered[region.address] = HostMemory(region.address, region.bytes)

    def _mirror(self, region: Region) -> cupy.ndarray:
        free, total = runtime.memGetInfo()
        if region.bytes + _SPARE_BYTES > free + cupy.get_default_memory_pool().free_bytes():
            raise BackendError(
                f"{region.path.name}: its mirror needs {region.bytes:,} bytes of GPU memory and the columns of a batch "
                f"{_SPARE_BYTES:,}; {free:,} of {total:,} are free on {self.device}: use --backend cpu, a smaller "
                "--index-bytes, or a GPU with more memory"
            )
        mirror = cupy.empty(region.bytes, np.uint8)
        mirror.data.copy_from_host(region.address, region.bytes)
        return mirror

    @_explained
    def detach(self, region: Region) -> None:
        """See `Backend.detach`."""
        self._mirrors.pop(region.address, None)
        registered = self._registered.pop(region.address, None)
        if registered:
            registered.close()

    def begin(self, batch: Batch, /) -> None:
        """See `Backend.begin`; a small batch of the host runs there, where PM is as near."""
        if self._arrived is not None:
            # A column of a transaction that was given up may still be on its way into memory that is free now.
            cupy.cuda.get_current_stream().wait_event(self._arrived)
            self._arrived = None
        self._is_small = len(batch) <= self.small_ops_max and isinstance(batch.keys, np.ndarray)
        self.host.begin(batch)

    def adopt(self, column: Any, /) -> NDArray[Any]:
        """See `Backend.adopt`."""
        on_device = hasattr(column, "__dlpack_device__") and column.__dlpack_device__()[0] == _DLPACK_CUDA
        if isinstance(column, np.ndarray) or not on_device:
            return adopt_on_host(column)
        adopted: NDArray[Any] = cupy.from_dlpack(column)
        return adopted

    def upload(self, column: Column, /) -> Column:
        """See `Backend.upload`."""
        if self._is_small:
            return self.host.upload(self.download(column))
        if isinstance(column, cupy.ndarray):
            return column
        uploaded: Column = self._upload(column)
        return uploaded

    def upload_later(self, column: Column, /) -> Callable[[], Column]:
        """See `Backend.upload_later`."""
        if self._is_small or isinstance(column, cupy.ndarray) or column.strides == (0,):
            return lambda: self.upload(column)
        return self._upload_later(column)

    @_explained
    def _upload_later(self, column: Any) -> Callable[[], Any]:
        device = cupy.empty(column.shape, column.dtype)
        # Memory that was just given back may still be in use by the kernels launched before.
        self._copies.wait_event(cupy.cuda.get_current_stream().record())
        if column.nbytes:
            device.data.copy_from_host_async(column.ctypes.data, column.nbytes, self._copies)
        arrived = self._arrived = self._copies.record()

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

    def download(self, column: Column, /) -> Column:
        """See `Backend.download`."""
        return self._download(column) if isinstance(column, cupy.ndarray) else column

    @_explained
    def _download(self, column: Any) -> Any:
        host = cupyx.empty_pinned(column.shape, column.dtype)
        if column.nbytes:
            column.get(out=host)
        return host

    @staticmethod
    def pinned(count: int, dtype: type[np.generic]) -> Any:
        """Return an uninitialised column of the host that crosses the link at full speed, while other things run."""
        return cupyx.empty_pinned(count, dtype)

    def scratch(self, count: int, dtype: type[np.generic], /) -> NDArray[Any]:
        """See `Backend.scratch`."""
        return self.host.scratch(count, dtype) if self._is_small else cupy.empty(count, dtype)

    @_explained
    def launch(self, kernel: str, items: int, /, *, group: int = 1, **arguments: Argument) -> None:
        """See `Backend.launch`."""
        if items == 0:
            return
        code = self._kernels.get(kernel) or self._kernel(kernel)
        if self._is_small or code.is_serial or not self._reaches(code, arguments):
            self._run_on_host(code, items, group, arguments)
        else:
            self._run(code, items, arguments)
        if not code.stores_to_pm:
            return
        stored = cupy.cuda.get_current_stream().record()
        if code.stores_to_index:
            self._follow(code, items, arguments)
        if not self._is_small:
            # What it stored to PM is there when `launch` returns: the next phase may begin. The mirror follows.
            stored.synchronize()

    def _kernel(self, name: str) -> _Kernel:
        return self._kernels.setdefault(name, _Kernel(self._module, name))

    def _reaches(self, code: _Kernel, arguments: dict[str, Argument]) -> bool:
        """Whether the GPU can reach all PM that a kernel is given; an index it reads, it has."""
        for field in code.fields.pointers:
            address = arguments[field.name]
            reads_mirror = field.name == "index" and not field.is_stored_to
            if isinstance(address, int) and address and not reads_mirror and not self._is_registered(address):
                return False
        return True

    def _is_registered(self, address: int) -> bool:
        return any(memory.address <= address < memory.address + memory.bytes for memory in self._registered.values())

    def _follow(self, code: _Kernel, items: int, arguments: dict[str, Argument]) -> None:
        """Do to an index's mirror what was done to the index."""
        index = arguments["index"]
        assert isinstance(index, int)
        mirrored = {**arguments, "index": self._mirrors[index]}
        if self._reaches(code, mirrored):
            self._run(code, items, mirrored)
        else:  # recovery, where the log cannot be reached
            mirror = self._mirrors[index]
            mirror.data.copy_from_host(index, mirror.nbytes)

    def _run(self, code: _Kernel, items: int, arguments: dict[str, Argument]) -> None:
        """Run a kernel on the GPU; columns of the host travel there, and back if they are stored to."""
        words = code.words
        uploaded: list[tuple[Any, Any, bool]] = []  # kept until the launch: memory given back may be handed out again
        for at, field in enumerate(code.fields.check(arguments)):
            argument = arguments[field.name]
            if type(argument) is int:
                is_read = field.name == "index" and not field.is_stored_to
                words[at] = self._mirrors[argument].data.ptr if is_read else argument
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

    def _run_on_host(self, code: _Kernel, items: int, group: int, arguments: dict[str, Argument]) -> None:
        """Run a kernel on the host's threads; columns of the device travel there, and back if they are stored to."""
        on_host = {
            label: argument if isinstance(argument, int) else self.download(argument)
            for label, argument in arguments.items()
        }
        self.host.launch(code.fields.kernel, items, group=group, **on_host)
        for label in code.fields.stored_to:
            device, host = arguments[label], on_host[label]
            if isinstance(device, cupy.ndarray) and isinstance(host, np.ndarray):
                device.set(host)

    def order(self, fingerprint0: U64, fingerprint1: U64, ops: U8) -> tuple[U32, U32, U32, U32]:
        """See `Backend.order`."""
        if self._is_small:
            return self.host.order(fingerprint0, fingerprint1, ops)
        return self._order(fingerprint0, fingerprint1, ops)

    @_explained
    def _order(self, fingerprint0: U64, fingerprint1: U64, ops: U8) -> tuple[U32, U32, U32, U32]:
        n = len(ops)
        order, chain_of, last_write, chain_start, write_end = (
            cupy.empty(count, np.uint32) for count in (n, n, n, n + 1, n)
        )
        marks = cupy.empty(n, np.uint64)
        position = cupy.argsort(fingerprint0)
        while True:
            found = cupy.zeros(2, np.uint64)  # keys that only fingerprint1 tells apart, chains
            self.launch(
                "mark",
                n,
                position=position.view(np.uint64),
                fingerprint0=fingerprint0,
                fingerprint1=fingerprint1,
                ops=ops,
                order=order,
                marks=marks,
                found=found,
            )
            sums = cupy.cumsum(marks)
            self.launch(
                "spread",
                n,
                marks=marks,
                sums=sums,
                count=n,
                chain_of=chain_of,
                chain_start=chain_start,
                write_end=write_end,
                found=found,
            )
            self.launch("last_writes", n, sums=sums, write_end=write_end, last_write=last_write)
            collisions, chains = self._download(found).tolist()
            if not collisions or position.dtype == np.uint64:
                return order, chain_of, chain_start[: chains + 1], last_write
            position = cupy.lexsort(cupy.stack([fingerprint1, fingerprint0])).astype(np.uint64)

    def mirror_only(self, kernel: str, items: int, arguments: dict[str, Argument]) -> None:
        """Run a kernel that stores to an index on its mirror alone; for benchmarks, what it does is not durable."""
        self._follow(self._kernel(kernel), items, arguments)

    def mirror(self, index: int) -> Any:
        """Return the mirror of the index at an address, on the device."""
        return self._mirrors[index]

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

    @staticmethod
    def seconds(run: Callable[[], object], repeats: int) -> float:
        """Return how long the device works on what `run` launches: the median of some repeats, after a first one."""
        begin, end = cupy.cuda.Event(), cupy.cuda.Event()
        found = []
        for _ in range(1 + repeats):
            begin.record()
            run()
            end.record()
            end.synchronize()
            found.append(cupy.cuda.get_elapsed_time(begin, end) / 1e3)
        return float(np.median(found[1:]))

    def close(self) -> None:
        """See `Backend.close`."""
        self._mirrors.clear()
        for memory in self._registered.values():
            memory.close()
        self._registered.clear()
        self.host.close()


def _break_even(backend: CudaBackend) -> int:
    """Return the batch size for which launches on the GPU cost what all the work costs on the host, measured here.

    `order` is about a third of a transaction on either side: its time for a few operations on the GPU is the time of
    its launches, its time for many on the host is that of its work.
    """
    few, many = 64, 8192
    rng = np.random.default_rng(1)
    word0, word1 = rng.integers(0, 1 << 63, many, np.uint64), np.zeros(many, np.uint64)
    ops = np.full(many, Op.SET, np.uint8)
    on_gpu = [cupy.asarray(column[:few]) for column in (word0, word1, ops)]
    launches = _seconds(lambda: backend.order(*on_gpu))
    work = _seconds(lambda: backend.host.order(word0, word1, ops))
    return int(launches / work * many)


def _seconds(run: Callable[[], object]) -> float:
    """Return the shortest of a few runs."""
    found = []
    for _ in range(5):
        begin = time.perf_counter()
        run()
        found.append(time.perf_counter() - begin)
    return min(found)
