"""What makes an object over a file that was just opened."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

from gpkvs.gpm.file import GpmFile
from gpkvs.gpm.place import Place

_T = TypeVar("_T")


def opened(kind: Callable[[GpmFile, Place], _T], file: GpmFile, place: Place) -> _T:
    """Return an object over a file, or close the file if that fails."""
    try:
        return kind(file, place)
    except BaseException:
        file.close()
        raise
