"""A table of an open store."""

from __future__ import annotations

from dataclasses import dataclass

from gpkvs.media.catalog import TableEntry
from gpkvs.media.index import Index


@dataclass
class Table:
    """An index, and how many keys it holds.

    Attributes
    ----------
    looks_at
        With more records, its growth must be looked at (`gpkvs.engine.growth`).
    waits
        What its growth waits for, and what to do; empty if it does not wait.
    """

    index: Index
    records: int
    looks_at: int = 0
    waits: str = ""

    @property
    def entry(self) -> TableEntry:
        """Its catalogue entry."""
        return self.index.entry
