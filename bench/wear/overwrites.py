"""Records of 100 bytes that take a share of the heap, each overwritten again and again, at random.

gpkvs has a heap of a fixed size; the peers take the space that they want. `Comparison` rows: what was refused, what the
heap and the device got for what users wrote, the rate over that with a half full heap and over the peers', and how late
batches are while records are moved.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from itertools import islice
from pathlib import Path
from tempfile import TemporaryDirectory

from gpkvs.bench.engine.workload import SHAPES, Workload
from gpkvs.bench.peers.contender import BenchError, Contender, Progress
from gpkvs.bench.peers.embedded_gpkvs import EmbeddedGpkvs, index_bytes
from gpkvs.bench.report.comparison import Comparison
from gpkvs.bench.report.results import Measurement
from gpkvs.bench.wear.options import DISTRIBUTIONS, WEAR_PEERS, Distribution, Found, WearOptions
from gpkvs.bench.wear.worn_store import Worn, wear
from gpkvs.bench.wear.zipfian import overwrites
from gpkvs.info import StoreInfo
from gpkvs.media.layout import SHORT_RECORD_HEADER_BYTES, UNIT_BYTES

OWN = EmbeddedGpkvs.name

_SHAPE = SHAPES["bytes"]
_RECORD_BYTES = -(-(SHORT_RECORD_HEADER_BYTES + _SHAPE.key_bytes + _SHAPE.value_bytes) // UNIT_BYTES) * UNIT_BYTES
_USER_BYTES = _SHAPE.key_bytes + _SHAPE.value_bytes
_CHARGED_SHARE_MAX = 0.85  # `heap_charged_bytes_max` is so much of what a heap can hold
_INDEX_ROOM = 1.3  # the index has room for more records than there are: it shall not grow meanwhile
_FULL, _BUSY = 0.85, 0.7  # the shares that have targets
_WRITTEN_AIMS: dict[Distribution, float] = {"uniform": 4.2, "zipfian": 3.2}
_RATE_AIMS: dict[Distribution, float] = {"uniform": 0.25, "zipfian": 0.33}
_PEER_AIM, _P99_AIM = 2.0, 2.0


def measure_overwrites(options: WearOptions, progress: Progress, found: Found) -> None:
    """Measure all stores at all shares, with both distributions."""
    capacity = _capacity(options)
    for distribution in DISTRIBUTIONS:
        emptiest: dict[str, Worn] = {}
        for share in options.shares:
            records = int(share * capacity / _RECORD_BYTES)
            workload = Workload(_SHAPE, records, options.batch)
            found.records = max(found.records, records)
            task = f"{distribution} at {share:.2f}"
            worn = dict(_measure(options, workload, task, distribution, progress, found))
            emptiest = emptiest or worn
            found.comparisons += comparisons_of(task, share, distribution, worn, emptiest)


def _capacity(options: WearOptions) -> int:
    """Return how many bytes of records a heap of this size can hold."""
    workload = Workload(_SHAPE, 1, 1)
    with _opened(options, partial(_gpkvs, options, workload)) as store:
        assert isinstance(store, EmbeddedGpkvs)
        return capacity_of(store.store.info())


def capacity_of(info: StoreInfo) -> int:
    """Return how many bytes of records a heap can hold: all of it, unless it keeps room for compaction."""
    charged_max: int = getattr(info, "heap_charged_bytes_max", 0)
    return int(charged_max / _CHARGED_SHARE_MAX) or info.heap_bytes


def _measure(
    options: WearOptions,
    workload: Workload,
    task: str,
    distribution: Distribution,
    progress: Progress,
    found: Found,
) -> Iterator[tuple[str, Worn]]:
    """Wear each store out, one after the other, and yield what became of it."""
    batches = -(-options.overwrites * workload.records // options.batch)
    makers: list[Callable[[Path], Contender]] = [partial(_gpkvs, options, workload)]
    makers += [partial(_peer, options, workload, WEAR_PEERS[peer]) for peer in options.peers]
    for make in makers:
        with _opened(options, make) as store:
            progress(f"{task}: {options.overwrites} overwrites of {workload.records:,} records, {store.name}")
            store.load(workload)
            _check(store, workload)
            store.settle()
            found.contender(store, workload)
            worn = wear(store, islice(overwrites(workload, distribution, 21), batches))
            if worn.taken:
                found.measurements.append(Measurement(f"SET {task}", store.name, [worn.run()]))
            yield store.name, worn


def _check(store: Contender, workload: Workload) -> None:
    columns = next(workload.loads("random"))
    if store.values(store.get(store.prepare_get(columns))) != columns.values.tobytes():
        raise BenchError(f"{store.name} does not return the values that were stored in it")


@contextmanager
def _opened(options: WearOptions, make: Callable[[Path], Contender]) -> Iterator[Contender]:
    with TemporaryDirectory(dir=options.directory, prefix="gpkvs-bench-") as path:
        store = make(Path(path))
        try:
            yield store
        finally:
            store.close()


def _gpkvs(options: WearOptions, workload: Workload, path: Path) -> Contender:
    index = index_bytes(workload.shape, int(_INDEX_ROOM * workload.records))
    return EmbeddedGpkvs(path, workload, options.promise, 0, index=index, heap=options.heap_bytes)


def _peer(options: WearOptions, workload: Workload, peer: type, path: Path) -> Contender:
    store: Contender = peer(path, workload, options.promise, 0)
    return store


def comparisons_of(
    task: str, share: float, distribution: Distribution, worn: dict[str, Worn], emptiest: dict[str, Worn]
) -> Iterator[Comparison]:
    """Compare the stores at a share with each other, and with what became of them at the lowest share."""
    own = worn[OWN]
    is_full = share == _FULL and not own.refused  # what a store does instead of its work has no target
    of_all = f"{own.refused:,} of {own.taken + own.refused:,} refused"
    yield Comparison(
        f"{task}: refused",
        OWN,
        "all overwrites",
        [own.refused / (own.taken + own.refused)],
        0,
        is_least=False,
        note=of_all,
    )
    if own.moved_bytes is not None and own.taken:
        written = own.moved_bytes + own.taken * _RECORD_BYTES
        aim = _WRITTEN_AIMS[distribution] if is_full else None
        ratio = written / (own.taken * _RECORD_BYTES)
        yield Comparison(f"{task}: heap written", OWN, "records of users", [ratio], aim, is_least=False)
    for name, one in worn.items():
        if one.device_bytes and one.taken:
            ratio = one.device_bytes / (one.taken * _USER_BYTES)
            yield Comparison(f"{task}: device written", name, "user bytes", [ratio])
    for name, one in worn.items():
        if name in emptiest and one is not emptiest[name] and emptiest[name].rate:
            aim = _RATE_AIMS[distribution] if is_full and name == OWN else None
            yield Comparison(f"{task}: rate", name, "rate of the emptiest heap", [one.rate / emptiest[name].rate], aim)
    for name, one in worn.items():
        if name != OWN and one.rate:
            aim = _PEER_AIM if is_full else None
            yield Comparison(f"{task}: rate", OWN, name, [own.rate / one.rate], aim, note=of_all)
        ratio99 = one.p99_ratio()
        if ratio99 is not None:
            aim = _P99_AIM if share == _BUSY and name == OWN else None
            yield Comparison(
                f"{task}: p99 of batches while records are moved",
                name,
                "p99 without",
                [ratio99],
                aim,
                is_least=False,
                note=f"{len(one.slow):,} batches beside moves, {len(one.quick):,} without",
            )
