"""What a batch costs a GPU and the host's threads, measured at the start."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from gpkvs.backends.cpu.backend import CpuBackend
from gpkvs.backends.cuda.processor import GpuProcessor
from gpkvs.batch import Op

_FEW, _MANY = 64, 8192
_SORTS = 3  # a sort is about a third of a transaction on either side


class StartCosts(NamedTuple):
    """What transactions cost, in seconds.

    Attributes
    ----------
    gpu
        One of few operations on the GPU: its launches.
    host
        An operation of many on the host: its work.
    """

    gpu: float
    host: float

    @property
    def break_even(self) -> int:
        """The operations for which both cost the same."""
        return int(self.gpu / self.host)


def measure_costs(gpu: GpuProcessor, host: CpuBackend) -> StartCosts:
    """Measure what transactions cost, by their sorts."""
    rng = np.random.default_rng(1)
    word0, word1 = rng.integers(0, 1 << 63, _MANY, np.uint64), np.zeros(_MANY, np.uint64)
    ops = np.full(_MANY, Op.SET, np.uint8)
    few = gpu.upload(word0[:_FEW])

    def sort_few() -> None:
        gpu.sort(few, 0)
        gpu.settle()

    launches = _seconds(sort_few)
    work = _seconds(lambda: host.order(word0, word1, ops))
    return StartCosts(_SORTS * launches, _SORTS * work / _MANY)


def _seconds(run: Callable[[], object]) -> float:
    """Return the shortest of a few runs."""
    found = []
    for _ in range(5):
        begin = time.perf_counter()
        run()
        found.append(time.perf_counter() - begin)
    return min(found)
