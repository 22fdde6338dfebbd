"""Texts for people: a caller's bytes cut to a readable length, near names, counts with their noun, sizes."""

from __future__ import annotations

import heapq
from collections.abc import Collection, Iterable
from itertools import takewhile
from operator import eq

# Any valid table name is shown whole.
_SHOWN_MAX = 80
_NAMES_MAX = 8
_NEAR_MAX = 3
_UNITS = (("TiB", 40), ("GiB", 30), ("MiB", 20), ("KiB", 10))
_THERE_ARE = "; there are "


def quoted(given: bytes | str) -> str:
    """Return a caller's bytes or text in quotes: short enough for an error, however long they are.

    Every text that repeats what a caller sent takes it through here. A status that is too long for gRPC's trailers
    never arrives, and a text of megabytes takes several times its size.
    """
    shown = repr(given[:_SHOWN_MAX])
    if len(given) <= _SHOWN_MAX and len(shown) <= _SHOWN_MAX:
        return shown
    unit = "byte" if isinstance(given, bytes) else "character"
    return f"{shown[:_SHOWN_MAX]}... ({counted(len(given), unit)})"


def shown(given: object) -> str:
    """Return what a caller gave, as Python writes it: text and bytes short enough for an error."""
    return quoted(given) if isinstance(given, str | bytes) else repr(given)


def no_such(noun: str, name: str, names: Collection[str]) -> str:
    """Say that there is nothing of a name, and what there is: all names, or of many those nearest to it."""
    if len(names) <= _NAMES_MAX:
        there = ", ".join(names)
    else:
        near = heapq.nlargest(_NEAR_MAX, names, key=lambda other: _likeness(name[:_SHOWN_MAX], other))
        there = f"{len(names):,}, the nearest names are {', '.join(near)}"
    return f"there is no {noun} {quoted(name)}{_THERE_ARE}{there}"


def without_names(text: str) -> str:
    """Return what `no_such` has said, without what there is."""
    return text.partition(_THERE_ARE)[0]


def _likeness(one: str, other: str) -> int:
    """Return how many letters two names share at their ends; difflib would take up to a millisecond a pair."""
    return _shared(one, other) + _shared(reversed(one), reversed(other))


def _shared(one: Iterable[str], other: Iterable[str]) -> int:
    return sum(takewhile(bool, map(eq, one, other)))


def counted(count: int, noun: str) -> str:
    """Return a count with its noun, such as ``1 record`` or ``2,000 records``."""
    if count == 1:
        return f"1 {noun}"
    plural = f"{noun[:-1]}ies" if noun.endswith("y") and noun[-2] not in "aeiou" else f"{noun}s"
    return f"{count:,} {plural}"


def readable_bytes(number: float) -> str:
    """Return a number of bytes as people read it: rounded, in the largest unit of which it has one."""
    for unit, shift in _UNITS:
        if number >= 1 << shift:
            return f"{number / (1 << shift):,.1f} {unit}"
    return f"{number:,.0f} B"


def readable_seconds(number: float) -> str:
    """Return a time as people read it: its largest unit, and the one below."""
    minutes, seconds = divmod(int(number), 60)
    hours, minutes = divmod(minutes, 60)
    days, hours = divmod(hours, 24)
    parts = ((days, "d"), (hours, "h"), (minutes, "min"), (seconds, "s"))
    first = next((index for index, (number, _) in enumerate(parts) if number), len(parts) - 1)
    return " ".join(f"{number} {unit}" for number, unit in parts[first : first + 2])
