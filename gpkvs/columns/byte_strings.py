"""Byte strings as columns, for tables of the layout bytes: many keys and values without a Python object for each.

`set_many`, `get_many` and `delete_many` take lists of bytes, arrays of NumPy and whatever speaks Arrow's protocol for
columns (pyarrow, polars, pandas), and return `ByteStrings`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import cached_property
from typing import Any, Protocol, overload

import numpy as np
from numpy.typing import NDArray

from gpkvs.batch import U8, U32, constant
from gpkvs.columns.arrow import bytes_of, column_of_arrow, holds_bytes, in_one_piece, pyarrow, speaks_arrow
from gpkvs.errors import InvalidArgumentError
from gpkvs.operations import as_bytes

_LENGTH_MAX = (1 << 32) - 1
_WANTED = (
    "a list of bytes, an array of NumPy of the type S or of uint8 with two dimensions, or a column that speaks Arrow "
    "is needed; for a table of the layout u64 whole numbers"
)


class ArrowColumn(Protocol):
    """A column that speaks Arrow: of pyarrow, polars or pandas."""

    def __arrow_c_stream__(self, requested_schema: Any = None) -> Any: ...


class ByteStrings(Sequence[bytes | None]):
    """Byte strings, one after the other in one piece of memory; a sequence of `bytes`.

    Parameters
    ----------
    data : (sum of lengths,) uint8
        All bytes.
    lengths : (n,) uint32
        Of each.
    found : (n,) bool, optional
        Which are there; the others are None, and have the length 0. By default all are.

    Attributes
    ----------
    data, lengths, found
        As given; `found` is None where all are there.
    """

    def __init__(self, data: U8, lengths: U32, found: NDArray[np.bool_] | None = None) -> None:
        self.data = data
        self.lengths = lengths
        self.found = None if found is None or found.all() else found

    @cached_property
    def _ends(self) -> NDArray[np.int64]:
        """Where each ends; many columns are handed on whole, and nobody asks."""
        return np.cumsum(self.lengths, dtype=np.int64)

    def __len__(self) -> int:
        return len(self.lengths)

    @overload
    def __getitem__(self, index: int) -> bytes | None: ...

    @overload
    def __getitem__(self, index: slice) -> ByteStrings: ...

    def __getitem__(self, index: int | slice) -> bytes | ByteStrings | None:
        if isinstance(index, slice):
            first, last, step = index.indices(len(self))
            if step != 1:
                raise ValueError("a step of 1 is needed: what is not side by side would have to be copied")
            if (first, last) == (0, len(self)):
                return self
            last = max(first, last)
            found = None if self.found is None else self.found[first:last]
            return ByteStrings(self.data[self._begin(first) : self._begin(last)], self.lengths[first:last], found)
        at = range(len(self))[index]
        if self.found is not None and not self.found[at]:
            return None
        return self.data[self._begin(at) : self._begin(at + 1)].tobytes()

    def __iter__(self) -> Iterator[bytes | None]:
        data, begin = self.data.tobytes(), 0
        is_there = [True] * len(self) if self.found is None else self.found.tolist()
        for end, is_found in zip(self._ends.tolist(), is_there, strict=True):
            yield data[begin:end] if is_found else None
            begin = end

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, ByteStrings | list | tuple):
            return NotImplemented
        return len(self) == len(other) and all(one == another for one, another in zip(self, other, strict=True))

    __hash__ = None  # type: ignore[assignment]

    def tolist(self) -> list[bytes | None]:
        """Return them as a list."""
        return list(self)

    def __repr__(self) -> str:
        shown = ", ".join(repr(self[at]) for at in range(min(len(self), 3)))
        return f"<ByteStrings of {len(self):,}: [{shown}{', ...' if len(self) > 3 else ''}]>"

    def _begin(self, index: int) -> int:
        return int(self._ends[index - 1]) if index else 0

    def to_arrow(self) -> Any:
        """Return them as an array of pyarrow, of the type large_binary; None is null. Nothing is copied.

        Raises
        ------
        InvalidArgumentError
            If pyarrow is not installed.
        """
        pa = pyarrow()
        offsets = np.concatenate([np.zeros(1, np.int64), self._ends])
        valid = None if self.found is None else pa.py_buffer(np.packbits(self.found, bitorder="little"))
        buffers = [valid, pa.py_buffer(offsets), pa.py_buffer(np.ascontiguousarray(self.data))]
        return pa.LargeBinaryArray.from_buffers(pa.large_binary(), len(self), buffers)


def column_given(name: str, given: Any) -> Any:
    """Return a column of a caller's: `ByteStrings`, or what is to be taken for numbers.

    Parameters
    ----------
    name
        Theirs, for the error.
    given
        A list, or anything to iterate over, of what is like bytes; an array of NumPy of the type ``S`` (which ends each
        string before its last zero bytes, as NumPy does), of fixed bytes (``V``) or of uint8 with two dimensions, a row
        a string; a column that speaks Arrow, of binary or text (as UTF-8); `ByteStrings`. All else is left to what
        takes numbers. A list without an item is `ByteStrings`.

    Raises
    ------
    InvalidArgumentError
        If it is no column, a string of it is missing, or one is longer than a length may be.
    TypeError
        If one of a list is not like bytes.
    """
    if isinstance(given, ByteStrings):
        if given.found is not None:
            raise InvalidArgumentError("some are missing (None)", field=name, index=int(np.argmin(given.found)))
        return given
    if isinstance(given, np.ndarray):
        return _of_array(name, given)
    if isinstance(given, bytes | bytearray | memoryview | str):
        raise InvalidArgumentError(f"one {type(given).__name__}; {_WANTED} (`get` and `set` take one key)", field=name)
    if speaks_arrow(given):
        return _of_arrow(name, given)
    if hasattr(given, "__dlpack__"):
        return given
    if hasattr(given, "__array__"):
        return _of_array(name, np.asarray(given))
    if isinstance(given, Mapping):
        raise InvalidArgumentError(f"a {type(given).__name__}; give its keys() and its values()", field=name)
    try:
        items = given if isinstance(given, list | tuple) else list(given)
    except TypeError:
        raise InvalidArgumentError(f"{type(given).__name__}; {_WANTED}", field=name) from None
    return items if items and _is_of_numbers(items[0]) else _of_list(name, items)


def byte_strings_of(name: str, given: Any) -> ByteStrings:
    """Return a column that must be one of byte strings; raises as `column_given`."""
    column = column_given(name, given)
    if not isinstance(column, ByteStrings):
        if len(column) and isinstance(column, list | tuple):
            as_bytes(name.removesuffix("s"), column[0])
        raise InvalidArgumentError(f"numbers; {_WANTED}, keys and values", field=name)
    return column


def _is_of_numbers(item: object) -> bool:
    """Whether what a list begins with is a number, or may be taken for one."""
    return not isinstance(item, bytes | bytearray | memoryview | np.ndarray | str | None)


def _of_list(name: str, given: Sequence[Any]) -> ByteStrings:
    noun = name.removesuffix("s")
    strings = given if all(type(one) is bytes for one in given) else [as_bytes(noun, one) for one in given]
    lengths = [len(one) for one in strings]
    _require_lengths(name, max(lengths, default=0))
    return ByteStrings(np.frombuffer(b"".join(strings), np.uint8), np.array(lengths, np.uint32))


def _of_array(name: str, given: NDArray[Any]) -> Any:
    if isinstance(given, np.ma.MaskedArray) and np.ma.is_masked(given):
        raise InvalidArgumentError("some are masked: fill them, or leave them out", field=name)
    if given.ndim == 0:
        raise InvalidArgumentError(f"one {given.dtype}; {_WANTED}", field=name)
    kind, width = given.dtype.kind, given.dtype.itemsize
    is_rows = given.dtype == np.uint8 and given.ndim == 2
    if is_rows:
        width = given.shape[1]
    elif kind == "O" and given.ndim == 1:
        items = given.tolist()
        return given if items and _is_of_numbers(items[0]) else _of_list(name, items)
    elif kind not in "SUTV" or (not given.size and kind not in "SV"):
        return given
    elif given.ndim != 1 or kind not in "SV" or given.dtype.names:
        raise InvalidArgumentError(
            f"an array of {given.dtype} with {given.ndim} dimensions; one of the type S or V with 1, or of uint8 with "
            "2 is needed (text must be encoded)",
            field=name,
        )
    _require_lengths(name, width)
    count = len(given)
    rows = np.ascontiguousarray(given).view(np.uint8).reshape(count, width) if width else np.empty((count, 0), np.uint8)
    if kind != "S" or (width and rows[:, -1].all()):  # each has its whole width
        return ByteStrings(rows.reshape(-1), constant(np.uint32(width), count))
    lengths = np.char.str_len(given).astype(np.uint32)
    return ByteStrings(rows[np.arange(width) < lengths[:, None]], lengths)


def _of_arrow(name: str, given: Any) -> Any:
    """Return an Arrow column as one piece; its numbers as an array of NumPy."""
    if str(getattr(given, "dtype", "")) == "Object":  # polars exports the addresses of Python's objects
        return column_given(name, list(given))
    try:
        pa = pyarrow()
    except InvalidArgumentError:
        if (numbers := np.asarray(given)).dtype.kind in "iuf":
            return numbers
        raise
    try:
        return _of_pieces(name, pa, column_of_arrow(given))
    except pa.ArrowException as error:
        raise InvalidArgumentError(f"a {type(given).__name__} that cannot be read: {error}", field=name) from error


def _of_pieces(name: str, pa: Any, column: Any) -> Any:
    if pa.types.is_dictionary(column.type):
        column = column.cast(column.type.value_type)
    if not len(column) and pa.types.is_null(column.type):
        return _of_list(name, [])
    if column.null_count:
        missing = column.is_null().index(True).as_py()
        raise InvalidArgumentError("some are missing (null)", field=name, index=missing)
    if pa.types.is_integer(column.type) or pa.types.is_floating(column.type):
        return column.to_numpy() if isinstance(column, pa.ChunkedArray) else column.to_numpy(zero_copy_only=False)
    if not holds_bytes(column.type):
        raise InvalidArgumentError(f"a column of {column.type}; one of binary or text is needed", field=name)
    column = column.cast(pa.large_binary())  # its offsets have room for all pieces together
    array = in_one_piece(column)
    data, lengths = bytes_of(array)
    _require_lengths(name, int(lengths.max(initial=0)))
    return ByteStrings(data, lengths.astype(np.uint32))


def _require_lengths(name: str, longest: int) -> None:
    if longest > _LENGTH_MAX:
        raise InvalidArgumentError(f"one of {longest:,} bytes, the limit is {_LENGTH_MAX:,}", field=name)
