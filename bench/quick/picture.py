"""Shows the result of the quick benchmark in a terminal: one table, and the same as bars."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from rich.bar import Bar
from rich.console import RenderableType
from rich.table import Table
from rich.text import Text

from gpkvs.bench.quick.served import GPKVS
from gpkvs.bench.report.plot import place_of
from gpkvs.bench.report.tables import Rows, rate_text, ratio_text

_BAR_WIDTH = 24
_COLOUR, _PEER_COLOUR = "cyan", "bright_black"


def table(result: dict[str, Any]) -> Rows:
    """Return a line for each task: gpkvs, and the peer beside it."""
    ratios = {one["task"]: one["ratio"] for one in result["ratios"]}
    lines: list[tuple[str, ...]] = []
    for task, own, peer in _pairs(result):
        beside = (peer["contender"], rate_text(peer["rate"]), ratio_text(ratios[task])) if peer else ("", "", "")
        lines.append((task, rate_text(own["rate"]), *beside))
    title = "operations a second, and how many times as fast gpkvs is"
    return Rows(title, ("what", GPKVS, "beside", "its rate", "times"), lines)


def heading(result: dict[str, Any]) -> str:
    """Say where this was measured, and what an acknowledged write survives."""
    return f"{place_of(result)}\nAn acknowledged write survives {result['survives']}."


def bars(result: dict[str, Any]) -> RenderableType:
    """Return two bars for each task, which has its own scale."""
    grid = Table.grid(padding=(0, 1))
    grid.add_column(no_wrap=True)
    grid.add_column(no_wrap=True)
    grid.add_column(width=_BAR_WIDTH)
    grid.add_column(no_wrap=True, justify="right")
    for task, own, peer in _pairs(result):
        longest = max(own["rate"], peer["rate"] if peer else 0.0)
        for one, colour in ((own, _COLOUR), (peer, _PEER_COLOUR)):
            if one:
                bar = Bar(longest, 0, one["rate"], width=_BAR_WIDTH, color=colour)
                grid.add_row(Text(task if one is own else ""), one["contender"], bar, rate_text(one["rate"]))
    return grid


def remarks(result: dict[str, Any]) -> RenderableType:
    """Return what was not compared, and what the figures do not tell."""
    grid = Table.grid(padding=(0, 1))
    absent = [f"Not measured: {what}: {why}." for what, why in result["absent"].items()]
    for remark in absent + result["limits"]:
        grid.add_row("-", Text(remark))
    return grid


def _pairs(result: dict[str, Any]) -> Iterator[tuple[str, dict[str, Any], dict[str, Any] | None]]:
    """Yield each task with what gpkvs did, and what its peer did, if it has one."""
    tasks: dict[str, dict[str, dict[str, Any]]] = {}
    for one in result["measurements"]:
        tasks.setdefault(one["task"], {})[one["contender"]] = one
    for task, found in tasks.items():
        own = found.pop(GPKVS)
        yield task, own, next(iter(found.values()), None)
