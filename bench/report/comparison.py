"""A row of a table of targets: ratios of two things that were measured in turn, and what they should be."""

from __future__ import annotations

from dataclasses import dataclass
from statistics import median
from typing import Any

from gpkvs.bench.report.results import Aim, Measurement


@dataclass(frozen=True)
class Comparison:
    """The ratios of one row, one for each round.

    Parameters
    ----------
    what
        What was measured.
    store
        Whose figure it is.
    beside
        What the ratio is over, or beside whose figure it stands.
    ratios
        One for each round, in their order.
    aim
        The target; None for a figure that only stands beside another one.
    is_least
        Whether the ratio should be the aim at least; else at most.
    note
        What happened meanwhile.
    overall
        The ratio over all rounds together, where it says more than their median: for counts that come in lumps.
    """

    what: str
    store: str
    beside: str
    ratios: list[float]
    aim: float | None = None
    is_least: bool = True
    note: str = ""
    overall: float | None = None

    @property
    def ratio(self) -> float:
        """The figure of the row."""
        return median(self.ratios) if self.overall is None else self.overall

    def as_json(self) -> dict[str, Any]:
        """Return every ratio, and their summary."""
        is_met = None
        if self.aim is not None:
            is_met = self.ratio >= self.aim if self.is_least else self.ratio <= self.aim
        return {
            "what": self.what,
            "store": self.store,
            "beside": self.beside,
            "ratio": self.ratio,
            "lowest": min(self.ratios),
            "highest": max(self.ratios),
            "aim": self.aim,
            "is_least": self.is_least,
            "is_met": is_met,
            "note": self.note,
            "is_overall": self.overall is not None,
            "ratios": self.ratios,
        }


def aimed(measurements: list[Measurement], own: str, aims: list[Aim]) -> list[Comparison]:
    """Return the comparisons that have an aim, of measurements whose runs took turns."""
    found = {(measurement.task, measurement.contender): measurement for measurement in measurements}
    return [
        Comparison(
            what=aim.task,
            store=own,
            beside=aim.peer,
            ratios=rates_over(found[aim.task, own], found[aim.task, aim.peer]),
            aim=aim.ratio,
        )
        for aim in aims
        if (aim.task, own) in found and (aim.task, aim.peer) in found
    ]


def rates_over(own: Measurement, other: Measurement) -> list[float]:
    """Return how many times as fast one was in each round."""
    return [mine.rate / beside.rate for mine, beside in zip(own.runs, other.runs, strict=True)]
