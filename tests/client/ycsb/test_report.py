"""The lines of a report, as programs that read YCSB's expect them."""

from __future__ import annotations

import random

import numpy as np
import pytest

from gpkvs.client.ycsb.measurements import Measurements, Series, ordinal
from gpkvs.client.ycsb.report import Progress, Report

SEED = 3


def test_the_report_has_the_lines_of_ycsb() -> None:
    measurements = Measurements()
    for latency in (100, 200, 300, 400):
        measurements.record("READ", latency)
        measurements.record_return("READ", "OK")
    measurements.record("READ-FAILED", 50)
    measurements.record_return("READ", "NOT_FOUND")
    measurements.record("CLEANUP", 9)
    report = Report(2000, 5, measurements, [50.0, 95.0, 99.9])
    assert report.lines() == [
        "[OVERALL], RunTime(ms), 2000",
        "[OVERALL], Throughput(ops/sec), 2.5",
        "[READ], Operations, 4",
        "[READ], AverageLatency(us), 250.0",
        "[READ], MinLatency(us), 100",
        "[READ], MaxLatency(us), 400",
        "[READ], 50thPercentileLatency(us), 200",
        "[READ], 95thPercentileLatency(us), 400",
        "[READ], 99.9PercentileLatency(us), 400",
        "[READ], Return=NOT_FOUND, 1",
        "[READ], Return=OK, 4",
        "[READ-FAILED], Operations, 1",
        "[READ-FAILED], AverageLatency(us), 50.0",
        "[READ-FAILED], MinLatency(us), 50",
        "[READ-FAILED], MaxLatency(us), 50",
        "[READ-FAILED], 50thPercentileLatency(us), 50",
        "[READ-FAILED], 95thPercentileLatency(us), 50",
        "[READ-FAILED], 99.9PercentileLatency(us), 50",
        "[CLEANUP], Operations, 1",
        "[CLEANUP], AverageLatency(us), 9.0",
        "[CLEANUP], MinLatency(us), 9",
        "[CLEANUP], MaxLatency(us), 9",
        "[CLEANUP], 50thPercentileLatency(us), 9",
        "[CLEANUP], 95thPercentileLatency(us), 9",
        "[CLEANUP], 99.9PercentileLatency(us), 9",
    ]
    assert measurements.not_ok == 1
    as_json = report.as_json()
    assert as_json["OVERALL"] == {"RunTime(ms)": 2000, "Throughput(ops/sec)": 2.5}
    assert as_json["READ"]["Return=OK"] == 4


def test_an_operation_that_never_succeeded_is_reported() -> None:
    measurements = Measurements()
    measurements.record("INSERT-FAILED", 5)
    measurements.record_return("INSERT", "ERROR")
    lines = Report(0, 1, measurements, [50.0]).lines()
    assert "[OVERALL], Throughput(ops/sec), 0.0" in lines
    assert "[INSERT], Operations, 0" in lines
    assert "[INSERT], Return=ERROR, 1" in lines


def test_percentiles_keep_three_digits_over_many_latencies() -> None:
    rng = random.Random(SEED)
    latencies = [int(rng.lognormvariate(7, 1.5)) for _ in range(150_000)]
    series = Series()
    for latency in latencies:
        series.record(latency)
    assert series.count == len(latencies)
    summary = series.summary([50.0, 95.0, 99.0])
    assert summary["Operations"] == len(latencies)
    assert summary["AverageLatency(us)"] == pytest.approx(sum(latencies) / len(latencies), rel=1e-12)
    assert (summary["MinLatency(us)"], summary["MaxLatency(us)"]) == (min(latencies), max(latencies))
    for percentile in (50, 95, 99):
        exact = float(np.percentile(latencies, percentile, method="inverted_cdf"))
        assert summary[f"{percentile}thPercentileLatency(us)"] == pytest.approx(exact, rel=1e-3)


@pytest.mark.parametrize(
    ("latency", "said"),
    [(0, 0), (1, 1), (2047, 2047), (2048, 2049), (4095, 4095), (4096, 4099), (1 << 20, (1 << 20) + 1023)],
)
def test_a_percentile_is_the_largest_latency_that_counts_as_the_same(latency: int, said: int) -> None:
    # What HdrHistogram with three digits says.
    series = Series()
    series.record(latency)
    assert series.summary([50.0])["50thPercentileLatency(us)"] == said


def test_a_latency_beyond_the_histogram_is_kept_at_its_end() -> None:
    series = Series()
    series.record(10**12)
    assert series.summary([50.0])["MaxLatency(us)"] == 3_600_000_000


@pytest.mark.parametrize(
    ("number", "text"),
    [
        (1, "1st"),
        (2, "2nd"),
        (3, "3rd"),
        (11, "11th"),
        (12, "12th"),
        (50, "50th"),
        (93, "93rd"),
        (99.9, "99.9"),
        (100, "100th"),
    ],
)
def test_ordinals(number: float, text: str) -> None:
    assert ordinal(number) == text


@pytest.mark.parametrize(
    ("progress", "line"),
    [
        (
            Progress(10.2, 1000, 4000, 123.456),
            "10 sec: 1000 operations; 123.46 current ops/sec; est completion in 31 seconds",
        ),
        (
            Progress(10.0, 10, 1000, 1.0),
            "10 sec: 10 operations; 1.00 current ops/sec; est completion in 16 minutes 30 seconds",
        ),
        (Progress(1.0, 1, 90_062, 1.0), "1 sec: 1 operations; 1.00 current ops/sec; est completion in 1 day 1 hour"),
        (Progress(2.0, 5, 5, 2.5), "2 sec: 5 operations; 2.50 current ops/sec;"),
        (Progress(2.0, 0, 5, 0.0), "2 sec: 0 operations; 0.00 current ops/sec;"),
    ],
)
def test_status_lines(progress: Progress, line: str) -> None:
    assert progress.line() == line
