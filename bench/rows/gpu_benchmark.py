"""The benchmark of rows on a GPU: arrays of the GPU in and out, beside the limits of its memory and of its link.

A store for each size of a row is loaded, and each row is overwritten, so that its heap is a log in use. Then come GETs
of rows that the GPU keeps, SETs and adds; then the store is opened again without memory of the GPU for rows, and GETs
read all of them from the host's. What limits a task takes turns with it, in the same rounds.
"""

from __future__ import annotations

import os
import sys
import traceback
from collections.abc import Callable
from contextlib import closing
from dataclasses import asdict
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from time import perf_counter
from typing import Any

import numpy as np

import gpkvs
from gpkvs.bench.peers.contender import BenchError, Progress
from gpkvs.bench.report.comparison import Comparison, rates_over
from gpkvs.bench.report.machine import describe_run
from gpkvs.bench.report.results import Measurement, ratios
from gpkvs.bench.report.tables import gigabytes_text
from gpkvs.bench.rows import hkv
from gpkvs.bench.rows.gpkvs_rows import OWN, TABLE
from gpkvs.bench.rows.gpu_options import GpuRowsOptions
from gpkvs.bench.rows.gpu_table import GpuBatch, GpuRowTable
from gpkvs.bench.rows.gpu_turns import Call, measured
from gpkvs.bench.rows.options import layout_of
from gpkvs.bench.rows.training import measure_training
from gpkvs.columns.row_layout import RowLayout
from gpkvs.config import MIB, Limits
from gpkvs.errors import GpkvsError
from gpkvs.info import package_version
from gpkvs.rows import Rows

Keep = Callable[[dict[str, Any]], None]

COPY, GATHER, LINK, HOST_ARRAYS = "device copy", "X[ids]", "link", "host arrays"
GET, GET_FROM_HOST, SET = "get", "get, rows on the host", "set"

_COPY_AIM, _COPY_DIM_MIN = 0.8, 128
_HKV_AIM, _HKV_DIM = 1.5, 8
_GET_LINK_AIM, _SET_LINK_AIM, _ADD_AIM = 0.85, 0.8, 0.7
_ADD_ROWS, _ADD_BYTES = 200_000, 102_400_000  # of an add, whose distinct rows have to fit 128 MiB
_HEAPS, _HEAP_BYTES_MIN, _BESIDE_ROW_BYTES = 3, 256 * MIB, 64
_OVERWRITES = 2  # then every page of the heap was stored to
_READS = 2  # of all rows, before they count as kept
_CHECKED = 1000


def run_gpu_rows(options: GpuRowsOptions, progress: Progress, keep: Keep = lambda result: None) -> dict[str, Any]:
    """Run the benchmark; return its result, ready for JSON.

    A part that fails, say since PyTorch is missing, is told and left out, and the others go on.

    Parameters
    ----------
    keep
        It gets the result after each part, so that a run that is ended early is not lost.

    Raises
    ------
    BackendError
        If there is no GPU that can be used, or no CuPy.
    BenchError
        If `hkv` is no checkout, or there is no nvcc.
    """
    if options.hkv:
        hkv.require_hkv(options.hkv)
    with TemporaryDirectory(dir=options.directory, prefix="gpkvs-bench-") as folder:
        bench = _GpuRowsBench(options, progress, Path(folder))
        bench.run(keep)
        return bench.result()


def task_of(what: str, layout: RowLayout) -> str:
    """Return the name of a task."""
    return f"{what}, {layout.name}"


def added_rows(layout: RowLayout, batch: int) -> int:
    """Return how many rows an add has: a call of the same size is measured of a GET and of a SET."""
    return max(min(batch, _ADD_ROWS, _ADD_BYTES // layout.row_bytes), 1)


def of_limit(own: Measurement, limit: Measurement, row_bytes: int, aim: float | None, *, passes: int = 1) -> Comparison:
    """Return how much of a limit something reaches; `passes` are those of the bytes of a row: 2 if read and written."""
    rates = (gigabytes_text(passes * one.rate * row_bytes) for one in (own, limit))
    return Comparison(own.task, OWN, limit.contender, rates_over(own, limit), aim, note=", ".join(rates))


def of_get_and_set(get: Measurement, put: Measurement, add: Measurement) -> Comparison:
    """Return how fast an add is over a GET and a SET of as many rows."""
    both = [1 / (1 / one.rate + 1 / other.rate) for one, other in zip(get.runs, put.runs, strict=True)]
    rates = [run.rate / rate for run, rate in zip(add.runs, both, strict=True)]
    return Comparison(add.task, add.contender, "get and set", rates, _ADD_AIM)


class _GpuRowsBench:
    """The results so far, and what finds more."""

    def __init__(self, options: GpuRowsOptions, progress: Progress, folder: Path) -> None:
        self._options, self._progress, self._folder = options, progress, folder
        self._began, self._described = perf_counter(), describe_run(folder)
        self._described["commit"] = os.environ.get("GPKVS_REVISION") or self._described["commit"]
        self._measurements: list[Measurement] = []
        self._comparisons: list[Comparison] = []
        self._contenders: dict[str, dict[str, Any]] = {OWN: {"version": package_version()}}
        self._phases: dict[str, dict[str, float]] = {}
        self._kept_bytes: dict[str, int] = {}
        self._counts: dict[str, int] = {}
        self._left_out: dict[str, str] = {}
        progress("opening a store on the GPU; the first time, its kernels are compiled")
        with closing(gpkvs.open(folder / "first", backend="cuda")) as store:
            self._device, self._promise = store.info().backend, store.domain.name
            self._backend: Any = store._backend
        self._xp = _cupy(self._backend)
        self._wait = self._xp.cuda.Device().synchronize

    def run(self, keep: Keep) -> None:
        """Measure every part."""
        parts: list[tuple[str, Callable[[], None]]] = [
            (layout_of(dim).name, partial(self._measure_dim, dim)) for dim in self._options.dims
        ]
        if self._options.hkv:
            parts.append((hkv.NAME, partial(self._measure_hkv, self._options.hkv)))
        parts.append(("training", self._measure_training))
        for part, measure in parts:
            self._try(part, measure)
            keep(self.result())

    def result(self) -> dict[str, Any]:
        """Return what is measured so far."""
        options = asdict(self._options)
        return {
            "benchmark": "rows on a GPU",
            "promise": self._promise,
            **self._described,
            "device": self._device,
            "seconds": perf_counter() - self._began,
            "parameters": {
                **{name: value for name, value in options.items() if name not in ("directory", "hkv", "peers")},
                "records": max(self._counts.values(), default=0),
                "rows": self._counts,
            },
            "contenders": self._contenders,
            "measurements": [measurement.as_json() for measurement in self._measurements],
            "ratios": ratios(self._measurements, OWN, []),
            "comparisons": [comparison.as_json() for comparison in self._comparisons],
            "phases": self._phases,
            "kept_bytes": self._kept_bytes,
            **({"left_out": self._left_out} if self._left_out else {}),
        }

    def _try(self, part: str, measure: Callable[[], None]) -> None:
        """Measure a part; if that fails, say so, and keep what is measured."""
        try:
            measure()
        except GpkvsError as error:
            self._left_out[part] = str(error)
        except Exception as error:  # noqa: BLE001 - minutes of a GPU would be lost with what the other parts have found
            traceback.print_exc(file=sys.stderr)
            self._left_out[part] = f"{type(error).__name__}: {error}"
        if part in self._left_out:
            self._progress(f"{part} is left out: {self._left_out[part]}")

    def _take(self, task: str, rows: int, calls: dict[str, Call]) -> dict[str, Measurement]:
        options = self._options
        self._progress(f"{task}: {options.runs} rounds of {', '.join(calls)}, {rows:,} rows a call")
        found = measured(task, rows, calls, self._wait, options.runs, options.seconds)
        self._measurements += found.values()
        return found

    def _measure_dim(self, dim: int) -> None:
        """Measure everything with rows of one size."""
        layout = layout_of(dim)
        count = self._options.rows(layout)
        batch = min(self._options.batch, count)
        self._progress(f"{layout.name}: making {count:,} rows")
        table = GpuRowTable(layout, count, self._xp)
        self._counts[layout.name] = count
        batches = table.distinct(batch)
        with TemporaryDirectory(dir=self._folder) as folder:
            path = Path(folder) / "store"
            with closing(self._opened(path, table, batch, None)) as store:
                began = perf_counter()
                rows = self._loaded(store, table, batch)
                info = store.info()
                self._contenders[OWN][layout.name] = {
                    "settings": f"{self._device}, domain {info.domain}, commit {info.commit}, format "
                    f"{info.store_format}, heap {info.heap_bytes:,} B",
                    "load_seconds": perf_counter() - began,
                }
                self._in_phases(store, GET, layout, partial(self._measure_gets, store, rows, table, batches))
                smaller = table.distinct(added_rows(layout, batch))
                gets = self._measure_smaller_gets(rows, table, smaller)
                self._in_phases(store, SET, layout, partial(self._measure_sets, rows, table, batches))
                self._in_phases(store, "add", layout, partial(self._measure_adds, rows, table, smaller, gets))
            with closing(self._opened(path, table, batch, 0)) as store:
                rows = store.rows(layout.name, table=TABLE)
                measure = partial(self._measure_gets_from_host, rows, table, batches)
                self._in_phases(store, GET_FROM_HOST, layout, measure)

    def _opened(self, path: Path, table: GpuRowTable, batch: int, gpu_rows_bytes: int | None) -> gpkvs.Store:
        row = table.layout.row_bytes + _BESIDE_ROW_BYTES
        return gpkvs.open(
            path,
            backend="cuda",
            gpu_rows_bytes=gpu_rows_bytes,
            log_bytes=max(128 * batch, MIB),
            heap_bytes=_HEAPS * table.count * row + _HEAP_BYTES_MIN,
            limits=Limits(request_ops_max=max(batch, Limits.request_ops_max)),
        )

    def _loaded(self, store: gpkvs.Store, table: GpuRowTable, batch: int) -> Rows:
        layout = table.layout
        self._progress(f"{layout.name}: loading {table.count:,} rows, and overwriting each")
        store.create_table(TABLE, layout=layout.name, records=table.count)
        rows = store.rows(layout.name, table=TABLE)
        parts = table.in_order(batch)
        for _ in range(1 + _OVERWRITES):
            for part in parts:
                rows.set(part.keys, table.held[part.first : part.first + len(part.host_keys)])
        for _ in range(_READS):
            for part in parts:
                rows.get(part.keys)
        return rows

    def _in_phases(self, store: gpkvs.Store, what: str, layout: RowLayout, measure: Callable[[], None]) -> None:
        """Measure, and note the seconds that the engine spends in each phase; calls that are not timed count too."""
        before = store.meter.phase_seconds
        measure()
        spent = {phase: now - before[phase] for phase, now in store.meter.phase_seconds.items() if now > before[phase]}
        self._phases[task_of(what, layout)] = spent

    def _measure_gets(self, store: gpkvs.Store, rows: Rows, table: GpuRowTable, batches: list[GpuBatch]) -> None:
        """Read rows that the GPU keeps, beside a copy of as many bytes and a gather of an array by its indices."""
        layout, xp, size = table.layout, self._xp, len(batches[0].host_keys)
        out, other = (xp.empty((size, *layout.shape), np.float32) for _ in range(2))
        row_bytes = layout.row_bytes

        def get(number: int) -> object:
            return rows.get(_of(batches, number).keys, out=out)

        def copy(number: int) -> None:
            first = _of(batches, number).first
            other.data.copy_from_device_async(table.held[first : first + size].data, size * row_bytes)

        def gather(number: int) -> None:
            xp.take(table.held, _of(batches, number).places, axis=0, out=other)

        for number in range(2):
            get(number)
            gather(number)
            self._require_equal(out, other)
        found = self._take(task_of(GET, layout), size, {OWN: get, COPY: copy, GATHER: gather})
        self._kept_bytes[layout.name] = _kept_bytes(store)
        aim = _COPY_AIM if layout.shape[0] >= _COPY_DIM_MIN else None
        self._comparisons += [
            of_limit(found[OWN], found[COPY], row_bytes, aim, passes=2),
            of_limit(found[OWN], found[GATHER], row_bytes, None, passes=2),
        ]

    def _measure_smaller_gets(self, rows: Rows, table: GpuRowTable, batches: list[GpuBatch]) -> dict[str, Measurement]:
        """Read as many rows a call as an add has."""
        size = len(batches[0].host_keys)
        out = self._xp.empty((size, *table.layout.shape), np.float32)
        host_out = np.empty((size, *table.layout.shape), np.float32)
        calls: dict[str, Call] = {
            OWN: lambda number: rows.get(_of(batches, number).keys, out=out),
            HOST_ARRAYS: lambda number: rows.get(_of(batches, number).host_keys, out=host_out),
        }
        return self._take(task_of(f"get of {size:,}", table.layout), size, calls)

    def _measure_sets(self, rows: Rows, table: GpuRowTable, batches: list[GpuBatch]) -> None:
        """Overwrite rows, beside a copy of as many bytes from the GPU to the host."""
        layout, size = table.layout, len(batches[0].host_keys)
        row_bytes = layout.row_bytes
        host = self._backend.result_column(size * row_bytes, np.uint8)

        def put(number: int) -> None:
            batch = _of(batches, number)
            rows.set(batch.keys, table.held[batch.first : batch.first + size])

        def copy(number: int) -> None:
            first = _of(batches, number).first
            table.held[first : first + size].data.copy_to_host_async(host.ctypes.data, size * row_bytes)

        found = self._take(task_of(SET, layout), size, {OWN: put, LINK: copy})
        self._comparisons.append(of_limit(found[OWN], found[LINK], row_bytes, _SET_LINK_AIM))
        put(0)
        first = batches[0].first
        self._require_equal(rows.get(batches[0].keys)[0], table.held[first : first + size])

    def _measure_adds(
        self, rows: Rows, table: GpuRowTable, batches: list[GpuBatch], gets: dict[str, Measurement]
    ) -> None:
        """Add to rows, a fifth of the keys twice, beside GETs and SETs of as many, from the GPU and from the host."""
        layout, size = table.layout, len(batches[0].host_keys)
        doubled = table.with_duplicates(size)
        deltas = table.rows[:size] * np.float32(1e-3)
        deltas_on_gpu = self._xp.asarray(deltas)
        self._require_added(rows, doubled[0].host_keys[:_CHECKED], deltas[:_CHECKED])

        def rows_of(batch: GpuBatch) -> slice:
            return slice(batch.first, batch.first + size)

        sets: dict[str, Call] = {
            OWN: lambda at: rows.set(_of(batches, at).keys, table.held[rows_of(_of(batches, at))]),
            HOST_ARRAYS: lambda at: rows.set(_of(batches, at).host_keys, table.rows[rows_of(_of(batches, at))]),
        }
        adds: dict[str, Call] = {
            OWN: lambda at: rows.add(_of(doubled, at).keys, deltas_on_gpu),
            HOST_ARRAYS: lambda at: rows.add(_of(doubled, at).host_keys, deltas),
        }
        put = self._take(task_of(f"set of {size:,}", layout), size, sets)
        add = self._take(task_of(f"add of {size:,}", layout), size, adds)
        self._comparisons += [of_get_and_set(gets[name], put[name], add[name]) for name in adds]

    def _require_added(self, rows: Rows, host_keys: Any, deltas: Any) -> None:
        """Add to some rows, each key twice, and compare with what NumPy makes of them, bit by bit."""
        keys = np.unique(host_keys)
        deltas = deltas[: len(keys)]
        wanted = rows.get(keys)[0] + deltas + deltas
        xp = self._xp
        rows.add(xp.asarray(np.concatenate([keys, keys])), xp.asarray(np.concatenate([deltas, deltas])))
        self._require_equal(rows.get(xp.asarray(keys))[0], xp.asarray(wanted))

    def _measure_gets_from_host(self, rows: Rows, table: GpuRowTable, batches: list[GpuBatch]) -> None:
        """Read rows that lie in the host's memory alone, beside a copy of as many bytes from there to the GPU."""
        layout, xp, size = table.layout, self._xp, len(batches[0].host_keys)
        row_bytes = layout.row_bytes
        out, target = xp.empty((size, *layout.shape), np.float32), xp.empty(size * row_bytes, np.uint8)
        host = self._backend.result_column(size * row_bytes, np.uint8)
        host[:] = 1

        def get(number: int) -> object:
            return rows.get(_of(batches, number).keys, out=out)

        def copy(number: int) -> None:
            target.data.copy_from_host_async(host.ctypes.data, size * row_bytes)

        get(0)
        some = batches[0].host_keys[:_CHECKED]
        self._require_equal(out[: len(some)], xp.asarray(rows.get(some)[0]))
        found = self._take(task_of(GET_FROM_HOST, layout), size, {OWN: get, LINK: copy})
        self._comparisons.append(of_limit(found[OWN], found[LINK], row_bytes, _GET_LINK_AIM))

    def _require_equal(self, found: Any, wanted: Any) -> None:
        self._wait()
        if not bool((found == wanted).all()):
            raise BenchError(f"{OWN} does not return the rows that were stored in it")

    def _measure_hkv(self, checkout: Path) -> None:
        """Have HierarchicalKV do the same, in a process of its own."""
        self._progress(f"compiling with {hkv.NAME}, which takes a minute or two")
        architecture = f"sm_{self._xp.cuda.Device().compute_capability}"
        self._xp.get_default_memory_pool().free_all_blocks()
        with TemporaryDirectory(dir=self._folder) as folder:
            program = hkv.compiled(checkout, Path(folder), architecture)
            known: dict[str, Any] = {"version": hkv.revision_of(checkout), "settings": hkv.SETTINGS}
            self._contenders[hkv.NAME] = known
            for dim in self._options.dims:
                layout, options = layout_of(dim), self._options
                count = options.rows(layout)
                batch = min(options.batch, count)
                self._progress(f"{hkv.NAME}: {count:,} rows of {layout.name}, on the GPU and on the host")
                figures = hkv.run_hkv(program, dim, count, batch, options.runs, options.seconds)
                known[layout.name] = {"settings": f"{figures.device}, room for {figures.capacity:,} rows"}
                self._compare_hkv(layout, figures)

    def _compare_hkv(self, layout: RowLayout, figures: hkv.HkvFigures) -> None:
        get, from_host, put = (task_of(what, layout) for what in (GET, GET_FROM_HOST, SET))
        others = [
            figures.measurement(get, "gpu", "find"),
            figures.measurement(from_host, "host", "find"),
            figures.measurement(put, "gpu", "insert_or_assign"),
            figures.measurement(f"{put}, values on the host", "host", "insert_or_assign"),
        ]
        self._measurements += others
        own = {one.task: one for one in self._measurements if one.contender == OWN}
        aims = {get: _HKV_AIM if layout.shape[0] == _HKV_DIM else None}
        self._comparisons += [
            of_limit(own[other.task], other, layout.row_bytes, aims.get(other.task))
            for other in others
            if other.task in own
        ]

    def _measure_training(self) -> None:
        options = self._options
        with TemporaryDirectory(dir=self._folder) as folder:
            found = measure_training(Path(folder), self._progress, options.runs, options.seconds)
        self._measurements += found[0]
        self._comparisons += found[1]


def _of(batches: list[GpuBatch], number: int) -> GpuBatch:
    """Return the batch whose turn it is."""
    return batches[number % len(batches)]


def _cupy(backend: Any) -> Any:
    """Return CuPy, which one folder alone imports."""
    return backend.xp


def _kept_bytes(store: gpkvs.Store) -> int:
    """Return what the rows take that the GPU keeps."""
    backend: Any = store._backend
    return int(backend.row_caches.bytes)
