"""Workloads whose keys are not all as popular."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from gpkvs.bench.engine.workload import Columns, Workload, mixed
from gpkvs.bench.wear.options import Distribution

_THETA = 0.99  # as YCSB has it


def overwrites(workload: Workload, distribution: Distribution, seed: int) -> Iterator[Columns]:
    """Yield batches of keys drawn from the records, without end."""
    if distribution == "uniform":
        return workload.batches("random", seed)
    return _zipfian(workload, seed)


def _zipfian(workload: Workload, seed: int) -> Iterator[Columns]:
    """Draw record number n with a share of 1 / (n + 1) ** theta; keys are mixed, so that popular ones lie anywhere."""
    random = np.random.default_rng((workload.seed, seed))
    sums = np.cumsum(np.arange(1, workload.records + 1, dtype=np.float64) ** -_THETA)
    generation = 0
    while True:
        generation += 1
        drawn = np.searchsorted(sums, random.random(workload.batch) * sums[-1])
        yield workload.columns(mixed(drawn.astype(np.uint64)), generation)
