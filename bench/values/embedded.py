"""Large values in embedded stores, one key a call: in memory beside `memcpy`, on a disk beside a write and a flush."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path
from tempfile import TemporaryDirectory

from gpkvs.bench.disk.rounds import in_turn
from gpkvs.bench.peers.contender import Progress, Promise
from gpkvs.bench.report.results import Measurement
from gpkvs.bench.values.gpkvs_values import OWN
from gpkvs.bench.values.limits import FLUSHED, MEMCPY, FlushedWrites, Memcpy
from gpkvs.bench.values.opened import opened
from gpkvs.bench.values.options import Found, ValuesOptions
from gpkvs.bench.values.payload import Payload, equal_sizes, size_text
from gpkvs.bench.values.turns import Operation, Turns
from gpkvs.bench.values.value_store import ValueStore

_AIMS: dict[Operation, dict[str, float]] = {"SET": {FLUSHED: 0.9}, "GET": {MEMCPY: 0.8}}


def measure_embedded(options: ValuesOptions, progress: Progress, found: Found) -> None:
    """Measure SETs and GETs in memory."""
    for size in options.sizes:
        payload = Payload.of_sizes(equal_sizes(size, options.total_bytes))
        with closing(Memcpy(size, len(payload))) as limit:
            _measure(options, "process", payload, limit, ("SET", "GET"), progress, found)


def measure_disk(options: ValuesOptions, progress: Progress, found: Found) -> None:
    """Measure durable SETs."""
    for size in options.sizes:
        payload = Payload.of_sizes(equal_sizes(size, options.total_bytes))
        with (
            TemporaryDirectory(dir=options.disk, prefix="gpkvs-bench-") as folder,
            closing(FlushedWrites(Path(folder), size, len(payload))) as limit,
        ):
            _measure(options, "msync", payload, limit, ("SET",), progress, found)


def _measure(
    options: ValuesOptions,
    promise: Promise,
    payload: Payload,
    limit: ValueStore,
    operations: tuple[Operation, ...],
    progress: Progress,
    found: Found,
) -> None:
    """Let all stores and the limit take turns."""
    size = len(payload.values[0])
    directory, part = (options.disk, "disk") if promise == "msync" else (options.directory, "embedded")
    with opened(options, directory, promise, payload) as at:
        stores = [*(store for store, _ in at), limit]
        for store in stores:
            progress(f"loading {len(payload):,} values of {size_text(size)} into {store.name}")
            payload.load(store)
            found.contender(store, part)
        for operation in operations:
            task = f"{operation} {size_text(size)}"
            progress(f"{task}: {options.runs} rounds of {', '.join(store.name for store in stores)}")
            turns = [Turns(store, operation, payload, options.seconds) for store in stores]
            runs = in_turn(options.runs, [turn.run for turn in turns])
            measured = {store.name: Measurement(task, store.name, runs[at]) for at, store in enumerate(stores)}
            found.add(task, OWN, measured, size, _AIMS[operation])
            found.phases[task] = turns[0].phases
