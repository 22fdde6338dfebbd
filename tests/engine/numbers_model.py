"""A dictionary that says what a table of numbers must answer, and random batches for both."""

from __future__ import annotations

from random import Random

import numpy as np

from gpkvs.batch import U64, Batch, Op, RequestResult, Status


class NumbersModel:
    """What a table of numbers holds."""

    def __init__(self) -> None:
        self.held: dict[int, int] = {}

    @property
    def keys(self) -> U64:
        """All keys."""
        return np.array(list(self.held), np.uint64)

    @property
    def values(self) -> U64:
        """Their values, in the same order."""
        return np.array(list(self.held.values()), np.uint64)

    def set_many(self, keys: U64, values: U64) -> None:
        """Take SETs."""
        self.held.update(zip(keys.tolist(), values.tolist(), strict=True))

    def check(self, batch: Batch, result: RequestResult) -> None:
        """Do what a batch does, and fail unless its result says the same."""
        assert answer_of(result) == self.run(batch)

    def run(self, batch: Batch) -> tuple[list[int], list[int]]:
        """Do what a batch does; return the status of each operation, and the numbers that GETs find."""
        values = iter(batch.values.view(np.uint64).tolist())
        statuses, found = [], []
        for op, key in zip(batch.ops.tolist(), batch.keys.view(np.uint64).tolist(), strict=True):
            there = key in self.held
            statuses.append(Status.OK if there or op == Op.SET else Status.NOT_FOUND)
            if op == Op.GET and there:
                found.append(self.held[key])
            elif op == Op.SET:
                self.held[key] = next(values)
            elif op == Op.DELETE and there:
                del self.held[key]
        return statuses, found


def answer_of(result: RequestResult) -> tuple[list[int], list[int]]:
    """Return what `NumbersModel.run` returns, of a result."""
    return result.status.tolist(), result.values.view(np.uint64).tolist()


def random_batch(pick: Random, model: NumbersModel, table: int, *, count: int, gets: float) -> Batch:
    """Return a batch of GETs, SETs and DELETEs; half of the keys are there, and some come several times."""
    rng = np.random.default_rng(pick.randrange(1 << 32))
    known = model.keys
    keys = rng.integers(0, 1 << 40, count, np.uint64)
    if len(known):
        keys = np.where(rng.random(count) < 0.5, rng.choice(known, count), keys)
    keys = np.where(rng.random(count) < 0.2, keys[rng.integers(0, count, count)], keys)
    kinds = rng.random(count)
    others = np.where(kinds < gets + 0.7 * (1 - gets), np.uint8(Op.SET), np.uint8(Op.DELETE))
    ops = np.where(kinds < gets, np.uint8(Op.GET), others)
    sets = int((ops == Op.SET.value).sum())
    return Batch(
        ops=ops,
        keys=keys.view(np.uint8),
        key_lengths=np.full(count, 8, np.uint32),
        values=rng.integers(0, 1 << 64, sets, np.uint64).view(np.uint8),
        value_lengths=np.full(sets, 8, np.uint32),
        table=table,
    )
