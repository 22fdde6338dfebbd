"""The report of a run, in YCSB's lines and as JSON."""

from __future__ import annotations

from dataclasses import dataclass

from gpkvs.client.ycsb.measurements import Measurements


@dataclass(frozen=True)
class Report:
    """The end of a run.

    Parameters
    ----------
    runtime_ms
        From the first operation to the end of the last one.
    operations
        How many were done, failed ones included.
    measurements
        Latencies and results.
    percentiles
        Those to report.
    """

    runtime_ms: int
    operations: int
    measurements: Measurements
    percentiles: list[float]

    @property
    def throughput(self) -> float:
        """Operations per second."""
        return self.operations * 1000 / self.runtime_ms if self.runtime_ms else 0.0

    def groups(self) -> dict[str, dict[str, float]]:
        """Return each group's figures: READ, UPDATE, READ-FAILED, Intended-READ, ..., CLEANUP."""
        measurements = self.measurements
        names = sorted({*measurements.series, *measurements.returns}, key=lambda name: (name == "CLEANUP", name))
        groups: dict[str, dict[str, float]] = {}
        for name in names:
            series = measurements.series.get(name)
            groups[name] = series.summary(self.percentiles) if series else {"Operations": 0}
            for result, count in sorted(measurements.returns.get(name, {}).items()):
                groups[name][f"Return={result}"] = count
        return groups

    def lines(self) -> list[str]:
        """Return the report as YCSB prints it."""
        return [
            f"[OVERALL], RunTime(ms), {self.runtime_ms}",
            f"[OVERALL], Throughput(ops/sec), {self.throughput}",
            *(
                f"[{group}], {name}, {figure}"
                for group, figures in self.groups().items()
                for name, figure in figures.items()
            ),
        ]

    def as_json(self) -> dict[str, dict[str, float]]:
        """Return the same figures under the same names."""
        overall = {"RunTime(ms)": self.runtime_ms, "Throughput(ops/sec)": self.throughput}
        return {"OVERALL": overall, **self.groups()}


@dataclass(frozen=True)
class Progress:
    """A run as it is now; `total` is 0 where only time ends it."""

    elapsed_s: float
    operations: int
    total: int
    operations_per_second: float  # since the last line

    def line(self) -> str:
        """Return YCSB's status line (without its time stamp)."""
        text = (
            f"{self.elapsed_s:.0f} sec: {self.operations} operations; {self.operations_per_second:.2f} current ops/sec;"
        )
        if self.operations and self.total > self.operations:
            left_s = (self.total - self.operations) * self.elapsed_s / self.operations
            text += f" est completion in {_duration(left_s)}"
        return text


def _duration(seconds: float) -> str:
    """Return the two largest units of a duration, as YCSB does: "5 minutes 3 seconds"."""
    rest, parts = max(1, round(seconds)), []
    for unit, size in (("day", 86_400), ("hour", 3600), ("minute", 60), ("second", 1)):
        count, rest = divmod(rest, size)
        if count:
            parts.append(f"{count} {unit}{'s' * (count != 1)}")
    return " ".join(parts[:2])
