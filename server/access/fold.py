"""Makes one of many events that are the same, so that nobody can flood a log."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence

_KEYS_MAX = 64

Fields = Mapping[str, object]


class Fold:
    """Lets one event of a kind through in each span of time, and counts the others.

    Parameters
    ----------
    seconds
        How long a span is.
    by
        The fields that two events of the same kind have in common. Above 64 kinds in a span no more are told apart: all
        others are one kind, without fields.
    """

    def __init__(self, seconds: float, by: Sequence[str]) -> None:
        self._seconds = seconds
        self._by = by
        self._kinds: dict[tuple[object, ...], _Span] = {}

    def admits(self, fields: Fields, now: float) -> bool:
        """Return whether an event is the first in its span; else it is counted."""
        kind = tuple(fields.get(name) for name in self._by)
        span = self._kinds.get(kind)
        if span is None and len(self._kinds) < _KEYS_MAX:
            self._kinds[kind] = _Span(now + self._seconds)
            return True
        if span is None:
            span, fields = self._kinds.setdefault((), _Span(now + self._seconds)), {}
        span.count += 1
        span.fields = fields
        return False

    @property
    def next_end(self) -> float:
        """When the first span ends; never, if there is none."""
        return min((span.end for span in self._kinds.values()), default=math.inf)

    def ended(self, now: float) -> Iterator[Fields]:
        """Yield the last of the counted events of each span that has ended, with their count."""
        for kind, span in list(self._kinds.items()):
            if span.end > now:
                continue
            del self._kinds[kind]
            if span.count:
                self._kinds[kind] = _Span(now + self._seconds)
                yield {**span.fields, "count": span.count}


class _Span:
    __slots__ = ("count", "end", "fields")

    def __init__(self, end: float) -> None:
        self.end = end
        self.count = 0
        self.fields: Fields = {}
