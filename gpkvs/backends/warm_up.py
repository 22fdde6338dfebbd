"""What CuPy compiles when it is first used, asked for at the start: in the middle of serving it would be a halt.

A sum or a count takes it two to four seconds to compile, once for what fits a thread block, once for more; the result
is kept on disk, so that the next start only loads it.
"""

from __future__ import annotations

from types import ModuleType

import numpy as np

_SIZES = (32, 1 << 16)


def warm_up(xp: ModuleType) -> None:
    """Run every kind of sum that a transaction runs on the device."""
    for size in _SIZES:
        words = xp.zeros(size, np.uint64)
        words.sum(dtype=np.uint64)
        words.astype(np.uint32).sum(dtype=np.uint64)
        xp.count_nonzero(words.astype(np.bool_))
        xp.bincount(words.view(np.int64), weights=words.astype(np.float64), minlength=2)
