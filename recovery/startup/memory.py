"""Whether the indexes of a store with a journal fit the memory that is free: found before anything is read."""

from __future__ import annotations

from pathlib import Path

from gpkvs.errors import NoSpaceError

_MEMINFO = Path("/proc/meminfo")


def require_memory(needed_bytes: int) -> None:
    """Check that so much memory is free.

    Raises
    ------
    NoSpaceError
        If it is not.
    """
    free_bytes = _available_bytes()
    if free_bytes is not None and needed_bytes > free_bytes:
        raise NoSpaceError(
            "memory",
            f"the indexes of a store with a journal are held in memory: they take {needed_bytes:,} bytes, "
            f"{free_bytes:,} are free: give the machine more memory",
        )


def _available_bytes() -> int | None:
    """Return what the system can give without swapping; None where it does not say."""
    try:
        lines = _MEMINFO.read_text().splitlines()
    except OSError:
        return None
    found = [line.split() for line in lines if line.startswith("MemAvailable:")]
    return int(found[0][1]) << 10 if found else None
