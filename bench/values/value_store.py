"""The interface of what holds large values: one key a call."""

from __future__ import annotations

from typing import Any, Protocol


class ValueStore(Protocol):
    """A store, or what sets its limit: something that moves the same bytes and does nothing else.

    A SET has returned when the value is kept as promised.
    """

    name: str
    version: str
    settings: str  # one line: how it was opened, which gives the same promise

    def set_one(self, key: bytes, value: bytes) -> None:
        """Store one value as one transaction."""

    def get_one(self, key: bytes) -> Any:
        """Return one value, whole, as something that has a buffer."""

    def settle(self) -> None:
        """Return when nothing is left to be done of what SETs left to be done later."""

    def close(self) -> None:
        """Close it."""
