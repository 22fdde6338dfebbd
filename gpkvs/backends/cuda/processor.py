"""One GPU: it runs kernels, and columns go there and back.

Every index has a mirror in the memory of GPUs, so that kernels never read it over the link to the host. A kernel that
stores to an index runs twice, on PM and on the mirror. Where there are several GPUs, each reaches all mirrors and all
PM (`gpkvs.backends.cuda.gpus`).

Some kernels run on the host's threads, compiled for the CPU: those that read records, which come from the host and go
back to it; serial ones; and those that store to PM where a GPU's stores would not be durable (an ordinary disk, or
caches that must be written back). docs/gpu.md has the figures.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from time import perf_counter
from types import ModuleType
from typing import Any, NamedTuple

import cupy
import numpy as np
from cupy.cuda import runtime
from cupy_backends.cuda.api.driver import CUDADriverError
from numpy.typing import NDArray

from gpkvs.backends.base import Argument, Column, Leaving, Stored
from gpkvs.backends.cpu.backend import CpuBackend
from gpkvs.backends.cuda.chunk_queues import PLANS_FIRST, ChunkQueues
from gpkvs.backends.cuda.compiler import own_kernels
from gpkvs.backends.cuda.errors import explained
from gpkvs.backends.cuda.host_memory import GrowingHostMemory, HostMemory, pinned
from gpkvs.backends.cuda.kernel import GpuKernel, new_launcher
from gpkvs.backends.cuda.mirror import Mirror
from gpkvs.backends.cuda.staging import is_pinned
from gpkvs.backends.cuda.sums import total_on_gpu
from gpkvs.backends.cuda.transfers import Transfers
from gpkvs.backends.cuda.turns import Turns
from gpkvs.backends.fields import Field, KernelFields
from gpkvs.backends.look_up import LookUp
from gpkvs.backends.stores import launch_stores
from gpkvs.batch import U8, U32, U64, Status
from gpkvs.media.image import Image
from gpkvs.media.index import Index
from gpkvs.native import launch_sort, launch_sum, library
from gpkvs.pm.region import Region

_SUMMED = (np.uint64, np.uint8, np.bool_)  # columns whose sums native code launches


class Attached:
    """What of a store the GPUs reach.

    Attributes
    ----------
    registered
        Memory of the host, by address.
    mirrors
        Of indexes.
    """

    def __init__(self) -> None:
        self.registered: dict[int, HostMemory | GrowingHostMemory] = {}
        self.mirrors: dict[Index, Mirror] = {}


class _Looked(NamedTuple):
    """What a look-up leaves: in `seen`, `if_there` or the other of 0 and 1; at `missed`, how many it did not find."""

    seen: U8
    values: U64
    if_there: int
    missed: int  # an address; 0: nobody asks


class GpuProcessor:
    """Runs kernels on one GPU, and on the host's threads what is better done there.

    Parameters
    ----------
    number, name
        Of the GPU, as CUDA counts it and as people call it; the calling thread uses it.
    host
        The host's threads.
    attached
        What kernels reach; all GPUs of a store share it.
    turns
        Of the GPUs: another one's call goes on while this GPU is waited for.
    """

    xp: ModuleType = cupy
    shared_slots_min = 1 << 14  # fewer take the GPU less time than it takes to divide them
    chunk_slots_min = 1 << 15

    def __init__(self, number: int, name: str, host: CpuBackend, attached: Attached, turns: Turns) -> None:
        self.number = number
        self.gpu_name = name
        self.host = host
        self.host_threads = host.host_threads
        self._attached = attached
        self._turns = turns
        self._module = own_kernels()
        self._kernels: dict[str, GpuKernel] = {}
        self._transfers = Transfers()
        self.launcher = new_launcher(self._module)
        self._waiter = new_launcher(self._module)
        self.stream = cupy.cuda.Stream(priority=PLANS_FIRST)  # the null stream's kernels, before and after, wait for it
        self._beside = cupy.cuda.Stream(non_blocking=True, priority=PLANS_FIRST)
        # Of the kernel that `launch_unawaited` has launched.
        self._before, self._after, self._followed = (cupy.cuda.Event() for _ in range(3))
        # The slots of one batch leave for the host while those of the one before are stored.
        self._chunk_queues = [ChunkQueues(self.launcher, self._waiter) for _ in range(2)]
        self._total: U64 = pinned(1, np.uint64)
        self._missed: Any = cupy.zeros(1, np.uint64)
        self._look_up_beside = cupy.cuda.Stream(non_blocking=True)
        self._look_up_turns = [cupy.cuda.Event(disable_timing=True) for _ in range(2)]
        self._looked_up = cupy.cuda.Event(disable_timing=True)
        before, after = self._look_up_turns
        self._launched_look_up = LookUp(
            launcher=self.launcher,
            pool=host.host_threads,
            beside=self._look_up_beside.ptr,
            before=before.ptr,
            after=after.ptr,
            done=self._looked_up.ptr,
            told=self._total.ctypes.data,
        )

    def close_processor(self) -> None:
        """End what brings columns over, and what launches."""
        self._transfers.close()
        if self.launcher:
            library.gpkvs_launcher_delete(self.launcher)
            library.gpkvs_launcher_delete(self._waiter)
            self.launcher = 0

    @explained
    def finish(self) -> None:
        """Wait for the columns of a transaction that was given up."""
        self._transfers.finish()

    @explained
    def upload(self, column: Column, /) -> Column:
        """See `Processor.upload`."""
        uploaded: Column = self._transfers.upload(self._own(column))
        return uploaded

    @explained
    def upload_later(self, column: Column, /) -> Callable[[], Column]:
        """See `Processor.upload_later`."""
        arrived = self._transfers.upload_later(self._own(column))

        def wait() -> Column:
            self._turns.next()  # while it is on its way
            uploaded: Column = arrived()
            return uploaded

        return explained(wait)

    def _own(self, column: Column) -> Column:
        """Return a column of another GPU as one of this one's, which may not reach memory of its kind."""
        given: Any = column
        if not isinstance(given, cupy.ndarray) or given.device.id == self.number:
            return column
        with given.device:
            there = cupy.cuda.get_current_stream().record()
        stream: Any = cupy.cuda.get_current_stream()
        stream.wait_event(there)
        copied: Any = cupy.empty(given.shape, given.dtype)
        if given.nbytes:
            addresses = copied.data.ptr, self.number, given.data.ptr, given.device.id
            runtime.memcpyPeerAsync(*addresses, given.nbytes, stream.ptr)
        own: Column = copied
        return own

    @explained
    def download(self, column: Column, /) -> Column:
        """See `Processor.download`."""
        if not (self._turns.are_on and isinstance(column, cupy.ndarray) and column.nbytes):
            return self._transfers.download(column)
        host: Column = pinned(column.size, column.dtype).reshape(column.shape)
        stream = cupy.cuda.get_current_stream()
        column.data.copy_to_host_async(host.ctypes.data, column.nbytes, stream)
        self._wait_for(stream.record())
        return host

    def _wait_for(self, event: Any) -> None:
        self._turns.next()
        event.synchronize()

    @explained
    def deliver(self, column: Column, /) -> Column:
        """See `Processor.deliver`."""
        return self._transfers.deliver(column)

    @explained
    def start_delivery(self) -> None:
        """See `Processor.start_delivery`."""
        self._transfers.start_delivery()

    @explained
    def delivered(self) -> None:
        """See `Processor.delivered`."""
        self._transfers.delivered()

    def leaving(self) -> Leaving:
        """See `Processor.leaving`."""
        return self._transfers.leaving()

    @explained
    def download_later(self, column: Column, into: Column, /) -> Callable[[], None]:
        """See `Processor.download_later`."""
        return self._transfers.download_later(column, into)

    @staticmethod
    def result_column(count: int, dtype: type[np.generic], /) -> NDArray[Any]:
        """See `Processor.result_column`."""
        column: NDArray[Any] = pinned(count, dtype)
        return column

    @explained
    def total(self, column: NDArray[Any], /) -> int:
        """See `Processor.total`."""
        if isinstance(column, np.ndarray):
            return self.host.total(column)
        if len(column) and column.flags.c_contiguous and column.dtype in _SUMMED:
            return self._sum(column)
        return int(self.download(total_on_gpu(column).reshape(1))[0])

    def _sum(self, column: NDArray[Any]) -> int:
        count, given, total = len(column), self.address(column), pinned(1, np.uint64)
        tiles = cupy.empty(library.gpkvs_tiles(count), np.uint64)
        bytes_given, words = 0, given
        if column.itemsize == 1:
            widened = cupy.empty(count, np.uint64)
            bytes_given, words = given, self.address(widened)
        of_column = bytes_given, words, count, self.address(tiles), total.ctypes.data
        self.run_native(partial(launch_sum, self.launcher, self.queue, *of_column))
        self.settle()
        return int(total[0])

    @explained
    def sort(self, words: U64, first: int, /) -> None:
        """Sort words by their bits from `first` on (``plan/radix.hpp``); those alike in these keep their order."""
        count = len(words)
        spare, digits = cupy.empty(count, np.uint64), cupy.empty(library.gpkvs_digit_counts(count), np.uint32)
        of_sort = *[self.address(column) for column in (words, spare, digits)], count, first
        self.run_native(partial(launch_sort, self.launcher, self.queue, *of_sort))

    @explained
    def numbers_where(self, mask: NDArray[Any], /) -> U32:
        """See `Processor.numbers_where`."""
        marks = mask.view(np.uint8)
        ends = marks.cumsum(dtype=np.uint32)
        numbers: U32 = cupy.empty(int(self.download(ends[-1:])[0]) if len(marks) else 0, np.uint32)
        self.launch("pick_numbers", len(marks), marks=marks, ends=ends, numbers=numbers)
        return numbers

    @staticmethod
    def scratch(count: int, dtype: type[np.generic], /) -> NDArray[Any]:
        """See `Processor.scratch`."""
        column: NDArray[Any] = cupy.empty(count, dtype)
        return column

    @explained
    def launch(self, kernel: str, items: int, /, *, keys_per_item: int = 1, **arguments: Argument) -> None:
        """See `Processor.launch`."""
        stored = self._launch(kernel, items, keys_per_item, arguments)
        if stored:
            self._wait_for(stored[1])  # its stores to PM are there now: the next phase may begin

    @explained
    def get_numbers(self, keys: U8, index: Index, status: U8, values: U64, /) -> int:
        """See `Processor.get_numbers`."""
        if not len(status):
            return 0
        self._look_up(keys, index, _Looked(status, values, Status.OK.value, self._missed.data.ptr))
        return int(self._total[0])

    @explained
    def find_numbers(self, keys: U8, index: Index, found: U8, values: U64, /) -> None:
        """See `Processor.find_numbers`."""
        self._look_up(keys, index, _Looked(found, values, 1, 0))

    def _look_up(self, keys: U8, index: Index, looked: _Looked) -> None:
        """Look up keys, and wait: who is interrupted, too, since the GPU stores to columns that are given back."""
        own, plain = self._own(keys), 0
        reached: Any = own  # by the GPU
        if isinstance(own, np.ndarray) and not is_pinned(own):
            reached, plain = pinned(own.size, np.uint8), own.ctypes.data
        hash_key0, hash_key1 = index.hash_keys
        self._launched_look_up.set(
            queue=self.queue,
            count=len(looked.seen),
            plain=plain,
            keys=self.address(reached),
            hash_key0=hash_key0,
            hash_key1=hash_key1,
            index=self.address(index),
            **index.geometry,
            if_there=looked.if_there,
            seen=self.address(looked.seen),
            values=self.address(looked.values),
            missed=looked.missed,
        )
        try:
            if status := self._launched_look_up.launch():
                raise CUDADriverError(status)
            self._wait_for(self._looked_up)
        except BaseException:
            for stream in (cupy.cuda.get_current_stream(), self._look_up_beside):
                stream.synchronize()
            raise

    @explained
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
        """See `Processor.launch_unawaited`."""
        code, mirrored = self._code(kernel), items if mirrored is None else mirrored
        if not mirrored:
            return lambda: Stored(0.0, 0)
        if not self._reaches(code, arguments):
            return self._store_on_host(kernel, items, summed, arguments)
        self._total[0] = 0
        self._launch_natively(code, items, mirrored, summed, arguments)

        def wait() -> Stored:
            self._turns.next()
            return Stored(self._seconds_between(self._before, self._after), int(self._total[0]))

        return wait

    def _launch_natively(
        self, code: GpuKernel, items: int, mirrored: int, summed: U64 | None, arguments: dict[str, Argument]
    ) -> None:
        """Launch a kernel that stores to PM, which the GPU reaches, and what belongs to it."""
        args = {field.name: self._word(field, arguments[field.name]) for field in code.fields.check(arguments)}
        stored_to = _index_stored_to(code.fields, arguments)
        on_mirror = {**args, stored_to[0]: self.address(stored_to[1])} if stored_to else {}
        tiles: Any = cupy.empty(0 if summed is None else library.gpkvs_tiles(items), np.uint64)
        status = launch_stores(
            code.fields.kernel,
            args.values(),
            on_mirror.values(),
            launcher=self.launcher,
            queue=self.queue,
            items=items,
            summed=0 if summed is None else self.address(summed),
            tiles=tiles.data.ptr,
            total=self._total.ctypes.data,
            mirrored=mirrored,
            beside=self._beside.ptr,
            before=self._before.ptr,
            after=self._after.ptr,
            followed=self._followed.ptr,
        )
        if status:
            raise CUDADriverError(status)

    def _word(self, field: Field, argument: Argument) -> int:
        """Return an argument of a kernel as it is launched."""
        if isinstance(argument, int):
            return argument
        if isinstance(argument, Index) and field.is_stored_to:
            return argument.address
        return self.address(argument)

    def _store_on_host(
        self, kernel: str, items: int, summed: U64 | None, arguments: dict[str, Argument]
    ) -> Callable[[], Stored]:
        """Run a kernel whose stores the GPU could not make: it is over at once."""
        begin = perf_counter()
        self.launch(kernel, items, keys_per_item=1, **arguments)
        seconds = perf_counter() - begin
        stored = Stored(seconds, 0 if summed is None else self.total(summed))
        return lambda: stored

    def _launch(
        self, kernel: str, items: int, keys_per_item: int, arguments: dict[str, Argument]
    ) -> tuple[Any, Any] | None:
        """Launch a kernel; if it stores to PM, return events before and after it."""
        if items == 0:
            return None
        code = self._code(kernel)
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
            self._follow(code, items, arguments, stored_to, before)
        return (before, stored) if stored else None

    def _code(self, name: str) -> GpuKernel:
        return self._kernels.get(name) or self._kernel(name)

    def _kernel(self, name: str) -> GpuKernel:
        fields = KernelFields(name)
        function = 0 if fields.is_serial else self._module.get_function(name).kernel.ptr
        return self._kernels.setdefault(name, GpuKernel(fields, function))

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
        memories = self._attached.registered.values()
        return any(memory.address <= address < memory.address + memory.bytes for memory in memories)

    def _follow(
        self, code: GpuKernel, items: int, arguments: dict[str, Argument], stored_to: tuple[str, Index], after: Any
    ) -> None:
        """Do to an index's mirror what is done to the index, beside it: both begin after an event."""
        name, index = stored_to
        mirror = self._attached.mirrors[index]
        mirrored = {**arguments, name: mirror.array}
        if self._reaches(code, mirrored):
            self._beside.wait_event(after)
            with self._beside:
                self._run(code, items, mirrored)
            cupy.cuda.get_current_stream().wait_event(self._beside.record())
        else:  # recovery, where the log cannot be reached
            mirror.copy_whole()

    @explained
    def _seconds_between(self, before: Any, after: Any) -> float:
        """Wait for the second event; return how long after the first one it was."""
        after.synchronize()
        return float(cupy.cuda.get_elapsed_time(before, after)) / 1e3

    def address(self, argument: NDArray[Any] | Index, /) -> int:
        """See `Processor.address`."""
        if isinstance(argument, np.ndarray):  # pinned: the GPU reaches it
            return int(argument.ctypes.data)
        address: int = (self.mirror(argument) if isinstance(argument, Index) else argument).data.ptr
        return address

    @property
    def queue(self) -> int:
        """See `Processor.queue`."""
        stream: int = cupy.cuda.get_current_stream().ptr
        return stream

    @explained
    def run_native(self, launch: Callable[[], int], /) -> None:
        """See `Processor.run_native`."""
        status = launch()
        if status:
            raise CUDADriverError(status)

    @explained
    def settle(self) -> None:
        """See `Processor.settle`."""
        self._wait_for(cupy.cuda.get_current_stream().record())

    def chunk_queues(self, turn: int, /) -> dict[str, int]:
        """See `Processor.chunk_queues`."""
        return {**self._chunk_queues[turn].fields, "queue": self.queue}

    def stores_durably(self, region: Region | Image, /) -> bool:
        """See `Processor.stores_durably`."""
        return region.takes_gpu_stores and not (isinstance(region, Region) and region.syncs)

    def shares_slots(self, region: Region | Image, count: int, /) -> bool:
        """See `Processor.shares_slots`.

        What the host stores may stay in its caches: not durable where only a GPU's stores pass them by.
        """
        return count >= self.shared_slots_min and region.takes_gpu_stores and not region.needs_ddio_off

    def _catch_up(self, mirror: Mirror) -> None:
        """Bring a mirror up to date in the slots that only the host stored to."""
        if mirror.late.are_too_many:
            mirror.copy_whole()
            runtime.setDevice(self.number)
            return
        slots, layout = mirror.late.noted(), mirror.index.layout
        contents = np.empty(len(slots) * layout.slot_bytes // 8, np.uint64)
        self.host.launch(f"load_slots_{layout.name}", len(slots), slot=slots, index=mirror.index, contents=contents)
        self._run(
            self._code(f"apply_{layout.name}"),
            len(slots),
            {"changed_slot": slots, "contents": contents, "index": mirror.array},
        )
        mirror.late.forget()

    @explained
    def mirror(self, index: Index) -> Any:
        """Return the mirror of an index, on the device, as the index is now."""
        mirror = self._attached.mirrors[index]
        if mirror.late.is_any:
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
        code.launch(items)
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

    def mirror_only(self, kernel: str, items: int, arguments: dict[str, Argument]) -> None:
        """Run a kernel that stores to an index on its mirror alone: nothing is durable by it."""
        if not items:
            return
        code = self._code(kernel)
        stored_to = _index_stored_to(code.fields, arguments)
        assert stored_to
        self._follow(code, items, arguments, stored_to, cupy.cuda.get_current_stream().record())


def _index_stored_to(fields: KernelFields, arguments: dict[str, Argument]) -> tuple[str, Index] | None:
    """Return the index that a kernel stores to, and the name of its argument."""
    for name in fields.stored_to:
        argument = arguments[name]
        if isinstance(argument, Index):
            return name, argument
    return None
