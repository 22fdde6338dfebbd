"""gpkvs ycsb with -p ttl against a real server: records that expire."""

from __future__ import annotations

import pytest

from gpkvs.client import Client
from tests.client.ycsb.test_ycsb import ycsb
from tests.serving import Server


@pytest.mark.parametrize("batch", ["1", "50"])
def test_records_get_a_time_to_live(server: Server, batch: str) -> None:
    """Inserts and updates give it, and a record that has expired is not there, which is no failure."""
    options = ("--batch", batch, "-p", "insertorder=ordered", "-p", "zeropadding=4", "-p", "dataintegrity=true")
    ycsb(server, "load", "recordcount=100", "ttl=5000", options=options)
    with Client(server.target) as client:
        keys = [b"user%04d" % number for number in range(100)]
        assert all(4000 < (client.ttl(key) or 0) <= 5000 for key in keys)
        updates = ("readproportion=0", "updateproportion=0.5", "readmodifywriteproportion=0.5", "writeallfields=true")
        report = ycsb(server, "run", "recordcount=100", "operationcount=1000", "ttl=20000", *updates, options=options)
        assert report["UPDATE"]["Return=OK"] == 1000
        assert sum(19000 < (client.ttl(key) or 0) <= 20000 for key in keys) > 50
        ycsb(server, "load", "recordcount=100", "ttl=0.001", options=options)
        assert client.get_all(keys) == {}
    report = ycsb(server, "run", "recordcount=100", "operationcount=200", "ttl=1", "readproportion=1", options=options)
    assert report["READ"]["Return=NOT_FOUND"] + report.get("UPDATE", {}).get("Return=NOT_FOUND", 0) == 200
    assert "VERIFY" not in report
