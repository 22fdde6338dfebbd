"""Draws speedups as SVG, like figure 9 of GPM (ASPLOS '22)."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Final

from gpkvs.bench.report.plot import OWN, framed, text_at
from gpkvs.bench.report.tables import ratio_text

_COLOURS: Final = ("#8b949e", "#c69026", "#57ab5a")
_WIDTH, _LEFT, _RIGHT, _BAR, _HEAD, _FOOT = 880, 130, 100, 15, 92, 24
_MARKS: Final = (0.1, 0.2, 0.5, 1, 2, 5, 10, 20, 50, 100, 200, 500, 1000)


def draw_speedups(base: str, note: str, speedups: Mapping[str, Mapping[str, float]]) -> str:
    """Return an SVG: how many times as fast as a base the other ways are.

    The scale is logarithmic. Bars begin at 1, which is the base, and go to the left where a way is slower.

    Parameters
    ----------
    base
        What is 1.
    note
        Where and when it was measured.
    speedups
        Of each row, by way; all rows have the same ways, ours last.
    """
    ways = list(next(iter(speedups.values())))
    colours = dict(zip(ways, (*_COLOURS[: len(ways) - 1], OWN), strict=True))
    found = [speedup for row in speedups.values() for speedup in row.values()]
    marks = _marks_around(min(found), max(found))
    low, high = math.log(marks[0]), math.log(marks[-1])

    def x_of(speedup: float) -> float:
        return _LEFT + (math.log(speedup) - low) / (high - low) * (_WIDTH - _LEFT - _RIGHT)

    each = len(ways) * (_BAR + 1) + 12
    bottom = _HEAD + len(speedups) * each
    parts = [
        text_at(20, 27, f"How many times as fast as {base} results persist", 15, weight=600),
        text_at(20, 46, note, 12),
    ]
    for number, (way, colour) in enumerate(colours.items()):
        left = 20 + 110 * number
        parts.append(f"<rect x='{left}' y='58' width='12' height='12' rx='2' fill='{colour}'/>")
        parts.append(text_at(left + 18, 68, way, 12))
    for mark in marks:
        x, colour = x_of(mark), "#57606a" if mark == 1 else "#eaeef2"
        parts.append(f"<line x1='{x:.1f}' y1='{_HEAD - 6}' x2='{x:.1f}' y2='{bottom}' stroke='{colour}'/>")
        parts.append(text_at(x - 8, _HEAD - 12, base if mark == 1 else f"{mark:g}", 10, fill="#57606a"))
    for place, (name, row) in enumerate(speedups.items()):
        top = _HEAD + place * each
        parts.append(text_at(20, top + len(ways) * _BAR / 2 + 5, name, 12, weight=600))
        for number, (way, speedup) in enumerate(row.items()):
            y = top + number * (_BAR + 1)
            begin, end = sorted((x_of(1), x_of(speedup)))
            width = max(1.0, end - begin)
            parts.append(
                f"<rect x='{begin:.1f}' y='{y}' width='{width:.1f}' height='{_BAR}' rx='2' fill='{colours[way]}'/>"
            )
            parts.append(text_at(end + 6, y + 12, ratio_text(speedup), 11))
    return framed(_WIDTH, bottom + _FOOT, parts)


def _marks_around(least: float, most: float) -> list[float]:
    """Return the marks of a scale that has room for both, and for 1."""
    low, high = min(least, 1.0), max(most, 1.0)
    first = max((mark for mark in _MARKS if mark <= low), default=low)
    last = min((mark for mark in _MARKS if mark >= high), default=high)
    between = [mark for mark in _MARKS if first < mark < last]
    return [first, *between, last] if first < last else [first / 2, first, first * 2]
