"""The results of a benchmark: every run, and the figures that follow from them. The JSON files hold exactly this."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, field
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np


@dataclass(frozen=True)
class Run:
    """One of the runs that make a measurement.

    Parameters
    ----------
    operations
        How many operations were done.
    seconds
        Their time together, without the parts that are not timed.
    latencies_ms
        Percentiles of the latency of a batch, message or call (``p50``, ``p99`` and so on); empty if not measured.
    """

    operations: int
    seconds: float
    latencies_ms: dict[str, float] = field(default_factory=dict)

    @property
    def rate(self) -> float:
        """Operations a second."""
        return self.operations / self.seconds


@dataclass(frozen=True)
class Measurement:
    """The throughput of one contender at one task.

    Parameters
    ----------
    task
        What was done; contenders at the same task are compared.
    contender
        The store that did it.
    runs
        All runs, in their order.
    """

    task: str
    contender: str
    runs: list[Run]

    @property
    def rate(self) -> float:
        """The median of the runs, operations a second."""
        return median(run.rate for run in self.runs)

    def as_json(self) -> dict[str, Any]:
        """Return every run, and their summary."""
        rates = [run.rate for run in self.runs]
        names = self.runs[0].latencies_ms
        return {
            "task": self.task,
            "contender": self.contender,
            "rate": self.rate,
            "rate_min": min(rates),
            "rate_max": max(rates),
            "latencies_ms": {name: median(run.latencies_ms[name] for run in self.runs) for name in names},
            "runs": [{**asdict(run), "rate": run.rate} for run in self.runs],
        }


@dataclass(frozen=True)
class Aim:
    """A target ratio: gpkvs over a peer, at a task."""

    task: str
    peer: str
    ratio: float


def ratios(measurements: list[Measurement], own: str, aims: list[Aim]) -> list[dict[str, Any]]:
    """Return `own` over each peer at each task that both did."""
    rates = {(measurement.task, measurement.contender): measurement.rate for measurement in measurements}
    aimed = {(aim.task, aim.peer): aim.ratio for aim in aims}
    return [
        {
            "task": task,
            "peer": contender,
            "ratio": rates[task, own] / rate,
            "aim": aimed.get((task, contender)),
        }
        for (task, contender), rate in rates.items()
        if contender != own and (task, own) in rates
    ]


def latencies_ms(seconds: list[float], *percentiles: int) -> dict[str, float]:
    """Return percentiles of latencies, in milliseconds."""
    values = np.percentile(seconds, percentiles) * 1e3
    return {f"p{percentile}": round(float(value), 4) for percentile, value in zip(percentiles, values, strict=True)}


def write_result(path: Path, result: dict[str, Any]) -> None:
    """Write a result as JSON."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(result, indent=1, default=str) + "\n")
