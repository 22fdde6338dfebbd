"""What a backup copies: a store of this process, or that of a server."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol

from gpkvs.backup.notes import NO_NOTES, Notes
from gpkvs.backup.reader import FollowsAll
from gpkvs.config import DEFAULT_TABLE, FormatName
from gpkvs.info import TableInfo
from gpkvs.scan import ScanPiece


class Described(NamedTuple):
    """What is to be known of a source before it is copied.

    Attributes
    ----------
    next_version
        That it gives next.
    store_format
        Of its files.
    heap_bytes_max
        How large its heap may become.
    index_bytes
        Size of the index of its default table.
    """

    next_version: int
    store_format: FormatName
    heap_bytes_max: int
    index_bytes: int


class Scannable(Protocol):
    """What stores and clients have in common."""

    def info(self) -> Any:
        """Describe the store."""

    def list_tables(self) -> list[TableInfo]:
        """Describe its tables."""

    def scan_pieces(self, *, table: str) -> Iterator[ScanPiece]:
        """Return all keys of a table, in pieces."""


@dataclass(frozen=True)
class Source:
    """A store that can be followed, and scanned meanwhile.

    Parameters
    ----------
    name
        For people.
    scannable
        The store, or a client of its server.
    follow
        Follows all tables of it, from a position on that it has reached when this returns.
    notes
        Hears of what is made of it.
    """

    name: str
    scannable: Scannable
    follow: Callable[[], FollowsAll]
    notes: Notes = NO_NOTES

    def describe(self) -> Described:
        """Return what it is like now."""
        info = self.scannable.info()
        index_bytes = next(table.index_bytes for table in self.tables() if table.name == DEFAULT_TABLE)
        store_format: FormatName = "3" if info.store_format == "3" else "4"  # of an older server: a draft
        return Described(info.next_version, store_format, info.heap_bytes_max, index_bytes)

    def tables(self) -> list[TableInfo]:
        """Return the tables that it has now."""
        return self.scannable.list_tables()

    def pieces(self, table: str) -> Iterator[ScanPiece]:
        """Scan a table."""
        return self.scannable.scan_pieces(table=table)
