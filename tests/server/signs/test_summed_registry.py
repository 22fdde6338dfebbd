from __future__ import annotations

import re
from collections.abc import Iterator

from prometheus_client import Counter, Histogram, generate_latest
from prometheus_client.metrics_core import CounterMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.registry import Collector

from gpkvs.server.signs.summed_registry import SummedRegistry


class More(Collector):
    def collect(self) -> Iterator[Metric]:
        calls = CounterMetricFamily("calls", "", labels=["code"])
        calls.add_metric(["OK"], 3)
        calls.add_metric(["LATE"], 1)
        yield calls
        yield HistogramMetricFamily("seconds", "", buckets=[("1.0", 1), ("+Inf", 2)], sum_value=5)


def test_samples_of_two_collectors_are_added() -> None:
    registry = SummedRegistry()
    calls = Counter("calls", "Calls", ["code"], registry=registry)
    seconds = Histogram("seconds", "Time", buckets=(1.0,), registry=registry)
    calls.labels("OK").inc(2)
    seconds.observe(0.5)
    registry.register(More())
    expected = {'calls_total{code="OK"} 5.0', 'calls_total{code="LATE"} 1.0'}
    histogram = {
        'seconds_bucket{le="1.0"} 2.0',
        'seconds_bucket{le="+Inf"} 3.0',
        "seconds_count 3.0",
        "seconds_sum 5.5",
    }

    def samples(text: bytes) -> list[str]:
        return [line for line in text.decode().splitlines() if not line.startswith("#") and "_created" not in line]

    assert sorted(samples(generate_latest(registry))) == sorted(expected | histogram)
    assert generate_latest(registry).count(b"# TYPE calls_total ") == 1
    assert sorted(samples(generate_latest(registry.restricted_registry(["calls_total"])))) == sorted(expected)


def test_the_help_text_is_that_of_any_collector_that_has_one() -> None:
    first, last = SummedRegistry(), SummedRegistry()
    first.register(More())
    for registry in (first, last):
        Counter("calls", "Calls", ["code"], registry=registry)
        Histogram("seconds", "Time", buckets=(1.0,), registry=registry)
    last.register(More())
    for registry in (first, last):
        help_texts = re.findall("^# HELP (?!.*_created)(.*)$", generate_latest(registry).decode(), re.MULTILINE)
        assert sorted(help_texts) == ["calls_total Calls", "seconds Time"]
