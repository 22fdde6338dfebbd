"""A table of an open store."""

from __future__ import annotations

from dataclasses import dataclass

from gpkvs.media.catalog import TableEntry
from gpkvs.media.index import Index


@dataclass
class Table:
    """An index, and how many keys it holds."""

    index: Index
    records: int

    @property
    def entry(self) -> TableEntry:
        """Its catalogue entry."""
        return self.index.entry
