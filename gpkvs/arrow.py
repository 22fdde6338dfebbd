"""Columns of Arrow whose items are bytes, by pyarrow, which is an extra."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from gpkvs.batch import U8
from gpkvs.errors import InvalidArgumentError

_BYTES = ("binary", "large_binary", "binary_view", "fixed_size_binary", "string", "large_string", "string_view")
_NOTHING = np.empty(0, np.uint8)


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
