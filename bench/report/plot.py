"""Draws a result as SVG: one panel for each task, one bar for each contender."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any
from xml.sax.saxutils import escape

from gpkvs.bench.report.tables import rate_text, ratio_text, title_of

_WIDTH, _COLUMNS = 880, 2
_PAD, _HEAD = 20, 58
_PANEL_HEAD, _BAR, _GAP = 26, 20, 6
_NAME, _VALUE = 92, 122  # widths of the text before and after a bar
OWN, _PEERS = "#1f6feb", ("#8b949e", "#b7bec6")
_FONT = "font-family='system-ui, -apple-system, Segoe UI, Helvetica, Arial, sans-serif'"


def draw(result: dict[str, Any]) -> str:
    """Return the SVG of a result's throughput; each panel has its own scale, and bars start at 0.

    A thin line goes from the lowest to the highest run.
    """
    panels: dict[str, list[dict[str, Any]]] = {}
    for found in result["measurements"]:
        panels.setdefault(found["task"], []).append(found)
    tasks = list(panels.items())
    rows = [tasks[start : start + _COLUMNS] for start in range(0, len(tasks), _COLUMNS)]
    heights = [_PANEL_HEAD + max(len(found) for _, found in row) * (_BAR + _GAP) + 14 for row in rows]
    height = _HEAD + sum(heights) + _PAD
    parts = [
        text_at(_PAD, 27, title_of(result), 15, weight=600),
        text_at(_PAD, 46, f"operations a second (gpkvs over it); {place_of(result)}", 12, fill="#57606a"),
    ]
    top, width = _HEAD, (_WIDTH - 2 * _PAD) // _COLUMNS
    for row, row_height in zip(rows, heights, strict=True):
        for column, (task, found) in enumerate(row):
            parts += _panel(_PAD + column * width, top, width - _PAD, task, found)
        top += row_height
    return framed(_WIDTH, height, parts)


def framed(width: int, height: int, parts: Iterable[str]) -> str:
    """Return an SVG of elements, on white in a frame."""
    head = (
        f"<svg xmlns='http://www.w3.org/2000/svg' width='{width}' height='{height}' "
        f"viewBox='0 0 {width} {height}' {_FONT}>",
        f"<rect width='{width}' height='{height}' rx='8' fill='#ffffff' stroke='#d0d7de'/>",
    )
    return "\n".join([*head, *parts, "</svg>"]) + "\n"


def place_of(result: dict[str, Any]) -> str:
    """Say where and when a result was measured."""
    machine = result["machine"]
    return (
        f"{machine['processors']} processors ({machine['processor']}), {machine['file_system']}, {result['date'][:10]}"
    )


def _panel(left: int, top: int, width: int, task: str, found: list[dict[str, Any]]) -> list[str]:
    parts = [text_at(left, top + 16, task, 13, weight=600)]
    room = width - _NAME - _VALUE
    scale = room / max(one["rate_max"] for one in found)
    own = found[0]["rate"]
    for number, one in enumerate(found):
        y = top + _PANEL_HEAD + number * (_BAR + _GAP)
        x, middle = left + _NAME, y + _BAR / 2
        fill = _PEERS[(number - 1) % len(_PEERS)] if number else OWN
        text = rate_text(one["rate"]) if number == 0 else f"{rate_text(one['rate'])} ({ratio_text(own / one['rate'])}x)"
        low, high = (x + one[name] * scale for name in ("rate_min", "rate_max"))
        parts += [
            text_at(left, y + 14, one["contender"], 12),
            f"<rect x='{x}' y='{y}' width='{max(one['rate'] * scale, 1):.1f}' height='{_BAR}' rx='2' fill='{fill}'/>",
            f"<path d='M{low:.1f} {middle}H{high:.1f}M{low:.1f} {middle - 4}v8M{high:.1f} {middle - 4}v8' "
            "stroke='#24292f' stroke-width='1.2' fill='none'/>",
            text_at(high + 8, y + 14, text, 12, weight=600 if number == 0 else 400),
        ]
    return parts


def text_at(x: float, y: float, text: str, size: int, *, weight: int = 400, fill: str = "#24292f") -> str:
    """Return a line of text."""
    return f"<text x='{x:.1f}' y='{y}' font-size='{size}' font-weight='{weight}' fill='{fill}'>{escape(text)}</text>"
