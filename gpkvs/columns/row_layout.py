"""The layouts of rows: tables whose keys are numbers, and whose values are arrays of one type and shape.

Such a layout is a text, ``float32[128]``: the type of the elements, and the shape of a row. The records of such a table
are those of the layout ``bytes``, with keys of 8 bytes and values of one length (docs/vectors.md).
"""

from __future__ import annotations

import math
import re
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import TYPE_CHECKING, Any, Final

from gpkvs.config import Limits
from gpkvs.errors import InvalidArgumentError
from gpkvs.text import quoted

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

KEY_BYTES: Final = 8

ELEMENTS: Final = (
    *("float32", "float64", "float16", "bfloat16"),
    *("int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64"),
)
"""The types of elements; the kernels know them by their places, counted from 1 (`RowElement` in row_elements.hpp)."""

_LAYOUT = re.compile(r"([a-z]+[0-9]+)\[([1-9][0-9]{0,9}(?:,[1-9][0-9]{0,9}){0,7})\]")
_BFLOAT16 = "bfloat16"
_LETTERS = "abcdefghijklmnopqrstuvwxyz"


@dataclass(frozen=True)
class RowLayout:
    """What a row is.

    Parameters
    ----------
    element
        The type of its elements, one of `ELEMENTS`.
    shape
        How many there are in each dimension.
    """

    element: str
    shape: tuple[int, ...]

    @property
    def name(self) -> str:
        """The layout as text."""
        return f"{self.element}[{','.join(map(str, self.shape))}]"

    @property
    def dtype(self) -> np.dtype[Any]:
        """The elements as NumPy has them, little-endian; it has no bfloat16, whose bits are uint16 there."""
        import numpy as np  # noqa: PLC0415 - commands that only name layouts do not load it

        return np.dtype("uint16" if self.element == _BFLOAT16 else self.element).newbyteorder("<")

    @property
    def row_bytes(self) -> int:
        """Bytes of a row."""
        return math.prod(self.shape) * (int(self.element.lstrip(_LETTERS)) // 8)

    def array_of(self, data: NDArray[np.uint8]) -> NDArray[Any]:
        """Return the bytes of rows, one after the other, as an array (n, ...); nothing is copied."""
        return data.view(self.dtype).reshape(-1, *self.shape)

    def limits_of(self, limits: Limits) -> Limits:
        """Return the limits of a table of rows, in a store with these limits."""
        size = self.row_bytes
        return replace(
            limits, key_bytes_min=KEY_BYTES, key_bytes_max=KEY_BYTES, value_bytes_min=size, value_bytes_max=size
        )

    def check(self, limits: Limits) -> None:
        """Raise `InvalidArgumentError` if a row is longer than a value may be."""
        if self.row_bytes > limits.value_bytes_max:
            raise InvalidArgumentError(
                f"{self.name}: a row of {self.row_bytes:,} bytes, the limit is {limits.value_bytes_max:,} "
                "(value_bytes_max)",
                field="layout",
            )

    @property
    def number(self) -> int:
        """Of the elements, as the kernels know them."""
        return ELEMENTS.index(self.element) + 1


@lru_cache(maxsize=256)
def row_layout_of(layout: str) -> RowLayout | None:
    """Return the layout of rows that a text is; None: it is none."""
    found = _LAYOUT.fullmatch(layout)
    if found is None or found[1] not in ELEMENTS:
        return None
    return RowLayout(found[1], tuple(map(int, found[2].split(","))))


def row_bytes_of(layout: str) -> int:
    """Return the bytes of a row; 0 if the layout is none of rows."""
    found = row_layout_of(layout)
    return found.row_bytes if found else 0


def require_row_layout(layout: str) -> RowLayout:
    """Return the layout of rows that a text is.

    Raises
    ------
    InvalidArgumentError
        If it is none.
    """
    found = row_layout_of(layout)
    if found is None:
        raise InvalidArgumentError(f"{quoted(layout)} is no layout of rows: {ROWS_ARE}", field="layout")
    return found


ROWS_ARE: Final = (
    f"that is a type and a shape, such as float32[128] or uint8[3,64]; the types are {', '.join(ELEMENTS)}"
)
