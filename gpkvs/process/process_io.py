"""What this process has read and written on devices, as Linux counts it.

``/proc/self/io`` counts a page of a file when the process dirties it in the page cache, as a write to the block layer,
however few of its bytes changed; a page that is dirtied again before it is written back counts once. Files on tmpfs and
persistent memory (DAX) have no block layer and count nothing.
"""

from __future__ import annotations

from typing import NamedTuple

from gpkvs.process.private_memory import own_io


class ProcessIo(NamedTuple):
    """Bytes since the process started."""

    written_bytes: int
    read_bytes: int


def process_io() -> ProcessIo | None:
    """Return what Linux has counted, or None where it does not say: another system, or no permission."""
    try:
        lines = own_io().splitlines()
        counts = {name: int(count) for name, _, count in (line.partition(":") for line in lines)}
        return ProcessIo(counts["write_bytes"], counts["read_bytes"])
    except (OSError, ValueError, KeyError):
        return None
