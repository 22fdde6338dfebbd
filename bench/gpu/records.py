"""Times records of 16-byte keys and 100-byte values on a GPU's store, beside the host's threads and the link alone.

The host's threads store the bytes of records to the heap; keys, log and slots cross the link.
"""

from __future__ import annotations

import os
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from time import perf_counter
from types import TracebackType
from typing import Any, Self

import numpy as np

import gpkvs
from gpkvs.batch import Batch, Op, constant
from gpkvs.bench.report.results import Measurement, Run
from gpkvs.config import GIB, MIB, Limits
from gpkvs.media.layout import BYTES_LAYOUT

_KEY_BYTES, _VALUE_BYTES = 16, 100
_BATCHES = 4
_WARM_UP, _TIMED = 8, 3  # rounds over all batches; by the end of the first, every page of the heap was stored to
_COPY_BYTES = 256 * MIB


@dataclass
class HostKernels:
    """Times the kernels that a store runs on the host's threads, by name, and what stores records."""

    store: Any
    seconds: dict[str, float] = field(default_factory=dict)
    _before: float = 0.0

    def __enter__(self) -> Self:
        launch = self.store._backend.host.launch

        def timed(kernel: str, items: int, /, **arguments: Any) -> None:
            begin = perf_counter()
            launch(kernel, items, **arguments)
            self.seconds[kernel] = self.seconds.get(kernel, 0.0) + perf_counter() - begin

        self.store._backend.host.launch = timed
        self._before = self.store.meter.phase_seconds["record"]
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        del self.store._backend.host.launch
        self.seconds["record"] = self.store.meter.phase_seconds["record"] - self._before


def measure_records(folder: Path, count: int, limits: Any) -> tuple[list[Measurement], dict[str, Any]]:
    """Store and read batches of records; return the measurements, and where the time went.

    Parameters
    ----------
    folder
        The directory for the store.
    count
        Operations in a batch.
    limits
        The limits of the link (`gpkvs.bench.gpu.limits.HardwareLimits`).
    """
    store = gpkvs.open(
        folder,
        backend="cuda",
        index_bytes=256 * MIB,
        log_bytes=128 * count,
        heap_bytes=GIB,
        limits=Limits(request_ops_max=count, result_bytes_max=GIB),
    )
    measurements = []
    facts: dict[str, Any] = {"host_copy_gb_per_s": _host_copy_gb_per_s()}
    entry_bytes = BYTES_LAYOUT.chunk_entry_bytes - 8 * BYTES_LAYOUT.key_words
    link_seconds = count * entry_bytes / (
        limits.stream_stores_gb_per_s * 1e9
    ) + count * BYTES_LAYOUT.slot_bytes / 16 / (limits.ordered_slots_m_per_s * 1e6)
    with store:
        backend: Any = store._backend
        batches = [_batches(backend, count, seed) for seed in range(_BATCHES)]
        sets, gets = ([pair[which] for pair in batches] for which in (0, 1))
        for task, requests, warm_up, link in (
            ("SET of records", sets, _WARM_UP, link_seconds),
            ("GET of records", gets, 1, 0.0),
        ):
            measured, facts[task] = _measure(store, task, requests, warm_up, link)
            measurements.append(measured)
    return measurements, facts


def _measure(
    store: gpkvs.Store, task: str, batches: list[Batch], warm_up: int, link_seconds: float
) -> tuple[Measurement, dict[str, Any]]:
    """Time rounds over all batches after some to warm up; return the measurement, and where its time went."""
    for _ in range(warm_up):
        for batch in batches:
            store.execute_requests(batch)
    before, runs = dict(store.meter.phase_seconds), []
    with HostKernels(store) as host:
        for _ in range(_TIMED):
            for batch in batches:
                begin = perf_counter()
                store.execute_requests(batch)
                runs.append(Run(len(batch), perf_counter() - begin))
    measured = Measurement(task, f"host arrays, {_KEY_BYTES} B keys, {_VALUE_BYTES} B values", runs)
    limit = len(batches[0]) / (sum(host.seconds.values()) / len(runs) + link_seconds)
    return measured, {
        "kernels_of_the_host_ms": {name: value / len(runs) * 1e3 for name, value in host.seconds.items()},
        "log_and_slots_over_the_link_ms": link_seconds * 1e3,
        "limit_m_per_s": limit / 1e6,
        "share_of_the_limit": measured.rate / limit,
        "phases_ms": {
            name: (seconds - before[name]) / len(runs) * 1e3
            for name, seconds in store.meter.phase_seconds.items()
            if seconds > before[name]
        },
    }


def _batches(backend: Any, count: int, seed: int) -> tuple[Batch, Batch]:
    """Return SETs of random keys and values, and GETs of the keys, in memory that crosses the link at full speed."""
    rng = np.random.default_rng(seed)
    keys, values = (
        backend.result_column(count * _KEY_BYTES, np.uint8),
        backend.result_column(count * _VALUE_BYTES, np.uint8),
    )
    for column in (keys, values):
        column[:] = rng.integers(0, 256, len(column), np.uint8)
    key_lengths, value_lengths = constant(np.uint32(_KEY_BYTES), count), constant(np.uint32(_VALUE_BYTES), count)
    sets = Batch(constant(np.uint8(Op.SET), count), keys, key_lengths, values, value_lengths)
    gets = Batch(constant(np.uint8(Op.GET), count), keys, key_lengths, values[:0], value_lengths[:0])
    return sets, gets


def _host_copy_gb_per_s() -> float:
    """Return how fast all threads together copy memory, bytes read and written."""
    source, target = np.ones(_COPY_BYTES, np.uint8), np.zeros(_COPY_BYTES, np.uint8)
    threads = len(os.sched_getaffinity(0))
    parts = [slice(*bounds) for bounds in pairwise(_COPY_BYTES * part // threads for part in range(threads + 1))]
    found = []
    with ThreadPoolExecutor(threads) as pool:
        for _ in range(5):
            begin = perf_counter()
            list(pool.map(lambda part: np.copyto(target[part], source[part]), parts))
            found.append(perf_counter() - begin)
    return 2 * _COPY_BYTES / float(np.median(found)) / 1e9
