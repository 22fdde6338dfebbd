"""Keys that expire in a server: an idle one removes them, and its metrics say how late."""

from __future__ import annotations

import time
import urllib.request

from prometheus_client.parser import text_string_to_metric_families

from gpkvs.proto.v1 import kv_pb2
from tests.serving import Server

KEYS = 20


def metrics(server: Server) -> dict[str, float]:
    """Return the metrics without labels, by name, and the sum of those with any."""
    with urllib.request.urlopen(f"http://{server.metrics_address}/metrics", timeout=30) as response:
        families = list(text_string_to_metric_families(response.read().decode()))
    found: dict[str, float] = {}
    for sample in (sample for family in families for sample in family.samples):
        found[sample.name] = found.get(sample.name, 0) + sample.value
    return found


def test_an_idle_server_removes_what_nobody_asks_for(server: Server) -> None:
    for number in range(KEYS):
        server.kv.Set(kv_pb2.SetRequest(key=b"key %d" % number, value=b"value", ttl_ms=50))
    server.kv.Set(kv_pb2.SetRequest(key=b"kept", value=b"value"))
    give_up = time.monotonic() + 30
    while (found := metrics(server))["gpkvs_table_records"] > 1:
        assert time.monotonic() < give_up, "keys are not swept"
        time.sleep(0.1)
    assert found["gpkvs_expired_keys_total"] == found["gpkvs_expiry_lag_seconds_count"] == KEYS
    assert found["gpkvs_expiry_lag_seconds_sum"] > 0.9, "the first key of a range waits a second for company"
