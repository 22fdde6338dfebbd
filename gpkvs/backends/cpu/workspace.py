"""Memory for the columns that a transaction needs only while it runs."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

_ALIGNMENT = 64  # bytes: a cache line
_KEPT_BYTES_MAX = 64 << 20  # what a larger batch takes beyond is given back after it


class Workspace:
    """Hands out columns of one block of memory, and the same memory again after `recycle`.

    Fresh memory costs a page fault for each 4 KiB: for a batch of 65,536 operations more than its hashing.
    """

    def __init__(self) -> None:
        self._block: NDArray[np.uint8] = np.empty(0, np.uint8)
        self._used = 0
        self._wanted = 0

    def take(self, count: int, dtype: type[np.generic]) -> NDArray[Any]:
        """Return an uninitialised column; it lasts until `recycle`."""
        size = count * np.dtype(dtype).itemsize
        first = self._used
        self._wanted += size + _ALIGNMENT
        if first + size > len(self._block):
            return np.empty(count, dtype)
        self._used = -(-(first + size) // _ALIGNMENT) * _ALIGNMENT
        return self._block[first : first + size].view(dtype)

    def recycle(self) -> None:
        """Take back all columns; nobody may use them any more."""
        wanted = self._wanted
        self._used = self._wanted = 0  # before the allocation, which may fail: the next transaction begins anew
        if len(self._block) < wanted and len(self._block) < _KEPT_BYTES_MAX:
            self._block = np.empty(min(2 * wanted, _KEPT_BYTES_MAX), np.uint8)
