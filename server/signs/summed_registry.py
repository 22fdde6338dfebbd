"""A registry in which several collectors may report one metric: what they report is added up."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from prometheus_client import CollectorRegistry
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import RestrictedRegistry
from prometheus_client.samples import Sample


class SummedRegistry(CollectorRegistry):
    """Collects each metric once, with the sums of the samples that have the same labels."""

    def collect(self) -> Iterator[Metric]:
        """Return all metrics."""
        return _summed(super().collect())

    def restricted_registry(self, names: Iterable[str]) -> RestrictedRegistry:
        """Return a registry of the samples with these names."""
        return _Restricted(self, frozenset(names))


class _Restricted(RestrictedRegistry):
    def __init__(self, registry: SummedRegistry, names: frozenset[str]) -> None:
        super().__init__(names, registry)
        self._names = names

    def collect(self) -> Iterator[Metric]:
        for metric in self._registry.collect():
            metric.samples = [sample for sample in metric.samples if sample.name in self._names]
            if metric.samples:
                yield metric


def _summed(metrics: Iterable[Metric]) -> Iterator[Metric]:
    found: dict[str, list[Metric]] = {}
    for metric in metrics:
        found.setdefault(metric.name, []).append(metric)
    for metric, *more in found.values():
        if more:
            # Not every collector repeats the help text, and the one that has it may not come first.
            metric.documentation = next((part.documentation for part in (metric, *more) if part.documentation), "")
            metric.samples = _sums(sample for part in (metric, *more) for sample in part.samples)
        yield metric


def _sums(samples: Iterable[Sample]) -> list[Sample]:
    sums: dict[tuple[str, frozenset[tuple[str, str]]], Sample] = {}
    for sample in samples:
        series = sample.name, frozenset(sample.labels.items())
        before = sums.get(series)
        sums[series] = sample if before is None else sample._replace(value=before.value + sample.value)
    return list(sums.values())
