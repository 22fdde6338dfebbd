"""Large batches, whose kinds of operations native code counts."""

from __future__ import annotations

import numpy as np
import pytest

from gpkvs.batch import Batch, Op
from gpkvs.engine.host.kinds import count_kinds

LARGE = (1 << 16) + 2


def batch_of(ops: np.ndarray) -> Batch:
    """Return a batch of which only the operations count."""
    return Batch(ops, np.zeros(0, np.uint8), np.zeros(0, np.uint32), np.zeros(0, np.uint8), np.zeros(0, np.uint32))


@pytest.mark.parametrize("count", [LARGE, (1 << 17) - 1, 1 << 17, 64 * 255 * 9, 3 * (1 << 17) + 77])
def test_native_code_counts_as_numpy_does(count: int) -> None:
    rng = np.random.default_rng(count)
    every = rng.integers(0, 256, count, np.uint8)
    mixed = np.where(rng.random(count) < 0.95, np.uint8(Op.GET), np.uint8(Op.SET))
    for ops in (every, mixed, mixed[1:], np.full(count, Op.GET, np.uint8), np.full(count, Op.SET, np.uint8)):
        batch, read_only = batch_of(ops), batch_of(ops.copy())
        read_only.ops.flags.writeable = False
        for counted in (batch, read_only):
            count_kinds(counted)
            assert counted.__dict__["_plain"] == (np.count_nonzero(ops == Op.GET), np.count_nonzero(ops == Op.SET))


def test_what_is_counted_or_small_is_not_counted_again() -> None:
    def refused(_ops: np.ndarray) -> tuple[int, int]:
        raise AssertionError

    batch, small = batch_of(np.full(LARGE, Op.SET, np.uint8)), batch_of(np.full(9, Op.GET, np.uint8))
    assert batch.gets == 0
    batch.count_kinds(refused)
    on_table = batch.on_table(3)
    on_table.count_kinds(refused)
    assert (batch.table, on_table.table) == (0, 3)
    Batch.of_numbers(Op.GET, np.zeros(8 * LARGE, np.uint8), np.zeros(0, np.uint8)).count_kinds(refused)
    count_kinds(small)
    assert "_plain" not in small.__dict__
