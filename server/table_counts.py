"""What is counted of each table: operations by kind, bytes that came and went, keys that expired."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import NamedTuple

from prometheus_client.metrics_core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from gpkvs.engine.expiry import TableExpiry
from gpkvs.store import Store


class TableCount(NamedTuple):
    """Of one table, since the server started.

    Attributes
    ----------
    operations
        By kind; those that are none may be missing.
    bytes_in, bytes_out
        Of keys and values that came, and of values that were returned.
    """

    operations: Mapping[str, int]
    bytes_in: int
    bytes_out: int


class TableCounts(Collector):
    """The counts of all tables, at each scrape; a table that is dropped takes its counts along."""

    def __init__(self) -> None:
        self._store: Store | None = None
        self._sources: list[Callable[[], Mapping[int, TableCount]]] = []

    def attach(self, store: Store | None) -> None:
        """Tell of the tables of this store from now on; None: of none."""
        self._store = store

    def follow(self, source: Callable[[], Mapping[int, TableCount]]) -> None:
        """Add what somebody counts, by the tables' numbers."""
        self._sources.append(source)

    def collect(self) -> Iterator[Metric]:
        """Return the families of all tables that there are."""
        operations = CounterMetricFamily(
            "gpkvs_table_operations", "Operations executed on a table, by kind", labels=["table", "op"]
        )
        moved = CounterMetricFamily(
            "gpkvs_table_bytes",
            "Bytes of a table's keys and values that came (in), and of values that were returned (out)",
            labels=["table", "direction"],
        )
        expired = CounterMetricFamily(
            "gpkvs_table_expired_keys", "Keys of a table that were removed because they had expired", labels=["table"]
        )
        due = GaugeMetricFamily(
            "gpkvs_table_expiry_due_seconds",
            "How long ago the first key of a table expired that the sweep should have removed; 0: none waits",
            labels=["table"],
        )
        for name, count, expiry in self._counts():
            for op, number in sorted(count.operations.items()):
                if number:
                    operations.add_metric([name, op], number)
            moved.add_metric([name, "in"], count.bytes_in)
            moved.add_metric([name, "out"], count.bytes_out)
            expired.add_metric([name], expiry.removed)
            due.add_metric([name], expiry.due_seconds)
        return iter((operations, moved, expired, due))

    def _counts(self) -> Iterator[tuple[str, TableCount, TableExpiry]]:
        store = self._store
        if store is None:
            return
        others = [source() for source in self._sources]
        tables = store.open_tables()
        for table in tables:
            counts = [count for other in others if (count := other.get(table.id))]
            yield table.name, _sum(counts), store.table_expiry(table.id)


def _sum(counts: Iterable[TableCount]) -> TableCount:
    operations: dict[str, int] = {}
    bytes_in = bytes_out = 0
    for count in counts:
        for op, number in count.operations.items():
            operations[op] = operations.get(op, 0) + number
        bytes_in += count.bytes_in
        bytes_out += count.bytes_out
    return TableCount(operations, bytes_in, bytes_out)
