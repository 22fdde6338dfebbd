"""The batches of the benchmark: each kind of operation on the same keys."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np

from gpkvs.batch import U8, U32, U64, Batch, Condition, Op
from gpkvs.bench.engine.workload import Columns, Shape, Workload

HOT_KEYS = 16
_NUMBER_BYTES = 16  # of a counter as text


@dataclass(frozen=True)
class Maker:
    """Makes batches on one table.

    Parameters
    ----------
    shape
        Of its records.
    """

    shape: Shape

    def sets(self, columns: Columns) -> Batch:
        """Return plain SETs of numbers: in a table with records, as text."""
        values = _texts(columns.numbers) if not self.shape.is_numbers else columns.values
        return self._of(Op.SET, columns, values)

    def gets(self, columns: Columns) -> Batch:
        """Return GETs."""
        return self._of(Op.GET, columns, None)

    def exists(self, columns: Columns) -> Batch:
        """Return EXISTSs."""
        return self._of(Op.EXISTS, columns, None)

    def increments(self, columns: Columns) -> Batch:
        """Return increments by 1."""
        ones = np.ones(len(columns), np.uint64).view(np.uint8).reshape(-1, 8)
        return self._of(Op.INCREMENT, columns, ones)

    def appends(self, columns: Columns) -> Batch:
        """Return appends of 8 bytes."""
        return self._of(Op.APPEND, columns, columns.numbers.view(np.uint8).reshape(-1, 8))

    def on_condition(self, columns: Columns, condition: Condition) -> Batch:
        """Return SETs with a condition."""
        return replace(self.sets(columns), conditions=np.full(len(columns), condition, np.uint8))

    def if_equals(self, columns: Columns, expected: U64) -> Batch:
        """Return SETs with the version, or number, that each key must have."""
        return replace(self.on_condition(columns, Condition.EQUALS), expected=expected)

    def _of(self, op: Op, columns: Columns, values: U8 | None) -> Batch:
        count = len(columns)
        lengths: U32 = np.full(count if values is not None else 0, 0 if values is None else values.shape[1], np.uint32)
        return Batch(
            ops=np.full(count, op, np.uint8),
            keys=columns.keys.reshape(-1) if not self.shape.is_numbers else columns.numbers.view(np.uint8),
            key_lengths=np.full(count, self.shape.key_bytes, np.uint32),
            values=np.zeros(0, np.uint8) if values is None else np.ascontiguousarray(values).reshape(-1),
            value_lengths=lengths,
        )


def hot(workload: Workload, columns: Iterator[Columns]) -> Iterator[Columns]:
    """Yield as many operations, all on a few keys."""
    for of_batch in columns:
        yield workload.columns(np.resize(of_batch.numbers[:HOT_KEYS], len(of_batch)), 1)


def _texts(numbers: U64) -> U8:
    """Return numbers as decimal text of `_NUMBER_BYTES` characters, which an increment by 1 does not make longer."""
    digits = (numbers % np.uint64(10 ** (_NUMBER_BYTES - 2))) + np.uint64(10 ** (_NUMBER_BYTES - 1))
    text = digits.astype(f"S{_NUMBER_BYTES}")
    return text.view(np.uint8).reshape(len(numbers), _NUMBER_BYTES)
