"""Sums of columns on a GPU, and when CuPy compiles them.

CuPy's fast sums (CUB) take two to four seconds to compile when first used, and small columns need many of them, by
size. In the middle of serving each would be a halt. So fast sums serve large columns only, where one serves all sizes.
It is compiled at the start; CuPy keeps it on disk. Sums of bytes and of words are native (``kernels/cu/tiles.cu``).
"""

from __future__ import annotations

from typing import Any

import cupy
import numpy as np
from numpy.typing import NDArray

_LARGE = 1 << 16  # elements


def warm_up() -> None:
    """Turn fast sums off, but for `total_on_gpu`, and have CuPy compile the one that it uses: of lengths."""
    _accelerate([])
    total_on_gpu(cupy.zeros(_LARGE, np.uint32))


def total_on_gpu(column: NDArray[Any]) -> Any:
    """Return the sum of a column, on the GPU."""
    if len(column) >= _LARGE:
        _accelerate(["cub"])
    try:
        return column.sum(dtype=np.uint64)
    finally:
        _accelerate([])


def _accelerate(accelerators: list[str]) -> None:
    """Choose CuPy's accelerators of sums; there is no public function for it."""
    cupy._core.set_reduction_accelerators(accelerators)
