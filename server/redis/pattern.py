r"""Patterns as Redis has them: ``*``, ``?``, ``[a-c]``, ``[^x]`` and ``\`` before a letter that means itself."""

from __future__ import annotations

import re
from functools import lru_cache

_CACHED = 256


@lru_cache(_CACHED)
def pattern_of(text: bytes) -> re.Pattern[bytes]:
    """Return a pattern as a regular expression that must fit a whole key."""
    parts: list[bytes] = []
    at = 0
    while at < len(text):
        letter = text[at : at + 1]
        at += 1
        if letter == b"*":
            if parts[-1:] != [b".*"]:
                parts.append(b".*")
        elif letter == b"?":
            parts.append(b".")
        elif letter == b"[":
            part, at = _set_of(text, at)
            parts.append(part)
        else:
            if letter == b"\\" and at < len(text):
                letter = text[at : at + 1]
                at += 1
            parts.append(re.escape(letter))
    return re.compile(b"".join(parts), re.DOTALL)


def _set_of(text: bytes, at: int) -> tuple[bytes, int]:
    """Return a set of letters as a regular expression, and where it ends; one that is not closed ends with the text."""
    is_negated = text[at : at + 1] == b"^"
    at += is_negated
    letters: set[int] = set()
    while at < len(text) and text[at : at + 1] != b"]":
        if text[at : at + 1] == b"\\" and at + 1 < len(text):
            at += 1
            letters.add(text[at])
        elif text[at + 1 : at + 2] == b"-" and at + 2 < len(text):
            low, high = sorted((text[at], text[at + 2]))
            letters.update(range(low, high + 1))
            at += 2
        else:
            letters.add(text[at])
        at += 1
    if not letters:
        return (b"." if is_negated else b"(?!)"), at + 1
    inside = b"".join(b"\\x%02x" % letter for letter in sorted(letters))
    return b"[" + b"^" * is_negated + inside + b"]", at + 1
