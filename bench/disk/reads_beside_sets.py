"""GETs of keys that nobody writes, while another thread makes SETs durable one after the other."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import cycle
from time import perf_counter
from typing import Any

import numpy as np

from gpkvs.bench.disk.options import OWN, DiskOptions, Found, gpkvs_on_disk, opened
from gpkvs.bench.disk.rounds import in_turn
from gpkvs.bench.engine.workload import SHAPES, Workload, mixed
from gpkvs.bench.peers.contender import Contender, Progress
from gpkvs.bench.report.comparison import Comparison

_READ_KEYS = 1024  # the first ones, which no SET has
_PREPARED = 4096
_SIZES = (1, 4096)  # operations of a SET
_AIM = 1.5


def measure_reads_beside_sets(options: DiskOptions, progress: Progress, found: Found) -> None:
    """Measure GETs of one key, without SETs and beside SETs of two sizes."""
    workload = Workload(SHAPES["bytes"], options.records, options.batch)
    with opened((options.directory, gpkvs_on_disk(workload, options, 14 * options.records))) as (store,):
        progress(f"GET beside SETs: loading {options.records:,} records")
        store.load(workload)
        store.settle()
        gets = cycle([store.prepare_get(workload.columns(mixed(number), 0)) for number in _numbers(0, _READ_KEYS, 1)])
        for size in _SIZES:
            progress(f"GET beside SETs of {size}: {options.rounds} rounds")
            sets = _sets(store, workload, size)
            alone, beside = in_turn(
                options.rounds,
                [
                    lambda: _p99(store, gets, options.seconds),
                    lambda sets=sets: _beside(store, gets, sets, options.seconds),  # type: ignore[misc]
                ],
            )
            found.comparisons.append(
                Comparison(
                    what=f"GET of a key that nobody writes, p99 beside SETs of {size}",
                    store=OWN,
                    beside="p99 without",
                    ratios=[one / other for one, other in zip(beside, alone, strict=True)],
                    aim=_AIM if size == 1 else None,
                    is_least=False,
                    note=f"{np.median(beside):.3f} ms over {np.median(alone):.3f} ms",
                )
            )


def _numbers(first: int, last: int, size: int) -> Iterator[Any]:
    """Yield numbers of keys, `size` at a time."""
    for start in range(first, last, size):
        yield np.arange(start, min(start + size, last), dtype=np.uint64)


def _sets(store: Contender, workload: Workload, size: int) -> Iterator[Any]:
    """Return SETs of keys that are not read."""
    random = np.random.default_rng(14)
    first = min(_READ_KEYS, workload.records - 1)
    draws = [random.integers(first, workload.records, size, dtype=np.uint64) for _ in range(max(_PREPARED // size, 64))]
    return cycle([store.prepare_set(workload.columns(mixed(numbers), 1)) for numbers in draws])


def _beside(store: Contender, gets: Iterator[Any], sets: Iterator[Any], seconds: float) -> float:
    with _writer(store, sets):
        p99 = _p99(store, gets, seconds)
    store.settle()
    return p99


@contextmanager
def _writer(store: Contender, sets: Iterator[Any]) -> Iterator[None]:
    """Make SETs in another thread."""
    is_ending = threading.Event()

    def write() -> None:
        while not is_ending.is_set():
            store.set(next(sets))

    thread = threading.Thread(target=write)
    thread.start()
    try:
        yield
    finally:
        is_ending.set()
        thread.join()


def _p99(store: Contender, gets: Iterator[Any], seconds: float) -> float:
    """Return the 99th percentile of GETs, in milliseconds."""
    latencies: list[float] = []
    end = perf_counter() + seconds
    while True:
        prepared = next(gets)
        began = perf_counter()
        store.get(prepared)
        now = perf_counter()
        latencies.append(now - began)
        if now >= end:
            return float(np.percentile(latencies, 99)) * 1e3
