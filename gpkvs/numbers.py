"""Numbers as columns, for tables of the layout u64: arrays in and out, without a Python object per number.

The store and the client use it. Arrays are those of NumPy, or of a library with the same methods (CuPy).
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from gpkvs.batch import U8, U64, Batch, Op, RequestResult, Status
from gpkvs.errors import InvalidArgumentError
from gpkvs.text import counted

_WIRE = np.dtype("<u8")
_NO_BYTES = np.empty(0, np.uint8)


def sets_of(keys: U64, values: U64, table: int = 0) -> Batch:
    """Return one request that stores `values` under `keys`; nothing is copied.

    Parameters
    ----------
    keys, values : (n,) uint64
        Contiguous.
    table
        The id of its table.

    Raises
    ------
    InvalidArgumentError
        If they are not contiguous arrays of uint64 of one length.
    """
    key_bytes, value_bytes = _bytes_of("keys", keys), _bytes_of("values", values)
    if len(keys) != len(values):
        raise InvalidArgumentError(f"{counted(len(keys), 'key')}, {counted(len(values), 'value')}", field="values")
    return Batch.of_numbers(Op.SET, key_bytes, value_bytes, table)


def gets_of(keys: U64, table: int = 0) -> Batch:
    """Return one request that reads `keys`; raises as `sets_of`."""
    return Batch.of_numbers(Op.GET, _bytes_of("keys", keys), _NO_BYTES, table)


def deletes_of(keys: U64, table: int = 0) -> Batch:
    """Return one request that removes `keys`; raises as `sets_of`."""
    return Batch.of_numbers(Op.DELETE, _bytes_of("keys", keys), _NO_BYTES, table)


def found_of(result: RequestResult) -> NDArray[np.bool_]:
    """Return which keys were there."""
    found: NDArray[np.bool_] = result.status == Status.OK.value
    return found


def values_of(result: RequestResult, found: NDArray[np.bool_]) -> tuple[U64, NDArray[np.bool_]]:
    """Return the values that the GETs of a u64 table read, 0 where there is none, and which keys were there."""
    held: U64 = result.values.view(_WIRE).astype(np.uint64, copy=False)
    if len(held) == len(found):
        return held, found
    values = np.zeros_like(held, shape=len(found))
    values[found] = held
    return values, found


def check_values(result: RequestResult) -> None:
    """Check that a result holds numbers: a client does not know the layout of the table that it named.

    Raises
    ------
    InvalidArgumentError
        If a value is not 8 bytes long.
    """
    found = found_of(result)
    if len(result.values) != 8 * int(found.sum()) or (result.value_lengths[found] != 8).any():
        raise InvalidArgumentError("it holds values that are not 8 bytes long: its layout is not u64", field="table")


def _bytes_of(name: str, numbers: Any) -> U8:
    """Return the bytes of an array of numbers, little-endian as the wire has them."""
    if numbers.dtype != np.uint64 or numbers.ndim != 1 or not numbers.flags.c_contiguous:
        raise InvalidArgumentError(
            f"an array of {numbers.dtype} with {numbers.ndim} dimensions; a contiguous one of uint64 is needed",
            field=name,
        )
    column: U8 = (numbers if _WIRE.isnative else numbers.astype(_WIRE)).view(np.uint8)
    return column
