"""Who may get at what is the server's alone, a store's files and the audit log: their owner, and nobody else."""

from __future__ import annotations

import logging
import stat
from pathlib import Path

from gpkvs.text import counted

_log = logging.getLogger("gpkvs.server")

_GROUP_AND_OTHERS = 0o077


def warn_of_readers(path: Path) -> None:
    """Log if group or others may do anything with a file, or with a directory or the files in it."""
    paths, recursive = ((path, *sorted(path.iterdir())), "-R ") if path.is_dir() else ((path,), "")
    open_to = [(found, mode) for found in paths if (mode := _mode(found)) & _GROUP_AND_OTHERS]
    if open_to:
        (first, mode), *more = open_to
        others = f" and {counted(len(more), 'path')} in it" if more else ""
        _log.warning(
            "the group or others may get at %s (its mode is %04o)%s: chmod %sgo= %s",
            first,
            mode,
            others,
            recursive,
            path,
            extra={"event": "private_files", "paths": [str(found) for found, _ in open_to]},
        )


def _mode(path: Path) -> int:
    """Return the mode of a file; 0 if it has gone meanwhile, as the files of a store that grows may."""
    try:
        return stat.S_IMODE(path.stat().st_mode)
    except FileNotFoundError:
        return 0
