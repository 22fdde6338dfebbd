"""The metrics, each named once (`http_port` serves them)."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from itertools import accumulate
from typing import TYPE_CHECKING

from prometheus_client import (
    Counter,
    Gauge,
    ProcessCollector,
    disable_created_metrics,
)
from prometheus_client.metrics_core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
    InfoMetricFamily,
    Metric,
)
from prometheus_client.registry import Collector

from gpkvs.engine.seam.left import Left
from gpkvs.engine.seam.meter import EXPIRY_LAG_SECONDS, Meter
from gpkvs.info import JournalInfo, StoreInfo
from gpkvs.process.process_io import process_io
from gpkvs.server.account.memory import KINDS, Kind
from gpkvs.server.signs.backup_notes import BackupNotes
from gpkvs.server.signs.disk_watch import DiskWatch
from gpkvs.server.signs.summed_registry import SummedRegistry
from gpkvs.server.signs.table_counts import TableCounts

if TYPE_CHECKING:
    from gpkvs.server.ports.tls import Tls

SECONDS = (0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0)
OPERATIONS = tuple(4**power for power in range(11))  # 1 to 1,048,576


class Metrics:
    """The metrics of one server, in a registry of its own."""

    def __init__(self) -> None:
        disable_created_metrics()  # they are a second series beside each counter, which nobody reads
        self.registry = SummedRegistry()
        ProcessCollector(registry=self.registry)
        self.registry.register(_ProcessIoCollector())
        self._refused = Counter(
            "gpkvs_requests_refused",
            "Requests refused before they were executed, or dropped while they waited, by reason",
            ["reason"],
            registry=self.registry,
        )
        self.tables = TableCounts()
        self.registry.register(self.tables)
        self.backup_notes = BackupNotes()
        self.registry.register(self.backup_notes)
        self._slow = Counter(
            "gpkvs_slow_calls",
            "Calls that took as long as --slow-log-over-ms, also those that the slow log does not have any more",
            registry=self.registry,
        )
        self._serving = Gauge(
            "gpkvs_serving", "1 while the server serves; 0 while it recovers or stops", registry=self.registry
        )
        self._store: _StoreCollector | None = None
        self._queue_requests = Gauge(
            "gpkvs_queue_requests", "Requests that wait to get into a transaction", registry=self.registry
        )
        self._clock_back = Gauge(
            "gpkvs_clock_back_seconds",
            "How far the clock lies behind the time by which keys expire, since it was set back; 0 when it is right",
            registry=self.registry,
        )
        self._memory_bytes = Gauge(
            "gpkvs_memory_bytes",
            "Memory that clients make the server take, by kind: open calls, requests from their receipt to the end of "
            "their transaction, answers until they are sent, the transactions in progress",
            ["kind"],
            registry=self.registry,
        )
        self._memory_bytes_max = Gauge("gpkvs_memory_max_bytes", "The bound of that memory", registry=self.registry)

        self._logins = Counter(
            "gpkvs_logins",
            "Logins: ok once for each user of a connection, refused, or slowed after failures",
            ["method", "result"],
            registry=self.registry,
        )
        self.users_file_good = Gauge(
            "gpkvs_users_file_good",
            "1 while the users' file is in force as it is, also without one; 0 while an older one is, for an error",
            registry=self.registry,
        )
        self.users_file_good.set(1)
        self.token_end = Gauge(
            "gpkvs_token_end_timestamp_seconds",
            "When the first of the users' tokens that have not ended ends; infinity without any",
            registry=self.registry,
        )
        self.token_end.set(math.inf)
        self._tls_files_good = Gauge(
            "gpkvs_tls_files_good",
            "1 while the files of TLS are in force as they are, also without TLS; 0 while older ones are, for an error",
            registry=self.registry,
        )
        self._tls_files_good.set(1)
        self._certificate_end = Gauge(
            "gpkvs_tls_certificate_end_timestamp_seconds",
            "When the first of the certificates in force ends: the server's chain, the CAs of clients",
            ["certificate"],
            registry=self.registry,
        )
        self.audit_log_good = Gauge(
            "gpkvs_audit_log_good",
            "1 while the audit log can be written, also without one; 0 while lines are lost",
            registry=self.registry,
        )
        self.audit_log_good.set(1)
        self.audit_lost = Counter(
            "gpkvs_audit_lost", "Lines of the audit log that could not be written", registry=self.registry
        )
        self.watches = Gauge("gpkvs_watches", "Watches that are open", registry=self.registry)
        self._changes_held = Gauge(
            "gpkvs_changes_held_bytes",
            "What is held of the newest changes, for watches and backups; 0 while nobody follows",
            registry=self.registry,
        )
        self._watch_entries = Counter(
            "gpkvs_watch_entries",
            "Entries that watches were told; a transaction is one for each of its tables and each watch",
            registry=self.registry,
        )
        self._watch_lost = Counter(
            "gpkvs_watch_lost",
            "Watches that ended, or did not begin, since what comes next for them is not held any more",
            registry=self.registry,
        )
        self._scan_pieces = Counter("gpkvs_scan_pieces", "Pieces of tables that were scanned", registry=self.registry)
        self._scan_keys = Counter("gpkvs_scan_keys", "Keys in these pieces", registry=self.registry)
        self._scan_damaged = Counter(
            "gpkvs_scan_damaged", "Records that scans left out, since they fail their checks", registry=self.registry
        )
        self._scan_seconds = Counter(
            "gpkvs_scan_seconds", "Time of reading these pieces, with the wait for the store", registry=self.registry
        )

    def piece_scanned(self, keys: int, damaged: int, seconds: float) -> None:
        """Note a piece of a scan."""
        self._scan_pieces.inc()
        self._scan_keys.inc(keys)
        self._scan_damaged.inc(damaged)
        self._scan_seconds.inc(seconds)

    def watch_told(self, entries: int) -> None:
        """Note entries that a watch is told."""
        self._watch_entries.inc(entries)

    def watch_lost(self) -> None:
        """Note a watch that cannot go on: what comes next is not held any more."""
        self._watch_lost.inc()

    def requests_refused(self, reason: str, count: int = 1) -> None:
        """Note requests that were refused before they were executed."""
        self._refused.labels(reason).inc(count)

    def call_was_slow(self) -> None:
        """Note a call that took long."""
        self._slow.inc()

    def login(self, method: str, result: str) -> None:
        """Note that somebody logged in, or was refused."""
        self._logins.labels(method, result).inc()

    def attach(
        self,
        info: Callable[[], StoreInfo],
        meter: Meter,
        queue_requests: Callable[[], int],
        changes_held: Callable[[], int],
    ) -> None:
        """Report an open store, the requests in a queue and the bytes of changes, from now on."""
        self._queue_requests.set_function(queue_requests)
        self._changes_held.set_function(changes_held)
        self._store = _StoreCollector(info, meter)
        self.registry.register(self._store)
        self._serving.set(1)

    def watch_memory(self, held_bytes: Callable[[Kind], int], bytes_max: int) -> None:
        """Report the memory that clients take, from now on."""
        for kind in KINDS:
            self._memory_bytes.labels(kind).set_function(partial(held_bytes, kind))
        self._memory_bytes_max.set(bytes_max)

    def watch_tls(self, tls: Tls) -> None:
        """Report the certificates and whether their files are in force, from now on."""
        self._tls_files_good.set_function(lambda: tls.is_good)
        for kind in tls.certificates:
            self._certificate_end.labels(kind).set_function(partial(tls.end_timestamp, kind))

    def watch_metrics_port(self, connections: Callable[[], int], refused: Mapping[str, int]) -> None:
        """Report the connections of the port of the metrics, and those that it refuses, by reason, from now on."""
        self.registry.register(_MetricsPortCollector(connections, refused))

    def watch_disk(self, disk: DiskWatch) -> None:
        """Report how much room the disk under the store has, from now on."""
        for name, text, value in (
            (
                "free_bytes",
                "Bytes that the server may still write to the disk under the store",
                lambda: disk.free_bytes,
            ),
            ("bytes", "Size of that disk", lambda: disk.all_bytes),
        ):
            Gauge(f"gpkvs_disk_{name}", text, registry=self.registry).set_function(value)

    def watch_clock(self, back_seconds: Callable[[], float]) -> None:
        """Report how far the clock was set back, from now on."""
        self._clock_back.set_function(back_seconds)

    def stopping(self) -> None:
        """Report that no new calls are served."""
        self._serving.set(0)

    def detach(self) -> None:
        """Report the store no longer; it is about to be closed."""
        self._clock_back.set_function(lambda: 0.0)
        if self._store:
            self.registry.unregister(self._store)
            self._store = None


class _ProcessIoCollector(Collector):
    """The bytes that the process wrote to devices and read from them, where Linux says them."""

    def collect(self) -> Iterator[Metric]:
        io = process_io()
        if io is not None:
            yield CounterMetricFamily(
                "gpkvs_process_written_bytes",
                "Bytes of pages that the process dirtied for the block layer; 0 on tmpfs and persistent memory",
                io.written_bytes,
            )
            yield CounterMetricFamily(
                "gpkvs_process_read_bytes", "Bytes that the process had the block layer read", io.read_bytes
            )


class _MetricsPortCollector(Collector):
    """What the port of the metrics has and refused, at each scrape."""

    def __init__(self, connections: Callable[[], int], refused: Mapping[str, int]) -> None:
        self._connections = connections
        self._refused = refused

    def collect(self) -> Iterator[Metric]:
        open_ones = GaugeMetricFamily("gpkvs_connections", "Connections that are open, by port", labels=["port"])
        open_ones.add_metric(["metrics"], self._connections())
        yield open_ones
        family = CounterMetricFamily(
            "gpkvs_metrics_connections_refused",
            "Connections to the metrics port that ended before they were of use, by reason",
            labels=["reason"],
        )
        for reason, count in self._refused.items():
            family.add_metric([reason], count)
        yield family


class _StoreCollector(Collector):
    """The description of a store, asked for at each scrape."""

    def __init__(self, info: Callable[[], StoreInfo], meter: Meter) -> None:
        self._info = info
        self._meter = meter

    def collect(self) -> Iterator[Metric]:
        info = self._info()
        yield InfoMetricFamily(
            "gpkvs_server",
            "Version, backend and persistence domain",
            value={
                "version": info.version,
                "backend": info.backend,
                "domain": info.domain,
                "domain_found": info.domain_found,
                "commit": info.commit,
            },
        )
        yield GaugeMetricFamily("gpkvs_heap_bytes", "Size of the heap", value=info.heap_bytes)
        yield GaugeMetricFamily(
            "gpkvs_heap_max_bytes", "What the heap may grow to, if the disk has it", value=info.heap_bytes_max
        )
        yield GaugeMetricFamily(
            "gpkvs_heap_growth_waits",
            "1 while the heap should grow and cannot, for want of disk or memory",
            value=int(bool(info.heap_growth_waits)),
        )
        yield GaugeMetricFamily("gpkvs_heap_live_bytes", "Bytes of live records", value=info.heap_live_bytes)
        for name, text in (
            ("free_bytes", "Bytes that records can be appended to"),
            ("charged_bytes", "Bytes that records are charged: a large one takes more than its own"),
            ("charged_bytes_max", "Up to so many bytes charged, any write is accepted"),
            ("segments", "Segments of the heap"),
            ("free_segments", "Segments of the heap in which nothing is live"),
        ):
            yield GaugeMetricFamily(f"gpkvs_heap_{name}", text, value=getattr(info, f"heap_{name}"))
        yield GaugeMetricFamily(
            "gpkvs_heap_given_back_bytes",
            "Bytes of the heap that were given back to the file system",
            value=info.heap_given_bytes,
        )
        yield GaugeMetricFamily(
            "gpkvs_blobs_live_bytes", "Bytes of values too long for the heap", value=info.blobs_live_bytes
        )
        yield GaugeMetricFamily(
            "gpkvs_blobs_bytes", "Bytes of the disk that the file of these values has", value=info.blobs_bytes
        )
        yield CounterMetricFamily(
            "gpkvs_heap_moved_bytes", "Bytes of records that compaction moved", value=info.heap_moved_bytes
        )
        yield GaugeMetricFamily(
            "gpkvs_log_bytes", "Size of the undo log; 0 where there is a journal", value=info.log_bytes
        )
        if info.journal:
            yield from _journal_families(info.journal, info.journal_bytes)
        for name, text in (
            ("records", "Records in a table"),
            ("slots", "Slots of a table"),
            ("index_bytes", "Size of a table's index"),
            ("load_factor", "Records over slots"),
            ("heap_bytes", "Bytes that a table's records take in the heap"),
            ("expiring_keys", "Keys of a table with an expiry; those that have expired count until they are removed"),
            ("bytes_per_key", "Bytes of its slot and of the heap that a record of a table takes, on average"),
            ("growing_blocks", "Blocks that a table had before it began to grow; 0: it does not grow"),
            ("moved_blocks", "Of these blocks, those that are two now"),
        ):
            family = GaugeMetricFamily(f"gpkvs_table_{name}", text, labels=["table"])
            for table in info.tables:
                family.add_metric([table.name], getattr(table, name))
            yield family
        waiting = GaugeMetricFamily(
            "gpkvs_table_growth_waits",
            "1 while a table should grow and cannot, for want of disk or memory, or by a limit",
            labels=["table"],
        )
        for table in info.tables:
            waiting.add_metric([table.name], int(bool(table.growth_waits)))
        yield waiting
        recoveries = CounterMetricFamily(
            "gpkvs_recoveries", "Recoveries by this process, by whether a batch was undone", labels=["outcome"]
        )
        recoveries.add_metric(["undone" if info.recovery.undone else "clean"], 1)
        yield recoveries
        yield GaugeMetricFamily("gpkvs_recovery_seconds", "Time of the last recovery", value=info.recovery.seconds)
        yield GaugeMetricFamily(
            "gpkvs_recovery_undone_entries", "Slots that it restored", value=info.recovery.undone_entries
        )
        if info.journal:
            yield GaugeMetricFamily(
                "gpkvs_recovery_replayed_batches",
                "Batches after the last checkpoint that it replayed",
                value=info.recovery.replayed_batches,
            )
        yield from _meter_families(self._meter)


def _journal_families(journal: JournalInfo, size: int) -> Iterator[Metric]:
    for name, text, value in (
        ("bytes", "Size of the journal", size),
        ("used_bytes", "Bytes of the journal from the last checkpoint to the last batch", journal.used_bytes),
        ("capacity_bytes", "What may be in use; a batch that finds no room waits", journal.capacity_bytes),
        ("batches_in_flight", "Batches that are stored and not durable yet", journal.batches_in_flight),
        ("direct", "1 if the journal is written past the page cache", int(journal.is_direct)),
    ):
        yield GaugeMetricFamily(f"gpkvs_journal_{name}", text, value=value)
    counters: tuple[tuple[str, str, float], ...] = (
        ("journal_wait_seconds", "Time that batches waited for room in the journal", journal.room_seconds),
        ("journal_flushes", "Flushes of the journal, each for all batches that waited", journal.flushes),
        ("journal_flush_seconds", "Time of these flushes", journal.flush_seconds),
        ("checkpoints", "Checkpoints that are complete", journal.checkpoints),
        ("checkpoint_written_bytes", "Bytes of index pages that checkpoints wrote", journal.checkpoint_bytes),
    )
    for name, text, count in counters:
        yield CounterMetricFamily(f"gpkvs_{name}", text, count)


def _by_reason(batches: Mapping[Left, int]) -> dict[str, int]:
    return {reason.name.lower(): count for reason, count in batches.items()}


def _meter_families(meter: Meter) -> Iterator[Metric]:
    """Put the engine's counters into families."""
    for name, text, label, values in (
        (
            "phase_seconds",
            "Time of the engine by phase of a transaction; persist_* makes files durable, active and idle the flag",
            "phase",
            meter.phase_seconds,
        ),
        (
            "transactions",
            "Transactions of the engine; a write changed something or gave versions",
            "kind",
            {"read": meter.transactions - meter.commits, "write": meter.commits},
        ),
        ("written_bytes", "Bytes stored to persistent memory by committed transactions", "file", meter.written_bytes),
        (
            "engine_left_batches",
            "How often a batch lacked something and waited for it, by the reason; device: a GPU ran it",
            "reason",
            _by_reason(meter.left_batches),
        ),
        (
            "engine_helped_batches",
            "How often what such a batch lacked was done, so that it could run again",
            "reason",
            _by_reason(meter.helped_batches),
        ),
    ):
        family = CounterMetricFamily(f"gpkvs_{name}", text, labels=[label])
        for key, value in values.items():
            family.add_metric([key], value)
        yield family
    yield CounterMetricFamily("gpkvs_user_bytes", "Keys and values that committed writes carried", meter.user_bytes)
    yield CounterMetricFamily(
        "gpkvs_expired_keys", "Keys that were removed because they had expired", meter.expired_keys
    )
    bounds = [*map(str, EXPIRY_LAG_SECONDS), "+Inf"]
    yield HistogramMetricFamily(
        "gpkvs_expiry_lag_seconds",
        "How long after their expiry these keys were removed; nobody saw them meanwhile",
        buckets=list(zip(bounds, accumulate(meter.expiry_lags), strict=True)),
        sum_value=meter.expiry_lag_seconds,
    )
