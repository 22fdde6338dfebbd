"""What a batch costs a GPU and the host's threads, measured at the start."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from gpkvs.backends.base import Processor
from gpkvs.batch import Op

_FEW, _MANY = 64, 8192
_ORDERS = 3  # `order` is about a third of a transaction on either side


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


def measure_costs(gpu: Processor, host: Processor) -> StartCosts:
    """Measure what transactions cost, by their sorts."""
    rng = np.random.default_rng(1)
    word0, word1 = rng.integers(0, 1 << 63, _MANY, np.uint64), np.zeros(_MANY, np.uint64)
    ops = np.full(_MANY, Op.SET, np.uint8)
    few0, few1, few_ops = gpu.upload(word0[:_FEW]), gpu.upload(word1[:_FEW]), gpu.upload(ops[:_FEW])
    launches = _seconds(lambda: gpu.order(few0, few1, few_ops))
    work = _seconds(lambda: host.order(word0, word1, ops))
    return StartCosts(_ORDERS * launches, _ORDERS * work / _MANY)


def _seconds(run: Callable[[], object]) -> float:
    """Return the shortest of a few runs."""
    found = []
    for _ in range(5):
        begin = time.perf_counter()
        run()
        found.append(time.perf_counter() - begin)
    return min(found)
