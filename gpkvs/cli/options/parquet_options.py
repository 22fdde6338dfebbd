"""The options of `gpkvs import` for the columns of a Parquet file."""

from __future__ import annotations

from typing import Annotated

import typer

_PANEL = "Parquet"

# Each is a list, so that a second column is refused, and not taken in the place of the first.
KeyColumn = Annotated[
    list[str] | None,
    typer.Option(
        "--key",
        help="The column of the keys, if it is not `key`.",
        metavar="NAME",
        rich_help_panel=_PANEL,
        show_default=False,
    ),
]
ValueColumn = Annotated[
    list[str] | None,
    typer.Option(
        "--value",
        help="The column of the values, if it is not `value`: one, several are not supported.",
        metavar="NAME",
        rich_help_panel=_PANEL,
        show_default=False,
    ),
]
ExpiresColumn = Annotated[
    list[str] | None,
    typer.Option(
        "--expires",
        help="When records expire, if that is not the column `expires`: timestamps, or milliseconds since 1970.",
        metavar="NAME",
        rich_help_panel=_PANEL,
        show_default=False,
    ),
]


def one_column(option: str, given: list[str] | None) -> str | None:
    """Return the name that an option gave, if it gave one.

    Raises
    ------
    typer.BadParameter
        If it was given several times.
    """
    if given and len(given) > 1:
        raise typer.BadParameter(
            f"several columns are not supported: a record has one key and one value; given were {', '.join(given)}",
            param_hint=option,
        )
    return given[0] if given else None
