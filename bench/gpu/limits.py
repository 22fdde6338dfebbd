"""Measures the limits of a GPU and its link, in the same run as the figures that are compared with them.

It uses a plain shared mapping and device memory, but no store. Rates are medians.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from time import perf_counter
from typing import Any

import numpy as np

from gpkvs.backends.cuda.backend import CudaBackend
from gpkvs.backends.cuda.compiler import compile_kernels
from gpkvs.backends.cuda.host_memory import HostMemory

_REPEATS = 7
_SHARED_REPEATS = 8
_SHARED_PARTS = (0.4, 0.5, 0.6, 0.7, 0.8)  # of the host's threads
_SLOT_BYTES = 16


@dataclass(frozen=True)
class HardwareLimits:
    """The limits; GB are 10^9 bytes, M are 10^6 stores or loads of 16 bytes."""

    upload_gb_per_s: float
    download_gb_per_s: float
    device_copy_gb_per_s: float  # bytes read and written
    stream_stores_gb_per_s: float  # from a kernel to host memory
    ordered_slots_m_per_s: float  # in ascending address order
    ordered_slots_by_word_m_per_s: float
    unordered_slots_m_per_s: float
    shared_slots_m_per_s: float  # by the GPU and the host's threads, each a part, in order
    shared_slots_host_part: float  # of the threads, where that was fastest
    log_and_shared_slots_m_per_s: float  # the same while the GPU stores an entry of the log for each
    log_and_shared_slots_host_part: float
    host_loads_m_per_s: float  # by a kernel, at random
    mirror_loads_m_per_s: float  # the same in device memory
    launch_us: float
    fence_cycles: float

    def log_and_slots_m_per_s(self, entry_bytes: int) -> float:
        """Return the rate of SETs if each stored its log entry and its slot and nothing else."""
        log_us = entry_bytes / (self.stream_stores_gb_per_s * 1e3)
        return 1 / (log_us + 1 / self.ordered_slots_m_per_s)

    def mixed_m_per_s(self, sets: float) -> float:
        """Return the rate of GETs and a part of SETs if nothing but the link and the slots took time.

        Keys, kinds and values go up; then log and slots are stored; statuses and values go back.
        """
        up_us = (8 + 1 + 8 * sets) / (self.upload_gb_per_s * 1e3)
        down_us = (1 + 8 * (1 - sets)) / (self.download_gb_per_s * 1e3)
        return 1 / (up_us + down_us + sets / self.log_and_shared_slots_m_per_s)

    def as_dict(self) -> dict[str, float]:
        """Return them by name."""
        return asdict(self)


def device_seconds(backend: CudaBackend, run: Callable[[], object], repeats: int) -> float:
    """Return how long the device works on what `run` launches: the median of some repeats, after a first one."""
    cuda: Any = backend.xp.cuda
    begin, end = cuda.Event(), cuda.Event()
    found = []
    for _ in range(1 + repeats):
        begin.record()
        run()
        end.record()
        end.synchronize()
        found.append(cuda.get_elapsed_time(begin, end) / 1e3)
    return float(np.median(found[1:]))


class _Probe:
    """Runs the kernels of limits.cu."""

    def __init__(self, backend: CudaBackend) -> None:
        self._backend = backend
        self._kernels = compile_kernels((Path(__file__).parent / "limits.cu").read_text())

    def rate(self, amount: float, run: Callable[[], object]) -> float:
        """Return what `run` does in a second, of the `amount` that it does each time."""
        return amount / device_seconds(self._backend, run, _REPEATS)

    def launch(self, name: str, *arguments: Any, grid: int = 0, threads: int = 256) -> Callable[[], object]:
        """Return a launch; by default of one thread for each item, and the last argument is their number."""
        code = self._kernels.get_function(name)
        blocks = grid or -(-int(arguments[-1]) // threads)
        return lambda: code((blocks,), (threads,), arguments)


def measure_limits(backend: CudaBackend, memory: HostMemory, slots: int, entry_bytes: int) -> HardwareLimits:
    """Measure every limit once.

    Parameters
    ----------
    backend
        The backend of the GPU.
    memory
        Registered host memory of the size and kind that an index has.
    slots
        How many slots a batch changes.
    entry_bytes
        Of the log that each of them takes.
    """
    xp: Any = backend.xp
    probe = _Probe(backend)
    rate, run = probe.rate, probe.launch
    pm = memory.address
    everywhere = np.random.default_rng(1).integers(0, memory.bytes // _SLOT_BYTES, slots, np.uint64)
    unordered, ordered = xp.asarray(everywhere), xp.asarray(np.sort(everywhere))
    sums = xp.empty(slots, np.uint64)
    bulk = 1 << 30
    device, other = xp.zeros(bulk, np.uint8), xp.zeros(bulk, np.uint8)
    table = xp.zeros(min(memory.bytes, 8 << 30), np.uint8)
    stream_slots = np.uint64(min(bulk, memory.bytes) // _SLOT_BYTES)
    count = np.uint64(slots)
    shared = _shared_slots(backend, probe, memory, slots, entry_bytes=0)
    logged = _shared_slots(backend, probe, memory, slots, entry_bytes)
    cycles = xp.zeros(1, np.uint64)
    run("fence_cycles", np.uint64(pm), cycles, np.uint64(1000), grid=1, threads=1)()
    upload = min(bulk, memory.bytes)
    return HardwareLimits(
        upload_gb_per_s=rate(upload / 1e9, lambda: device.data.copy_from_host_async(pm, upload)),
        download_gb_per_s=rate(upload / 1e9, lambda: device.data.copy_to_host_async(pm, upload)),
        device_copy_gb_per_s=rate(2 * bulk / 1e9, lambda: other.data.copy_from_device_async(device.data, bulk)),
        stream_stores_gb_per_s=rate(
            int(stream_slots) * _SLOT_BYTES / 1e9, run("store_stream", np.uint64(pm), stream_slots)
        ),
        ordered_slots_m_per_s=rate(slots / 1e6, run("store_slots", np.uint64(pm), ordered, count)),
        ordered_slots_by_word_m_per_s=rate(slots / 1e6, run("store_slots_by_word", np.uint64(pm), ordered, count)),
        shared_slots_m_per_s=shared[0],
        shared_slots_host_part=shared[1],
        log_and_shared_slots_m_per_s=logged[0],
        log_and_shared_slots_host_part=logged[1],
        unordered_slots_m_per_s=rate(slots / 1e6, run("store_slots", np.uint64(pm), unordered, count)),
        host_loads_m_per_s=rate(slots / 1e6, run("load_slots", np.uint64(pm), unordered, sums, count)),
        mirror_loads_m_per_s=rate(
            slots / 1e6, run("load_slots", table, unordered % np.uint64(len(table) // 16), sums, count)
        ),
        launch_us=device_seconds(backend, lambda: [run("nothing", grid=1, threads=32)() for _ in range(1000)], 3) * 1e3,
        fence_cycles=float(cycles[0]),
    )


def _shared_slots(
    backend: CudaBackend, probe: _Probe, memory: HostMemory, slots: int, entry_bytes: int
) -> tuple[float, float]:
    """Return the highest rate of slots that both processors store, and the part of the host's threads.

    With `entry_bytes`, the GPU stores so many for each slot meanwhile, side by side. Each time other slots are stored,
    so that none of them is in a cache.
    """
    rng, xp = np.random.default_rng(2), backend.xp
    contents = rng.integers(0, 1 << 62, (slots, 2), np.uint64)
    every = [np.sort(rng.integers(0, memory.bytes // _SLOT_BYTES, slots, np.uint64)) for _ in range(_SHARED_REPEATS)]
    every_on_device = [xp.asarray(places) for places in every]
    found = []
    entries, beside = np.uint64(slots * entry_bytes // _SLOT_BYTES), xp.cuda.Stream(non_blocking=True)
    for part in _SHARED_PARTS:
        middle, seconds = slots - int(slots * part), []
        for places, on_device in zip(every, every_on_device, strict=True):
            backend.wait()
            begin = perf_counter()
            if entry_bytes:
                with beside:
                    probe.launch("store_stream", np.uint64(memory.address), entries)()
            probe.launch("store_slots", np.uint64(memory.address), on_device, np.uint64(middle))()
            backend.host.launch(
                "apply_u64",
                slots - middle,
                changed_slot=places[middle:],
                contents=contents[middle:],
                index=memory.address,
            )
            backend.wait()
            seconds.append(perf_counter() - begin)
        found.append((slots / 1e6 / float(np.median(seconds)), part))
    return max(found)
