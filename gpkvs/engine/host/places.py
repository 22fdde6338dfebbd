"""Where the values of GETs go in a caller's memory, as native code takes it (``EngineRoom`` in engine_batch.h)."""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from gpkvs.backends.cpu.backend import address_of
from gpkvs.batch import U8


class Places(NamedTuple):
    """Places for values.

    Parameters
    ----------
    address
        Of the lowest byte of all.
    offsets, sizes
        Where each place begins behind it, and how long each is: numbers of 64 bits.
    """

    address: int
    offsets: bytes
    sizes: bytes

    @classmethod
    def of(cls, buffers: Sequence[U8] | U8) -> Places:
        """Return those of buffers, or of the rows of an array, which must be kept as long."""
        if isinstance(buffers, np.ndarray):
            return cls._of_rows(buffers)
        starts = [address_of(buffer) for buffer in buffers]
        lowest = min(starts)
        offsets = array("Q", [start - lowest for start in starts])
        return cls(lowest, offsets.tobytes(), array("Q", map(len, buffers)).tobytes())

    @classmethod
    def _of_rows(cls, rows: U8) -> Places:
        count, size = rows.shape
        span = (count - 1) * rows.strides[0]
        lowest = rows.__array_interface__["data"][0] + min(span, 0)
        offsets = np.arange(count, dtype=np.int64)
        offsets *= rows.strides[0]
        offsets -= min(span, 0)
        return cls(lowest, offsets.tobytes(), np.full(count, size, np.uint64).tobytes())
