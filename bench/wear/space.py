"""How much space the files of a store take for what it holds, after many overwrites."""

from __future__ import annotations

from functools import partial
from itertools import islice
from pathlib import Path
from tempfile import TemporaryDirectory

from gpkvs.bench.engine.workload import Shape, Workload
from gpkvs.bench.peers.contender import Contender, Progress
from gpkvs.bench.peers.embedded_gpkvs import EmbeddedGpkvs, index_bytes
from gpkvs.bench.report.comparison import Comparison
from gpkvs.bench.wear.options import WEAR_PEERS, Found, WearOptions, stored_bytes
from gpkvs.bench.wear.worn_store import wear
from gpkvs.bench.wear.zipfian import overwrites

SHAPE = Shape("kilobyte", 16, 1008)
_AIM = 1.5
_BATCH = 1024


def measure_space(options: WearOptions, progress: Progress, found: Found) -> None:
    """Overwrite records of 1 KB in all stores; compare the files with the records."""
    workload = Workload(SHAPE, options.large_records, min(_BATCH, options.large_records))
    batches = options.large_overwrites * options.large_records // workload.batch
    makers = [partial(_gpkvs, options, workload), *(partial(_peer, options, workload, peer) for peer in options.peers)]
    for make in makers:
        with TemporaryDirectory(dir=options.directory, prefix="gpkvs-bench-") as name:
            path = Path(name)
            store: Contender = make(path)
            progress(f"space: {options.large_overwrites} overwrites of {workload.records:,} x 1 KB, {store.name}")
            try:
                store.load(workload)
                store.settle()
                found.contender(store, workload)
                worn = wear(store, islice(overwrites(workload, "uniform", 22), batches))
                found.comparisons.append(_comparison(store, path, workload, worn.refused))
            finally:
                store.close()


def _comparison(store: Contender, path: Path, workload: Workload, refused: int) -> Comparison:
    is_own = isinstance(store, EmbeddedGpkvs)
    if isinstance(store, EmbeddedGpkvs):
        info = store.store.info()
        live = info.heap_live_bytes
        files = heap_file_bytes(path, info.journal_bytes)
    else:
        live = workload.records * (SHAPE.key_bytes + SHAPE.value_bytes)
        files = stored_bytes(path)
    return Comparison(
        f"{workload.records:,} records of 1 KB, overwritten: {'heap file' if is_own else 'files'}",
        store.name,
        "live records",
        [files / live],
        _AIM if is_own else None,
        is_least=False,
        note=f"{refused:,} overwrites refused; all files {stored_bytes(path) / live:.2f}" if is_own else "",
    )


def heap_file_bytes(path: Path, journal_bytes: int) -> int:
    """Return the bytes that a store's heap takes on the file system; the journal is in the same file."""
    file = path / ("data" if journal_bytes else "heap")
    return file.stat().st_blocks * 512 - journal_bytes


def _gpkvs(options: WearOptions, workload: Workload, path: Path) -> Contender:
    index = index_bytes(SHAPE, int(1.3 * workload.records))
    return EmbeddedGpkvs(path, workload, options.promise, 0, index=index, grows=True)


def _peer(options: WearOptions, workload: Workload, peer: str, path: Path) -> Contender:
    store: Contender = WEAR_PEERS[peer](path, workload, options.promise, 0)  # type: ignore[index]
    return store
