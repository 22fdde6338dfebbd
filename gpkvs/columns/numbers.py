"""Numbers as columns, for tables of the layout u64: arrays in and out, without a Python object per number.

The store and the client use it. Arrays are those of NumPy, or of a library with the same methods (CuPy).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gpkvs.batch import U8, U64, Batch, Op, RequestResult, Status
from gpkvs.config import Limits
from gpkvs.errors import InvalidArgumentError
from gpkvs.operations import Ttl, ttl_ms
from gpkvs.request_checks import check_request_ops
from gpkvs.text import counted

_WIRE = np.dtype("<u8")
_ONLY_NUMBERS = (
    "tables of the layout u64 have whole numbers from 0 to 2**64 - 1 as keys and values. For a table of the layout "
    "bytes, set_many, get_many and delete_many take lists of bytes, and arrays of NumPy of the type S"
)
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
    return Batch.of_numbers(Op.SET, *pairs_of(keys, values), table)


def pairs_of(keys: U64, values: U64) -> tuple[U8, U8]:
    """Return the bytes of keys and of their values; raises as `sets_of`."""
    pairs = _bytes_of("keys", keys), _bytes_of("values", values)
    if len(keys) != len(values):
        raise InvalidArgumentError(f"{counted(len(keys), 'key')}, {counted(len(values), 'value')}", field="values")
    return pairs


def require_no_ttl(ttl: Ttl, keys: Sequence[Any] | NDArray[Any]) -> None:
    """Raise `InvalidArgumentError` if numbers are to expire: `keys`, unless there are none."""
    if ttl_ms(ttl) and len(keys):
        raise InvalidArgumentError(
            "a table of the layout u64 has no expiry: leave out the ttl, or keep the numbers in a table of the layout "
            "bytes",
            field="ttl",
        )


def gets_of(keys: U64, table: int = 0) -> Batch:
    """Return one request that reads `keys`; raises as `sets_of`."""
    return Batch.of_numbers(Op.GET, _bytes_of("keys", keys), _NO_BYTES, table)


def deletes_of(keys: U64, table: int = 0) -> Batch:
    """Return one request that removes `keys`; raises as `sets_of`."""
    return Batch.of_numbers(Op.DELETE, _bytes_of("keys", keys), _NO_BYTES, table)


def increments_of(keys: U64, deltas: NDArray[np.int64], table: int = 0) -> Batch:
    """Return one request that adds `deltas` to the numbers of `keys`; raises as `sets_of`."""
    values = _bytes_of("deltas", deltas.view(np.uint64))
    return Batch.of_numbers(Op.INCREMENT, _bytes_of("keys", keys), values, table)


def column_of(name: str, numbers: Any) -> U64:
    """Return whole numbers, which are not negative, as a contiguous array; a contiguous one of uint64 is not copied.

    Parameters
    ----------
    name
        Theirs, for the error.
    numbers
        A list, or an array of one dimension; an empty one may be of any type, as ``numpy.array([])`` is of floats.

    Raises
    ------
    InvalidArgumentError
        If something would be lost: a negative number, a fraction.
    """
    return _whole_numbers(name, numbers, np.uint64)


def deltas_of(deltas: Any, count: int) -> NDArray[np.int64]:
    """Return what to add to each of `count` numbers, as a contiguous array; one number is for all.

    Raises
    ------
    InvalidArgumentError
        If one is no signed number of 64 bits, or they are not as many.
    """
    column: NDArray[np.int64] = _whole_numbers("deltas", deltas if np.ndim(deltas) else [deltas], np.int64)
    if np.ndim(deltas) == 0:
        return np.full(count, column[0])
    if len(column) != count:
        raise InvalidArgumentError(f"{counted(count, 'key')}, {counted(len(column), 'delta')}", field="deltas")
    return column


def _whole_numbers(name: str, numbers: Any, wanted: type[np.uint64] | type[np.int64]) -> NDArray[Any]:
    """Return numbers as a contiguous array of one type."""
    given = np.asarray(numbers) if not isinstance(numbers, list | tuple) else _of_list(name, numbers, wanted)
    if given.dtype == wanted and given.ndim == 1:
        return np.ascontiguousarray(given)
    if given.shape == (0,):
        return np.empty(0, wanted)
    if given.dtype.kind not in "iu" or given.ndim != 1:
        raise InvalidArgumentError(
            f"an array of {given.dtype} with {given.ndim} dimensions; one of whole numbers with 1 is needed: "
            f"{_ONLY_NUMBERS}",
            field=name,
        )
    low, high = given.min(), given.max()
    limits = np.iinfo(wanted)
    if int(low) < limits.min or int(high) > limits.max:
        wrong = int(low) if int(low) < limits.min else int(high)
        raise InvalidArgumentError(
            f"{wrong:,} is out of range: {limits.min:,} to {limits.max:,} ({limits.dtype})", field=name
        )
    return given.astype(wanted)


def _of_list(name: str, numbers: Sequence[Any], wanted: type[np.generic]) -> NDArray[Any]:
    """Return a list of whole numbers as an array; NumPy alone would make fractions of large ones."""
    for index, number in enumerate(numbers):
        if not isinstance(number, int | np.integer) or isinstance(number, bool):
            raise InvalidArgumentError(f"{number!r} is no whole number: {_ONLY_NUMBERS}", field=name, index=index)
    try:
        return np.array(numbers, wanted)
    except OverflowError:
        limits = np.iinfo(wanted)  # type: ignore[type-var]
        wrong = next(number for number in numbers if not limits.min <= number <= limits.max)
    raise InvalidArgumentError(f"{wrong:,} is out of range: {limits.min:,} to {limits.max:,}", field=name)


def parts_of(count: int, count_max: int, *, atomic: bool) -> list[slice]:
    """Return how numbers are cut into requests: into none, where there are none.

    Raises
    ------
    InvalidArgumentError
        If they are too many for one, and must be one.
    """
    if count <= count_max:
        return [slice(count)] if count else []
    if atomic:
        advice = "atomic=False makes several requests of it, which are not atomic together"
        check_request_ops(count, Limits(request_ops_max=count_max), advice)
    return [slice(first, first + count_max) for first in range(0, count, count_max)]


def joined(results: Sequence[tuple[U64, NDArray[np.bool_]]], keys: U64) -> tuple[U64, NDArray[np.bool_]]:
    """Return the results of several requests on some keys as those of one; there are none for no keys."""
    if not results:
        return np.empty_like(keys), joined_found([])
    if len(results) == 1:
        return results[0]
    values, found = zip(*results, strict=True)
    return np.concatenate(values), joined_found(found)


def joined_found(found: Sequence[NDArray[np.bool_]]) -> NDArray[np.bool_]:
    """Return what several requests found as what one found."""
    if not found:
        return np.empty(0, np.bool_)
    return found[0] if len(found) == 1 else np.concatenate(found)


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


def is_column(numbers: Any) -> bool:
    """Whether an array is one column of uint64, its numbers side by side."""
    return bool(numbers.dtype == np.uint64 and numbers.ndim == 1 and numbers.flags.c_contiguous)


def _bytes_of(name: str, numbers: Any) -> U8:
    """Return the bytes of an array of numbers, little-endian as the wire has them."""
    if not is_column(numbers):
        raise InvalidArgumentError(
            f"an array of {numbers.dtype} with {numbers.ndim} dimensions; a contiguous one of uint64 is needed",
            field=name,
        )
    column: U8 = (numbers if _WIRE.isnative else numbers.astype(_WIRE)).view(np.uint8)
    return column
