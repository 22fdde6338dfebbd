"""What a store writes to its disk for a byte of its user: as Linux counts it for this process (`process_io`).

One store after the other is open. Its runs follow each other at once, as a load that lasts. What they leave to be done
later (checkpoints, compactions) is waited for at the end, and counts in the overall ratio.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from itertools import cycle, islice
from pathlib import Path
from time import perf_counter
from typing import Any

from gpkvs.bench.disk.options import OWN, DiskOptions, Found, gpkvs_on_disk, opened
from gpkvs.bench.engine.workload import SHAPES, Workload
from gpkvs.bench.peers.contender import BenchError, Contender, Progress
from gpkvs.bench.peers.embedded_gpkvs import EmbeddedGpkvs
from gpkvs.bench.peers.lmdb_peer import Lmdb
from gpkvs.bench.peers.rocksdb_peer import RocksDb
from gpkvs.bench.report.comparison import Comparison
from gpkvs.process.process_io import process_io

_PREPARED = 256  # distinct batches
_SECONDS_EACH = 2  # runs are longer than those of other parts: checkpoints and compactions come in lumps
_AIM = 4


def measure_device_writes(options: DiskOptions, progress: Progress, found: Found) -> None:
    """Measure gpkvs, RocksDB and LMDB."""
    records = Workload(SHAPES["bytes"], options.records, options.batch)
    small = Workload(records.shape, options.records, options.device_batch)
    makers: tuple[tuple[str, Callable[[Path], Contender]], ...] = (
        (OWN, gpkvs_on_disk(records, options, 14 * options.records, options.device_index_bytes)),
        (RocksDb.name, partial(_peer, RocksDb, records)),
        (Lmdb.name, partial(_peer, Lmdb, records)),
    )
    for name, make in makers:
        with opened((options.directory, make)) as (store,):
            progress(f"device writes, {name}: {options.rounds} runs")
            store.load(records)
            store.settle()
            sets = cycle([store.prepare_set(columns) for columns in islice(small.batches("random", 15), _PREPARED)])
            size = options.device_batch * (small.shape.key_bytes + small.shape.value_bytes)
            began = _written()
            runs = [_run(store, sets, size, _SECONDS_EACH * options.seconds) for _ in range(options.rounds)]
            store.settle()
            device = _written() - began
            checkpoints = _checkpoints(store)
        user = sum(given for given, _ in runs)
        found.comparisons.append(
            Comparison(
                what=f"device writes, batches of {options.device_batch:,}",
                store=name,
                beside="user bytes",
                ratios=[written / given for given, written in runs],
                aim=_AIM if name == OWN else None,
                is_least=False,
                overall=device / user,
                note=f"{user / 1e6:,.0f} MB of keys and values{checkpoints}",
            )
        )


def _peer(peer: type[Lmdb | RocksDb], workload: Workload, path: Path) -> Contender:
    return peer(path, workload, "msync", 0)


def _checkpoints(store: Contender) -> str:
    journal = store.journal() if isinstance(store, EmbeddedGpkvs) else None
    return f"; {journal.checkpoints} checkpoints since the store was made" if journal else ""


def _run(store: Contender, sets: Iterator[Any], size: int, seconds: float) -> tuple[int, int]:
    """Make SETs for some seconds; return the bytes of their keys and values, and those that were written."""
    before, given = _written(), 0
    end = perf_counter() + seconds
    while True:
        store.set(next(sets))
        given += size
        if perf_counter() >= end:
            break
    return given, _written() - before


def _written() -> int:
    counted = process_io()
    if counted is None:
        raise BenchError("the system does not say what this process writes: /proc/self/io cannot be read")
    return counted.written_bytes
