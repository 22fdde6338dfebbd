"""Columns of Arrow whose items are bytes or rows, by pyarrow, which is an extra."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from gpkvs.batch import U8
from gpkvs.columns.row_layout import RowLayout, row_layout_of
from gpkvs.errors import InvalidArgumentError

_BYTES = ("binary", "large_binary", "binary_view", "fixed_size_binary", "string", "large_string", "string_view")
_NOTHING = np.empty(0, np.uint8)
_METHODS = ("__arrow_c_array__", "__arrow_c_stream__")  # of columns that speak Arrow's protocol


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


def speaks_arrow(given: object) -> bool:
    """Whether something is a column that speaks Arrow's protocol."""
    return any(hasattr(given, method) for method in _METHODS)


def column_of_arrow(given: Any) -> Any:
    """Return a column that speaks Arrow as one of pyarrow, in one piece or several; nothing is copied."""
    pa = pyarrow()
    return pa.array(given) if hasattr(given, _METHODS[0]) else pa.chunked_array(given)


def in_one_piece(column: Any) -> Any:
    """Return a column of pyarrow as one array."""
    return column.combine_chunks() if isinstance(column, pyarrow().ChunkedArray) else column


def holds_bytes(kind: Any) -> bool:
    """Whether items of a type are bytes or text, or numbers of such in a dictionary."""
    types = pyarrow().types
    if types.is_dictionary(kind):
        kind = kind.value_type
    return any(getattr(types, f"is_{name}")(kind) for name in _BYTES)


def bytes_of(column: Any) -> tuple[U8, NDArray[np.int64]]:
    """Return an array of the type ``large_binary``, or a part of one, and the length of each; no item is copied."""
    bounds = bounds_of(column)
    first, last = int(bounds[0]), int(bounds[-1])
    held = np.frombuffer(column.buffers()[2], np.uint8, last - first, first) if last > first else _NOTHING
    return held, np.diff(bounds)


def bounds_of(column: Any) -> NDArray[np.int64]:
    """Return where each item of an array of the type ``large_binary`` begins, and where the last one ends."""
    return np.frombuffer(column.buffers()[1], np.int64, len(column) + 1, 8 * column.offset)


def rows_type(layout: RowLayout) -> Any:
    """Return the type of a column of rows: lists of a fixed size. Bits of bfloat16, which Arrow has not, are uint16."""
    pa = pyarrow()
    kind = pa.from_numpy_dtype(layout.dtype)
    for count in reversed(layout.shape):
        kind = pa.list_(kind, count)
    return kind


def rows_array(layout: RowLayout, data: U8) -> Any:
    """Return rows, one after the other, as an array of Arrow; nothing is copied."""
    pa = pyarrow()
    array = pa.array(data.view(layout.dtype))
    for count in reversed(layout.shape):
        array = pa.FixedSizeListArray.from_arrays(array, count)
    return array


def layout_of_rows(kind: Any) -> RowLayout | None:
    """Return the layout of rows that a type of Arrow is; None: it is none."""
    types, shape = pyarrow().types, []
    while types.is_fixed_size_list(kind):
        shape.append(kind.list_size)
        kind = kind.value_type
    return row_layout_of(f"{_element_of(kind)}[{','.join(map(str, shape))}]")


def _element_of(kind: Any) -> str:
    return {"halffloat": "float16", "float": "float32", "double": "float64"}.get(str(kind), str(kind))


def bytes_of_rows(column: Any) -> U8:
    """Return the rows of an array of lists of a fixed size, or of a part of one, one after the other.

    Raises
    ------
    InvalidArgumentError
        If a row or an element is missing.
    """
    types = pyarrow().types
    while True:
        if column.null_count:
            raise InvalidArgumentError("a row or an element is missing (null)", field="rows")
        if not types.is_fixed_size_list(column.type):
            break
        column = column.flatten()
    elements: NDArray[Any] = column.to_numpy(zero_copy_only=False)
    held: U8 = np.ascontiguousarray(elements).view(np.uint8)
    return held
