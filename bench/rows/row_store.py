"""The interface of what holds rows."""

from __future__ import annotations

from typing import Any, Protocol

from gpkvs.bench.rows.table import Float32, RowBatch, RowTable


class RowStore(Protocol):
    """A store, or what sets its limit.

    Keys, and rows that are set, are made into what the store's interface takes before the clock starts. What a GET
    reads ends as an array, which counts; so does what lies between the GET and the SET of a step.
    """

    name: str
    version: str
    settings: str  # one line: how it was opened, which gives the same promise

    def load(self, table: RowTable) -> None:
        """Store all rows, in the way that is best for this store."""

    def keys_of(self, batch: RowBatch) -> Any:
        """Return keys as `get` and `set` take them."""

    def rows_of(self, rows: Float32) -> Any:
        """Return rows as `set` takes them."""

    def get(self, keys: Any) -> Float32:
        """Read a batch, as one moment has it."""

    def set(self, keys: Any, rows: Any) -> None:
        """Store a batch as one transaction, kept as promised; the last of equal keys wins."""

    def adds_of(self, batch: RowBatch) -> Any:
        """Return what `add` takes."""

    def add(self, adds: Any) -> None:
        """Add rows to those that are there, as one transaction, kept as promised; equal keys in their order."""

    def taken_bytes(self) -> int:
        """Return the bytes that the rows take, of the file system or of memory, with what finds them."""

    def settle(self) -> None:
        """Return when nothing is left to be done of what SETs left to be done later."""

    def close(self) -> None:
        """Close it."""
