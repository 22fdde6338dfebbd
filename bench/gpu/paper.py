"""Repeats GPM's comparisons (ASPLOS '22: Figures 9, 10, 11a, Tables 4 and 5) with this code, on one GPU.

Every mode runs the same kernels up to the point where results become durable. From there the modes differ:

CAP-fs   the whole table goes to the host and is written with ``pwrite`` and ``fsync``; no log (a mock-up)
CAP-mm   the same, stored by the host's threads, with cache lines written back; no log (a mock-up)
shadow   the host stores the log and the changed slots, as gpkvs does where a GPU's stores would not be durable
GPM-NDP  the GPU stores directly, and the host makes it durable: it stores the same again and writes the lines back
GPM      the GPU stores directly, and its fence is enough, as in gpkvs. With PM emulated in DRAM, eADR is the same

Two rows are of other papers. NearPM (EuroSys '23, section 8) has the memory log and store: here the host's threads do
a part, in its partitioned order, which is real; they are no processors in the memory. AGPM (section V) chooses the way
of a log's writes in a simulated GPU: here the engine chooses who plans a batch, another choice for the same reason.

The machine has no PM: caches are written back, but to DRAM. Ratios say what the designs cost on this link.
"""

from __future__ import annotations

import os
import shutil
import tempfile
from concurrent.futures import ThreadPoolExecutor
from importlib import import_module
from pathlib import Path
from time import perf_counter
from typing import Any

import numpy as np

from gpkvs.backends.chunks import Steps
from gpkvs.backends.path_costs import Path as BatchPath
from gpkvs.backends.path_costs import PathCosts
from gpkvs.bench.gpu.benchmark import ENTRY_BYTES, GpuBench, GpuOptions
from gpkvs.bench.peers.contender import Progress
from gpkvs.bench.report.machine import describe_run
from gpkvs.bench.report.plot import place_of
from gpkvs.bench.report.results import Measurement, Run
from gpkvs.bench.report.speedup_plot import draw_speedups
from gpkvs.bench.report.tables import Rows
from gpkvs.engine.commit.chunked_slots import ChunkedSlots, Part
from gpkvs.engine.seam.write_set import DeviceColumns, TableWrites
from gpkvs.media.layout import U64_LAYOUT, LogRun
from gpkvs.native import library

MODES = ("CAP-fs", "CAP-mm", "shadow", "GPM-NDP", "GPM")
_CHUNK_BYTES = 64 << 20
_PARTITIONS = (1 << 10, 1 << 12, 1 << 14, 1 << 16)
# Read off the paper's figures and tables; its platform: PCIe 3, Titan RTX, Optane.
_PAPER = {
    "CAP-mm": 2.0,
    "GPM": 7.5,
    "log": 3.3,
    "write amplification": 39.38,
    "restoration": 0.1896,
    # Of logging: the offloaded operations, and whole applications (abstract and introduction).
    "NearPM": (6.97, 1.35),
    "AGPM": (0.2437, 0.6644),  # less time than the designs before, at least and at most (abstract)
}
_MIXED_SIZES = (64, 2048, 32_768, 262_144)  # and the largest
_LEARNING_ROUNDS, _ROUNDS = 30, 10


class _Modes:
    """Replaces what logs and stores slots, as a mode needs it."""

    def __init__(self, bench: GpuBench) -> None:
        self._backend = bench.backend
        self._index = bench.index
        committer: Any = bench.store._engine.committer
        self._committer = committer
        self._chunked: ChunkedSlots = self._committer._chunked
        self._threads = len(os.sched_getaffinity(0))
        self._pool = ThreadPoolExecutor(self._threads)
        self._staging = [self._backend.result_column(_CHUNK_BYTES, np.uint8) for _ in range(2)]
        self.mode = "GPM"

    def __enter__(self) -> _Modes:
        self._committer._chunked = self
        self._backend.shared_slots_min = 1 << 62  # as in the paper, the GPU stores alone
        self._backend.stores_durably = lambda _region: self.mode != "shadow"
        return self

    def __exit__(self, *_: object) -> None:
        self._committer._chunked = self._chunked
        del self._backend.stores_durably, self._backend.shared_slots_min
        library.gpkvs_write_back_on(0)
        self._pool.shutdown()

    def use(self, mode: str) -> None:
        """Choose the mode of the next batches."""
        self.mode = mode
        written_back = mode in ("CAP-mm", "shadow", "GPM-NDP")
        library.gpkvs_write_back_on(library.gpkvs_write_back_best() if written_back else 0)

    def prepare(self, writes: TableWrites) -> list[Part]:
        """See `ChunkedSlots.prepare`."""
        (self._columns,) = writes.device
        return self._chunked.prepare(writes)

    def leave(self, parts: list[Part]) -> None:
        """See `ChunkedSlots.leave`."""
        self._chunked.leave(parts)

    def launch(self, parts: list[Part], run: LogRun | None, epoch: int) -> Steps:
        """Do what the mode has in place of `ChunkedSlots.launch`."""
        columns = self._columns
        if self.mode == "GPM":
            return self._chunked.launch(parts, run, epoch)
        if self.mode == "GPM-NDP":
            steps = self._chunked.launch(parts, run, epoch)
            for part in parts:
                part.chunks.run(steps, 0, part.chunk_count)
            self._store_on_host(columns, run, epoch)
        else:  # CAP: no log, as in the paper
            arguments = {"changed_slot": columns.slot, "contents": columns.contents, "index": self._index}
            self._backend.mirror_only("apply_u64", len(columns), arguments)
            self._persist_table()
        return Steps(0)

    def landed(self, writes: TableWrites, parts: list[Part]) -> None:
        """See `ChunkedSlots.landed`."""
        self._chunked.landed(writes, parts)

    def _store_on_host(self, columns: DeviceColumns, run: LogRun | None, epoch: int) -> None:
        """Store entries and slots again, written back."""
        host, download = self._backend.host, self._backend.download
        slot, contents = download(columns.slot), download(columns.contents)
        assert run
        host.launch(
            "log_chunk_u64",
            len(slot),
            changed_slot=slot,
            contents=contents,
            old=contents,
            epoch=epoch,
            first=0,
            log=self._committer._files.run_address(run),
            digest=np.empty(len(slot), np.uint64),
        )
        host.launch("apply_u64", len(slot), changed_slot=slot, contents=contents, index=self._index)

    def _persist_table(self) -> None:
        """Bring the whole table to the host, chunk by chunk, and store it."""
        mirror, region = self._backend.mirror(self._index), self._index.region
        for number, first in enumerate(range(0, region.bytes, _CHUNK_BYTES)):
            staging = self._staging[number % 2]
            mirror[first : first + _CHUNK_BYTES].get(out=staging)
            part = _CHUNK_BYTES // self._threads // 64 * 64
            parts = [(at, min(part, _CHUNK_BYTES - at)) for at in range(0, _CHUNK_BYTES, part)]
            list(self._pool.map(lambda p, s=staging, f=first: self._store(s, f, *p), parts))
        if self.mode == "CAP-fs":
            os.fsync(region.file)

    def _store(self, staging: Any, first: int, at: int, count: int) -> None:
        if self.mode == "CAP-fs":
            os.pwrite(self._index.region.file, staging[at : at + count].data, first + at)
        else:
            data = staging[at : at + count]
            library.gpkvs_pm_store(self._index.address + first + at, data.ctypes.data_as(_CHARS), count // 8)


_CHARS = library.gpkvs_pm_store.argtypes[1]


def run_paper(options: GpuOptions, progress: Progress) -> dict[str, Any]:
    """Run the comparisons; return all results."""
    folder = Path(tempfile.mkdtemp(prefix="gpkvs-bench-paper-", dir=options.directory))
    try:
        bench = GpuBench(folder / "store", options, progress)
        try:
            found = _compare(bench, options, progress)
        finally:
            bench.store.close()
        result = {
            "benchmark": "paper",
            **describe_run(folder),
            "device": bench.device,
            "driver": import_module("gpkvs.backends.cuda.compiler").driver(),
            "limits": bench.limits.as_dict(),
            **found,
        }
        result["commit"] = os.environ.get("GPKVS_REVISION") or result["commit"]
        return result
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _compare(bench: GpuBench, options: GpuOptions, progress: Progress) -> dict[str, Any]:
    bench.make_columns()
    bench.load()
    measurements = []
    with _Modes(bench) as modes:
        for task, run in (("100 % SET", bench.set_again), ("95:5 GET:SET", bench.mixed_again)):
            for mode in MODES:
                progress(f"{task}, {mode}")
                modes.use(mode)
                runs = []
                for number in range(1 + (options.batches if mode == "GPM" else 4)):
                    begin = perf_counter()
                    run(number % options.batches)
                    bench.backend.wait()
                    runs.append(Run(options.batch, perf_counter() - begin))
                measurements.append(Measurement(task, mode, runs[1:]))
    rates = {(found.task, found.contender): found.rate for found in measurements}
    set_ms = options.batch / rates["100 % SET", "GPM"] * 1e3
    progress("both processors (NearPM)")
    near_pm = _near_pm(bench, options)
    progress("batches of mixed sizes (AGPM)")
    agpm = _agpm(bench, options)
    progress("logs")
    log = _logs(bench, options.batch)
    progress("undo")
    bench.undo()
    undo_ms = bench.facts["recovery"]["undo_ms"]
    stored = options.batch * (U64_LAYOUT.slot_bytes + ENTRY_BYTES)
    return {
        "measurements": [found.as_json() for found in measurements],
        "speedup_over_cap_fs": {
            f"{task}, {mode}": rate / rates[task, "CAP-fs"] for (task, mode), rate in rates.items()
        },
        "log_ms": log,
        "log_speedup": min(log["conventional"].values()) / log["coalesced"],
        "set_speedup_by_log": (set_ms - log["coalesced"] + min(log["conventional"].values())) / set_ms,
        "write_amplification": {
            "of the table over slots and log": bench.index.region.bytes / stored,
            "of the table over slots": bench.index.region.bytes / (options.batch * U64_LAYOUT.slot_bytes),
        },
        "restoration": {"undo_ms": undo_ms, "batch_ms": set_ms, "share": undo_ms / set_ms},
        "near_pm": near_pm,
        "agpm": agpm,
        "paper": _PAPER,
    }


def _near_pm(bench: GpuBench, options: GpuOptions) -> dict[str, float]:
    """Return how much faster SETs are whose log and slots two processors store: the stores alone, and all of it."""
    backend, meter = bench.backend, bench.store._engine.meter
    seconds: dict[bool, list[tuple[float, float]]] = {True: [], False: []}
    batches = options.batches | 1  # odd: each batch runs both ways, and what ran before it is not its other way
    for number in range(2 * batches):
        is_alone = number % 2 == 0
        if is_alone:
            backend.shared_slots_min = 1 << 62
        before, begin = meter.phase_seconds, perf_counter()
        bench.set_again(number % batches % options.batches)
        whole = perf_counter() - begin
        bench.store._engine.committer.land()  # only then is known what its stores took
        after = meter.phase_seconds
        if is_alone:
            del backend.shared_slots_min
        seconds[is_alone].append((sum(after[phase] - before[phase] for phase in ("apply",)), whole))
    alone, both = (np.median(seconds[is_alone][2:], axis=0) for is_alone in (True, False))
    stores, whole_batch = (alone / both).tolist()
    return {"stores": stores, "batch": whole_batch}


def _agpm(bench: GpuBench, options: GpuOptions) -> dict[str, float]:
    """Run SETs of several sizes, by the host, by the GPU and as chosen; return how much less time the choice takes."""
    backend = bench.backend
    costs = import_module("gpkvs.backends.cuda.break_even").measure_costs(backend, backend.host)
    backend.path_costs = path_costs = PathCosts(costs.gpu, costs.host)
    keys, values = bench.columns(0)
    sizes = [*(size for size in _MIXED_SIZES if size < options.batch), options.batch]
    ways = {"host": BatchPath.HOST, "GPU": BatchPath.GPU, "chosen": None}

    def run_all() -> None:
        for size in sizes:  # about as many operations of each size, up to some batches
            for number in range(min(64, options.batch // size)):
                first = number * size
                bench.set_columns(keys[first : first + size], values[first : first + size])

    for _ in range(_LEARNING_ROUNDS):
        for size in sizes[:-1]:
            bench.set_columns(keys[:size], values[:size])
    seconds: dict[str, list[float]] = {way: [] for way in ways}
    try:
        for _ in range(_ROUNDS):
            for way, path_costs.forced in ways.items():
                begin = perf_counter()
                run_all()
                seconds[way].append(perf_counter() - begin)
    finally:
        backend.path_costs = None
    host, gpu, chosen = (float(np.median(seconds[way])) for way in ways)
    return {"over_host": 1 - chosen / host, "over_gpu": 1 - chosen / gpu}


def _logs(bench: GpuBench, count: int) -> dict[str, Any]:
    """Time the coalesced log and a conventional one, for the same slots; milliseconds."""
    backend = bench.backend
    xp = backend.xp
    slots = xp.asarray(np.sort(np.random.default_rng(5).integers(0, bench.index.region.bytes // 16, count, np.uint64)))
    log, index = bench.log_address, bench.index
    digest, contents = xp.empty(count, np.uint64), xp.zeros((count, 2), np.uint64)  # of other keys: whole entries
    device_seconds = import_module("gpkvs.bench.gpu.limits").device_seconds
    old = xp.empty((count, 2), np.uint64)

    def log_coalesced() -> None:
        backend.launch("load_slots_u64", count, slot=slots, index=index, contents=old)
        backend.launch(
            "log_chunk_u64",
            count,
            changed_slot=slots,
            contents=contents,
            old=old,
            epoch=1,
            first=0,
            log=log,
            digest=digest,
        )

    coalesced = device_seconds(backend, log_coalesced, 5)
    cuda = import_module("gpkvs.backends.cuda.compiler")
    code = cuda.compile_kernels((Path(__file__).parent / "conventional_log.cu").read_text())
    kernel = code.get_function("conventional_log")
    conventional = {}
    for partitions in _PARTITIONS:
        locks, tails = xp.zeros(partitions, np.uint32), xp.zeros(16 * partitions, np.uint64)
        arguments = (np.uint64(log), locks, tails, slots, backend.mirror(index), *map(np.uint64, (1, partitions)))
        capacity = -(-count // partitions)
        seconds = device_seconds(
            backend,
            lambda a=arguments, c=capacity: kernel((-(-count // 256),), (256,), (*a, np.uint64(c), np.uint64(count))),
            3,
        )
        conventional[str(partitions)] = seconds * 1e3
    return {"coalesced": coalesced * 1e3, "conventional": conventional}


def paper_tables(result: dict[str, Any]) -> list[Rows]:
    """Return a result as tables, beside the paper's figures."""
    paper = result["paper"]
    speedups: list[tuple[str, ...]] = [
        (name, f"{value:.2f}", str(paper.get(name.split(", ")[1], "")) if "100" in name else "")
        for name, value in result["speedup_over_cap_fs"].items()
    ]
    other: list[tuple[str, ...]] = [
        ("conventional log over coalesced, time", f"{result['log_speedup']:.2f}", ""),
        ("SET with the coalesced log over SET with a conventional one", f"{result['set_speedup_by_log']:.2f}", "3.3"),
        *(
            (f"write amplification {name}", f"{value:.1f}", "39.4")
            for name, value in result["write_amplification"].items()
        ),
        ("restoration, share of a batch's time", f"{result['restoration']['share']:.1%}", "19.0%"),
        (
            "NearPM: log and slots by two processors over the GPU alone, whole SET",
            f"{result['near_pm']['stores']:.2f}, {result['near_pm']['batch']:.2f}",
            "{:.2f}, {:.2f}".format(*paper["NearPM"]),
        ),
        (
            "AGPM: less time by the chosen path than by the host alone, by the GPU alone",
            f"{result['agpm']['over_host']:.0%}, {result['agpm']['over_gpu']:.0%}",
            "{:.0%} to {:.0%}".format(*paper["AGPM"]),
        ),
    ]
    return [
        Rows("Speed over CAP-fs", ("workload, mode", "here", "paper"), speedups),
        Rows("Log, write amplification, restoration", ("what", "here", "paper"), other),
    ]


def draw_paper(result: dict[str, Any]) -> str:
    """Return an SVG of the speeds over CAP-fs."""
    rows: dict[str, dict[str, float]] = {}
    for name, value in result["speedup_over_cap_fs"].items():
        task, mode = name.split(", ")
        if mode != MODES[0]:
            rows.setdefault(task, {})[mode] = value
    return draw_speedups(MODES[0], f"batches of numbers, {result['device']}; {place_of(result)}", rows)
