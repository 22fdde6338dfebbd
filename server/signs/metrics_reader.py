"""A server's metrics, read twice: what it did between the two readings, and its state at the second."""

from __future__ import annotations

import time
import urllib.error
import urllib.request
from dataclasses import dataclass
from http.client import HTTPException
from itertools import pairwise
from typing import Any

from prometheus_client.parser import text_string_to_metric_families

from gpkvs.credentials import PLAIN, Access, TlsCredentials
from gpkvs.engine.seam.meter import PHASES, WRITE_PHASES
from gpkvs.errors import GpkvsError

_SECONDS_MAX = 5.0
_DEVICE_BYTES = "gpkvs_process_written_bytes_total"
_SAID_BYTES_MAX = 1000
_OPTIONS = {401: "--token-file, or --user and --password-file", 403: "--tls-cert and --tls-key, or another user"}


class ScrapeError(GpkvsError):
    """The metrics could not be read."""


class Scrape:
    """All samples of one reading.

    Parameters
    ----------
    address
        HOST:PORT of the metrics.
    access
        What the server wants to see; by default nothing, over plain HTTP.

    Raises
    ------
    ScrapeError
        If nothing responds there, the response is not the metrics of a gpkvs server, or a file of the TLS credentials
        cannot be used.
    InvalidArgumentError
        If the address is none, or a secret would leave this machine in plain.
    """

    def __init__(self, address: str, access: Access = PLAIN) -> None:
        access.check_target(address, "metrics")
        self.at_seconds = time.monotonic()
        self._samples: dict[str, list[tuple[dict[str, str], float]]] = {}
        try:
            text = _read(address, access)
            for family in text_string_to_metric_families(text):
                for sample in family.samples:
                    self._samples.setdefault(sample.name, []).append((sample.labels, sample.value))
        except urllib.error.HTTPError as error:
            raise ScrapeError(f"no metrics at {address}: {_said(error)}") from error
        except (OSError, HTTPException, ValueError) as error:
            why = error.reason if isinstance(error, urllib.error.URLError) else error
            question = "--metrics of gpkvs serve?"
            if isinstance(why, ConnectionError) and access.credentials is None:
                question = "--metrics of gpkvs serve? With TLS: --tls, --tls-ca"
            raise ScrapeError(f"no metrics at {address}: {why} ({question})") from error
        if "gpkvs_serving" not in self._samples:
            raise ScrapeError(f"{address} is not the metrics port of a gpkvs server")

    def labels(self, name: str) -> dict[str, str]:
        """Return the labels of a metric's only sample; none if it is missing."""
        samples = self._samples.get(name)
        return samples[0][0] if samples else {}

    def has(self, name: str) -> bool:
        """Whether there is a metric of that name."""
        return name in self._samples

    def value(self, name: str) -> float:
        """Return the sum of a metric's samples."""
        return sum(value for _, value in self._samples.get(name, ()))

    def by(self, name: str, label: str, **among: str) -> dict[str, float]:
        """Return the sums of a metric's samples, by a label's values, among those that have some others."""
        sums: dict[str, float] = {}
        for labels, value in self._samples.get(name, ()):
            if among.items() <= labels.items():
                sums[labels[label]] = sums.get(labels[label], 0.0) + value
        return sums


def _read(address: str, access: Access) -> str:
    """Return the text of all metrics; a redirection is not followed, and no proxy is asked: it would see the header."""
    handlers: list[urllib.request.BaseHandler] = [urllib.request.ProxyHandler({}), _NoRedirection()]
    scheme = "http"
    if isinstance(access.credentials, TlsCredentials):
        scheme = "https"
        handlers.append(urllib.request.HTTPSHandler(context=access.credentials.context()))
    request = urllib.request.Request(f"{scheme}://{address}/metrics")
    if access.header is not None:
        request.add_header("Authorization", access.header)
    with urllib.request.build_opener(*handlers).open(request, timeout=_SECONDS_MAX) as response:
        text: str = response.read().decode()
    return text


def _said(error: urllib.error.HTTPError) -> str:
    """Return why the server refuses, in its own words, and the options that may help."""
    try:
        said = error.read(_SAID_BYTES_MAX).decode(errors="replace").strip()
    except (OSError, HTTPException):
        said = ""
    if error.code not in _OPTIONS or not said.isprintable():
        return f"HTTP status {error.code}"
    return f"{said} ({_OPTIONS[error.code]})"


class _NoRedirection(urllib.request.HTTPRedirectHandler):
    def redirect_request(self, *_given: Any) -> None:
        return None


@dataclass(frozen=True)
class Interval:
    """What happened between two readings; the counters of a server that was started again began at zero."""

    before: Scrape
    after: Scrape

    @property
    def seconds(self) -> float:
        """Its length."""
        return self.after.at_seconds - self.before.at_seconds

    def growth(self, name: str) -> float:
        """Return by how much a counter grew."""
        return _growth(self.before.value(name), self.after.value(name))

    def growth_by(self, name: str, label: str, **among: str) -> dict[str, float]:
        """Return by how much a counter grew, by a label's values, among the samples that have some others."""
        before, after = (scrape.by(name, label, **among) for scrape in (self.before, self.after))
        return {key: _growth(before.get(key, 0.0), value) for key, value in after.items()}

    def quantile(self, histogram: str, share: float) -> float:
        """Return a quantile, interpolated inside its bucket; 0 if the histogram observed nothing."""
        grown = self.growth_by(f"{histogram}_bucket", "le")
        buckets = [(0.0, 0.0), *sorted((float(bound), count) for bound, count in grown.items())]
        wanted = share * buckets[-1][1]
        for (low, under), (high, count) in pairwise(buckets):
            if count > under and count >= wanted:
                return low if high == float("inf") else low + (high - low) * (wanted - under) / (count - under)
        return 0.0


def _growth(before: float, after: float) -> float:
    return after - before if after >= before else after


def summarize(interval: Interval) -> dict[str, object]:
    """Return what `gpkvs top` shows, as JSON has it; rates are a second."""
    now = interval.after
    info = now.labels("gpkvs_server_info")
    return {
        **{name: info.get(name, "") for name in ("version", "backend", "domain")},
        "serving": now.value("gpkvs_serving") == 1,
        "uptime_seconds": time.time() - now.value("process_start_time_seconds"),
        "interval_seconds": interval.seconds,
        **_work(interval),
        **_engine(interval),
        **_written(interval),
        **_sizes(now),
        **_followers(now),
        "journal": _journal(interval),
        "tables": _tables(interval),
    }


def _work(interval: Interval) -> dict[str, object]:
    """Return what clients asked for, and how long they waited."""
    batches = interval.growth("gpkvs_batch_seconds_count")
    return {
        "operations": _rates(interval, "gpkvs_operations_total", "op"),
        "refused": _rates(interval, "gpkvs_requests_refused_total", "reason"),
        "batches": batches / interval.seconds,
        "batch_operations": _ratio(interval.growth("gpkvs_batch_operations_sum"), batches),
        "batch_requests": _ratio(interval.growth("gpkvs_batch_requests_sum"), batches),
        "batch_seconds": _quantiles(interval, "gpkvs_batch_seconds"),
        "call_seconds": _quantiles(interval, "grpc_server_handling_seconds"),
    }


def _engine(interval: Interval) -> dict[str, object]:
    """Return how busy the engine was, and the mean of each phase over the transactions that have it."""
    spent = interval.growth_by("gpkvs_phase_seconds_total", "phase")
    kinds = interval.growth_by("gpkvs_transactions_total", "kind")
    transactions = {phase: kinds["write"] if phase in WRITE_PHASES else sum(kinds.values()) for phase in spent}
    return {
        "engine_busy": sum(spent.values()) / interval.seconds,
        "phases": {
            phase: {"busy": spent[phase] / interval.seconds, "seconds": _ratio(spent[phase], transactions[phase])}
            for phase in PHASES
            if phase in spent
        },
    }


def _written(interval: Interval) -> dict[str, object]:
    """Return the bytes that users, the store and its process wrote."""
    seconds = interval.seconds
    user, stored = interval.growth("gpkvs_user_bytes_total"), interval.growth("gpkvs_written_bytes_total")
    # Some systems do not say what a process wrote.
    device = interval.growth(_DEVICE_BYTES) if interval.after.has(_DEVICE_BYTES) else None
    return {
        "user_bytes": user / seconds,
        "written_bytes": stored / seconds,
        "write_amplification": _ratio(stored, user),
        "moved_bytes": interval.growth("gpkvs_heap_moved_bytes_total") / seconds,
        "device_written_bytes": None if device is None else device / seconds,
        "device_amplification": None if device is None else _ratio(device, user),
    }


def _sizes(now: Scrape) -> dict[str, object]:
    """Return the queue, the memory and the heap."""
    return {
        "queue_requests": int(now.value("gpkvs_queue_requests")),
        "memory_bytes": {kind: int(n) for kind, n in now.by("gpkvs_memory_bytes", "kind").items()},
        "memory_max_bytes": int(now.value("gpkvs_memory_max_bytes")),
        "heap_bytes": int(now.value("gpkvs_heap_bytes")),
        "heap_live_bytes": int(now.value("gpkvs_heap_live_bytes")),
        "heap_free_bytes": int(now.value("gpkvs_heap_free_bytes")),
        "heap_given_back_bytes": int(now.value("gpkvs_heap_given_back_bytes")),
        "heap_charged_bytes": int(now.value("gpkvs_heap_charged_bytes")),
        "heap_charged_bytes_max": int(now.value("gpkvs_heap_charged_bytes_max")),
        "resident_bytes": int(now.value("process_resident_memory_bytes")),
    }


def _followers(now: Scrape) -> dict[str, object]:
    """Return how many watch, and the ages of the last backup and of what is archived; None: nobody told of any."""
    ages = {
        name: max(time.time() - now.value(metric), 0.0) if now.has(metric) else None
        for name, metric in (
            ("backup_age_seconds", "gpkvs_backup_last_timestamp_seconds"),
            ("archive_age_seconds", "gpkvs_archive_synced_timestamp_seconds"),
        )
    }
    return {"watches": int(now.value("gpkvs_watches")), **ages}


def _journal(interval: Interval) -> dict[str, float] | None:
    """Return how full the journal is and what waits for it; None if there is none."""
    now = interval.after
    if not now.has("gpkvs_journal_bytes"):
        return None
    return {
        "used_bytes": int(now.value("gpkvs_journal_used_bytes")),
        "capacity_bytes": int(now.value("gpkvs_journal_capacity_bytes")),
        "batches_in_flight": int(now.value("gpkvs_journal_batches_in_flight")),
        "waiting": interval.growth("gpkvs_journal_wait_seconds_total") / interval.seconds,
        "checkpoints": int(now.value("gpkvs_checkpoints_total")),
        "checkpoint_written_bytes": interval.growth("gpkvs_checkpoint_written_bytes_total") / interval.seconds,
    }


def _tables(interval: Interval) -> list[dict[str, object]]:
    """Return the size of each table, and what clients did with it; rates are a second."""
    now = interval.after
    expired = _rates(interval, "gpkvs_table_expired_keys_total", "table")
    due = now.by("gpkvs_table_expiry_due_seconds", "table")
    slots, load = now.by("gpkvs_table_slots", "table"), now.by("gpkvs_table_load_factor", "table")
    bytes_per_key = now.by("gpkvs_table_bytes_per_key", "table")
    heap, expiring = now.by("gpkvs_table_heap_bytes", "table"), now.by("gpkvs_table_expiring_keys", "table")
    growing, moved = now.by("gpkvs_table_growing_blocks", "table"), now.by("gpkvs_table_moved_blocks", "table")
    return [
        {
            "name": name,
            "records": int(records),
            "slots": int(slots[name]),
            "load_factor": load[name],
            "bytes_per_key": bytes_per_key[name],
            "heap_bytes": int(heap.get(name, 0.0)),
            "expiring_keys": int(expiring.get(name, 0.0)),
            "moved_share": moved[name] / growing[name] if growing[name] else None,
            "operations": _rates(interval, "gpkvs_table_operations_total", "op", table=name),
            "bytes": _rates(interval, "gpkvs_table_bytes_total", "direction", table=name),
            "expired_keys": expired.get(name, 0.0),
            "expiry_due_seconds": due.get(name, 0.0),
        }
        for name, records in now.by("gpkvs_table_records", "table").items()
    ]


def _rates(interval: Interval, counter: str, label: str, **among: str) -> dict[str, float]:
    return {name: count / interval.seconds for name, count in interval.growth_by(counter, label, **among).items()}


def _quantiles(interval: Interval, histogram: str) -> dict[str, float]:
    return {f"p{percent}": interval.quantile(histogram, percent / 100) for percent in (50, 99)}


def _ratio(amount: float, count: float) -> float:
    return amount / count if count else 0.0
