"""What the native door counts, beside what Python counts of calls that it serves."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import accumulate

from prometheus_client.metrics_core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.registry import Collector

from gpkvs.batch import COPY, INCREMENT_DECIMAL, LENGTH, REQUIRE, SETRANGE, Op, Status
from gpkvs.server.calls import StatusCode
from gpkvs.server.door.library import Histogram, Stats, TableStats
from gpkvs.server.door.refusals import CLOSED
from gpkvs.server.exporter import OPERATIONS, SECONDS
from gpkvs.server.redis.stats import DoorCounts
from gpkvs.server.table_counts import TableCount

_METHODS = dict.fromkeys(("Get", "Set", "Delete", "Increment", "MultiGet", "Batch"), "unary") | {
    "Pipeline": "bidi_stream"
}
_REFUSALS = ("memory_full", "queue_full", "unsupported", "slow")
_CONNECTION_REFUSALS = (
    *("connections_full", "files_full", "memory_full", "http1", "tls", "plain", "handshake"),
    *("foreign", "gave_way", "silent"),
)
_CLOSED = tuple(CLOSED)
_REDIS_ERRORS = ("ERR", "OOM", "EXECABORT")
_LABELS = ["grpc_type", "grpc_service", "grpc_method"]
_CODES = {code.value[0]: code.name for code in StatusCode}
_OPERATIONS = {op.value: op.name.lower() for op in Op} | {
    LENGTH: "length",
    REQUIRE: "require",
    COPY: "copy",
    SETRANGE: "setrange",
    INCREMENT_DECIMAL: "increment_decimal",
}
_OWN_OPS = frozenset(Op)  # there from the first scrape on
_NANO = 1e-9


class DoorStats(Collector):
    """The door's counters at each scrape.

    Parameters
    ----------
    stats
        Returns them.
    connections
        Returns how many connections there are, at both ports.
    connections_max
        So many there may be.
    """

    def __init__(self, stats: Callable[[], Stats], connections: Callable[[], int], connections_max: int) -> None:
        self._stats = stats
        self._connections = connections
        self._connections_max = connections_max

    def collect(self) -> Iterator[Metric]:
        """Return families of the names that Python's have (`gpkvs.server.exporter`, `gpkvs.server.interceptor`)."""
        stats = self._stats()
        yield from _calls(stats)
        refused = CounterMetricFamily("gpkvs_requests_refused", "", labels=["reason"])
        for reason, count in (
            *zip(_REFUSALS, stats.refused, strict=True),
            ("cancelled", stats.cancelled),
            ("deadline", stats.expired),
            ("conflict", stats.conflicts),
        ):
            if count:
                refused.add_metric([reason], count)
        yield refused
        yield from self._open_connections(stats)
        connections = CounterMetricFamily(
            "gpkvs_connections_refused",
            "Connections that ended before they were of use, by reason: limits, strangers that took too long, and "
            "clients that speak something else",
            labels=["reason"],
        )
        for reason, count in refused_connections(stats).items():
            connections.add_metric([reason], count)
        yield connections
        closed = CounterMetricFamily(
            "gpkvs_connections_closed",
            "Connections that the native door closed though they were of use, by reason",
            labels=["reason"],
        )
        for reason, count in closed_connections(stats).items():
            closed.add_metric([reason], count)
        yield closed
        yield CounterMetricFamily("gpkvs_slow_calls", "", stats.slow)
        operations = CounterMetricFamily(
            "gpkvs_operations", "Operations executed, by kind and by what became of them", labels=["op", "status"]
        )
        for op, name in _OPERATIONS.items():
            for status in Status:
                count = stats.operations[op][status]
                if count or op in _OWN_OPS:
                    operations.add_metric([name, status.name.lower()], count)
        yield operations
        for name, text, histogram, bounds, unit in (
            ("operations", "Operations in a transaction", stats.batch_operations, OPERATIONS, 1),
            ("requests", "Requests in a transaction", stats.batch_requests, OPERATIONS, 1),
            (
                "seconds",
                "Time of a transaction from its start in the engine until it is durable",
                stats.batch_ns,
                SECONDS,
                _NANO,
            ),
        ):
            family = HistogramMetricFamily(f"gpkvs_batch_{name}", text, labels=[])
            _add(family, [], histogram, bounds, unit)
            yield family

    def _open_connections(self, stats: Stats) -> Iterator[Metric]:
        redis = stats.resp.opened - stats.resp.closed
        family = GaugeMetricFamily("gpkvs_connections", "Connections that are open, by port", labels=["port"])
        family.add_metric(["grpc"], max(self._connections() - redis, 0))
        family.add_metric(["redis"], redis)
        yield family
        yield GaugeMetricFamily(
            "gpkvs_connections_max",
            "How many connections clients may have, at all ports but that of the metrics",
            value=self._connections_max,
        )


def refused_connections(stats: Stats) -> dict[str, int]:
    """Return how many connections were refused, by reason."""
    return dict(zip(_CONNECTION_REFUSALS, stats.connections_refused[: len(_CONNECTION_REFUSALS)], strict=True))


def closed_connections(stats: Stats) -> dict[str, int]:
    """Return how many connections the door closed though they were of use, by reason."""
    return dict(zip(_CLOSED, stats.connections_refused[len(_CONNECTION_REFUSALS) :], strict=True))


def table_counts(tables: Iterable[TableStats]) -> dict[int, TableCount]:
    """Return what was counted of tables, by their numbers."""
    return {
        table.id: TableCount(
            {name: sum(table.operations[op]) for op, name in _OPERATIONS.items()}, table.bytes_in, table.bytes_out
        )
        for table in tables
    }


def redis_counts(stats: Stats, names: Sequence[str]) -> DoorCounts:
    """Return what was counted of the Redis protocol, of commands with these names."""
    resp = stats.resp
    commands: dict[str, int] = {}
    for command, count in zip(names, resp.commands, strict=True):  # one may be there in several ways
        commands[command] = commands.get(command, 0) + count
    return DoorCounts(
        commands,
        dict(zip(_REDIS_ERRORS, resp.errors, strict=True)),
        resp.opened,
        resp.closed,
        resp.messages,
        closed_connections(stats)["behind"],
    )


def _calls(stats: Stats) -> Iterator[Metric]:
    started = CounterMetricFamily("grpc_server_started", "", labels=_LABELS)
    handled = CounterMetricFamily("grpc_server_handled", "", labels=[*_LABELS, "grpc_code"])
    seconds = HistogramMetricFamily("grpc_server_handling_seconds", "", labels=_LABELS)
    for (method, kind), own in zip(_METHODS.items(), stats.methods, strict=True):
        if own.started:
            labels = [kind, "gpkvs.v1.KV", method]
            started.add_metric(labels, own.started)
            for code, count in enumerate(own.handled):
                if count or code == 0:
                    handled.add_metric([*labels, _CODES[code]], count)
            _add(seconds, labels, own.ns, SECONDS, _NANO)
    return iter((started, handled, seconds))


def _add(
    family: HistogramMetricFamily, labels: Sequence[str], histogram: Histogram, bounds: Sequence[float], unit: float
) -> None:
    sums = accumulate(histogram.counts[: len(bounds) + 1])
    names = [*(str(float(bound)) for bound in bounds), "+Inf"]
    family.add_metric(labels, buckets=list(zip(names, sums, strict=True)), sum_value=histogram.sum * unit)
