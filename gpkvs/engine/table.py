"""A table of an open store."""

from __future__ import annotations

import ctypes

from gpkvs.media.catalog import TableEntry
from gpkvs.media.index import Index


class Table:
    """An index, and how many keys it holds.

    Parameters
    ----------
    index, records
        As they are now.

    Attributes
    ----------
    looks_at
        With more records, its growth must be looked at (`gpkvs.engine.growth`).
    waits
        What its growth waits for, and what to do; empty if it does not wait.
    records_address
        Where a native committer counts them.
    """

    def __init__(self, index: Index, records: int) -> None:
        self.index = index
        self.looks_at = 0
        self.waits = ""
        self._records = ctypes.c_uint64(records)
        self.records_address = ctypes.addressof(self._records)

    @property
    def records(self) -> int:
        """How many keys it holds."""
        return self._records.value

    @records.setter
    def records(self, records: int) -> None:
        self._records.value = records

    @property
    def entry(self) -> TableEntry:
        """Its catalogue entry."""
        return self.index.entry
