"""Latencies and results of operations, by the name of the operation."""

from __future__ import annotations

from array import array
from collections import Counter
from collections.abc import Collection

import numpy as np

_LATENCY_US_MAX = 3_600_000_000  # an hour
_EXACT_BITS = 11  # a latency keeps so many of its highest bits: three digits, as HdrHistogram keeps them for YCSB
_BUFFER = 1 << 16


class Series:
    """Latencies of one kind of operation, in microseconds; exact but for 3 digits in the percentiles."""

    def __init__(self) -> None:
        self._histogram: Counter[int] = Counter()  # by the largest latency that counts as the same
        self._buffer = array("q")
        self._count = 0
        self._sum_us = 0
        self._min_us = _LATENCY_US_MAX
        self._max_us = 0

    def record(self, latency_us: int) -> None:
        """Add one latency."""
        # Into a plain buffer first: NumPy counts many at once.
        self._buffer.append(latency_us)
        if len(self._buffer) >= _BUFFER:
            self._fold()

    def _fold(self) -> None:
        if not self._buffer:
            return
        latencies = np.minimum(np.frombuffer(self._buffer, np.int64), _LATENCY_US_MAX)
        shift = np.maximum(np.frexp(latencies)[1] - _EXACT_BITS, 0)
        values, counts = np.unique(((latencies >> shift) + 1 << shift) - 1, return_counts=True)
        for value, count in zip(values.tolist(), counts.tolist(), strict=True):
            self._histogram[value] += count
        self._count += len(latencies)
        self._sum_us += int(latencies.sum())
        self._min_us = min(self._min_us, int(latencies.min()))
        self._max_us = max(self._max_us, int(latencies.max()))
        self._buffer = array("q")

    @property
    def count(self) -> int:
        """How many latencies there are."""
        return self._count + len(self._buffer)

    def summary(self, percentiles: list[float]) -> dict[str, float]:
        """Return YCSB's figures, by their names there."""
        self._fold()
        if not self._count:
            return {"Operations": 0}
        return {
            "Operations": self._count,
            "AverageLatency(us)": self._sum_us / self._count,
            "MinLatency(us)": self._min_us,
            "MaxLatency(us)": self._max_us,
            **{f"{ordinal(percentile)}PercentileLatency(us)": self._at(percentile) for percentile in percentiles},
        }

    def _at(self, percentile: float) -> int:
        """Return the latency that so many percent of all do not exceed."""
        values = sorted(self._histogram)
        below = np.cumsum([self._histogram[value] for value in values])
        wanted = max(int(percentile * self._count / 100 + 0.5), 1)
        return values[int(np.searchsorted(below, wanted))]


class Measurements:
    """All series of a run, and what the operations returned.

    Parameters
    ----------
    as_asked
        The results that are no failures.
    """

    def __init__(self, as_asked: Collection[str] = ("OK",)) -> None:
        self._as_asked = as_asked
        self.series: dict[str, Series] = {}
        self.returns: dict[str, Counter[str]] = {}

    def record(self, name: str, latency_us: int) -> None:
        """Add one latency to the series of that name."""
        series = self.series.get(name)
        if series is None:
            series = self.series[name] = Series()
        series.record(latency_us)

    def record_return(self, name: str, result: str) -> None:
        """Count one result of an operation: OK, NOT_FOUND, ..."""
        counter = self.returns.get(name)
        if counter is None:
            counter = self.returns[name] = Counter()
        counter[result] += 1

    @property
    def not_ok(self) -> int:
        """How many results were failures."""
        return sum(
            count
            for counter in self.returns.values()
            for result, count in counter.items()
            if result not in self._as_asked
        )


def ordinal(number: float) -> str:
    """Return 50 as "50th", 1 as "1st"; a fraction as it is: 99.9."""
    if number % 1:
        return f"{number:g}"
    last = int(number) % 100
    ending = "th" if last in (11, 12, 13) else {1: "st", 2: "nd", 3: "rd"}.get(last % 10, "th")
    return f"{int(number)}{ending}"
