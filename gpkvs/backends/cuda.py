"""The kernels on an NVIDIA GPU: the only file that imports CuPy.

A store's index files are registered with CUDA, so that kernels store to PM directly, and mirrored in device memory, so
that they never read it over the link. Where a file cannot be registered (an ordinary disk), and for records, which come
from the host and go back to it, the kernels of the CPU run instead, on columns brought to the host.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from functools import wraps
from statistics import median
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
from gpkvs.backends.cpu import CpuBackend
from gpkvs.batch import U8, U32, U64
from gpkvs.errors import BackendError
from gpkvs.fatal import stop_process
from gpkvs.kernels.source import group_kernels, translation_unit
from gpkvs.native import kernel_symbol

_log = logging.getLogger("gpkvs")

_THREADS = 256  # of a thread block
_LANES = 8  # of an item of a group kernel
_BLOCKS_PER_PROCESSOR = 8
_OPTIONS = ("--std=c++17", "-default-device", "--generate-line-info")
_REGISTER_MAPPED = 0x02  # cudaHostRegisterMapped

# What is stored or read by the host's threads: records of the heap, and what is one serial item.
_ON_HOST = frozenset({"record", "measure", "gather_bytes", "audit_bytes", "admit_bytes", "admit_u64", "admit_records"})

P = ParamSpec("P")
T = TypeVar("T")


def _explained(call: Callable[P, T]) -> Callable[P, T]:
    """Turn an error of CUDA into ours; a GPU that answers nothing any more ends the process."""

    @wraps(call)
    def guarded(*args: P.args, **kwargs: P.kwargs) -> T:
        try:
            return call(*args, **kwargs)
        except (CUDARuntimeError, CUDADriverError, cupy.cuda.memory.OutOfMemoryError) as error:
            what = next((str(argument) for argument in args if isinstance(argument, str)), call.__name__)
            reason = BackendError(f"CUDA, {what}: {error}")
            if _is_lost():
                # The context is gone for good; nothing of this process can run another batch, only recovery can.
                stop_process("the GPU does not answer any more", reason)
            raise reason from error

    return guarded


def _is_lost() -> bool:
    try:
        runtime.deviceSynchronize()
    except (CUDARuntimeError, CUDADriverError):
        return True
    return False


class _Kernel:
    """One kernel: its code for the GPU, and how its arguments are packed."""

    def __init__(self, module: cupy.RawModule, name: str, lanes: int) -> None:
        self.name = name
        self.lanes = lanes
        self.code = module.get_function(name)
        self.fields: list[tuple[str, np.dtype[np.generic] | None, bool]] = []
        for field in kernel_symbol(name).fields.decode().rstrip(";").split(";"):
            kind, _, label = field.rpartition(" ")
            pointed = _DTYPES.get(kind.removeprefix("const ").removesuffix("*"))
            is_pointer = kind.endswith("*")
            self.fields.append((label, pointed if is_pointer else None, is_pointer and not kind.startswith("const ")))
        self.labels = {label for label, _, _ in self.fields}
        self.args_type = np.dtype((np.void, 8 * len(self.fields)))

    def pack(self, arguments: dict[str, Argument]) -> NDArray[np.void]:
        """Pack arguments by name; a missing, extra or mistyped one is our own bug."""
        assert arguments.keys() == self.labels, f"{self.name} takes {sorted(self.labels)}, got {sorted(arguments)}"
        words = np.empty(len(self.fields), np.uint64)
        for at, (label, dtype, _) in enumerate(self.fields):
            argument = arguments[label]
            if isinstance(argument, int):
                words[at] = argument
            else:
                assert dtype is None or argument.dtype == dtype, f"{self.name}.{label} is {argument.dtype}"
                assert isinstance(argument, cupy.ndarray), f"{self.name}.{label} is not on the device"
                assert argument.flags.c_contiguous, f"{self.name}.{label} is not contiguous"
                words[at] = argument.data.ptr
        return words.view(self.args_type)


_DTYPES: dict[str, np.dtype[np.generic]] = {
    "u8": np.dtype(np.uint8),
    "u32": np.dtype(np.uint32),
    "u64": np.dtype(np.uint64),
}


class HostMemory:
    """Memory of the host that kernels can reach, by the same addresses as the host.

    Parameters
    ----------
    address, bytes
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
            # Also clears the error, which the next call would report again.
            runtime.getDeviceCount()
            raise BackendError(f"CUDA, cudaHostRegister of {size:,} bytes: {error}") from error

    def close(self) -> None:
        """Let go of it, before it is unmapped."""
        runtime.hostUnregister(self.address)


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


class CudaBackend:
    """Runs the kernels on one GPU, and on host threads those that work on records.

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

    def __init__(self, threads: int = 0) -> None:
        try:
            count = runtime.getDeviceCount()
        except CUDARuntimeError as error:
            raise BackendError(f"no NVIDIA GPU can be used: {error}; use --backend cpu") from error
        if count == 0:
            raise BackendError("no NVIDIA GPU is visible: use --backend cpu, or look at CUDA_VISIBLE_DEVICES")
        properties = runtime.getDeviceProperties(0)
        self.device = properties["name"].decode()
        self.blocks_max = properties["multiProcessorCount"] * _BLOCKS_PER_PROCESSOR
        self._host = CpuBackend(threads)
        self._module = compile_kernels(translation_unit())
        self._group_kernels = group_kernels()
        self._kernels: dict[str, _Kernel] = {}

    def upload(self, column: Column, /) -> Column:
        """See `Backend.upload`."""
        if isinstance(column, cupy.ndarray):
            return column
        return self._upload(column)

    @_explained
    def _upload(self, column: Any) -> Any:
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

    @_explained
    def launch(self, kernel: str, items: int, /, *, group: int = 1, **arguments: Argument) -> None:
        """See `Backend.launch`."""
        if items == 0:
            return
        code = self._kernel(kernel)
        if kernel in _ON_HOST:
            return self._launch_on_host(code, items, group, arguments)
        threads = items * code.lanes
        blocks = min(-(-threads // _THREADS), self.blocks_max)
        code.code((blocks,), (min(_THREADS, -(-threads // 32) * 32),), (code.pack(arguments), np.uint64(items)))
        return None

    def _kernel(self, name: str) -> _Kernel:
        found = self._kernels.get(name)
        if found is None:
            lanes = _LANES if name in self._group_kernels else 1
            found = self._kernels[name] = _Kernel(self._module, name, lanes)
        return found

    def _launch_on_host(self, code: _Kernel, items: int, group: int, arguments: dict[str, Argument]) -> None:
        """Run a kernel of the CPU on columns brought to the host; take back what it stored."""
        on_host = {
            label: argument if isinstance(argument, int) else self.download(argument)
            for label, argument in arguments.items()
        }
        self._host.launch(code.name, items, group=group, **on_host)
        for label, _, is_stored_to in code.fields:
            argument, result = arguments[label], on_host[label]
            if is_stored_to and isinstance(argument, cupy.ndarray) and not isinstance(result, int):
                argument.set(result)

    @_explained
    def order(self, fingerprint0: U64, fingerprint1: U64, ops: U8) -> tuple[U32, U32, U32, U32]:
        """See `Backend.order`."""
        n = len(ops)
        position = cupy.argsort(fingerprint0).view(np.uint64)
        order, chain_of, last_write, chain_start, write_end = (
            cupy.empty(count, np.uint32) for count in (n, n, n, n + 1, n)
        )
        marks = cupy.empty(n, np.uint64)
        found = cupy.zeros(2, np.uint64)  # collisions; the sum of all marks
        for _ in range(2):
            self.launch(
                "mark",
                n,
                position=position,
                fingerprint0=fingerprint0,
                fingerprint1=fingerprint1,
                ops=ops,
                order=order,
                marks=marks,
                collisions=found,
            )
            sums = cupy.cumsum(marks)
            found[1:] = sums[-1:]
            collisions, total = self._download(found).tolist()
            if not collisions:
                break
            position = cupy.lexsort(cupy.stack([fingerprint1, fingerprint0])).view(np.uint64)
        self.launch(
            "spread", n, marks=marks, sums=sums, chain_of=chain_of, chain_start=chain_start, write_end=write_end
        )
        self.launch("last_writes", n, sums=sums, write_end=write_end, last_write=last_write)
        chains = total >> 32
        chain_start[chains] = n
        return order, chain_of, chain_start[: chains + 1], last_write

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
        return median(found[1:])

    def close(self) -> None:
        """See `Backend.close`."""
        self._host.close()
