"""Settings that a server no longer has: whoever still gives one hears what to do."""

from __future__ import annotations

from collections.abc import Collection
from typing import Final

from gpkvs.text import no_such

_REMOVED: Final = {"door": "there is one door since 0.2"}


def no_such_setting(noun: str, name: str, known: Collection[str], prefix: str = "") -> str:
    """Say that there is no setting of a name, and what there is, or why it is gone.

    Parameters
    ----------
    noun, name
        How it was given: as an option, a variable, or a line of a file.
    known
        The names that there are, as they are given so.
    prefix
        What stands before the names of all settings that are given so.
    """
    reason = _REMOVED.get(name.removeprefix(prefix).lower().replace("-", "_"))
    return f"{reason}: remove the {noun} {name}" if reason else no_such(noun, name, known)
