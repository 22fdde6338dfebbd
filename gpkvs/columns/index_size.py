"""How large an index is made for the records that somebody expects in it."""

from __future__ import annotations

from typing import Final

from gpkvs.columns.row_layout import ROWS_ARE, row_layout_of
from gpkvs.errors import InvalidArgumentError
from gpkvs.text import quoted

BLOCK_BYTES: Final = 64 << 10
"""An index has whole blocks."""
SLOT_BYTES: Final = {"bytes": 32, "u64": 16}
"""Of one record, by what its slot is: a table of rows has those of bytes."""
GROWTH_LOAD: Final = 0.65
"""An index grows when more of its slots than this hold a key."""
_RECORDS_MAX: Final = 1 << 48


def slots_of(layout: str) -> str:
    """Return which slots a table of a layout has: ``bytes`` or ``u64``.

    Raises
    ------
    InvalidArgumentError
        If there is no such layout.
    """
    if layout in SLOT_BYTES:
        return layout
    if row_layout_of(layout) is None:
        raise InvalidArgumentError(
            f"{quoted(layout)}: there are {', '.join(SLOT_BYTES)}, and layouts of rows: {ROWS_ARE}", field="layout"
        )
    return "bytes"


def index_bytes_of(records: int, layout: str = "bytes") -> int:
    """Return the size of an index that takes so many records before it grows.

    Raises
    ------
    InvalidArgumentError
        If it is no such number, or there is no such layout.
    """
    slot_bytes = SLOT_BYTES[slots_of(layout)]
    if not 1 <= records <= _RECORDS_MAX:
        raise InvalidArgumentError(f"{records:,}, allowed are 1 to {_RECORDS_MAX:,}", field="records")
    block_records = int(GROWTH_LOAD * (BLOCK_BYTES // slot_bytes))
    return -(-records // block_records) * BLOCK_BYTES


def index_bytes_asked(index_bytes: int, records: int | None, layout: str = "bytes") -> int:
    """Return the size of an index that is asked for in one of two ways; 0: in none.

    Raises
    ------
    InvalidArgumentError
        If both are given; else as `index_bytes_of`.
    """
    if records is None:
        return index_bytes
    if index_bytes:
        raise InvalidArgumentError("give the expected records, or the bytes of the index, not both", field="records")
    return index_bytes_of(records, layout)
