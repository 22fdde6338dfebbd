"""The GETs and SETs of a large batch, counted by native code: in one pass, where NumPy takes four."""

from __future__ import annotations

import ctypes

from gpkvs.backends.cpu.backend import address_of
from gpkvs.batch import U8, Batch
from gpkvs.native import library

_LARGE = 1 << 16  # operations: of fewer, NumPy takes some microseconds, and not every batch is asked


def count_kinds(batch: Batch) -> None:
    """Have the operations of a valid batch counted, if it is large, before anybody asks."""
    if len(batch) > _LARGE:
        batch.count_kinds(_count)


def _count(ops: U8) -> tuple[int, int]:
    kinds = (ctypes.c_uint64 * 2)()
    library.gpkvs_count_kinds(address_of(ops), len(ops), kinds)
    gets, sets = kinds
    return gets, sets
