"""The batch size for which a GPU and the host's threads cost the same, measured where it is asked for."""

from __future__ import annotations

import time
from collections.abc import Callable

import numpy as np

from gpkvs.backends.base import Backend
from gpkvs.batch import Op

_FEW, _MANY = 64, 8192


def break_even(gpu: Backend, host: Backend) -> int:
    """Return the batch size for which launches on the GPU cost what all the work costs on the host.

    `order` is about a third of a transaction on either side: its time for a few operations on the GPU is the time of
    its launches, its time for many on the host is that of its work.
    """
    rng = np.random.default_rng(1)
    word0, word1 = rng.integers(0, 1 << 63, _MANY, np.uint64), np.zeros(_MANY, np.uint64)
    ops = np.full(_MANY, Op.SET, np.uint8)
    few0, few1, few_ops = gpu.upload(word0[:_FEW]), gpu.upload(word1[:_FEW]), gpu.upload(ops[:_FEW])
    launches = _seconds(lambda: gpu.order(few0, few1, few_ops))
    work = _seconds(lambda: host.order(word0, word1, ops))
    return int(launches / work * _MANY)


def _seconds(run: Callable[[], object]) -> float:
    """Return the shortest of a few runs."""
    found = []
    for _ in range(5):
        begin = time.perf_counter()
        run()
        found.append(time.perf_counter() - begin)
    return min(found)
