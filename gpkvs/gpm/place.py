"""Where kernels run: the host's threads over NumPy's arrays, or a GPU over CuPy's."""

from __future__ import annotations

import ctypes
import math
import os
import struct
import threading
import weakref
from collections.abc import Callable, Iterator, Sequence
from functools import cache
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from gpkvs.backends.cpu.backend import CpuBackend, address_of, adopt_on_host
from gpkvs.backends.fields import KernelFields, fields_of_user
from gpkvs.backends.user_kernel import UserKernel
from gpkvs.errors import BackendError, InvalidArgumentError
from gpkvs.gpm.host_compiler import compile_for_host
from gpkvs.native import IS_TRACED, KernelSymbol, kernel_symbol, library, number
from gpkvs.pm.mapping import map_memory
from gpkvs.pm.region import Region

_BYTES = np.dtype(np.uint8)
_LOADED_AT_ONCE = number("GPM_LOADED_AT_ONCE")
_ALL_OF_A_THREAD = 2048  # the keys of an item that takes so long that each is worth another thread


class Place(Protocol):
    """Where kernels run.

    Attributes
    ----------
    name
        "cpu", or "cuda:0".
    xp
        The module of its arrays: NumPy or CuPy.
    is_gpu
        Whether it is a GPU.
    """

    name: str
    is_gpu: bool

    def __hash__(self) -> int: ...  # places are compared by identity

    @property
    def xp(self) -> ModuleType: ...  # noqa: D102 - above

    def can_reach(self, region: Region, /) -> bool:
        """Whether `reach` can work: a GPU does not reach files of a disk, nor what is mapped to be read only."""

    def reach(self, region: Region, /) -> None:
        """Have kernels reach a file's region, until `leave`.

        Raises
        ------
        BackendError
            If they cannot: a GPU does not reach the files of an ordinary disk.
        """

    def leave(self, region: Region, /) -> None:
        """Let go of a region, before it is closed."""

    def require_stores(self, region: Region, /) -> None:
        """Raise `BackendError` unless what a kernel stores to a file is durable when the kernel's fence returns."""

    def view(self, address: int, dtype: np.dtype[Any], shape: tuple[int, ...], owner: object, /) -> Any:
        """Return memory of a region that it reaches as an array of `xp`; nothing is copied."""

    def compile(self, source: str, name: str, /) -> Callable[[str], UserKernel]:
        """Compile kernels; what is returned finds one by its name, and raises `KeyError`."""

    def own_kernels(self) -> Callable[[str], UserKernel]:
        """Return what finds the kernels of the library itself."""

    def launch(self, kernel: UserKernel, items: int, words: Sequence[int], /) -> None:
        """Launch a kernel after those before it."""

    def settle(self) -> None:
        """Return when all that was launched is done: what it stored is durable then."""

    def address(self, array: Any, /) -> int:
        """Return where an array of `xp` begins.

        Raises
        ------
        InvalidArgumentError
            If it is not one that kernels reach, or is not contiguous.
        """

    def words(self, values: Sequence[int] | NDArray[np.uint64], /) -> Any:
        """Return a column of u64 with these values, in memory that is near to kernels."""

    def marks(self, count: int, /) -> NDArray[np.uint8]:
        """Return bytes of the host that kernels reach, too."""

    def save(self, call: int, count: int, /) -> int:
        """Run a `GpmSave` (``kernels/gpm/gpm_save.hpp``), after what was launched before.

        Parameters
        ----------
        call
            Its address.
        count
            Bytes of the arrays.

        Returns
        -------
        int
            How many of them differ: they are stored then, durably as far as no call of the system is needed.
        """

    def to_host(self, array: Any, /) -> NDArray[Any]:
        """Return an array of `xp` as one of NumPy; it may be the same."""

    def adopt(self, array: Any, /) -> Any:
        """Return an array of another library as one of `xp`, uncopied.

        Raises
        ------
        InvalidArgumentError
            If it is not in memory that the place reaches.
        """

    def snapshot(self, columns: Sequence[Any], /) -> list[Any] | None:
        """Return copies of columns as they are after what was launched so far; None if there is no memory for them."""

    def beside(self, work: Callable[[], None], /) -> Callable[[], None]:
        """Return work for another thread, which follows what was launched so far, beside what will be."""

    def copy_in(self, column: Any, address: int, /) -> None:
        """Begin to fill a column of bytes from a region that it reaches."""

    def pieces(self, column: Any, first: int, last: int, /) -> Iterator[tuple[int, memoryview]]:
        """Yield bytes of a column piece by piece on the host, each with its first byte; the next one is on its way."""

    def fill(self, column: Any, read: Callable[[int, memoryview], None], /) -> None:
        """Begin to fill a column of bytes with what `read` brings: it is given a first byte and memory of the host."""

    def free_bytes(self) -> int:
        """Return how much of its memory is free now."""


def host_view(address: int, dtype: np.dtype[Any], shape: tuple[int, ...], owner: object) -> NDArray[Any]:
    """Return memory of the host as an array; its owner lives as long as a view of it."""
    memory: Any = (ctypes.c_uint8 * max(1, math.prod(shape) * dtype.itemsize)).from_address(address)
    memory._owner = owner
    return np.frombuffer(memory, dtype, math.prod(shape)).reshape(shape)


class _Threads:
    """Native threads, which end with the thread that they belong to."""

    def __init__(self, threads: int) -> None:
        backend = CpuBackend(threads)
        self.pool = backend.host_threads
        # Not at the interpreter's exit: another thread may still run kernels. Not in the child of a fork, which drops
        # what belonged to threads that it has not: native threads are not there either.
        weakref.finalize(self, _close_here, backend, os.getpid()).atexit = False


def _close_here(backend: CpuBackend, process: int) -> None:
    if os.getpid() == process:
        backend.close()


class HostPlace:
    """The host's threads.

    Parameters
    ----------
    threads
        How many share a kernel; 0: one for each processor this process may use. Every thread that launches kernels has
        so many of its own: a pool runs one kernel at a time.
    """

    name = "cpu"
    is_gpu = False
    xp: ModuleType = np

    def __init__(self, threads: int = 0) -> None:
        self._count = threads
        self._threads = threading.local()
        self._loads: UserKernel | None = None

    @property
    def pool(self) -> int:
        """The address of the calling thread's native pool."""
        try:
            own: _Threads = self._threads.own
        except AttributeError:
            own = self._threads.own = _Threads(self._count)
        return own.pool

    def can_reach(self, region: Region, /) -> bool:
        """See `Place.can_reach`."""
        return True

    def reach(self, region: Region, /) -> None:
        """See `Place.reach`: what is mapped is in reach."""

    def leave(self, region: Region, /) -> None:
        """See `Place.leave`."""

    def require_stores(self, region: Region, /) -> None:
        """See `Place.require_stores`."""
        if region.syncs:
            raise BackendError(
                f"{region.path} is on an ordinary disk, where no fence of a kernel makes a store durable: use a file "
                "on persistent memory or tmpfs, a checkpoint, or durability='process' (a crash of the process only)"
            )

    def view(self, address: int, dtype: np.dtype[Any], shape: tuple[int, ...], owner: object, /) -> Any:
        """See `Place.view`."""
        return host_view(address, dtype, shape, owner)

    def compile(self, source: str, name: str, /) -> Callable[[str], UserKernel]:
        """See `Place.compile`."""
        compiled = compile_for_host(source, name)
        compiled.gpm_attach.argtypes = [ctypes.c_uint32, ctypes.c_void_p]

        def find(kernel: str) -> UserKernel:
            try:
                symbol = KernelSymbol.in_dll(compiled, f"gpkvs_kernel_{kernel}")
            except ValueError as error:
                raise KeyError(kernel) from error
            fields = fields_of_user(kernel, symbol.fields)
            assert symbol.args_bytes == 8 * len(fields)
            threads = symbol.lanes if symbol.lanes > 1 else 0
            return UserKernel(fields, threads, (compiled, symbol))

        return find

    def own_kernels(self) -> Callable[[str], UserKernel]:
        """See `Place.own_kernels`."""

        def find(kernel: str) -> UserKernel:
            threads = _ALL_OF_A_THREAD if kernel == "gpm_load" else 0
            return UserKernel(KernelFields(kernel).fields, threads, (None, kernel_symbol(kernel)))

        return find

    def launch(self, kernel: UserKernel, items: int, words: Sequence[int], /) -> None:
        """See `Place.launch`."""
        compiled, symbol = kernel.handle
        if compiled:
            compiled.gpm_attach(library.gpkvs_write_back(), library.gpkvs_trace_state() if IS_TRACED else None)
        arguments = (ctypes.c_uint64 * len(words))(*words)
        keys_per_item = max(1, kernel.block_threads)
        library.gpkvs_run(self.pool, ctypes.byref(symbol), arguments, items, keys_per_item)

    def settle(self) -> None:
        """See `Place.settle`: a launch returns when it is done."""

    def address(self, array: Any, /) -> int:
        """See `Place.address`."""
        if not isinstance(array, np.ndarray):
            raise InvalidArgumentError(f"a {type(array).__name__}: kernels of the CPU take arrays of NumPy")
        if not array.flags.c_contiguous:
            raise InvalidArgumentError("an array that is not contiguous: use numpy.ascontiguousarray")
        return address_of(array)

    def words(self, values: Sequence[int] | NDArray[np.uint64], /) -> Any:
        """See `Place.words`."""
        return np.array(values, np.uint64)

    def marks(self, count: int, /) -> NDArray[np.uint8]:
        """See `Place.marks`."""
        return np.zeros(count, np.uint8)

    def save(self, call: int, count: int, /) -> int:
        """See `Place.save`."""
        return int(library.gpkvs_gpm_save(self.pool, call))

    def to_host(self, array: Any, /) -> NDArray[Any]:
        """See `Place.to_host`."""
        return np.asarray(array)

    def adopt(self, array: Any, /) -> Any:
        """See `Place.adopt`."""
        return adopt_on_host(array)

    def snapshot(self, columns: Sequence[Any], /) -> list[Any] | None:
        """See `Place.snapshot`."""
        try:
            copies: list[Any] = [map_memory(len(column)) if len(column) else column.copy() for column in columns]
        except MemoryError:
            return None
        for column, copy in zip(columns, copies, strict=True):
            self._load(column, copy)
        return copies

    def beside(self, work: Callable[[], None], /) -> Callable[[], None]:
        """See `Place.beside`."""
        return work

    def copy_in(self, column: Any, address: int, /) -> None:
        """See `Place.copy_in`."""
        self._load(host_view(address, _BYTES, (len(column),), None), column)

    def _load(self, source: NDArray[Any], target: NDArray[Any]) -> None:
        """Copy bytes by several threads."""
        if self._loads is None:
            self._loads = self.own_kernels()("gpm_load")
        words = [source.ctypes.data, target.ctypes.data, len(source)]
        self.launch(self._loads, -(-len(source) // _LOADED_AT_ONCE), words)

    def pieces(self, column: Any, first: int, last: int, /) -> Iterator[tuple[int, memoryview]]:
        """See `Place.pieces`: one piece."""
        yield first, memoryview(column[first:last])

    def fill(self, column: Any, read: Callable[[int, memoryview], None], /) -> None:
        """See `Place.fill`."""
        read(0, memoryview(column))

    def free_bytes(self) -> int:
        """See `Place.free_bytes`: what Linux could give without swapping."""
        for line in Path("/proc/meminfo").read_text().splitlines():
            name, value = line.split()[:2]
            if name == "MemAvailable:":
                return int(value) << 10
        return os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")


@cache
def _named(name: str) -> Place:
    kind, _, number = name.partition(":")
    if name == "cpu":
        return HostPlace()
    if kind != "cuda" or (number and not number.isdecimal()):
        raise InvalidArgumentError(f"place={name!r}: there are 'cpu', 'cuda' and 'cuda:1' (the second GPU)")
    try:
        place: Place = import_module("gpkvs.backends.cuda.gpm_place").GpuPlace(int(number or 0))
    except ModuleNotFoundError as error:
        raise BackendError(
            f"place={name!r} needs CuPy ({error}): pip install 'gpkvs[cuda13]' (or gpkvs[cuda12], by the driver), or "
            "use place='cpu'"
        ) from error
    return place


_finding = threading.Lock()


def find_place(place: Place | str) -> Place:
    """Return a place by its name: "cpu", "cuda" or "cuda:1".

    Raises
    ------
    InvalidArgumentError
        If there is no such name.
    BackendError
        If it cannot run here.
    """
    if not isinstance(place, str):
        return place
    with _finding:  # one place for all threads
        return _named("cuda:0" if place == "cuda" else place)


def double_word(value: float) -> int:
    """Return the bits of a double."""
    return int.from_bytes(struct.pack("<d", value), "little")
