"""Workloads whose keys are not all as popular."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import numpy as np

from gpkvs.bench.engine.workload import U64, Columns, Workload, mixed
from gpkvs.bench.wear.options import Distribution

_THETA = 0.99  # as YCSB has it


def overwrites(workload: Workload, distribution: Distribution, seed: int) -> Iterator[Columns]:
    """Yield batches of keys drawn from the records, without end."""
    if distribution == "uniform":
        return workload.batches("random", seed)
    return _zipfian(workload, seed)


def zipfian_records(random: np.random.Generator, records: int) -> Callable[[int], U64]:
    """Return a function that draws so many records, number n with a share of 1 / (n + 1) ** theta."""
    sums = np.cumsum(np.arange(1, records + 1, dtype=np.float64) ** -_THETA)
    return lambda count: np.searchsorted(sums, random.random(count) * sums[-1]).astype(np.uint64)


def _zipfian(workload: Workload, seed: int) -> Iterator[Columns]:
    """Yield batches without end; keys are mixed, so that popular ones lie anywhere."""
    draw = zipfian_records(np.random.default_rng((workload.seed, seed)), workload.records)
    generation = 0
    while True:
        generation += 1
        yield workload.columns(mixed(draw(workload.batch)), generation)
