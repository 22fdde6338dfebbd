"""Records as columns, as a file of columns has them: NumPy arrays for many records at once."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from gpkvs.batch import U8, U32, U64

Numbers = tuple[NDArray[np.uint64], NDArray[np.uint64]]
"""Keys and values of a table of numbers."""


class Columns(NamedTuple):
    """Records of a table of bytes.

    Parameters
    ----------
    keys, key_lengths : uint8, (n,) uint32
        All keys, one after the other, and how long each is.
    values, value_lengths : uint8, (n,) uint32
        The same of the values.
    expiries : (n,) uint64, optional
        When each expires, in milliseconds since 1970, 0: never. None: none of them expires.
    """

    keys: U8
    key_lengths: U32
    values: U8
    value_lengths: U32
    expiries: U64 | None = None
