"""The kernels on the CPU: several threads, Python's lock released."""

from __future__ import annotations

import ctypes
import os
from collections.abc import Callable, Sequence
from functools import cache
from time import perf_counter
from types import ModuleType
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gpkvs.backends.base import Argument, Column, Leaving, Processor, Result, Stored
from gpkvs.backends.cpu.workspace import Workspace
from gpkvs.backends.fields import Field, KernelFields
from gpkvs.backends.path_costs import ALL_OPS, PathCosts
from gpkvs.backends.row_cache import RowCaches
from gpkvs.backends.stores import launch_stores
from gpkvs.batch import U8, U32, U64, Status
from gpkvs.errors import BackendError, InvalidArgumentError, NoMemoryError
from gpkvs.media.image import Image
from gpkvs.media.index import Index
from gpkvs.native import KernelSymbol, kernel_symbol, library
from gpkvs.pm.region import Region

# In the environment: the largest batch that runs on the host, in place of what is known or measured. Tests set it to 0.
HOST_OPS_MAX = "GPKVS_HOST_OPS_MAX"

_SUMMED_HERE = 1 << 16  # numbers: more are summed by all threads

_NO_CHARS = ctypes.c_char * 0


class _Kernel:
    """One kernel: its symbol, and how its arguments are packed."""

    def __init__(self, name: str) -> None:
        self.symbol: KernelSymbol = kernel_symbol(name)
        self.reference = ctypes.byref(self.symbol)
        self.fields = KernelFields(name)
        assert 8 * len(self.fields.fields) == self.symbol.args_bytes, f"{name}: an argument is not 8 bytes"
        self.args_type = ctypes.c_uint64 * len(self.fields.fields)

    def pack(self, arguments: dict[str, Argument]) -> ctypes.Array[ctypes.c_uint64]:
        """Pack arguments by name; a missing, extra or mistyped one is our own bug."""
        return self.args_type(*[self._word(arguments[field.name], field) for field in self.fields.check(arguments)])

    def _word(self, argument: Argument, field: Field) -> int:
        if isinstance(argument, int):
            return argument
        if isinstance(argument, Index):
            return argument.address if field.is_stored_to else argument.image
        assert field.dtype is None or argument.dtype == field.dtype, (
            f"{self.fields.kernel}.{field.name} is {argument.dtype}"
        )
        return address_of(argument)


def address_of(column: NDArray[np.generic]) -> int:
    """Return where a contiguous array begins.

    By the buffer protocol where it gives it away: NumPy's own attributes take ten times as long, and a transaction of
    one operation asks for about fifty addresses.
    """
    if column.flags.writeable:
        return ctypes.addressof(_NO_CHARS.from_buffer(column.data))
    assert column.flags.c_contiguous
    return int(column.ctypes.data)


def adopt_on_host(column: Any) -> NDArray[Any]:
    """Return an array of another library as one of NumPy, uncopied.

    Raises
    ------
    InvalidArgumentError
        If its memory is not the host's.
    """
    if isinstance(column, np.ndarray):
        return column
    try:
        adopted: NDArray[Any] = np.from_dlpack(column)
    except (AttributeError, BufferError, TypeError, RuntimeError) as error:
        raise InvalidArgumentError(
            f"a {type(column).__name__} that the backend cannot reach ({error}): an array of the host is needed, or "
            "one of the GPU with the backend cuda"
        ) from error
    return adopted


def host_ops_asked() -> int | None:
    """Return the largest batch that runs on the host, if the environment says it.

    Raises
    ------
    BackendError
        If it says no number.
    """
    asked = os.environ.get(HOST_OPS_MAX, "")
    if asked and not asked.isdecimal():
        raise BackendError(f"{HOST_OPS_MAX}={asked}: it must be a number of operations")
    return int(asked) if asked else None


@cache
def _kernel(name: str) -> _Kernel:
    return _Kernel(name)


class CpuBackend:
    """Runs the kernels that a C++ compiler made when the package was built.

    Parameters
    ----------
    threads
        How many threads share a kernel; 0 takes one for each processor this process may use.
    awake_ns
        How long a thread looks for more to do after a kernel, before it sleeps, in nanoseconds.
    """

    name = "cpu"
    description = "cpu"
    xp: ModuleType = np
    path_costs: PathCosts | None = None
    stripe_blocks = 1
    shared_ops_min = ALL_OPS
    row_caches: RowCaches | None = None
    queue = 0
    chunk_slots_min = 1

    def __init__(self, threads: int = 0, awake_ns: int = 0) -> None:
        self.threads = threads or len(os.sched_getaffinity(0))
        self._workspace = Workspace()
        self.host_threads: int = library.gpkvs_pool_new(self.threads, awake_ns) or 0
        if not self.host_threads:
            raise NoMemoryError
        self.launcher: int = library.gpkvs_host_launcher_new(self.host_threads) or 0
        if not self.launcher:
            CpuBackend.close(self)
            raise NoMemoryError
        asked = host_ops_asked()
        self.host_ops_max = ALL_OPS if asked is None else asked

    @property
    def host(self) -> CpuBackend:
        """See `Processor.host`."""
        return self

    @property
    def processors(self) -> Sequence[Processor]:
        """See `Backend.processors`: the threads are one."""
        return (self,)

    def each(self, calls: Sequence[Callable[[], Result]], /) -> list[Result]:
        """See `Backend.each`: one after the other."""
        return [call() for call in calls]

    def meet(self) -> None:
        """See `Backend.meet`; all is done when it is launched."""

    def enter(self) -> int:
        """See `Backend.enter`; any thread will do."""
        return 0

    def leave(self, entered: int, /) -> None:
        """See `Backend.leave`."""

    def catch_up(self, index: Index, /) -> None:
        """See `Backend.catch_up`; there is no other image."""

    def catch_up_seconds(self, index: Index, /) -> float:
        """See `Backend.catch_up_seconds`."""
        del index
        return 0.0

    def upload(self, column: Column, /) -> Column:
        """See `Processor.upload`."""
        return column if column.flags.c_contiguous else column.copy()

    def upload_later(self, column: Column, /) -> Callable[[], Column]:
        """See `Processor.upload_later`."""
        return lambda: self.upload(column)

    def download(self, column: Column, /) -> Column:
        """See `Processor.download`."""
        return column

    def deliver(self, column: Column, /) -> Column:
        """See `Processor.deliver`."""
        return column

    def start_delivery(self) -> None:
        """See `Processor.start_delivery`; they are there."""

    def delivered(self) -> None:
        """See `Processor.delivered`; all are."""

    def leaving(self) -> Leaving:
        """See `Processor.leaving`; they are there."""
        return Leaving(0, ())

    def download_later(self, column: Column, into: Column, /) -> Callable[[], None]:
        """See `Processor.download_later`; done at once."""
        np.copyto(into, column)
        return lambda: None

    def result_column(self, count: int, dtype: type[np.generic], /) -> NDArray[Any]:
        """See `Processor.result_column`."""
        return np.empty(count, dtype)

    def total(self, column: NDArray[Any], /) -> int:
        """See `Processor.total`."""
        if column.dtype == np.uint64 and len(column) > _SUMMED_HERE and column.flags.c_contiguous:
            return int(library.gpkvs_sum(self.host_threads, address_of(column), len(column)))
        is_truth = column.dtype == np.bool_  # which NumPy counts ten times as fast as it sums
        return int(np.count_nonzero(column) if is_truth else column.sum(dtype=np.uint64))

    def numbers_where(self, mask: NDArray[Any], /) -> U32:
        """See `Processor.numbers_where`."""
        numbers: U32 = np.flatnonzero(mask).astype(np.uint32)
        return numbers

    def scratch(self, count: int, dtype: type[np.generic], /) -> NDArray[Any]:
        """See `Processor.scratch`."""
        return self._workspace.take(count, dtype)

    def begin(self) -> None:
        """See `Backend.begin`."""
        self._workspace.recycle()

    def adopt(self, column: Any, /) -> NDArray[Any]:
        """See `Backend.adopt`."""
        return adopt_on_host(column)

    def attach(self, region: Region | Image, /) -> None:
        """See `Backend.attach`; the CPU's kernels need mapped memory only."""

    def detach(self, region: Region | Image, /) -> None:
        """See `Backend.detach`."""

    def attach_memory(self, memory: U8, /) -> None:
        """See `Backend.attach_memory`."""

    def attach_index(self, index: Index, /) -> None:
        """See `Backend.attach_index`."""

    def detach_index(self, index: Index, /) -> None:
        """See `Backend.detach_index`."""

    def launch(self, kernel: str, items: int, /, *, keys_per_item: int = 1, **arguments: Argument) -> None:
        """See `Processor.launch`."""
        if items == 0:
            return
        assert self.host_threads, "the backend is closed"
        code = _kernel(kernel)
        library.gpkvs_run(self.host_threads, code.reference, code.pack(arguments), items, keys_per_item)

    def get_numbers(self, keys: U8, index: Index, status: U8, values: U64, /) -> int:
        """See `Processor.get_numbers`."""
        missed: U64 = np.zeros(1, np.uint64)
        self._look_up(keys, index, status, values, if_there=Status.OK.value, missed=missed)
        return int(missed[0])

    def find_numbers(self, keys: U8, index: Index, found: U8, values: U64, /) -> None:
        """See `Processor.find_numbers`."""
        self._look_up(keys, index, found, values, if_there=1, missed=0)

    def _look_up(
        self, keys: U8, index: Index, seen: U8, values: U64, *, if_there: int, missed: NDArray[Any] | int
    ) -> None:
        hash_key0, hash_key1 = index.hash_keys
        self.launch(
            "get_u64",
            len(seen),
            keys=keys,
            hash_key0=hash_key0,
            hash_key1=hash_key1,
            index=index,
            **index.geometry,
            if_there=if_there,
            seen=seen,
            source_word=values,
            missed=missed,
        )

    def launch_unawaited(
        self,
        kernel: str,
        items: int,
        /,
        *,
        mirrored: int | None = None,
        summed: U64 | None = None,
        **arguments: Argument,
    ) -> Callable[[], Stored]:
        """See `Processor.launch_unawaited`; it is over at once, and there is no other image."""
        del mirrored
        args, total = _kernel(kernel).pack(arguments), (ctypes.c_uint64 * 1)()
        begin = perf_counter()
        launch_stores(
            kernel,
            args,
            launcher=self.launcher,
            items=items,
            summed=0 if summed is None else address_of(summed),
            total=ctypes.addressof(total),
        )
        stored = Stored(perf_counter() - begin, total[0])
        return lambda: stored

    def address(self, argument: NDArray[Any] | Index, /) -> int:
        """See `Processor.address`."""
        return argument.image if isinstance(argument, Index) else address_of(argument)

    def run_native(self, launch: Callable[[], int], /) -> None:
        """See `Processor.run_native`; all is done when it returns, and no driver can fail."""
        launch()

    def settle(self) -> None:
        """See `Processor.settle`; all is done when it is launched."""

    def chunk_queues(self, turn: int, /) -> dict[str, int]:
        """See `Processor.chunk_queues`; all is done when it is launched."""
        del turn
        return {"launcher": self.launcher, "waiter": self.launcher}

    def stores_durably(self, region: Region | Image, /) -> bool:
        """See `Processor.stores_durably`."""
        return not (isinstance(region, Region) and region.syncs)

    def shares_slots(self, region: Region | Image, count: int, /) -> bool:
        """See `Processor.shares_slots`; it is the host."""
        del region, count
        return False

    def follow(self, index: Index, slots: U64, contents: U64, /) -> None:
        """See `Backend.follow`; there is no other image."""

    def host_stored(self, index: Index, slots: U64, /) -> None:
        """See `Backend.host_stored`; there is no other image."""

    def late_slots(self, index: Index, /) -> int:
        """See `Backend.late_slots`."""
        del index
        return 0

    def host_stored_blocks(self, index: Index, first: int, last: int, /) -> None:
        """See `Backend.host_stored_blocks`; there is no other image."""

    def prepare_growth(self, index: Index, /) -> None:
        """See `Backend.prepare_growth`; there is nothing to do ahead."""

    def reach_blocks(self, index: Index, first: int, /) -> None:
        """See `Backend.reach_blocks`; what is mapped is in reach."""

    def grow_index(self, index: Index, /) -> None:
        """See `Backend.grow_index`."""
        index.grow_region()

    def order(self, fingerprint0: U64, fingerprint1: U64, ops: U8) -> tuple[U32, U32, U32, U32]:
        """Sort operations by fingerprint, in arrival order inside a key.

        Returns
        -------
        order : (n,) uint32
            The operation at each sorted position.
        chain_of : (n,) uint32
            The chain (all operations of one key) of each position.
        chain_start : (chains + 1,) uint32
            The first position of each chain.
        last_write : (n,) uint32
            1 + the position of the last SET or DELETE at or before each position, in its chain. Where the chain has
            none, it is 0 or that of an earlier chain's, which is not above where this one starts.
        """
        n = len(ops)
        order, chain_of, last_write = (self.scratch(n, np.uint32) for _ in range(3))
        chain_start = self.scratch(n + 1, np.uint32)
        columns: list[NDArray[np.generic]] = [order, chain_of, chain_start, last_write]
        assert self.host_threads, "the backend is closed"
        chains = library.gpkvs_order(
            self.host_threads,
            *[address_of(column) for column in (fingerprint0, fingerprint1, ops)],
            n,
            *[address_of(column) for column in columns],
        )
        if chains > n:
            raise MemoryError(f"{n:,} operations could not be sorted")
        return order, chain_of, chain_start[: chains + 1], last_write

    def close(self) -> None:
        """See `Backend.close`."""
        if self.launcher:
            library.gpkvs_launcher_delete(self.launcher)
            self.launcher = 0
        if self.host_threads:
            library.gpkvs_pool_delete(self.host_threads)
            self.host_threads = 0
