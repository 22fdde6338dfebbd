"""Latencies and results of operations, by the name of the operation."""

from __future__ import annotations

from array import array
from collections import Counter
from collections.abc import Collection
from typing import Any

import numpy as np

from gpkvs.errors import GpkvsError

_LATENCY_US_MAX = 3_600_000_000  # an hour
_DIGITS = 3
_BUFFER = 1 << 16


def new_histogram() -> Any:
    """Return an empty HdrHistogram of latencies in microseconds.

    Raises
    ------
    GpkvsError
        If the package is missing: there is none for ARM that needs no compiler.
    """
    try:
        from hdrh.histogram import HdrHistogram  # noqa: PLC0415 - an extra on ARM
    except ImportError as error:
        raise GpkvsError(
            f"YCSB's report needs hdrhistogram ({error}): run pip install 'gpkvs[ycsb]'; on ARM that takes a compiler "
            "and Python's headers (apt-get install gcc python3-dev)"
        ) from error
    return HdrHistogram(1, _LATENCY_US_MAX, _DIGITS)


class Series:
    """Latencies of one kind of operation, in microseconds; exact but for 3 digits in the percentiles."""

    def __init__(self) -> None:
        self._histogram = new_histogram()
        self._buffer = array("q")
        self._count = 0
        self._sum_us = 0
        self._min_us = _LATENCY_US_MAX
        self._max_us = 0

    def record(self, latency_us: int) -> None:
        """Add one latency."""
        # Into a plain buffer first: the histogram is Python, and takes as long as a whole operation of the client.
        self._buffer.append(latency_us)
        if len(self._buffer) >= _BUFFER:
            self._fold()

    def _fold(self) -> None:
        if not self._buffer:
            return
        latencies = np.minimum(np.frombuffer(self._buffer, np.int64), _LATENCY_US_MAX)
        values, counts = np.unique(latencies, return_counts=True)
        for value, count in zip(values.tolist(), counts.tolist(), strict=True):
            self._histogram.record_value(value, count)
        self._count += len(latencies)
        self._sum_us += int(latencies.sum())
        self._min_us = min(self._min_us, int(values[0]))
        self._max_us = max(self._max_us, int(values[-1]))
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
            **{
                f"{ordinal(percentile)}PercentileLatency(us)": int(self._histogram.get_value_at_percentile(percentile))
                for percentile in percentiles
            },
        }


class Measurements:
    """All series of a run, and what the operations returned.

    Parameters
    ----------
    as_asked
        The results that are no failures.
    """

    def __init__(self, as_asked: Collection[str] = ("OK",)) -> None:
        new_histogram()  # before the first operation, rather than after it
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
