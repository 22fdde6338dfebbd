"""Byte strings as columns, for tables of the layout bytes: many keys and values without a Python object for each.

`set_many`, `get_many` and `delete_many` take lists of bytes, arrays of NumPy and whatever speaks Arrow's protocol for
arrays (pyarrow, polars, pandas), and return `ByteStrings`.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, overload

import numpy as np
from numpy.typing import NDArray

from gpkvs.batch import U8, U32
from gpkvs.errors import InvalidArgumentError
from gpkvs.operations import as_bytes

_LENGTH_MAX = (1 << 32) - 1
_STRINGS = (bytes, bytearray, memoryview, np.ndarray, str)  # `str` is refused, and told what it takes
_ARROW = ("__arrow_c_array__", "__arrow_c_stream__")
_BINARY = ("binary", "large_binary", "binary_view", "fixed_size_binary", "string", "large_string", "string_view")


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
        self._ends = np.cumsum(lengths, dtype=np.int64)

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
        return isinstance(other, Sequence) and len(self) == len(other) and list(self) == list(other)

    __hash__ = None  # type: ignore[assignment]

    def __repr__(self) -> str:
        shown = ", ".join(repr(self[at]) for at in range(min(len(self), 3)))
        return f"<ByteStrings of {len(self):,}: [{shown}{', ...' if len(self) > 3 else ''}]>"

    def bytes_before(self, index: int) -> int:
        """Return how many bytes the first `index` of them have."""
        return self._begin(index)

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


def pyarrow() -> Any:
    """Import pyarrow.

    Raises
    ------
    InvalidArgumentError
        If it is not installed; the message says how to install it.
    """
    try:
        import pyarrow as pa  # noqa: PLC0415 - an extra
    except ImportError as error:
        raise InvalidArgumentError(f"Arrow needs pyarrow ({error}): run pip install 'gpkvs[parquet]'") from error
    return pa


def are_byte_strings(given: Any) -> bool:
    """Whether something is a column of byte strings, or should be one; else it is one of numbers."""
    if isinstance(given, ByteStrings):
        return True
    if isinstance(given, np.ndarray):
        if given.dtype.kind == "O":
            return bool(given.size) and isinstance(given.flat[0], _STRINGS)
        return given.dtype.kind in "SUV" or (given.dtype == np.uint8 and given.ndim == 2)
    if isinstance(given, list | tuple):
        return bool(given) and isinstance(given[0], _STRINGS)
    return _is_arrow(given) and not _is_of_numbers(given)


def byte_strings_of(name: str, given: Any) -> ByteStrings:
    """Return a column of byte strings.

    Parameters
    ----------
    name
        Theirs, for the error.
    given
        A list of what is like bytes; an array of NumPy of the type ``S`` (which ends each string before its last zero
        bytes, as NumPy does), of fixed bytes (``V``) or of uint8 with two dimensions, a row a string; an array of
        another library that speaks Arrow's protocol, of binary or text (as UTF-8).

    Raises
    ------
    InvalidArgumentError
        If it is none, one of them is missing, or one is longer than a length may be.
    TypeError
        If one of a list is not like bytes.
    """
    if isinstance(given, ByteStrings):
        if given.found is not None:
            raise InvalidArgumentError("some are missing (None)", field=name, index=int(np.argmin(given.found)))
        return given
    if isinstance(given, np.ndarray) and given.dtype.kind != "O":
        return _of_array(name, given)
    if isinstance(given, list | tuple | np.ndarray):
        return _of_list(name, list(given))
    if _is_arrow(given):
        return _of_arrow(name, given)
    raise InvalidArgumentError(
        f"{type(given).__name__}: a list of bytes, an array of NumPy of the type S or of uint8 with two dimensions, or "
        "an array that speaks Arrow is needed",
        field=name,
    )


def _is_arrow(given: object) -> bool:
    return any(hasattr(given, method) for method in _ARROW)


def _of_list(name: str, given: list[Any]) -> ByteStrings:
    strings = (
        given if all(type(one) is bytes for one in given) else [as_bytes(name.removesuffix("s"), one) for one in given]
    )
    lengths = [len(one) for one in strings]
    _require_lengths(name, max(lengths, default=0))
    return ByteStrings(np.frombuffer(b"".join(strings), np.uint8), np.array(lengths, np.uint32))


def _of_array(name: str, given: NDArray[Any]) -> ByteStrings:
    kind, width = given.dtype.kind, given.dtype.itemsize
    if given.dtype == np.uint8 and given.ndim == 2:
        width = given.shape[1]
    elif given.ndim != 1 or kind not in "SV" or given.dtype.hasobject:
        raise InvalidArgumentError(
            f"an array of {given.dtype} with {given.ndim} dimensions; one of the type S or V with 1, or of uint8 with "
            "2 is needed (text must be encoded)",
            field=name,
        )
    _require_lengths(name, width)
    count = len(given)
    rows = np.ascontiguousarray(given).view(np.uint8).reshape(count, width) if width else np.empty((count, 0), np.uint8)
    if kind != "S":
        return ByteStrings(rows.reshape(-1), np.full(count, width, np.uint32))
    lengths = np.char.str_len(given).astype(np.uint32)
    return ByteStrings(rows[np.arange(width) < lengths[:, None]], lengths)


def _of_arrow(name: str, given: Any) -> ByteStrings:
    pa, array = pyarrow(), _arrow_array(given)
    if not _is_binary(array.type):
        raise InvalidArgumentError(f"an array of {array.type}; one of binary or text is needed", field=name)
    if array.null_count:
        raise InvalidArgumentError("some are missing (null)", field=name, index=array.is_null().index(True).as_py())
    array = array.cast(pa.large_binary())
    _, offsets, data = array.buffers()
    ends = np.frombuffer(offsets, np.int64)[array.offset : array.offset + len(array) + 1]
    lengths = np.diff(ends)
    _require_lengths(name, int(lengths.max(initial=0)))
    held = np.frombuffer(data, np.uint8) if data is not None else np.empty(0, np.uint8)
    return ByteStrings(held[ends[0] : ends[-1]] if len(ends) else held, lengths.astype(np.uint32))


def _arrow_array(given: Any) -> Any:
    """Return an array of pyarrow, one piece of memory."""
    pa = pyarrow()
    array = pa.array(given) if hasattr(given, _ARROW[0]) else pa.chunked_array(given)
    return array.combine_chunks() if isinstance(array, pa.ChunkedArray) else array


def _is_binary(kind: Any) -> bool:
    types = pyarrow().types
    return any(
        getattr(types, f"is_{name}")(kind)
        for name in (
            "binary",
            "large_binary",
            "binary_view",
            "fixed_size_binary",
            "string",
            "large_string",
            "string_view",
        )
    )


def _is_of_numbers(given: Any) -> bool:
    types, kind = pyarrow().types, _arrow_array(given[:0] if hasattr(given, "__getitem__") else given).type
    return bool(types.is_integer(kind) or types.is_floating(kind))


def _require_lengths(name: str, longest: int) -> None:
    if longest > _LENGTH_MAX:
        raise InvalidArgumentError(f"one of {longest:,} bytes, the limit is {_LENGTH_MAX:,}", field=name)
