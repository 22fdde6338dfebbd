"""Sums of columns on a GPU, and when CuPy compiles them.

CuPy's fast sums (CUB) take two to four seconds to compile when first used, and small columns need many of them, by
size: in the middle of serving each would be a halt. So the fast ones are for large columns, of which there is one for
all sizes, and are asked for at the start; CuPy keeps them on disk.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

_LARGE = 1 << 16  # elements


def warm_up(xp: Any) -> None:
    """Turn fast sums off, but for `total_on_gpu`, and have those compiled that it uses."""
    xp._core.set_reduction_accelerators([])
    for dtype in (np.uint64, np.uint32, np.bool_):
        total_on_gpu(xp, xp.zeros(_LARGE, dtype))


def total_on_gpu(xp: Any, column: NDArray[Any]) -> int:
    """See `Backend.total`."""
    if len(column) >= _LARGE:
        xp._core.set_reduction_accelerators(["cub"])
    try:
        return int(column.sum(dtype=np.uint64))
    finally:
        xp._core.set_reduction_accelerators([])
