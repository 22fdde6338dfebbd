r"""Patterns as Redis has them: ``*``, ``?``, ``[a-c]``, ``[^x]`` and ``\`` before a letter that means itself."""

from __future__ import annotations

import re
from collections.abc import Sequence
from functools import lru_cache

from gpkvs.server.redis.protocol.reply import Error

_CACHED = 64
# To compile one takes some milliseconds then, and the caches here and in `re` some megabytes.
_BYTES_MAX = 1024


def patterns_of(texts: Sequence[bytes]) -> list[re.Pattern[bytes]]:
    """Return patterns as regular expressions that must fit a whole key.

    Raises
    ------
    Error
        If they are too long together.
    """
    size = sum(map(len, texts))
    if size > _BYTES_MAX:
        raise Error(
            f"ERR {'a pattern' if len(texts) == 1 else 'patterns'} of {size:,} bytes, allowed are {_BYTES_MAX:,}"
        )
    return [_compiled(text) for text in texts]


def pattern_of(text: bytes) -> re.Pattern[bytes]:
    """Return a pattern as a regular expression (`patterns_of`)."""
    return patterns_of([text])[0]


@lru_cache(_CACHED)
def _compiled(text: bytes) -> re.Pattern[bytes]:
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
    inside = b"".join(b"\\x%02x-\\x%02x" % ends for ends in _ranges_of(letters))
    return b"[" + b"^" * is_negated + inside + b"]", at + 1


def _ranges_of(letters: set[int]) -> list[tuple[int, int]]:
    """Return the first and the last letter of each range: of single letters `re` would take far longer."""
    firsts = sorted(letter for letter in letters if letter - 1 not in letters)
    lasts = sorted(letter for letter in letters if letter + 1 not in letters)
    return list(zip(firsts, lasts, strict=True))
