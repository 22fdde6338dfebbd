"""Times growth on a GPU: batches of new keys while the index doubles, and the steps of growth alone."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from dataclasses import asdict, dataclass
from importlib import import_module
from pathlib import Path
from statistics import median
from time import perf_counter, sleep
from typing import Any

import numpy as np

import gpkvs
from gpkvs.batch import Batch, Op, constant
from gpkvs.config import GIB, MIB, CommitName, Limits
from gpkvs.engine.state.table import Table
from gpkvs.media.index import Index
from gpkvs.media.layout import BLOCK_BYTES, LAYOUTS, U64_LAYOUT

_TABLE = "growing"
_COMPARED_BYTES_MIN = 256 * MIB  # smaller indexes double several times in one batch
_KEYS_OF_LAST = 0.45  # of the slots of the last index: it has grown to its size, and some batches came after
_FILLED = 0.5  # of the slots of an index whose steps are timed alone
_FILL_BATCH = 1 << 22


@dataclass(frozen=True)
class GrowthTask:
    """What to measure.

    Parameters
    ----------
    layout
        Of the table.
    batch
        New keys in a batch.
    index_bytes
        At first.
    commit
        How batches become durable.
    pause_seconds
        Between two batches: growth prepares in the background.
    index_bytes_end
        Inserts end when an index of so many bytes is over its growth.
    """

    layout: str = "u64"
    batch: int = 1 << 21
    index_bytes: int = BLOCK_BYTES
    index_bytes_end: int = 4 * GIB
    commit: CommitName = "undo"
    pause_seconds: float = 0.0


def measure_all(folder: Path, batch: int) -> dict[str, Any]:
    """Measure inserts and steps, of both layouts; the stores are made and removed here."""
    tasks = [GrowthTask(layout, batch, pause_seconds=pause) for layout in LAYOUTS for pause in (0.0, 0.1)]
    inserts = [measure_growth(folder, task) for task in (*tasks, GrowthTask("u64", batch, commit="journal"))]
    return {"inserts": inserts, "steps": [step for layout in LAYOUTS for step in measure_steps(folder, layout)]}


def measure_growth(folder: Path, task: GrowthTask) -> dict[str, Any]:
    """Insert batches of new keys into a table that begins small; the store is made and removed here."""
    keys = int(_KEYS_OF_LAST * task.index_bytes_end / LAYOUTS[task.layout].slot_bytes)
    try:
        with _opened(folder, task, keys) as store:
            index, insert = _index(store, task), _insert_into(store, task)
            lines = [_timed(index, insert, number, task.pause_seconds) for number in range(-(-keys // task.batch))]
            _check(store, task)
            return {**asdict(task), **_summary(lines)}
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _opened(folder: Path, task: GrowthTask, keys: int) -> gpkvs.Store:
    is_numbers = task.layout == U64_LAYOUT.name
    store = gpkvs.open(
        folder,
        backend="cuda",
        commit=task.commit,
        index_bytes=BLOCK_BYTES if is_numbers else task.index_bytes,
        heap_bytes=GIB if is_numbers else GIB + 80 * keys,
        log_bytes=128 * task.batch,
        journal_bytes=8 * 128 * task.batch,
        limits=Limits(request_ops_max=task.batch, result_bytes_max=GIB),
    )
    if is_numbers:
        store.create_table(_TABLE, layout=task.layout, index_bytes=task.index_bytes)
    return store


def _index(store: gpkvs.Store, task: GrowthTask) -> Index:
    return store._files.indexes[store.table(_TABLE).id if task.layout == U64_LAYOUT.name else 0]


def _insert_into(store: gpkvs.Store, task: GrowthTask) -> Callable[[int], Callable[[], object]]:
    """Return what makes the batch of a number, in pinned memory, and returns what stores it."""
    backend: Any = store._backend
    words, values = (backend.result_column(task.batch * many, np.uint64) for many in (2, 1))
    numbers = np.arange(task.batch, dtype=np.uint64)
    count = task.batch
    lengths = constant(np.uint32(16), count), constant(np.uint32(8), count)

    def insert(number: int) -> Callable[[], object]:
        values[:] = number
        # An odd factor makes another number of each: no key comes twice.
        keys = (numbers + np.uint64(number * count)) * np.uint64(0x9E3779B97F4A7C15)
        if task.layout == U64_LAYOUT.name:
            words[:count] = keys
            return lambda: store.set_many(words[:count], values, table=_TABLE)
        words[::2], words[1::2] = keys, number
        columns = words.view(np.uint8), lengths[0], values.view(np.uint8), lengths[1]
        batch = Batch(constant(np.uint8(Op.SET), count), *columns)
        return lambda: store.execute_requests(batch)

    return insert


def _check(store: gpkvs.Store, task: GrowthTask) -> None:
    """Read the keys of the first batch: growth may not lose any."""
    numbers = np.arange(task.batch, dtype=np.uint64) * np.uint64(0x9E3779B97F4A7C15)
    if task.layout == U64_LAYOUT.name:
        held, found = store.get_many(numbers, table=_TABLE)
        assert found.all(), f"{np.count_nonzero(~found)} keys are lost"
        assert not held.any(), "a value is wrong"
        return
    for number in numbers[:1000].tolist():
        key = number.to_bytes(8, "little") + bytes(8)
        assert store.get(key) == bytes(8), f"{key.hex()} is lost"


@dataclass(frozen=True)
class _Line:
    """What a batch took."""

    seconds: float
    index_bytes: int
    is_growing: bool


def _timed(index: Index, insert: Callable[[int], Callable[[], object]], number: int, pause_seconds: float) -> _Line:
    before, store_it = (index.blocks, index.unmoved), insert(number)
    sleep(pause_seconds)
    began = perf_counter()
    store_it()
    seconds = perf_counter() - began
    return _Line(seconds, index.blocks * BLOCK_BYTES, index.is_growing or before != (index.blocks, index.unmoved))


def _summary(lines: list[_Line]) -> dict[str, Any]:
    compared = [line for line in lines if line.index_bytes >= _COMPARED_BYTES_MIN]
    steady = [line.seconds for line in compared if not line.is_growing]
    growing = [line.seconds for line in compared if line.is_growing]
    longest = max(lines[1:], key=lambda line: line.seconds)
    return {
        "batches": len(lines),
        "seconds": sum(line.seconds for line in lines),
        "index_bytes_at_last": lines[-1].index_bytes,
        "steady_ms": _ms(median(steady)) if steady else None,
        "doubling_ms": _ms(median(growing)) if growing else None,
        "doubling_over_steady": round(median(growing) / median(steady), 2) if steady and growing else None,
        "longest_ms": _ms(longest.seconds),
        "longest_at_index_bytes": longest.index_bytes,
        "batches_ms": [(_ms(line.seconds), line.index_bytes >> 20, line.is_growing) for line in lines],
    }


def _ms(seconds: float) -> float:
    return round(seconds * 1e3, 2)


def measure_steps(
    folder: Path, layout: str, index_bytes: int = GIB, index_bytes_end: int = 8 * GIB
) -> list[dict[str, Any]]:
    """Time each doubling of an index, step by step, beside a copy of its targets over the link."""
    task = GrowthTask(layout, _FILL_BATCH, index_bytes)
    found = []
    try:
        keys = int(_FILLED * index_bytes / LAYOUTS[layout].slot_bytes)
        with _opened(folder, task, keys) as store:
            insert = _insert_into(store, task)
            for number in range(keys // task.batch):
                insert(number)()
            while (index := _index(store, task)).region.bytes < index_bytes_end:
                found.append({"layout": layout, **_double(store, store._engine.tables[index.entry.id])})
            _check(store, task)
        return found
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _double(store: gpkvs.Store, table: Table) -> dict[str, Any]:
    growing, backend = store._engine.growth, store._backend
    index = table.index
    size = index.region.bytes
    laps = [perf_counter()]

    def lap() -> float:
        laps.append(perf_counter())
        return _ms(laps[-1] - laps[-2])

    with store._mutex:
        growing.is_reserved(table, waits=True)
        found: dict[str, Any] = {"from_bytes": size, "reserve_ms": lap()}
        backend.prepare_growth(index)
        backend.reach_blocks(index, 0)
        found["register_ms"] = lap()
        growing.begin(table)
        found["begin_ms"] = lap()
        growing.move_to(table, 0)
        found["steps_ms"] = lap()
        growing.finish(table)
        found["finish_ms"] = lap()
    copied = _ms(_copy_seconds() * 2 * size / GIB)
    return found | {"copy_ms": copied, "steps_over_copy": round(found["steps_ms"] / copied, 2)}


def _copy_seconds() -> float:
    """Return what a GiB takes from the GPU to pinned memory."""
    cupy = import_module("cupy")
    source, target = cupy.zeros(GIB, np.uint8), import_module("gpkvs.backends.cuda.host_memory").pinned(GIB, np.uint8)
    best = float("inf")
    for _ in range(3):
        began = perf_counter()
        source.get(out=target)
        best = min(best, perf_counter() - began)
    return best
