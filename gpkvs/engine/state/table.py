"""A table of an open store."""

from __future__ import annotations

import ctypes
from typing import NamedTuple

from gpkvs.media.catalog import TableEntry
from gpkvs.media.index import Index


class Held(NamedTuple):
    """What a table holds, or a part of one (`Held` in kernels/space/write_set.hpp).

    Attributes
    ----------
    records
        How many keys; expired ones count until they are removed.
    heap_units
        What their records take in the heap.
    expiring
        Keys that have an expiry.
    """

    records: int = 0
    heap_units: int = 0
    expiring: int = 0


class Table:
    """An index, and what it holds.

    Parameters
    ----------
    index, held
        As they are now.

    Attributes
    ----------
    looks_at
        With more records, its growth must be looked at (`gpkvs.engine.tables.growth`).
    waits
        What its growth waits for, and what to do; empty if it does not wait.
    held_address
        Where a native committer counts what it holds.
    """

    def __init__(self, index: Index, held: Held) -> None:
        self.index = index
        self.looks_at = 0
        self.waits = ""
        self._held = (ctypes.c_uint64 * len(held))(*held)
        self.held_address = ctypes.addressof(self._held)

    @property
    def held(self) -> Held:
        """What it holds."""
        return Held(*self._held)

    @property
    def records(self) -> int:
        """How many keys it holds."""
        return self._held[0]

    def add(self, change: Held) -> None:
        """Count a change of what it holds; cannot fail."""
        for at, by in enumerate(change):
            self._held[at] += by

    @property
    def entry(self) -> TableEntry:
        """Its catalogue entry."""
        return self.index.entry
