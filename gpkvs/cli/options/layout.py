"""The layouts of tables, as options name them."""

from __future__ import annotations

from typing import Annotated

import typer

from gpkvs.columns.index_size import SLOT_BYTES, slots_of
from gpkvs.errors import InvalidArgumentError


def parse_layout(text: object) -> str:
    """Return a layout.

    Raises
    ------
    typer.BadParameter
        If the text is none.
    """
    layout = str(text).strip()
    try:
        slots_of(layout)
    except InvalidArgumentError as error:
        raise typer.BadParameter(str(error).removeprefix("layout: ")) from None
    return layout


def _named_layouts() -> list[str]:
    return list(SLOT_BYTES)


Layout = Annotated[
    str,
    typer.Option(
        "--layout",
        parser=parse_layout,
        metavar="LAYOUT",
        autocompletion=_named_layouts,
        help="Which keys and values the table holds. bytes: any. u64: numbers of 64 bits. A type and a shape, as "
        "'float32[128]' or 'uint8[3,64]': keys are numbers, values are rows, arrays of this type and shape. Types: "
        "float16, float32, float64, bfloat16, and int or uint with 8, 16, 32 or 64.",
    ),
]
