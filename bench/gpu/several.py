"""One store on several GPUs, beside independent stores on one GPU each, in the same run."""

from __future__ import annotations

import multiprocessing
import os
import shutil
from importlib import import_module
from multiprocessing.synchronize import Barrier
from pathlib import Path
from time import perf_counter
from typing import Any

import numpy as np

import gpkvs
from gpkvs.bench.gpu.batches import mixed_batch
from gpkvs.bench.report.results import Measurement, Run
from gpkvs.config import GIB, Limits

_TABLE = "numbers"
_BATCHES = 10
_WARM_UP = 2
_CHILD_SECONDS = 240.0
TASKS = ("SET, new keys", "SET, host arrays", "GET, host arrays", "95:5 GET:SET, host arrays", "SET, device arrays")
READS_ON_DEVICE = "GET, device arrays"


def measure_several(folder: Path, batch: int, index_bytes: int) -> tuple[list[Measurement], dict[str, float]]:
    """Run batches on all GPUs by one store, and by a store for each GPU.

    Parameters
    ----------
    folder
        For the stores, which are removed.
    batch
        Operations in a batch, for each GPU.
    index_bytes
        The size of each GPU's part of the index.

    Returns
    -------
    measurements
        Rates of each task: by one store on all GPUs (``one store``), and by independent ones, added up.
    ratios
        Of one store over the independent ones, by task.
    """
    gpus: int = import_module("cupy").cuda.runtime.getDeviceCount()
    folder.mkdir()
    independent = _independent(folder, batch, index_bytes, gpus)
    together = _run_store(folder / "together", "all", batch * gpus, index_bytes * gpus, 0, None)
    measurements, ratios = [], {}
    for task, runs in together.items():
        measurements.append(Measurement(task, f"one store on {gpus} GPUs", runs))
        measurements.append(Measurement(task, f"{gpus} independent stores", independent[task]))
        one, many = (float(np.median([run.rate for run in found])) for found in (runs, independent[task]))
        ratios[task] = one / many
    return measurements, ratios


def _independent(folder: Path, batch: int, index_bytes: int, gpus: int) -> dict[str, list[Run]]:
    """Run a store for each GPU at the same time, in processes of their own; return the runs of all together."""
    context = multiprocessing.get_context("spawn")
    barrier, results = context.Barrier(gpus), context.Queue()
    threads = max(1, len(os.sched_getaffinity(0)) // gpus)
    children = [
        context.Process(
            target=_child, args=(folder / f"of-{gpu}", str(gpu), batch, index_bytes, threads, barrier, results)
        )
        for gpu in range(gpus)
    ]
    for child in children:
        child.start()
    found = [results.get(timeout=_CHILD_SECONDS) for _ in children]
    for child in children:
        child.join()
    together: dict[str, list[Run]] = {}
    for task in found[0]:
        batches = zip(*[one[task] for one in found], strict=True)
        # All begin each batch at the same time: the slowest says how long it took.
        together[task] = [Run(batch * gpus, max(run.seconds for run in runs)) for runs in batches]
    return together


def _child(path: Path, gpu: str, batch: int, index_bytes: int, threads: int, barrier: Barrier, results: Any) -> None:
    results.put(_run_store(path, gpu, batch, index_bytes, threads, barrier))


def _run_store(
    path: Path, gpus: str, batch: int, index_bytes: int, threads: int, barrier: Barrier | None
) -> dict[str, list[Run]]:
    """Run all tasks on one store."""
    store = gpkvs.open(
        path,
        backend="cuda",
        gpus=gpus,
        threads=threads,
        log_bytes=128 * batch,
        heap_bytes=1 << 26,
        limits=Limits(request_ops_max=batch, result_bytes_max=GIB),
    )
    try:
        store.create_table(_TABLE, layout="u64", index_bytes=index_bytes)
        return _tasks(store, batch, barrier)
    finally:
        store.close()
        shutil.rmtree(path)


def _tasks(store: gpkvs.Store, batch: int, barrier: Barrier | None) -> dict[str, list[Run]]:
    backend: Any = store._backend  # columns in memory that crosses the link at full speed
    rng = np.random.default_rng(7)
    columns = []
    for _ in range(_BATCHES):
        pair = [backend.result_column(batch, np.uint64) for _ in range(2)]
        for column in pair:
            column[:] = rng.integers(0, 1 << 64, batch, np.uint64)
        columns.append(pair)
    on_device = [[backend.upload(column) for column in pair] for pair in columns]
    table = store.table(_TABLE)
    mixed = [mixed_batch(table.id, keys, values, seed=3) for keys, values in columns]
    calls: dict[str, Any] = dict.fromkeys(TASKS)
    calls[TASKS[0]] = lambda i: table.set_many(*columns[i])
    calls[TASKS[1]] = lambda i: table.set_many(columns[i][0], columns[i - 1][1])
    calls[TASKS[2]] = lambda i: table.get_many(columns[i][0])
    calls[TASKS[3]] = lambda i: store.execute_requests(mixed[i])
    calls[TASKS[4]] = lambda i: table.set_many(*on_device[i])
    calls[READS_ON_DEVICE] = lambda i: table.get_many(on_device[i][0])
    found: dict[str, list[Run]] = {}
    for task, call in calls.items():
        runs = found[task] = []
        for number in range(-_WARM_UP if task != TASKS[0] else 0, _BATCHES):
            if barrier:
                barrier.wait()
            begin = perf_counter()
            call(number)
            backend.wait()
            if number >= 0:
                runs.append(Run(batch, perf_counter() - begin))
    values, there = table.get_many(columns[3][0])
    if not (there.all() and (values == columns[3][1]).all()):
        raise AssertionError("a GET does not return what was set")
    return found
