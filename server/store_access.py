"""Who may read the files of a store: its owner, and nobody else."""

from __future__ import annotations

import logging
import stat
from pathlib import Path

from gpkvs.text import counted

_log = logging.getLogger("gpkvs.server")

_GROUP_AND_OTHERS = 0o077


def warn_of_readers(path: Path) -> None:
    """Log if group or others may do anything with a store's directory or the files in it."""
    open_to = [found for found in (path, *sorted(path.iterdir())) if _mode(found) & _GROUP_AND_OTHERS]
    if open_to:
        others = f" and {counted(len(open_to) - 1, 'path')} in it" if len(open_to) > 1 else ""
        _log.warning(
            "the group or others may get at %s (its mode is %04o)%s: chmod -R go= %s",
            open_to[0],
            _mode(open_to[0]),
            others,
            path,
            extra={"event": "store_access", "paths": [str(found) for found in open_to]},
        )


def _mode(path: Path) -> int:
    return stat.S_IMODE(path.lstat().st_mode)
