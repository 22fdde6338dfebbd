"""Patterns of table names: `*` stands for any characters, all else for itself."""

from __future__ import annotations

import re
from dataclasses import dataclass, field

_PATTERN = re.compile(r"[a-z0-9_.*-]{1,64}")
_NAME_CHARACTERS_MAX = 64  # of a table's name; longer ones are not remembered
_KNOWN_MAX = 1024


@dataclass(frozen=True)
class Patterns:
    """Some patterns; a name matches them if it matches one.

    Parameters
    ----------
    texts
        The patterns.
    """

    texts: tuple[str, ...] = ()
    _known: dict[str, bool] = field(default_factory=dict, init=False, repr=False, compare=False)

    @property
    def everywhere(self) -> bool:
        """Whether any name matches."""
        return any(not text.strip("*") for text in self.texts)

    def match(self, name: str) -> bool:
        """Return whether a name matches; the answer is remembered."""
        known = self._known.get(name)
        return self._look(name) if known is None else known

    def _look(self, name: str) -> bool:
        found = any(_matches(text, name) for text in self.texts)
        if len(name) <= _NAME_CHARACTERS_MAX:
            if len(self._known) >= _KNOWN_MAX:  # clients choose the names that they ask for
                self._known.clear()
            self._known[name] = found
        return found


def is_pattern(text: str) -> bool:
    """Return whether a table could have a name that matches."""
    return _PATTERN.fullmatch(text) is not None


def _matches(pattern: str, name: str) -> bool:
    """Look for the parts between stars, each as early as it can be: a regular expression would try all ways."""
    start, *parts = pattern.split("*")
    if not parts:
        return pattern == name
    end = parts.pop()
    if not name.startswith(start):
        return False
    at = len(start)
    for part in parts:
        found = name.find(part, at)
        if found < 0:
            return False
        at = found + len(part)
    return len(name) - at >= len(end) and name.endswith(end)
