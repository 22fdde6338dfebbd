"""How late the slowest SETs are while a store tidies up: a checkpoint of gpkvs, flushes and compactions of RocksDB."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from itertools import cycle, islice
from pathlib import Path
from time import perf_counter
from typing import Any

import numpy as np

from gpkvs.bench.disk.options import DiskOptions, Found, gpkvs_on_disk, opened
from gpkvs.bench.disk.rounds import in_turn
from gpkvs.bench.engine.workload import SHAPES, Workload
from gpkvs.bench.peers.contender import BenchError, Contender, Progress
from gpkvs.bench.peers.embedded_gpkvs import EmbeddedGpkvs
from gpkvs.bench.peers.rocksdb_peer import RocksDb
from gpkvs.bench.report.comparison import Comparison

# Operations of a SET whose latency counts. SETs of one record would not fill RocksDB's memtable in hours.
_SIZES: dict[str, tuple[int, ...]] = {EmbeddedGpkvs.name: (1, 256), RocksDb.name: (256,)}
_PREPARED = 4096  # distinct SETs
_FILL_BATCHES = 16
_AIM = 2
_LOOKS_EACH = 16  # SETs between two looks whether the store still tidies up
_FILL_SECONDS_MAX = 120.0
_PART_OF_RUN = 2  # a run ends after so many times its seconds, even if the store tidied up in few of them


def measure_tails(options: DiskOptions, progress: Progress, found: Found) -> None:
    """Measure both stores, with SETs of one record and of some."""
    workload = Workload(SHAPES["bytes"], options.records, options.batch)
    sets_max = 14 * options.records
    with opened(
        (options.directory, gpkvs_on_disk(workload, options, sets_max)),
        (options.directory, partial(_rocksdb, workload)),
    ) as stores:
        for store in stores:
            progress(f"tails: loading {options.records:,} records into {store.name}")
            store.load(workload)
            store.settle()
        progress(f"tails of SETs: {options.rounds} rounds")
        tails = [_Tail(store, workload, size, options.seconds) for store in stores for size in _SIZES[store.name]]
        results = in_turn(
            options.rounds, [partial(tail.p99, tidying=tidying) for tail in tails for tidying in (True, False)]
        )
        for tail, slow, quick in zip(tails, results[0::2], results[1::2], strict=True):
            found.comparisons.append(_comparison(tail.store, tail.size, slow, quick))


def _rocksdb(workload: Workload, path: Path) -> Contender:
    return RocksDb(path, workload, "msync", 0)


def _comparison(store: Contender, size: int, slow: list[float], quick: list[float]) -> Comparison:
    is_own = isinstance(store, EmbeddedGpkvs)
    what = "a checkpoint runs" if is_own else "it flushes or compacts"
    count = "one record" if size == 1 else f"{size} records"
    return Comparison(
        what=f"SET of {count}, p99 while {what}",
        store=store.name,
        beside="p99 without",
        ratios=[one / other for one, other in zip(slow, quick, strict=True)],
        aim=_AIM if is_own else None,
        is_least=False,
        note=f"{np.median(slow):.2f} ms over {np.median(quick):.2f} ms",
    )


@dataclass
class _Tail:
    """SETs of one store, while it tidies up or while it does not."""

    store: Contender
    workload: Workload
    size: int
    seconds: float

    def __post_init__(self) -> None:
        small = Workload(self.workload.shape, self.workload.records, self.size)
        count = max(_PREPARED // self.size, 64)
        self._small = self._prepared(small, count)
        self._large = self._prepared(self.workload, _FILL_BATCHES)

    def _prepared(self, workload: Workload, count: int) -> Iterator[Any]:
        return cycle([self.store.prepare_set(columns) for columns in islice(workload.batches("random", 13), count)])

    def p99(self, *, tidying: bool) -> float:
        """Return the 99th percentile in milliseconds, of SETs for some seconds."""
        if not tidying:
            self._empty_journal()
            self.store.settle()
        latencies: list[float] = []
        give_up = perf_counter() + _PART_OF_RUN * self.seconds
        while not latencies or (sum(latencies) < self.seconds and perf_counter() < give_up):
            if tidying:
                self._fill_until_tidying()
            elif self.store.is_tidying():
                break  # a journal that is full enough for a checkpoint ends the part without one
            latencies += [self._one() for _ in range(_LOOKS_EACH)]
        self.store.settle()
        return float(np.percentile(latencies, 99)) * 1e3

    def _one(self) -> float:
        prepared = next(self._small)
        began = perf_counter()
        self.store.set(prepared)
        return perf_counter() - began

    def _empty_journal(self) -> None:
        """Have a checkpoint written, so that the next one is far."""
        if isinstance(self.store, EmbeddedGpkvs):
            self._fill_until_tidying()

    def _fill_until_tidying(self) -> None:
        give_up = perf_counter() + _FILL_SECONDS_MAX
        while not self.store.is_tidying():
            self.store.set(next(self._large))
            if perf_counter() > give_up:
                raise BenchError(f"{self.store.name} has nothing to tidy up after {_FILL_SECONDS_MAX:.0f} s of SETs")
