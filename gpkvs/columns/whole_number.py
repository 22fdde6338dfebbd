"""Whole numbers that callers give: any object that Python takes for one, such as those of NumPy."""

from __future__ import annotations

import math
import operator

from gpkvs.errors import InvalidArgumentError
from gpkvs.text import shown


def whole_number(name: str, value: object, least: float = -math.inf, most: float = math.inf) -> int:
    """Return a whole number as one of Python.

    Raises
    ------
    InvalidArgumentError
        If it is none, or out of bounds; with the setting's name as its field.
    """
    try:
        number = operator.index(value)  # type: ignore[arg-type]  # that is the question
    except TypeError:
        raise InvalidArgumentError(f"it must be a whole number, not {shown(value)}", field=name) from None
    if not least <= number <= most:
        bound = f"at least {least:,}" if number < least else f"at most {most:,}"
        raise InvalidArgumentError(f"it must be {bound}, not {number:,}", field=name)
    return number
