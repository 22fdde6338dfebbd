"""The layouts of tables, as options name them."""

from __future__ import annotations

from enum import StrEnum


class Layout(StrEnum):
    """How a table's records lie in memory."""

    BYTES = "bytes"
    U64 = "u64"
