"""One durable SET, over what the disk takes itself: 4 KiB that are overwritten in a file, and flushed."""

from __future__ import annotations

import os
from collections.abc import Callable
from statistics import median
from time import perf_counter
from typing import Any

from gpkvs.bench.disk.options import OWN, DiskOptions, Found, gpkvs_on_disk, opened
from gpkvs.bench.disk.rounds import in_turn
from gpkvs.bench.engine.workload import SHAPES, Shape, Workload
from gpkvs.bench.peers.contender import Progress
from gpkvs.bench.report.comparison import Comparison
from gpkvs.bench.report.results import latencies_ms

FLUSH = "fdatasync of 4 KiB"
_PAGE_BYTES = 4096
_FILE_PAGES = 4096
_AIM = 1.6


def measure_one_set(options: DiskOptions, progress: Progress, found: Found) -> None:
    """Measure SETs of one record, for both shapes of records, and flushes of the disk in turn with them."""
    file = options.directory / f"gpkvs-bench-flush-{os.getpid()}"
    try:
        with file.open("w+b", buffering=0) as opened_file:
            opened_file.write(bytes(_FILE_PAGES * _PAGE_BYTES))
            os.fsync(opened_file.fileno())
            for shape in SHAPES.values():
                _measure_shape(options, shape, opened_file.fileno(), progress, found)
    finally:
        file.unlink(missing_ok=True)


def _measure_shape(options: DiskOptions, shape: Shape, file: int, progress: Progress, found: Found) -> None:
    workload = Workload(shape, options.records, options.batch)
    with opened((options.directory, gpkvs_on_disk(workload, options, 2 * options.records))) as (store,):
        progress(f"one SET, {shape.text}: {options.rounds} rounds")
        store.load(workload)
        store.settle()
        single = Workload(shape, options.records, batch=1).batches("random", seed=12)
        sets, flushes = in_turn(
            options.rounds,
            [
                lambda: _latencies(options.seconds, lambda: store.prepare_set(next(single)), store.set),
                lambda: _latencies(options.seconds, lambda: os.urandom(_PAGE_BYTES), Flushes(file).flush),
            ],
        )
    found.comparisons.append(
        Comparison(
            what=f"one SET, {shape.text}, p50",
            store=OWN,
            beside=FLUSH,
            ratios=[own["p50"] / disk["p50"] for own, disk in zip(sets, flushes, strict=True)],
            aim=_AIM,
            is_least=False,
            note=f"p50, p99 {_text(sets)} ms; the flush {_text(flushes)} ms",
        )
    )


class Flushes:
    """Overwrites one page of a file after the other.

    Parameters
    ----------
    file
        Its space is allocated and written.
    """

    def __init__(self, file: int) -> None:
        self._file = file
        self._next = 0

    def flush(self, page: bytes) -> None:
        """Write the next page, durably."""
        os.pwrite(self._file, page, self._next * _PAGE_BYTES)
        os.fdatasync(self._file)
        self._next = (self._next + 1) % _FILE_PAGES


def _latencies(seconds: float, prepare: Callable[[], Any], act: Callable[[Any], object]) -> dict[str, float]:
    """Time an act again and again, for some seconds; what it takes is prepared before its clock starts."""
    latencies: list[float] = []
    end = perf_counter() + seconds
    while True:
        prepared = prepare()
        began = perf_counter()
        act(prepared)
        now = perf_counter()
        latencies.append(now - began)
        if now >= end:
            return latencies_ms(latencies, 50, 99)


def _text(rounds: list[dict[str, float]]) -> str:
    return ", ".join(f"{median(one[name] for one in rounds):.3f}" for name in ("p50", "p99"))
