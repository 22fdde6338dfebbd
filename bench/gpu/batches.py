"""Batches of numbers that the benchmarks of GPUs share."""

from __future__ import annotations

import numpy as np

from gpkvs.batch import U64, Batch, Op

GETS_OF_MIXED = 0.95  # of all operations; the others are SETs


def mixed_batch(table_id: int, keys: U64, values: U64, seed: int) -> Batch:
    """Return one request of 95 % GET and 5 % SET, as chance has them.

    Parameters
    ----------
    table_id
        Of a table of numbers.
    keys, values
        Of all operations; the values of GETs are left out.
    seed
        Of what each operation is.
    """
    ops = np.where(np.random.default_rng(seed).random(len(keys)) < GETS_OF_MIXED, np.uint8(Op.GET), np.uint8(Op.SET))
    sets = ops == Op.SET.value
    return Batch(
        ops=ops,
        keys=keys.view(np.uint8),
        key_lengths=np.broadcast_to(np.uint32(8), len(keys)),
        values=values[sets].view(np.uint8),
        value_lengths=np.full(int(sets.sum()), 8, np.uint32),
        table=table_id,
    )
