"""Whether the indexes of a store with a journal fit the memory that is free: found before anything is read."""

from __future__ import annotations

from gpkvs.errors import NoSpaceError
from gpkvs.process.machine import free_bytes


def require_memory(needed_bytes: int) -> None:
    """Check that so much memory is free.

    Raises
    ------
    NoSpaceError
        If it is not.
    """
    free = free_bytes()
    if free is not None and needed_bytes > free:
        raise NoSpaceError(
            "memory",
            f"the indexes of a store with a journal are held in memory: they take {needed_bytes:,} bytes, "
            f"{free:,} are free: give the machine more memory. A new store can do without a journal (--commit undo), "
            "and so can a copy, made where there is the memory (gpkvs copy OLD NEW --commit undo)",
        )
