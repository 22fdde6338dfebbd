"""Rows as people type and read them: arrays of JSON."""

from __future__ import annotations

import json
from typing import Any, Final

import numpy as np

from gpkvs.columns.row_layout import RowLayout, require_row_layout
from gpkvs.errors import InvalidArgumentError
from gpkvs.rows import rows_of

_DIGITS: Final = "U32"
"""As text NumPy writes a number in the fewest digits that tell it from its neighbours of the same type."""
_SHOWN_MAX: Final = 2


def bytes_of_row(layout_name: str, text: bytes, table: str) -> bytes:
    """Return the bytes of a row that somebody has typed.

    Raises
    ------
    InvalidArgumentError
        If the text is none.
    """
    layout = require_row_layout(layout_name)
    if layout.element == "bfloat16":
        raise InvalidArgumentError(
            f"table {table!r} has the layout {layout.name}, and no row of bfloat16 can be typed: a program writes it, "
            f'with rows("{layout.name}")',
            field="value",
        )
    row = _row_of(layout, text)
    if row is None:
        raise InvalidArgumentError(
            f"table {table!r} has the layout {layout.name}: its values are numbers of {layout.element} as JSON, "
            f"{_example(layout.shape)}, of the shape {list(layout.shape)}",
            field="value",
        )
    return row


def _row_of(layout: RowLayout, text: bytes) -> bytes | None:
    try:
        typed = json.loads(text)
        if layout.dtype.kind in "iu":
            return rows_of(layout, [typed], 1).tobytes()
        given = np.asarray(typed)
        if given.dtype.kind == "U":  # with "NaN", as `row_of_bytes` writes it
            given = given.astype(np.float64)
        with np.errstate(over="ignore"):
            data = rows_of(layout, [given.tolist()], 1)
    except (InvalidArgumentError, RecursionError, ValueError):
        return None
    has_overflown = (np.isinf(layout.array_of(data)[0]) & np.isfinite(given)).any()
    return None if has_overflown else data.tobytes()


def _example(shape: tuple[int, ...]) -> str:
    text = "0"
    for size in reversed(shape):
        text = f"[{', '.join([text] * min(size, _SHOWN_MAX))}{', ...' if size > _SHOWN_MAX else ''}]"
    return text


def row_of_bytes(layout_name: str, data: bytes) -> list[Any]:
    """Return a row as lists of numbers; what JSON has no number for is text: "NaN", "Infinity", "-Infinity"."""
    layout = require_row_layout(layout_name)
    row: Any = np.frombuffer(data, layout.dtype)
    if layout.element == "bfloat16":
        row = (row.astype(np.uint32) << 16).view(np.float32)
    if row.dtype.kind == "f":
        row = row.astype(_DIGITS).astype(np.float64)
        others = ~np.isfinite(row)
        if others.any():
            row = row.astype(object)
            row[others] = list(map(json.dumps, row[others]))
    found: list[Any] = row.reshape(layout.shape).tolist()
    return found
