"""The benchmark of the GPU backend: an engine on one GPU, compared with the limits of the GPU and its link.

Batches of random 8-byte keys and values in one large `u64` table, as in GPM's Table 1 (2 M operations, 25 batches),
each a durable transaction. The time includes uploads, downloads and all of the engine.
"""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Callable
from dataclasses import asdict, dataclass
from functools import partial
from importlib import import_module
from pathlib import Path
from time import perf_counter
from typing import Any

import numpy as np

import gpkvs
from gpkvs.batch import Batch
from gpkvs.bench.gpu.batches import GETS_OF_MIXED, mixed_batch
from gpkvs.bench.gpu.growth import measure_all
from gpkvs.bench.gpu.records import measure_records
from gpkvs.bench.gpu.server import measure_server
from gpkvs.bench.gpu.several import measure_several
from gpkvs.bench.gpu.start import measure_start
from gpkvs.bench.peers.contender import Progress
from gpkvs.bench.report.machine import describe_run
from gpkvs.bench.report.results import Measurement, Run, latencies_ms
from gpkvs.bench.report.tables import Rows
from gpkvs.config import GIB, MIB, Limits
from gpkvs.engine.commit.undo_committer import UndoCommitter
from gpkvs.media.layout import LOG_ENTRIES_OFFSET, U64_LAYOUT
from gpkvs.recovery.startup.recover import undo, verify_log

PARTS = ("numbers", "small", "records", "recovery", "start", "server", "growth", "several")
_TABLE = "numbers"
# Of the log, where a slot keeps its key: the key's words are not stored.
ENTRY_BYTES = U64_LAYOUT.chunk_entry_bytes - 8 * U64_LAYOUT.key_words
_SMALL = (1, 32, 1024, 16_384, 131_072)
_SMALL_RUNS = 200
_SMALL_WARM_UP = 3  # CuPy compiles for a size that it meets for the first time


@dataclass(frozen=True)
class GpuOptions:
    """What to measure.

    Parameters
    ----------
    directory
        The directory for the store: a tmpfs for stores of the GPU to PM, a disk for CAP-mm.
    index_bytes
        The size of the table's index.
    batch
        Operations in a batch.
    batches
        How many different batches; a measurement runs each once.
    parts
        Which of `PARTS` to run.
    start_index_bytes
        The size of the larger index for which the start is timed.
    """

    directory: Path
    index_bytes: int = 4 * GIB
    batch: int = 1 << 21
    batches: int = 25
    parts: tuple[str, ...] = PARTS
    start_index_bytes: int = 32 * GIB


def run_gpu(options: GpuOptions, progress: Progress) -> dict[str, Any]:
    """Run the benchmark; return all results."""
    folder = Path(tempfile.mkdtemp(prefix="gpkvs-bench-gpu-", dir=options.directory))
    try:
        bench = GpuBench(folder / "store", options, progress)
        try:
            bench.run()
        finally:
            bench.store.close()
        result = {
            "benchmark": "gpu",
            **describe_run(folder),
            "device": bench.device,
            "driver": import_module("gpkvs.backends.cuda.compiler").driver(),
            "options": asdict(options),
            "limits": bench.limits.as_dict(),
            "limit_log_and_slots_m_per_s": bench.limits.log_and_slots_m_per_s(ENTRY_BYTES),
            "limit_mixed_m_per_s": bench.limits.mixed_m_per_s(1 - GETS_OF_MIXED),
            "measurements": [measurement.as_json() for measurement in bench.measurements],
            "facts": bench.facts,
        }
        result["commit"] = os.environ.get("GPKVS_REVISION") or result["commit"]
        return result
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def gpu_tables(result: dict[str, Any]) -> list[Rows]:
    """Return a result as tables."""
    limits = Rows("Limits", ("what", "figure"), [(name, f"{value:,.4g}") for name, value in result["limits"].items()])
    rates = Rows(
        "Rates",
        ("task", "where", "M operations/s", "from", "to", "p50 ms", "p99 ms"),
        [
            (
                found["task"],
                found["contender"],
                *(f"{found[name] / 1e6:,.4g}" for name in ("rate", "rate_min", "rate_max")),
                *(f"{found['latencies_ms'].get(name, float('nan')):.3g}" for name in ("p50", "p99")),
            )
            for found in result["measurements"]
        ],
        left=2,
    )
    facts = Rows("Facts", ("what", "figure"), [(name, str(value)) for name, value in result["facts"].items()])
    return [limits, rates, facts]


class GpuBench:
    """One store, and the measurements of it."""

    def __init__(self, path: Path, options: GpuOptions, progress: Progress) -> None:
        self._options = options
        self._progress = progress
        self._path = path
        self.store = self._open()
        self.device = self.store.info().backend
        self.measurements: list[Measurement] = []
        self.facts: dict[str, Any] = {}
        progress("measuring the GPU and its link")
        self._make_table()
        memory = self.backend.registered(self.index.address)
        limits = import_module("gpkvs.bench.gpu.limits")
        self.limits = limits.measure_limits(self.backend, memory, options.batch, ENTRY_BYTES)
        progress("making the table")
        self.store.drop_table(_TABLE)  # whose index was stored to
        self._make_table()
        self.backend.host_ops_max = self.backend.host_ops_max  # the benchmark is of the GPU, whatever is faster

    def _make_table(self) -> None:
        self.store.create_table(_TABLE, layout=U64_LAYOUT.name, index_bytes=self._options.index_bytes)

    def _open(self) -> gpkvs.Store:
        return gpkvs.open(
            self._path,
            backend="cuda",
            index_bytes=256 * MIB,
            log_bytes=128 * self._options.batch,
            heap_bytes=GIB,
            limits=Limits(request_ops_max=self._options.batch, result_bytes_max=GIB),
        )

    @property
    def backend(self) -> Any:
        """The backend that runs the kernels."""
        return self.store._backend  # the benchmark times columns and launches of the engine itself

    @property
    def index(self) -> Any:
        """The table's index."""
        files = self.store._files
        return files.indexes[self.store.table(_TABLE).id]

    def run(self) -> None:
        """Measure every part."""
        self.make_columns()
        for part in PARTS:
            if part in self._options.parts:
                getattr(self, f"_measure_{part}")()

    def make_columns(self) -> None:
        """Make the keys and values of all batches, in memory that crosses the link at full speed."""
        rng = np.random.default_rng(1)
        self._columns = [(self._random(rng), self._random(rng)) for _ in range(self._options.batches)]

    def load(self) -> None:
        """Store all batches once."""
        for keys, values in self._columns:
            self.store.set_many(keys, values, table=_TABLE)
        self._mixed_batches = [self._mixed(*pair, seed=seed) for seed, pair in enumerate(self._columns)]

    def columns(self, number: int) -> tuple[Any, Any]:
        """Return keys and values of a batch."""
        return self._columns[number]

    def set_columns(self, keys: Any, values: Any) -> None:
        """Store numbers."""
        self.store.set_many(keys, values, table=_TABLE)

    def set_again(self, number: int) -> None:
        """Store the keys of one batch with the values of another."""
        self.store.set_many(self._columns[number][0], self._columns[number - 1][1], table=_TABLE)

    def mixed_again(self, number: int) -> None:
        """Run one batch of 95 % GET and 5 % SET."""
        self.store.execute_requests(self._mixed_batches[number])

    @property
    def log_address(self) -> int:
        """Where the entries of the log begin."""
        return int(self.store._files.log.address) + LOG_ENTRIES_OFFSET

    def _random(self, rng: np.random.Generator) -> Any:
        column = self.backend.result_column(self._options.batch, np.uint64)
        column[:] = rng.integers(0, 1 << 64, len(column), np.uint64)
        return column

    def _time(self, task: str, where: str, run: Callable[[int], object], *, warm_up: bool = True) -> None:
        """Run all batches; each one is a run of its own."""
        self._progress(f"{task}, {where}")
        if warm_up:
            run(0)
        runs = []
        for number in range(self._options.batches):
            begin = perf_counter()
            run(number)
            self.backend.wait()
            runs.append(Run(self._options.batch, perf_counter() - begin))
        self.measurements.append(Measurement(task, where, runs))

    def _measure_numbers(self) -> None:
        store, columns = self.store, self._columns
        store.set_many(columns[0][0], columns[0][1], table=_TABLE)  # compiles what CuPy compiles
        store.delete_many(columns[0][0], table=_TABLE)
        self._time("SET, new keys", "host arrays", lambda i: store.set_many(*columns[i], table=_TABLE), warm_up=False)
        self._time(
            "SET, keys that are there",
            "host arrays",
            lambda i: store.set_many(columns[i][0], columns[i - 1][1], table=_TABLE),
        )
        self._time("GET", "host arrays", lambda i: store.get_many(columns[i][0], table=_TABLE))
        plain = [tuple(np.array(column) for column in pair) for pair in columns]
        self._time("SET, keys that are there", "plain arrays", lambda i: store.set_many(*plain[i], table=_TABLE))
        self._time("GET", "plain arrays", lambda i: store.get_many(plain[i][0], table=_TABLE))
        self.backend.shared_slots_min = 1 << 62
        self._time(
            "SET, keys that are there",
            "host arrays, stored by the GPU alone",
            lambda i: store.set_many(columns[i][0], columns[i - 1][1], table=_TABLE),
        )
        del self.backend.shared_slots_min
        mixed = [self._mixed(*columns[i], seed=i) for i in range(len(columns))]
        self._time("95:5 GET:SET", "host arrays", lambda i: store.execute_requests(mixed[i]))
        on_device = [tuple(self.backend.upload(column) for column in pair) for pair in columns]
        self._time("SET, keys that are there", "device arrays", lambda i: store.set_many(*on_device[i], table=_TABLE))
        self._time("GET", "device arrays", lambda i: store.get_many(on_device[i][0], table=_TABLE))
        self._time_look(on_device[0][0])
        found, there = store.get_many(columns[3][0], table=_TABLE)
        if not (there.all() and (found == columns[3][1]).all()):
            raise AssertionError("a GET does not return what was set")

    def _mixed(self, keys: Any, values: Any, seed: int) -> Batch:
        return mixed_batch(self.store.table(_TABLE).id, keys, values, seed)

    def _time_look(self, keys: Any) -> None:
        """Time the kernel of GETs alone."""
        backend, xp, count = self.backend, self.backend.xp, len(keys)
        seconds = import_module("gpkvs.bench.gpu.limits").device_seconds
        status, found = xp.empty(count, np.uint8), xp.empty(count, np.uint64)
        look_up = partial(backend.get_numbers, keys.view(np.uint8), self.index, status, found)
        self.facts["get_kernel_m_per_s"] = count / seconds(backend, look_up, 9) / 1e6

    def _measure_small(self) -> None:
        keys, values = (np.array(column) for column in self._columns[0])
        threshold = self.backend.host_ops_max
        self.facts["host_ops_max"] = threshold
        for size in _SMALL:
            for where, largest in (("host threads", 1 << 62), ("GPU", 0)):
                self.backend.host_ops_max = largest
                for task, call in (
                    ("SET", lambda k, v: self.store.set_many(k, v, table=_TABLE)),
                    ("GET", lambda k, _: self.store.get_many(k, table=_TABLE)),
                ):
                    self._progress(f"{task} of {size:,}, {where}")
                    seconds = []
                    for number in range(-_SMALL_WARM_UP, _SMALL_RUNS):
                        first = number * size % (len(keys) - size + 1)
                        pair = keys[first : first + size], values[first : first + size]
                        begin = perf_counter()
                        call(*pair)
                        if number >= 0:
                            seconds.append(perf_counter() - begin)
                    run = Run(size * len(seconds), sum(seconds), latencies_ms(seconds, 50, 99))
                    self.measurements.append(Measurement(f"{task} of {size:,}", where, [run]))
        self.backend.host_ops_max = threshold

    def _measure_records(self) -> None:
        self._progress("records")
        measured = measure_records(self._path.with_name("records"), self._options.batch // 4, self.limits)
        self.measurements += measured[0]
        self.facts["records"] = measured[1]

    def _measure_start(self) -> None:
        for size in {self._options.index_bytes: None, self._options.start_index_bytes: None}:
            self._progress(f"starting with an index of {size >> 30} GiB")
            self.facts[f"start_seconds_{size >> 30}_gib"] = measure_start(self._path.with_name("start"), size)

    def _measure_several(self) -> None:
        self._progress("several GPUs")
        measurements, self.facts["several"] = measure_several(
            self._path.with_name("several"), self._options.batch, self._options.index_bytes
        )
        self.measurements += measurements

    def _measure_growth(self) -> None:
        self._progress("growing tables")
        self.facts["growth"] = measure_all(self._path.with_name("growing"), self._options.batch)

    def _measure_server(self) -> None:
        self._progress("YCSB")
        measurements, self.facts["server"] = measure_server(self._path.parent)
        self.measurements += measurements

    def _measure_recovery(self) -> None:
        """Undo the last batch, then open the store again."""
        self.undo()
        self._progress("opening it again")
        self.store.close()
        begin = perf_counter()
        self.store = self._open()
        self.facts["recovery"]["open_seconds"] = perf_counter() - begin
        self.facts["recovery"]["index_bytes"] = self._options.index_bytes

    def undo(self) -> None:
        """Time the undo of a whole batch by its log, which stays until the next one."""
        self.store.set_many(*self._columns[0], table=_TABLE)
        files = self.store._files
        committer = self.store._engine.committer
        assert isinstance(committer, UndoCommitter)
        descriptor = committer.transaction.current
        (run,) = descriptor.runs
        seconds: dict[str, list[float]] = {"verify": [], "undo": []}
        for _ in range(5):
            begin = perf_counter()
            logged = verify_log(files, self.backend, descriptor)
            between = perf_counter()
            for part in logged:
                undo(files, self.backend, part)
            self.backend.wait()
            seconds["verify"].append(between - begin)
            seconds["undo"].append(perf_counter() - between)
        median = {name: float(np.median(values)) for name, values in seconds.items()}
        log_seconds = run.count * run.entry_bytes / (self.limits.upload_gb_per_s * 1e9)
        limit = log_seconds + run.count / (self.limits.ordered_slots_m_per_s * 1e6)
        self.facts["recovery"] = {
            "entries": run.count,
            "verify_ms": median["verify"] * 1e3,
            "undo_ms": median["undo"] * 1e3,
            "undo_limit_ms": limit * 1e3,
            "undo_over_limit": median["undo"] / limit,
        }
