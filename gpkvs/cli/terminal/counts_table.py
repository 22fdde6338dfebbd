"""A table of the counts of a long command."""

from __future__ import annotations

from collections.abc import Iterable

from rich.table import Table


def counts_table(title: str, counts: Iterable[tuple[str, int]], seconds: float) -> Table:
    """Return a table of the counts of a long command, and of the seconds that it took."""
    table = Table(show_header=False, title=title, title_justify="left")
    table.add_column()
    table.add_column(justify="right")
    for name, number in counts:
        table.add_row(name, f"{number:,}")
    table.add_row("seconds", f"{seconds:.1f}")
    return table
