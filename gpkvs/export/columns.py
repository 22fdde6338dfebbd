"""Records as columns, as a file of columns has them: NumPy arrays for many records at once."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from gpkvs.batch import U8, U32, U64, constant
from gpkvs.columns.row_layout import KEY_BYTES, RowLayout

Numbers = tuple[NDArray[np.uint64], NDArray[np.uint64]]
"""Keys and values of a table of numbers."""


class Columns(NamedTuple):
    """Records of a table of bytes, or of rows: keys of 8 bytes, and values of one length.

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


def rows_as_columns(layout: RowLayout, keys: U64, values: U8, expiries: U64 | None) -> Columns:
    """Return the records of a table of rows: keys as numbers, and all rows, one after the other."""
    key_bytes = np.ascontiguousarray(keys, "<u8").view(np.uint8)
    key_lengths, value_lengths = (constant(np.uint32(length), len(keys)) for length in (KEY_BYTES, layout.row_bytes))
    return Columns(key_bytes, key_lengths, values, value_lengths, expiries)
