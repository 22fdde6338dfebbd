r"""Patterns as Redis has them: ``*``, ``?``, ``[a-c]``, ``[^x]`` and ``\`` before a letter that means itself."""

from __future__ import annotations

import re
from functools import lru_cache

from gpkvs.server.redis.reply import Error

_CACHED = 64
# To compile one takes some milliseconds then, and the cache some megabytes.
_BYTES_MAX = 1024


@lru_cache(_CACHED)
def pattern_of(text: bytes) -> re.Pattern[bytes]:
    """Return a pattern as a regular expression that must fit a whole key.

    Raises
    ------
    Error
        If it is too long.
    """
    if len(text) > _BYTES_MAX:
        raise Error(f"ERR a pattern of {len(text):,} bytes, allowed are {_BYTES_MAX:,}")
    # What stands between two stars has a fixed length, so its first place is as good as any: each is found once, and no
    # pattern takes longer than its length times that of the key.
    first, *others = _pieces(text)
    if not others:
        return re.compile(first, re.DOTALL)
    *middle, last = others
    found = b"".join(b"(?>.*?%b)" % piece for piece in middle if piece)
    return re.compile(b"%b%b.*%b" % (first, found, last), re.DOTALL)


def _pieces(text: bytes) -> list[bytes]:
    """Return what stands before, between and behind the stars, as regular expressions."""
    pieces, at = [b""], 0
    while at < len(text):
        letter = text[at : at + 1]
        at += 1
        if letter == b"*":
            pieces.append(b"")
        elif letter == b"?":
            pieces[-1] += b"."
        elif letter == b"[":
            part, at = _set_of(text, at)
            pieces[-1] += part
        else:
            if letter == b"\\" and at < len(text):
                letter = text[at : at + 1]
                at += 1
            pieces[-1] += re.escape(letter)
    return pieces


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
