"""The steps of growth alone: an index that is half full doubles, beside a copy of each of its blocks to two places.

Both are done by the same threads, to memory whose pages are there.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from pathlib import Path
from time import perf_counter, process_time

import numpy as np

from gpkvs.bench.engine.workload import SHAPES, Shape, Workload
from gpkvs.bench.peers.contender import Progress, Promise
from gpkvs.bench.peers.embedded_gpkvs import EmbeddedGpkvs
from gpkvs.bench.report.comparison import Comparison
from gpkvs.engine.state.table import Table
from gpkvs.media.layout import BLOCK_BYTES, FORMAT_3, UNIT_BYTES
from gpkvs.pm.mapping import map_memory
from gpkvs.store import Store

_LOAD = 0.49  # of the slots: growth has not begun
_LOAD_BATCH = 65_536
_STEP_BLOCKS = 16  # what a batch of 4,096 new keys asks for
_COPIES = 3
_AIM = 1.5


def measure_steps(directory: Path, promise: Promise, index_bytes: int, progress: Progress) -> Iterator[Comparison]:
    """Measure the steps of an index of this size, of both layouts.

    Parameters
    ----------
    directory, promise
        Of the stores.
    index_bytes
        Before growth; a multiple of the size of a block.
    """
    for shape in SHAPES.values():
        progress(f"growing an index of {index_bytes:,} bytes alone, {shape.name}")
        slots = index_bytes // (16 if shape.is_numbers else 32)
        workload = Workload(shape, int(_LOAD * slots), _LOAD_BATCH)
        with tempfile.TemporaryDirectory(dir=directory, prefix="gpkvs-bench-") as path:
            own = EmbeddedGpkvs(Path(path), workload, promise, 0, index=index_bytes)
            try:
                own.load(workload)
                yield _compare(own.store, shape)
            finally:
                own.close()


def _compare(store: Store, shape: Shape) -> Comparison:
    engine = store._engine
    table = max(engine.tables.values(), key=lambda table: table.records)
    engine.growth.is_reserved(table, waits=True)
    engine.growth.begin(table)
    region = table.index.region
    region.touch(region.bytes // 2, region.bytes // 2)
    copied = min(_copy_seconds(store, table) for _ in range(_COPIES))
    began, used = perf_counter(), process_time()
    for unmoved in range(table.index.blocks - _STEP_BLOCKS, -_STEP_BLOCKS, -_STEP_BLOCKS):
        engine.growth.move_to(table, max(unmoved, 0))
    engine.settle()
    seconds, used = perf_counter() - began, process_time() - used
    engine.growth.finish(table)
    return Comparison(
        f"steps of growth alone, {shape.name}",
        EmbeddedGpkvs.name,
        "a copy",
        [seconds / copied],
        _AIM,
        is_least=False,
        note=f"{seconds * 1e3:.1f} ms over {copied * 1e3:.1f} ms, {used * 1e3:.1f} ms of processor time",
    )


def _copy_seconds(store: Store, table: Table) -> float:
    """Copy each block to two places that lie side by side, as a step does."""
    blocks, units = table.index.blocks, BLOCK_BYTES // UNIT_BYTES
    source = np.arange(blocks, dtype=np.uint64).repeat(2)
    out = map_memory(2 * blocks * BLOCK_BYTES)
    out[::4096] = 1
    began = perf_counter()
    store._backend.host.launch(
        "convert_records",  # of the same format: as they are
        2 * blocks,
        keys_per_item=units,
        reference=(source * np.uint64(units)) << np.uint64(24) | np.uint64(units),
        heap=table.index.address,
        record_format=FORMAT_3,
        blobs=0,
        blob_file_pages=0,
        new_blobs=0,
        new_format=FORMAT_3,
        offset=np.arange(2 * blocks, dtype=np.uint64) * np.uint64(BLOCK_BYTES),
        out=out,
    )
    return perf_counter() - began
