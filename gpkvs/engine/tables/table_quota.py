"""How many tables a store may have: refused early and by name, before a file cannot be opened or a disk is full."""

from __future__ import annotations

import resource
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from gpkvs.errors import NoSpaceError
from gpkvs.media.files import StoreFiles

_OPEN_FILES = Path("/proc/self/fd")
# Of the open files that the process may have, tables leave this share to connections, and at least so many.
_LEFT_SHARE = 4
_LEFT_MIN = 64


@dataclass(frozen=True)
class Quota:
    """What the tables of a store may take together.

    Parameters
    ----------
    tables_max
        How many there may be.
    bytes_max
        Of their indexes; None: no limit but the disk.
    """

    tables_max: int
    bytes_max: int | None


def require_room_for_table(files: StoreFiles, index_bytes: int, quota: Quota) -> None:
    """Check that one more table may be made.

    Raises
    ------
    NoSpaceError
        Naming `tables`, `tables_bytes` or `open_files`.
    """
    tables = len(files.catalog.tables)
    if tables >= quota.tables_max:
        raise NoSpaceError(
            "tables",
            f"there are {tables:,}, as many as tables_max (--tables-max) allows: drop one, or raise the limit",
        )
    held = sum(index.region.bytes for index in files.indexes.values())
    if quota.bytes_max is not None and held + index_bytes > quota.bytes_max:
        raise NoSpaceError(
            "tables_bytes",
            f"the indexes of {tables:,} tables take {held:,} bytes, {index_bytes:,} more are over the limit of "
            f"{quota.bytes_max:,} (tables_bytes_max, --tables-bytes-max): drop a table, or raise the limit",
        )
    _require_open_files()


def raise_open_files() -> None:
    """Let this process have as many open files as it may ask for: the usual limit of 1,024 is few for a server."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    with suppress(ValueError, OSError):  # where the hard limit is infinite, some systems still have one
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


def _require_open_files() -> None:
    limit, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    if limit == resource.RLIM_INFINITY:
        return
    try:
        open_files = sum(1 for _ in _OPEN_FILES.iterdir())
    except OSError:  # no /proc: opening the file will tell
        return
    left = max(_LEFT_MIN, limit // _LEFT_SHARE)
    if open_files + left >= limit:
        raise NoSpaceError(
            "open_files",
            f"the process has {open_files:,} files open and may have {limit:,}, of which {left:,} are kept for "
            "connections; each table needs one: drop tables, or raise the limit (ulimit -n, LimitNOFILE)",
        )
