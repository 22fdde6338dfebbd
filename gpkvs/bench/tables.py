"""Results as tables: for a terminal, and, by the same rows, for documents."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from rich.table import Table


@dataclass(frozen=True)
class Rows:
    """A table: a title, headings and lines of text; all columns but the first `left` hold numbers."""

    title: str
    headings: tuple[str, ...]
    lines: list[tuple[str, ...]]
    left: int = 1

    def rich(self) -> Table:
        """Return it for a terminal."""
        table = Table(title=self.title, title_justify="left")
        for number, heading in enumerate(self.headings):
            table.add_column(heading, justify="left" if number < self.left else "right")
        for line in self.lines:
            table.add_row(*line)
        return table

    def markdown(self) -> str:
        """Return it for a document."""
        rule = [" --- " if number < self.left else " ---: " for number in range(len(self.headings))]
        lines = [_row(self.headings), "|" + "|".join(rule) + "|", *map(_row, self.lines)]
        return f"**{self.title}**\n\n" + "\n".join(lines) + "\n"


def _row(cells: tuple[str, ...]) -> str:
    return "| " + " | ".join(cells) + " |"


def throughput(result: dict[str, Any]) -> Rows:
    """Return what each contender did at each task, and the ratios."""
    ratios = {(ratio["task"], ratio["peer"]): ratio for ratio in result["ratios"]}
    lines: list[tuple[str, ...]] = []
    for measurement in sorted(result["measurements"], key=lambda found: _place(result, found["task"])):
        ratio = ratios.get((measurement["task"], measurement["contender"]))
        latencies = measurement["latencies_ms"]
        lines.append(
            (
                measurement["task"],
                measurement["contender"],
                millions(measurement["rate"]),
                f"{millions(measurement['rate_min'])} to {millions(measurement['rate_max'])}",
                ", ".join(f"{value:.3g}" for value in latencies.values()),
                f"{ratio['ratio']:.2f}" if ratio else "",
                f"{ratio['aim']:g}" if ratio and ratio["aim"] else "",
            )
        )
    names = result["measurements"][0]["latencies_ms"] if result["measurements"] else ()
    headings = (
        "task",
        "store",
        "M/s, median",
        "lowest to highest",
        f"{', '.join(names)} of a batch, ms",
        "gpkvs is faster by",
        "aim",
    )
    return Rows(title_of(result), headings, lines, left=2)


def _place(result: dict[str, Any], task: str) -> int:
    return next(number for number, found in enumerate(result["measurements"]) if found["task"] == task)


def millions(rate: float) -> str:
    """Write operations a second as millions."""
    return f"{rate / 1e6:.3g}" if rate < 1e8 else f"{rate / 1e6:.0f}"


def title_of(result: dict[str, Any]) -> str:
    """Say what was measured."""
    parameters = result["parameters"]
    return (
        f"{result['benchmark']}, promise {result['promise']}: {parameters['records']:,} records, median of "
        f"{parameters['runs']} runs"
    )


def phases(result: dict[str, Any]) -> Rows:
    """Return the shares of the phases of gpkvs's transactions, a column for each task."""
    tasks = list(result["phases"])
    names = [name for task in tasks for name in result["phases"][task]]
    sums = {task: sum(result["phases"][task].values()) for task in tasks}
    lines = [
        (name, *(_share(result["phases"][task].get(name, 0.0), sums[task]) for task in tasks))
        for name in dict.fromkeys(names)
    ]
    return Rows("time of gpkvs by phase of the transaction, %", ("phase", *tasks), lines)


def _share(part: float, whole: float) -> str:
    return f"{100 * part / whole:.1f}" if part and whole else ""


def engine_tables(result: dict[str, Any], *, profile: bool) -> list[Table]:
    """Return the tables of an engine's benchmark, for a terminal."""
    return [rows.rich() for rows in (throughput(result), *((phases(result),) if profile else ()))]
