"""Large batches of SETs on a disk with a journal, beside LMDB and RocksDB that sync, and beside the store in memory.

The stores are all open, and take turns. Each keeps its data on the same disk, but for the store of the promise
`process`, whose files lie on a tmpfs.
"""

from __future__ import annotations

from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any

from gpkvs.bench.disk.options import OWN, DiskOptions, Found, gpkvs_on_disk, opened
from gpkvs.bench.disk.rounds import Turns, in_turn
from gpkvs.bench.engine.workload import SHAPES, Order, Shape, Workload
from gpkvs.bench.peers.contender import Contender, Progress
from gpkvs.bench.peers.embedded_gpkvs import EmbeddedGpkvs
from gpkvs.bench.peers.lmdb_peer import Lmdb
from gpkvs.bench.peers.rocksdb_peer import RocksDb
from gpkvs.bench.report.comparison import Comparison, rates_over
from gpkvs.bench.report.results import Measurement, Run

IN_MEMORY = "gpkvs, process"
# A heap in which every segment runs empty sooner or later, while records are overwritten in random order.
_HEAP_GENERATIONS = 14
_OWN_BATCHES, _PEER_BATCHES = 32, 16  # distinct ones
# What, the order of keys, callers, and the share of the seconds: those with aims get the most.
_TASKS: tuple[tuple[str, Order, int, float], ...] = (
    ("SET random", "random", 1, 1.0),
    ("SET random, 2 callers", "random", 2, 0.5),
    ("SET sorted", "sorted", 1, 0.5),
)
_PEERS: dict[str, tuple[type[Lmdb | RocksDb], ...]] = {"u64": (Lmdb,), "bytes": (Lmdb, RocksDb)}
_AIMS: dict[tuple[str, str], float] = {
    ("u64 SET random", Lmdb.name): 10,
    ("bytes SET random", Lmdb.name): 7,
    ("bytes SET random", RocksDb.name): 7,
    ("u64 SET random", IN_MEMORY): 0.8,
    ("bytes SET random", IN_MEMORY): 0.6,
}


def measure_batches(options: DiskOptions, progress: Progress, found: Found) -> None:
    """Measure both shapes of records."""
    for shape in SHAPES.values():
        _measure_shape(options, shape, progress, found)


def _measure_shape(options: DiskOptions, shape: Shape, progress: Progress, found: Found) -> None:
    workload = Workload(shape, options.records, options.batch)
    sets_max = _HEAP_GENERATIONS * options.records
    with opened(
        (options.directory, gpkvs_on_disk(workload, options, sets_max)),
        (options.memory, lambda path: EmbeddedGpkvs(path, workload, "process", sets_max)),
        *((options.directory, partial(_peer, peer, workload)) for peer in _PEERS[shape.name]),
    ) as contenders:
        names = [OWN, IN_MEMORY, *(contender.name for contender in contenders[2:])]
        for name, contender in zip(names, contenders, strict=True):
            progress(f"loading {options.records:,} records, {shape.text}, into {name}")
            contender.load(workload)
            contender.settle()
            found.contender(contender, workload, name)
        prepared: dict[Order, list[list[Any]]] = {}  # batches of each contender
        for kind, order, callers, share in _TASKS:
            task = f"{shape.name} {kind}"
            progress(f"{task}: {options.rounds} rounds")
            if order not in prepared:
                prepared = {order: [_prepared(contender, workload, order) for contender in contenders]}
            turns = [
                Turns(contender, batches, options.batch, share * options.seconds, callers)
                for contender, batches in zip(contenders, prepared[order], strict=True)
            ]
            runs = in_turn(options.rounds, [turn.run for turn in turns])
            _keep(found, task, names, runs, turns[0])


def _peer(peer: type[Lmdb | RocksDb], workload: Workload, path: Path) -> Contender:
    return peer(path, workload, "msync", 0)


def _prepared(contender: Contender, workload: Workload, order: Order) -> list[Any]:
    count = _OWN_BATCHES if isinstance(contender, EmbeddedGpkvs) else _PEER_BATCHES
    return [contender.prepare_set(columns) for columns in islice(workload.batches(order, seed=11), count)]


def _keep(found: Found, task: str, names: list[str], runs: list[list[Run]], turns: Turns) -> None:
    found.phases[task] = turns.phases
    note = f"in the timed parts {turns.checkpoints} checkpoints ended, {turns.checkpoint_bytes >> 20:,} MiB written"
    own, *others = (Measurement(task, name, of) for name, of in zip(names, runs, strict=True))
    found.measurements += [own, *others]
    for other in others:
        found.comparisons.append(
            Comparison(
                what=task,
                store=OWN,
                beside=other.contender,
                ratios=rates_over(own, other),
                aim=_AIMS.get((task, other.contender)),
                note=note,
            )
        )
