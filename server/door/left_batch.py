"""A batch that the door's turn left: its columns for the engine, and the engine's results for the door."""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from gpkvs.batch import HAS_VALUE, U8, U32, U64, Batch, BatchResult, constant, is_constant
from gpkvs.engine.seam.engine_batch import EngineBatch

_U8, _U32, _U64 = np.dtype(np.uint8), np.dtype(np.uint32), np.dtype(np.uint64)
_PyBUF_READ = 0x100

_memory_at: Callable[[int, int, int], memoryview] = ctypes.PYFUNCTYPE(
    ctypes.py_object, ctypes.c_void_p, ctypes.c_ssize_t, ctypes.c_int
)(("PyMemoryView_FromMemory", ctypes.pythonapi))


def batch_of(left: EngineBatch) -> Batch:
    """Return the columns of a batch: they lie in the door's memory, and are gone when it was told the results."""
    ops = _column(left.ops, left.n, _U8)
    with_value = int(np.count_nonzero(HAS_VALUE[ops]))
    key_lengths = _lengths(left.key_lengths, left.key_length_step, left.n)
    value_lengths = _lengths(left.value_lengths, left.value_length_step, with_value)
    return Batch(
        ops=ops,
        keys=_column(left.keys, _sum(key_lengths), _U8),
        key_lengths=key_lengths,
        values=_column(left.values, _sum(value_lengths), _U8),
        value_lengths=value_lengths,
        request_ops=_column(left.request_ops, left.requests, _U32),
        table=left.table_id,
        conditions=_column(left.conditions, left.n, _U8) if left.conditions else None,
        expected=_column(left.expected, left.n, _U64) if left.expected else None,
        expiries=_column(left.expiries, left.n, _U64) if left.expiries else None,
    )


class Results(NamedTuple):
    """The results of the requests that were executed, in their order, as the door takes them."""

    status: U8
    versions: U64 | None  # None: the table has none
    value_lengths: U32
    values: U8


def results_of(result: BatchResult) -> Results:
    """Return the columns of a result that covers all of a batch."""
    assert result.part
    own = result.part.result
    return Results(
        np.ascontiguousarray(own.status),
        None if is_constant(own.versions) else np.ascontiguousarray(own.versions),
        np.ascontiguousarray(own.value_lengths, np.uint32),
        own.values,
    )


def _lengths(address: int, step: int, count: int) -> U32:
    if step or not count:
        return _column(address, count, _U32)
    return constant(_column(address, 1, _U32)[0], count)


def _sum(lengths: U32) -> int:
    if len(lengths) and is_constant(lengths):
        return int(lengths[0]) * len(lengths)
    return int(lengths.sum(dtype=np.uint64))


def _column(address: int, count: int, kind: np.dtype[Any]) -> NDArray[Any]:
    if not count:
        return np.zeros(0, kind)
    return np.frombuffer(_memory_at(address, count * kind.itemsize, _PyBUF_READ), kind)
