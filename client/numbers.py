"""Columns of numbers, for tables of the layout u64: NumPy arrays in and out, without a Python object per number."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from gpkvs.batch import Batch, Op, RequestResult, Status
from gpkvs.errors import InvalidArgumentError
from gpkvs.text import counted

U64Array = NDArray[np.uint64]
_NO_BYTES = np.empty(0, np.uint8)


def sets_of(keys: U64Array, values: U64Array) -> Batch:
    """Return one request that stores `values` under `keys`.

    Raises
    ------
    InvalidArgumentError
        If they are not contiguous arrays of uint64 of one length.
    """
    if len(keys) != len(values):
        raise InvalidArgumentError(f"{counted(len(keys), 'key')} and {counted(len(values), 'value')}", field="values")
    return Batch.of_numbers(Op.SET, _bytes_of("keys", keys), _bytes_of("values", values))


def gets_of(keys: U64Array) -> Batch:
    """Return one request that reads `keys`; raises as `sets_of`."""
    return Batch.of_numbers(Op.GET, _bytes_of("keys", keys), _NO_BYTES)


def deletes_of(keys: U64Array) -> Batch:
    """Return one request that removes `keys`; raises as `sets_of`."""
    return Batch.of_numbers(Op.DELETE, _bytes_of("keys", keys), _NO_BYTES)


def values_of(result: RequestResult) -> tuple[U64Array, NDArray[np.bool_]]:
    """Return the answer to `gets_of`: the values, 0 where there is none, and which keys were found.

    Raises
    ------
    InvalidArgumentError
        If a value is no number of 8 bytes.
    """
    found = found_of(result)
    if len(result.values) != 8 * int(found.sum()) or (result.value_lengths[found] != 8).any():
        raise InvalidArgumentError("it holds values that are not 8 bytes long: its layout is not u64", field="table")
    held = result.values.view("<u8").astype(np.uint64, copy=False)
    if len(held) == len(found):
        return held, found
    values = np.zeros(len(found), np.uint64)
    values[found] = held
    return values, found


def found_of(result: RequestResult) -> NDArray[np.bool_]:
    """Return which keys were there."""
    found: NDArray[np.bool_] = result.status == Status.OK
    return found


def _bytes_of(name: str, numbers: U64Array) -> NDArray[np.uint8]:
    """Return the bytes of an array of numbers as the wire has them: little-endian."""
    if numbers.dtype != np.uint64 or numbers.ndim != 1 or not numbers.flags.c_contiguous:
        raise InvalidArgumentError(
            f"an array of {numbers.dtype} with {numbers.ndim} dimensions; a contiguous one of uint64 is needed",
            field=name,
        )
    return numbers.astype("<u8", copy=False).view(np.uint8)
