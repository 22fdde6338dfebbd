"""The benchmark of growth: keys are inserted in batches into a store that begins small.

One after the other: gpkvs with a small index, gpkvs with an index that is large from the start, and redis. Every batch
holds new keys. Times are of the batches alone: keys are made, and the store is asked what it did, between them.
"""

from __future__ import annotations

import gc
import tempfile
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field
from pathlib import Path
from time import perf_counter
from typing import Any, Literal, get_args

from gpkvs.bench.engine.workload import SHAPES, Columns, Shape, Workload
from gpkvs.bench.growth.steps import measure_steps
from gpkvs.bench.growth.timeline import Timeline
from gpkvs.bench.peers.contender import BenchError, Progress, Promise, require_promise
from gpkvs.bench.peers.embedded_gpkvs import TABLE, EmbeddedGpkvs, index_bytes
from gpkvs.bench.peers.redis_peer import NAME as REDIS
from gpkvs.bench.peers.redis_peer import Redis
from gpkvs.bench.peers.resp_port import require_redis
from gpkvs.bench.report.comparison import Comparison
from gpkvs.bench.report.machine import describe_run
from gpkvs.bench.report.results import Measurement, Run, latencies_ms, ratios
from gpkvs.config import DEFAULT_TABLE, MIB
from gpkvs.errors import NoSpaceError
from gpkvs.media.layout import BLOCK_BYTES

OWN, LARGE = EmbeddedGpkvs.name, f"{EmbeddedGpkvs.name}, made large"

GrowthPeer = Literal["redis"]
GROWTH_PEERS: tuple[GrowthPeer, ...] = get_args(GrowthPeer)


_WARM_UP_BATCHES = 8  # of the first, which load code and touch fresh memory: shown, and not compared
_P99_AIM, _LONGEST_MS_AIM, _RATE_AIM = 2.0, 20.0, 0.7


@dataclass(frozen=True)
class GrowthOptions:
    """What to measure.

    Parameters
    ----------
    directory
        For the stores: its file system decides the promise.
    promise
        What an acknowledged batch must survive.
    records
        How many keys are inserted.
    batch
        Keys in a batch.
    index_bytes
        The size of the index at first.
    steps_bytes
        The size of the indexes whose steps of growth are measured alone; 0: none.
    shape
        Sizes of keys and values.
    peers
        The stores to compare with.
    """

    directory: Path
    promise: Promise = "process"
    records: int = 10_000_000
    batch: int = 4096
    index_bytes: int = BLOCK_BYTES
    steps_bytes: int = 1024 * MIB
    shape: Shape = SHAPES["bytes"]
    peers: tuple[GrowthPeer, ...] = GROWTH_PEERS


def run_growth(options: GrowthOptions, progress: Progress) -> dict[str, Any]:
    """Run the benchmark; return the result, ready for JSON.

    Raises
    ------
    BenchError
        If redis is not installed, the directory gives another promise, or a store returns wrong values.
    """
    began = perf_counter()
    require_promise(options.directory, options.promise)
    if options.peers:
        require_redis()
    described = describe_run(options.directory)
    workload = Workload(options.shape, options.records, options.batch)
    contenders: dict[str, dict[str, Any]] = {}
    lines = [
        _gpkvs(options, workload, OWN, options.index_bytes, progress, contenders, grows=True),
        _gpkvs(options, workload, LARGE, index_bytes(options.shape, options.records), progress, contenders),
    ]
    if options.peers:
        lines.append(_redis(options, workload, progress, contenders))
    measurements = [_measurement(options, line) for line in lines if line.seconds]
    comparisons = list(_comparisons(lines))
    if options.steps_bytes:
        comparisons += measure_steps(options.directory, options.promise, options.steps_bytes, progress)
    return {
        "benchmark": "growth",
        "promise": options.promise,
        **described,
        "seconds": perf_counter() - began,
        "parameters": {
            **{name: value for name, value in asdict(options).items() if name not in ("directory", "shape")},
            "runs": 1,
            "shapes": {options.shape.name: options.shape.text},
        },
        "contenders": contenders,
        "measurements": [measurement.as_json() for measurement in measurements],
        "ratios": ratios(measurements, OWN, []),
        "comparisons": [one.as_json() for one in comparisons],
        "timelines": [line.as_json() for line in lines],
    }


def _gpkvs(
    options: GrowthOptions,
    workload: Workload,
    name: str,
    index: int,
    progress: Progress,
    contenders: dict[str, dict[str, Any]],
    *,
    grows: bool = False,
) -> Timeline:
    progress(f"inserting {workload.records:,} keys into {name}")
    line = Timeline(name)
    with tempfile.TemporaryDirectory(dir=options.directory, prefix="gpkvs-bench-") as path:
        store = EmbeddedGpkvs(Path(path), workload, options.promise, 0, index=index, grows=grows)
        try:
            contenders[name] = {"version": store.version, "settings": f"{store.settings}, index {index:,} B at first"}
            watched = _Watched(store, DEFAULT_TABLE if not options.shape.is_numbers else TABLE)
            for columns in _loads(workload):
                if not _insert(store, columns, line, watched):
                    break
            _check(store, workload, line)
        finally:
            store.close()
    return line


def _loads(workload: Workload) -> Iterator[Columns]:
    gc.collect()
    gc.disable()
    yield from workload.loads("random")
    gc.enable()


def _insert(store: EmbeddedGpkvs, columns: Columns, line: Timeline, watched: _Watched) -> bool:
    """Insert a batch; return whether the store took it."""
    prepared = store.prepare_set(columns)
    began = perf_counter()
    try:
        store.set(prepared)
    except NoSpaceError as error:
        line.refusal = str(error)
        return False
    seconds = perf_counter() - began
    line.add(len(columns), seconds, **watched.look())
    return True


@dataclass
class _Watched:
    """What a store said about itself after the last batch."""

    store: EmbeddedGpkvs
    table: str
    slots: int = 0
    moved: int = 0
    was_growing: bool = field(default=False)

    def look(self) -> dict[str, bool]:
        """Return what the store did since the last look: whether its index grew, whether it moved records."""
        info = self.store.store.info()
        table = next(one for one in info.tables if one.name == self.table)
        moved = getattr(info, "heap_moved_bytes", 0)
        is_growing = bool(getattr(table, "growing_blocks", 0))
        did = {
            "is_growing": self.was_growing or is_growing or bool(self.slots and table.slots != self.slots),
            "is_moving": moved != self.moved,
        }
        self.slots, self.moved, self.was_growing = table.slots, moved, is_growing
        return did


def _check(store: EmbeddedGpkvs, workload: Workload, line: Timeline) -> None:
    """Read the first batch and the last one that was taken: growth may not lose keys."""
    batches = line.operations // workload.batch
    for number, columns in enumerate(workload.loads("random")):
        if number in (0, batches - 1):
            found = store.values(store.get(store.prepare_get(columns)))
            if batches and found != columns.values.tobytes():
                raise BenchError(f"{line.store} does not return the values that were stored in it")


def _redis(
    options: GrowthOptions, workload: Workload, progress: Progress, contenders: dict[str, dict[str, Any]]
) -> Timeline:
    progress(f"inserting {workload.records:,} keys into {REDIS}")
    line = Timeline(REDIS)
    with tempfile.TemporaryDirectory(dir=options.directory, prefix="gpkvs-bench-") as path:
        redis = Redis(Path(path), options.promise)
        try:
            contenders[REDIS] = {"version": redis.version, "settings": f"{redis.settings}, pipelined SETs"}
            with redis.connected() as insert:
                for columns in _loads(workload):
                    commands = redis.commands(columns.keys, columns.values)
                    began = perf_counter()
                    insert(commands, len(columns))
                    line.add(len(columns), perf_counter() - began)
        finally:
            redis.close()
    return line


def _measurement(options: GrowthOptions, line: Timeline) -> Measurement:
    run = Run(line.operations, sum(line.seconds), latencies_ms(line.seconds, 50, 99, 100))
    return Measurement(f"insert batches of {options.batch:,}, {options.shape.name}", line.store, [run])


def _comparisons(lines: list[Timeline]) -> Iterator[Comparison]:
    own, large, *peers = lines
    steady, growing = (own.percentile_ms(99, growing=one) for one in (False, True))
    note = f"refused after {own.operations:,} keys" if own.refusal else ""
    if steady and growing:
        yield Comparison(
            "inserts: p99 while the index grows",
            OWN,
            "p99 without",
            [growing / steady],
            _P99_AIM,
            is_least=False,
            note=f"{growing:.2f} ms over {steady:.2f} ms",
        )
    for line in lines:
        if not line.seconds:
            continue
        longest = max(line.seconds[_WARM_UP_BATCHES:] or line.seconds) * 1e3
        aim = _LONGEST_MS_AIM if line is own else None
        yield Comparison("inserts: the longest batch", line.store, "1 ms", [longest], aim, is_least=False)
        p50, p99 = line.percentile_ms(50), line.percentile_ms(99)
        assert p50 is not None
        assert p99 is not None
        yield Comparison("inserts: p99", line.store, "p50", [p99 / p50])
    yield Comparison("inserts: throughput", OWN, LARGE, [own.rate / large.rate], _RATE_AIM, note=note)
    for peer in peers:
        yield Comparison("inserts: throughput", OWN, peer.store, [own.rate / peer.rate], note=note)
