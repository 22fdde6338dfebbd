"""Draws how long batches or calls took over time as SVG: a panel for each run, with what went on beside it marked."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

from gpkvs.bench.report.plot import framed, place_of, text_at
from gpkvs.bench.report.tables import rate_text

_WIDTH, _PANEL_HEIGHT, _PAD, _HEAD, _GAP, _LEFT = 880, 150, 20, 76, 40, 64
_LINES = (("p50_ms", "p50", "#1f6feb"), ("p99_ms", "p99", "#bf8700"), ("longest_ms", "longest", "#cf222e"))


class Mark(NamedTuple):
    """What a bucket may say: the name of its flag, what that means, and its color."""

    flag: str
    text: str
    color: str


class Panel(NamedTuple):
    """A run: its title, and its buckets, each with its end, percentiles and flags."""

    title: str
    buckets: Sequence[dict[str, Any]]


_MARKS = (
    Mark("is_growing", "the index grows", "#dafbe1"),
    Mark("is_moving", "records are moved", "#fff1c2"),
)


def draw_timelines(result: dict[str, Any]) -> str:
    """Return the SVG of the timelines of stores that grow."""
    panels = [
        Panel(
            f"{line['store']}: {line['operations']:,} keys, {rate_text(line['rate'])} a second"
            + (", then refused" if line["refusal"] else ""),
            line["buckets"],
        )
        for line in result["timelines"]
        if line["buckets"]
    ]
    return draw_panels(f"inserts, batches of {result['parameters']['batch']:,}", result, panels, _MARKS)


def draw_panels(title: str, result: dict[str, Any], panels: Sequence[Panel], marks: Sequence[Mark]) -> str:
    """Return the SVG of runs; all panels have the same scale of milliseconds, which is logarithmic."""
    values = [bucket[name] for panel in panels for bucket in panel.buckets for name, _, _ in _LINES]
    low, high = math.floor(math.log10(min(values))), math.ceil(math.log10(max(values)))
    height = _HEAD + len(panels) * (_PANEL_HEIGHT + _GAP) + _PAD
    parts = [
        text_at(_PAD, 27, f"{title}: ms over seconds", 15, weight=600),
        text_at(_PAD, 46, place_of(result), 12, fill="#57606a"),
        *_legend(marks),
    ]
    for number, panel in enumerate(panels):
        parts += _panel(_HEAD + number * (_PANEL_HEIGHT + _GAP), panel, marks, low, max(high, low + 1))
    return framed(_WIDTH, height, parts)


def _legend(marks: Sequence[Mark]) -> list[str]:
    parts, x = [], float(_PAD)
    for _, name, color in _LINES:
        parts += [f"<path d='M{x:.0f} 60h18' stroke='{color}' stroke-width='2'/>", text_at(x + 22, 64, name, 12)]
        x += 90
    for _, name, color in marks:
        parts += [
            f"<rect x='{x:.0f}' y='54' width='18' height='12' fill='{color}'/>",
            text_at(x + 22, 64, name, 12),
        ]
        x += 150
    return parts


def _panel(top: int, panel: Panel, marks: Sequence[Mark], low: int, high: int) -> list[str]:
    buckets, width = panel.buckets, _WIDTH - _LEFT - _PAD
    of_second = width / buckets[-1]["end_seconds"]
    bottom = top + 20 + _PANEL_HEIGHT - 20

    def y(milliseconds: float) -> float:
        return bottom - (math.log10(milliseconds) - low) / (high - low) * (_PANEL_HEIGHT - 20)

    parts = [text_at(_PAD, top + 12, panel.title, 13, weight=600)]
    begin = 0.0
    for bucket in buckets:
        for name, _, color in marks:
            if bucket[name]:
                x, end = _LEFT + begin * of_second, _LEFT + bucket["end_seconds"] * of_second
                parts.append(
                    f"<rect x='{x:.1f}' y='{top + 20}' width='{end - x:.1f}' height='{bottom - top - 20}' "
                    f"fill='{color}'/>"
                )
        begin = bucket["end_seconds"]
    for power in range(low, high + 1):
        at = y(10.0**power)
        parts += [
            f"<path d='M{_LEFT} {at:.1f}H{_LEFT + width}' stroke='#d0d7de' stroke-width='0.6'/>",
            text_at(_PAD, at + 4, f"{10.0**power:g} ms", 11, fill="#57606a"),
        ]
    for name, _, color in _LINES:
        points = " ".join(
            f"{_LEFT + bucket['end_seconds'] * of_second:.1f},{y(bucket[name]):.1f}" for bucket in buckets
        )
        parts.append(f"<polyline points='{points}' fill='none' stroke='{color}' stroke-width='1.4'/>")
    parts.append(text_at(_LEFT + width - 40, bottom + 14, f"{buckets[-1]['end_seconds']:.1f} s", 11, fill="#57606a"))
    return parts
