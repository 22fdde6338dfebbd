"""One store under overwrites: what it took and refused, what it wrote for that, and how late it was meanwhile."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from dataclasses import dataclass, field
from time import perf_counter

import numpy as np

from gpkvs.bench.engine.workload import Columns
from gpkvs.bench.peers.contender import Contender
from gpkvs.bench.peers.embedded_gpkvs import EmbeddedGpkvs
from gpkvs.bench.report.results import Run, latencies_ms
from gpkvs.errors import NoSpaceError
from gpkvs.process.process_io import process_io

_LATENCIES_MIN = 20  # of batches, for a percentile of them


@dataclass
class Worn:
    """What became of the overwrites.

    Attributes
    ----------
    taken, refused
        Operations.
    seconds
        Of the batches that were taken.
    quick, slow
        Seconds of the batches beside which the store moved nothing, and of those beside which it did.
    moved_bytes
        Of records that the store itself moved; None if it does not say.
    device_bytes
        That the process wrote to devices, until the store had tidied up; 0 on a tmpfs.
    """

    taken: int = 0
    refused: int = 0
    seconds: float = 0.0
    quick: list[float] = field(default_factory=list)
    slow: list[float] = field(default_factory=list)
    moved_bytes: int | None = None
    device_bytes: int = 0

    @property
    def rate(self) -> float:
        """Operations a second."""
        return self.taken / self.seconds if self.taken else 0.0

    def run(self) -> Run:
        """Return the run of a measurement."""
        return Run(self.taken, self.seconds, latencies_ms([*self.quick, *self.slow], 50, 99))

    def p99_ratio(self) -> float | None:
        """Return the 99th percentile while the store moves records, over that without; None if one is unknown."""
        if min(len(self.quick), len(self.slow)) < _LATENCIES_MIN:
            return None
        return float(np.percentile(self.slow, 99) / np.percentile(self.quick, 99))


def wear(store: Contender, batches: Iterator[Columns]) -> Worn:
    """Write all batches to a store, and time them one by one, without the time to make them."""
    worn = Worn(moved_bytes=moved_bytes(store))
    before, device = worn.moved_bytes, _device_bytes()
    gc.disable()
    for columns in batches:
        _write(store, columns, worn)
    gc.enable()
    store.settle()
    after = moved_bytes(store)
    worn.moved_bytes = None if before is None or after is None else after - before
    worn.device_bytes = _device_bytes() - device
    return worn


def _write(store: Contender, columns: Columns, worn: Worn) -> None:
    prepared = store.prepare_set(columns)
    moved, is_tidying = moved_bytes(store), _is_at_work(store)
    began = perf_counter()
    try:
        store.set(prepared)
    except NoSpaceError:
        worn.refused += len(columns)
        return
    seconds = perf_counter() - began
    is_slow = is_tidying or _is_at_work(store) or moved != moved_bytes(store)
    (worn.slow if is_slow else worn.quick).append(seconds)
    worn.taken += len(columns)
    worn.seconds += seconds


def moved_bytes(store: Contender) -> int | None:
    """Return the bytes of records that a store of gpkvs has moved; None if it does not say."""
    if not isinstance(store, EmbeddedGpkvs):
        return None
    moved: int | None = getattr(store.store.info(), "heap_moved_bytes", None)
    return moved


def _is_at_work(store: Contender) -> bool:
    """Whether a peer tidies up; a checkpoint of gpkvs moves no records."""
    return not isinstance(store, EmbeddedGpkvs) and store.is_tidying()


def _device_bytes() -> int:
    counted = process_io()
    return counted.written_bytes if counted else 0
