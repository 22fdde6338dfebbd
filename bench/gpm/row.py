"""One measured figure, beside its limit."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from statistics import median
from time import perf_counter


@dataclass(frozen=True)
class Row:
    """A figure.

    Parameters
    ----------
    what
        That was measured.
    value, unit
        The figure.
    limit, of
        What it is compared with, in the same unit, and what that is; 0: nothing.
    aim
        The part of the limit, or the figure, that is wanted; 0: none.
    runs
        Every single run.
    """

    what: str
    value: float
    unit: str
    limit: float = 0.0
    of: str = ""
    aim: float = 0.0
    runs: tuple[float, ...] = field(default=())

    @property
    def part(self) -> float:
        """Which part of its limit it is."""
        return self.value / self.limit if self.limit else 0.0


def seconds_of(run: Callable[[], object], runs: int) -> list[float]:
    """Return the seconds of each run, after one that does not count."""
    run()
    found = []
    for _ in range(runs):
        begin = perf_counter()
        run()
        found.append(perf_counter() - begin)
    return found


def rate_row(
    what: str, count: float, seconds: list[float], limit: list[float], *, of: str, aim: float, unit: str = "GB/s"
) -> Row:
    """Return a rate beside that of a limit, from the seconds of both for the same count."""
    scale = 1e9 if unit == "GB/s" else 1e6
    return Row(
        what,
        count / median(seconds) / scale,
        unit,
        count / median(limit) / scale if limit else 0.0,
        of,
        aim,
        tuple(seconds),
    )
