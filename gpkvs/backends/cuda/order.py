"""The sort of a batch on a GPU (``kernels/radix.hpp``), and the kernels of ``order.cu`` around it."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import Any

import cupy
import numpy as np

from gpkvs.backends.base import Processor
from gpkvs.batch import U8, U32, U64
from gpkvs.native import launch_sort, library

_ALL = (1 << 64) - 1


def order_on_gpu(backend: Processor, fingerprint0: U64, fingerprint1: U64, ops: U8) -> tuple[U32, U32, U32, U32]:
    """See `Processor.order`."""
    n = len(ops)
    order, chain_of, last_write, chain_start, write_end = (
        cupy.empty(count, np.uint32) for count in (n, n, n, n + 1, n)
    )
    marks, told = cupy.empty(n, np.uint64), cupy.zeros(2, np.uint64)
    for packed, numbers in _sorts(backend, fingerprint0, fingerprint1, told):
        backend.launch(
            "mark",
            n,
            packed=packed,
            numbers=numbers,
            fingerprint0=fingerprint0,
            fingerprint1=fingerprint1,
            ops=ops,
            op_numbers=0,
            order=order,
            marks=marks,
        )
        sums = cupy.cumsum(marks)
        backend.launch(
            "spread",
            n,
            marks=marks,
            sums=sums,
            count=n,
            chain_of=chain_of,
            chain_start=chain_start,
            write_end=write_end,
            chains=told[1:],
        )
        backend.launch("last_writes", n, sums=sums, write_end=write_end, last_write=last_write)
        left, chains = backend.download(told).tolist()
        if not left:
            break
    return order, chain_of, chain_start[: chains + 1], last_write


def _sorts(backend: Processor, fingerprint0: U64, fingerprint1: U64, left: U64) -> Iterator[tuple[Any, int]]:
    """Yield the operations sorted, and the bits of theirs that are numbers; again while some were left as they are."""
    n = len(fingerprint0)
    numbers = (1 << (n - 1).bit_length()) - 1
    packed, descents = cupy.empty(n, np.uint64), cupy.empty(n, np.uint8)
    backend.launch("pack", n, fingerprint0=fingerprint0, numbers=numbers, packed=packed)
    sort_on_gpu(backend, packed, numbers.bit_length())
    of_sorted = {
        "packed": packed,
        "numbers": numbers,
        "fingerprint0": fingerprint0,
        "fingerprint1": fingerprint1,
        "descents": descents,
    }
    backend.launch("tell_descents", n, **of_sorted)
    backend.launch("sort_tied", n, **of_sorted, count=n, left=left)
    yield packed, numbers
    left[0] = 0
    yield cupy.lexsort(cupy.stack([fingerprint1, fingerprint0])).astype(np.uint64), _ALL


def sort_on_gpu(backend: Processor, words: Any, first: int) -> None:
    """Sort words by their bits from `first` on; those that are alike in these keep their order."""
    count = len(words)
    spare, digits = cupy.empty(count, np.uint64), cupy.empty(library.gpkvs_digit_counts(count), np.uint32)
    of_sort = *[backend.address(column) for column in (words, spare, digits)], count, first
    backend.run_native(partial(launch_sort, backend.launcher, backend.queue, *of_sort))
