"""The kernels on one NVIDIA GPU, or on several (`gpkvs.backends.cuda.processor`).

CUDA registers the files that kernels store to (the log, the indexes), so that kernels store to PM directly. Several
GPUs hold the mirror of an index together, in stripes that are dealt in turn, and plan a large batch together, each the
keys of its own stripes. Each stores what it planned to PM over its own link.
"""

from __future__ import annotations

import logging
import weakref
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import cupy
import numpy as np
from cupy.cuda import runtime
from numpy.typing import NDArray

from gpkvs.backends.base import Argument, Result
from gpkvs.backends.cpu.backend import CpuBackend, adopt_on_host, host_ops_asked
from gpkvs.backends.cuda.break_even import measure_costs
from gpkvs.backends.cuda.device_memory import DeviceMemory
from gpkvs.backends.cuda.errors import explained
from gpkvs.backends.cuda.gpus import STRIPE_BYTES, Gpus
from gpkvs.backends.cuda.host_memory import GrowingHostMemory, HostMemory
from gpkvs.backends.cuda.mirror import Mirror
from gpkvs.backends.cuda.processor import Attached, GpuProcessor
from gpkvs.backends.cuda.sums import warm_up
from gpkvs.backends.cuda.turns import Turns
from gpkvs.backends.path_costs import PathCosts
from gpkvs.backends.row_cache import RowCaches
from gpkvs.batch import U8, U64
from gpkvs.columns import dlpack
from gpkvs.errors import BackendError, NoSpaceError
from gpkvs.media.image import Image
from gpkvs.media.index import Index
from gpkvs.media.layout import BLOCK_BYTES
from gpkvs.pm.ddio import Ddio, ddio_of
from gpkvs.pm.region import Region
from gpkvs.process.fatal import stop_process

_log = logging.getLogger("gpkvs")

_NULL = 0  # the stream that waits for the others, and they for it

_HOST_AWAKE_NS = 100_000  # the host's shares of chunks follow each other: to wake a thread takes as long
_SPARE_BYTES = 1 << 30  # of device memory, for the columns of a batch
_SHARED_OPS_MIN = 1 << 17  # a smaller batch takes one GPU less time than it takes to have several begin


class Entered(NamedTuple):
    """What a thread used before `CudaBackend.enter`.

    Attributes
    ----------
    device
        The GPU.
    streams
        On the GPUs of the store, the last one first.
    """

    device: int
    streams: list[Any]


class CudaBackend(GpuProcessor):
    """Runs the kernels on GPUs, and on the host's threads what is better done there.

    Parameters
    ----------
    threads
        Of the host; 0 takes one for each processor.
    gpus
        Which GPUs (`Gpus`). The first one runs what one alone does.

    Raises
    ------
    BackendError
        If there is no GPU that can be used, or the kernels do not compile for it.
    """

    name = "cuda"
    stripe_blocks = STRIPE_BYTES // BLOCK_BYTES
    shared_ops_min = _SHARED_OPS_MIN

    def __init__(self, threads: int = 0, gpus: str = "0") -> None:
        self.gpus = Gpus(gpus)
        numbers, host = self.gpus.numbers, CpuBackend(threads, _HOST_AWAKE_NS)
        super().__init__(numbers[0], self.gpus.name(numbers[0]), host, Attached(), Turns(numbers))
        self._stores_directly = True
        self._warning = ""
        self.processors: tuple[GpuProcessor, ...] = (self, *map(self._peer, numbers[1:]))
        self.each([warm_up] * len(self.processors))
        costs, asked = measure_costs(self, self.host), host_ops_asked()
        self._host_ops_max = costs.break_even if asked is None else asked
        self.path_costs = PathCosts(costs.gpu, costs.host) if asked is None else None
        self.row_caches: RowCaches = RowCaches(self, self._free_bytes, self.number, self.stream.ptr)

    @property
    def host_ops_max(self) -> int:
        """See `Backend.host_ops_max`."""
        return self._host_ops_max

    @host_ops_max.setter
    def host_ops_max(self, operations: int) -> None:
        """Have it so from now on, whatever batches take."""
        self._host_ops_max, self.path_costs = operations, None

    def _free_bytes(self) -> int:
        """Return how much memory the first GPU has for rows, beside the columns of a batch."""
        with cupy.cuda.Device(self.number):
            free = runtime.memGetInfo()[0] + cupy.get_default_memory_pool().free_bytes()
        return int(max(0, free - _SPARE_BYTES))

    def _peer(self, number: int) -> GpuProcessor:
        """Make the processor of a GPU beside the first one."""
        with cupy.cuda.Device(number):
            return GpuProcessor(number, self.gpus.name(number), self.host, self._attached, self._turns)

    @explained
    def each(self, calls: Sequence[Callable[[], Result]], /) -> list[Result]:
        """See `Backend.each`; one thread makes them in turns."""
        return self._turns.run(calls)

    def enter(self) -> Entered:
        """See `Backend.enter`: the thread uses the first GPU, and the streams of the store, which follow its own."""
        entered = Entered(runtime.getDevice(), [])
        try:
            for processor in self.processors[::-1]:  # the first one last: it is this thread's
                runtime.setDevice(processor.number)
                theirs, ours = cupy.cuda.get_current_stream(), processor.stream
                if theirs.ptr not in (_NULL, ours.ptr):
                    ours.wait_event(theirs.record())
                entered.streams.append(theirs)
                ours.use()
        except BaseException:  # an interrupt, too: the thread is the program's
            self.leave(entered)
            raise
        return entered

    def leave(self, entered: Entered, /) -> None:
        """See `Backend.leave`: the thread uses the GPU and the streams again that its program has chosen.

        What it launches there from now on comes after what the store has launched.
        """
        taken = self.processors[len(self.processors) - len(entered.streams) :]
        for processor, theirs in zip(taken, entered.streams[::-1], strict=True):
            runtime.setDevice(processor.number)
            if theirs.ptr not in (_NULL, processor.stream.ptr):
                theirs.wait_event(processor.stream.record())
            theirs.use()
        runtime.setDevice(entered.device)

    @explained
    def catch_up(self, index: Index, /) -> None:
        """See `Backend.catch_up`."""
        self._catch_up_with([self._attached.mirrors[index]])

    def _catch_up_with(self, mirrors: Iterable[Mirror]) -> None:
        late = [mirror for mirror in mirrors if mirror.late.is_any]
        if late and len(self.processors) > 1:
            self._wait_for_each_other()  # another GPU may still store what the host has stored over since
        for mirror in late:
            self._catch_up(mirror)

    def catch_up_seconds(self, index: Index, /) -> float:
        """See `Backend.catch_up_seconds`."""
        return self._attached.mirrors[index].catch_up_seconds

    @explained
    def meet(self) -> None:
        """See `Backend.meet`."""
        if len(self.processors) == 1:
            return
        self._catch_up_with(self._attached.mirrors.values())
        self._wait_for_each_other()

    def _wait_for_each_other(self) -> None:
        """Have what each GPU does from now on come after all that the others were told to do before."""
        done = []
        for processor in self.processors:
            runtime.setDevice(processor.number)
            done.append(cupy.cuda.get_current_stream().record())
        for processor in self.processors[::-1]:  # the first one last: it is this thread's
            runtime.setDevice(processor.number)
            for event in done:
                cupy.cuda.get_current_stream().wait_event(event)

    @property
    def description(self) -> str:
        """What runs the kernels, and who stores to PM."""
        who = "it stores to PM directly" if self._stores_directly else "the host's threads store to PM (CAP-mm)"
        return f"cuda ({self.gpus}; {who}{self._warning})"

    @explained
    def attach(self, region: Region | Image, /) -> None:
        """See `Backend.attach`."""
        if not region.takes_gpu_stores:
            self._stores_directly = False
            return
        self._attached.registered[region.address] = HostMemory(region.address, region.bytes)
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
        self._attached.registered[address] = HostMemory(address, len(memory))
        # Memory that is dropped must not stay registered: the next mapping may get its address.
        weakref.finalize(memory, self._forget_memory, address).atexit = False

    def _forget_memory(self, address: int) -> None:
        registered = self._attached.registered.pop(address, None)
        if registered:
            registered.close()

    @explained
    def attach_index(self, index: Index, /) -> None:
        """See `Backend.attach_index`; a `BackendError` if the GPU has no memory for the mirror."""
        memory = self._mirror_memory(index)
        try:
            # Registered memory crosses the link at its full speed, other memory at a seventh of it.
            mirror = Mirror(index, memory, self._register_index(index), self.gpus)
            mirror.copy_whole()
        except BaseException:
            memory.close()
            self._forget_memory(index.address)
            raise
        self._attached.mirrors[index] = mirror

    def _register_index(self, index: Index) -> GrowingHostMemory | None:
        """Have the GPU reach an index, which may grow later; None if the GPU cannot store to it."""
        region = index.region
        if not region.takes_gpu_stores:
            self._stores_directly = False
            return None
        index.reserve(self.gpus.free_and_total()[1] // BLOCK_BYTES * BLOCK_BYTES)
        registered = self._attached.registered[index.address] = GrowingHostMemory(index.address, region.bytes)
        if region.needs_ddio_off and not self._warning:
            self._warn_of_ddio()
        return registered

    @explained
    def detach_index(self, index: Index, /) -> None:
        """See `Backend.detach_index`."""
        mirror = self._attached.mirrors.pop(index, None)
        self.row_caches.forget(index)
        self._forget_memory(index.address)
        if mirror:
            self.wait()
            mirror.memory.close()

    def _warn_of_ddio(self) -> None:
        for number in self.gpus.numbers:
            ddio = ddio_of(Path("/sys/bus/pci/devices") / runtime.deviceGetPCIBusId(number).lower())
            if ddio is not Ddio.OFF and not self._warning:
                self._warning = f"; {ddio.value}: what it stored may be lost with the power"
                _log.warning("backend %s", self.description)

    def _mirror_memory(self, index: Index) -> DeviceMemory:
        region = index.region
        spare = _SPARE_BYTES * len(self.gpus)
        free, total = self.gpus.free_and_total()
        if region.bytes + spare > free + cupy.get_default_memory_pool().free_bytes() and self.row_caches.give_back():
            self.gpus.give_back_unused()
            free, total = self.gpus.free_and_total()
        if region.bytes + spare > free + cupy.get_default_memory_pool().free_bytes():
            raise BackendError(
                f"{region.path.name}: its mirror needs {region.bytes:,} bytes of GPU memory and the columns of a batch "
                f"{spare:,}; {free:,} of {total:,} are free on {self.gpus}: use --backend cpu, a smaller index "
                "(gpkvs copy OLD NEW), more GPUs (--gpus), or GPUs with more memory"
            )
        return DeviceMemory(region.bytes, self.gpus)

    def begin(self) -> None:
        """See `Backend.begin`."""
        for processor in self.processors[::-1]:
            processor.finish()
        self.host.begin()

    def adopt(self, column: Any, /) -> NDArray[Any]:
        """See `Backend.adopt`."""
        if isinstance(column, np.ndarray | cupy.ndarray):
            return column
        if isinstance(column, dlpack.Described):
            return _bytes_of(column)
        if not dlpack.is_on_gpu(column):
            return adopt_on_host(column)
        adopted: NDArray[Any] = cupy.from_dlpack(column)
        return adopted  # of another GPU than the first: its columns are copied where they are used

    @explained
    def follow(self, index: Index, slots: U64, contents: U64, /) -> None:
        """See `Backend.follow`."""
        columns: dict[str, Argument] = {"changed_slot": slots, "contents": contents, "index": index}
        self.mirror_only(f"apply_{index.layout.name}", len(slots), columns)

    def host_stored(self, index: Index, slots: U64, /) -> None:
        """See `Backend.host_stored`; the mirror follows when it is read next."""
        self._attached.mirrors[index].late.note(slots)

    def late_slots(self, index: Index, /) -> int:
        """See `Backend.late_slots`."""
        return self._attached.mirrors[index].late.address

    @explained
    def host_stored_blocks(self, index: Index, first: int, last: int, /) -> None:
        """See `Backend.host_stored_blocks`: the mirror gets them at once.

        Slots that were noted before stay noted: they are read from PM when the mirror is read next, as they are then.
        """
        self.wait()
        self._attached.mirrors[index].copy_blocks(first, last)

    def prepare_growth(self, index: Index, /) -> None:
        """See `Backend.prepare_growth`: a thread registers what the file has more; an image would take its memory."""
        registered = self._attached.mirrors[index].registered
        if registered and isinstance(index.region, Region) and index.region.map_ahead(index.grown_bytes):
            registered.prepare(index.grown_bytes)

    @explained
    def grow_index(self, index: Index, /) -> None:
        """See `Backend.grow_index`: the mirror grows, then what was registered; neither is copied if it is large."""
        mirror, size = self._attached.mirrors[index], index.grown_bytes
        try:
            mirror.grow(size, _SPARE_BYTES)
        except NoSpaceError:
            if not self.row_caches.give_back():
                raise
            mirror.grow(size, _SPARE_BYTES)
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
        registered = self._attached.mirrors[index].registered
        if registered:
            try:
                registered.reach(first * BLOCK_BYTES)
            except BackendError as error:
                raise NoSpaceError("memory", f"the GPU cannot reach {index.region.path.name}: {error}") from error

    def registered(self, address: int) -> HostMemory | GrowingHostMemory:
        """Return what was registered of an attached file.

        Raises
        ------
        BackendError
            If it was not: its file system does not take the stores of a GPU.
        """
        found = self._attached.registered.get(address)
        if found is None:
            raise BackendError("the files are not on a tmpfs or on persistent memory: the GPU cannot store to them")
        return found

    @explained
    def wait(self) -> None:
        """Return when the GPUs have done all that was launched."""
        self.gpus.synchronize()

    def close(self) -> None:
        """See `Backend.close`."""
        self.row_caches.give_back()
        for mirror in self._attached.mirrors.values():
            mirror.memory.close()
        self._attached.mirrors.clear()
        for memory in self._attached.registered.values():
            memory.close()
        self._attached.registered.clear()
        for processor in self.processors:
            processor.close_processor()
        self.host.close()


def _bytes_of(given: dlpack.Described) -> NDArray[Any]:
    """Return the memory of an array of a GPU."""
    if not given.size:
        return np.empty(0, np.uint8)
    memory = cupy.cuda.UnownedMemory(given.address, given.size, given.capsule, given.number)
    held: NDArray[Any] = cupy.ndarray(given.size, np.uint8, cupy.cuda.MemoryPointer(memory, 0))
    return held
