"""Shape and dtype of an array, as a file's header says them."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np

from gpkvs.columns.whole_number import whole_number
from gpkvs.errors import InvalidArgumentError


def form_of(array: Any) -> dict[str, Any]:
    """Return what a header says of an array, or of a pair (shape, dtype).

    Raises
    ------
    InvalidArgumentError
        If its elements have no fixed size, or a side is negative or no whole number.
    """
    if isinstance(array, tuple):
        shape, dtype = array
    elif hasattr(array, "shape") and hasattr(array, "dtype"):
        shape, dtype = array.shape, array.dtype
    else:
        raise InvalidArgumentError(f"a {type(array).__name__}: an array, or a pair (shape, dtype), is needed")
    try:
        found = np.dtype(dtype)
    except TypeError as error:
        raise InvalidArgumentError(
            f"dtype={dtype}: NumPy does not know it; view the array as one that it knows"
        ) from error
    if found.subdtype:
        raise InvalidArgumentError(f"dtype={dtype}: make {found.shape} a part of the shape, and the dtype {found.base}")
    shape = tuple(whole_number("shape", side, 0) for side in (shape if isinstance(shape, Iterable) else (shape,)))
    if found.hasobject or not found.itemsize:
        raise InvalidArgumentError(f"dtype={found}: only elements of a fixed size persist, no objects")
    try:
        np.empty((0,) * len(shape), np.uint8)
    except ValueError as error:
        raise InvalidArgumentError(f"an array of {len(shape)} dimensions: {error}") from None
    return {"shape": shape, "dtype": _said(found)}


def _said(dtype: np.dtype[Any]) -> Any:
    """Return what a header says of a dtype; raise `InvalidArgumentError` if that is not all of it."""
    try:
        said = np.lib.format.dtype_to_descr(dtype)
        if dtype_of(json.loads(json.dumps(said))) == dtype:
            return said
    except (TypeError, ValueError):
        pass
    raise InvalidArgumentError(
        f"dtype={dtype}: a file cannot say all of it, as titles, or fields that overlap or are out of order: use a "
        "plainer one"
    )


def require_names(named: Mapping[Any, Any]) -> None:
    """Raise `InvalidArgumentError` unless all names are texts: the header has them as JSON."""
    for name in named:
        if not isinstance(name, str):
            raise InvalidArgumentError(f"the name {name!r} is a {type(name).__name__}: a text is needed")


def dtype_of(descr: Any) -> np.dtype[Any]:
    """Return the dtype that a header says."""
    found: np.dtype[Any] = np.lib.format.descr_to_dtype(_tuples(descr))
    return found


def _tuples(descr: Any) -> Any:
    """Return what NumPy says of a dtype with its tuples, which JSON has as lists."""
    if isinstance(descr, str):
        return descr
    return [_field(*field) for field in descr]


def _field(name: str, kind: Any, *shape: Any) -> tuple[Any, ...]:
    return (name, _tuples(kind), *(tuple(sides) for sides in shape))
