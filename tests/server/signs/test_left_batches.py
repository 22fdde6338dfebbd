"""The batches of a server that the native engine did not run: the metric says why."""

from __future__ import annotations

import pytest

from gpkvs.client import Client
from gpkvs.engine.seam.left import Left
from gpkvs.errors import ConditionFailedError, ConflictError
from gpkvs.proto.v1 import kv_pb2
from tests.server.wire import GET, TTL_MS_MAX, batch, u64
from tests.serving import StartServer


def lose(client: Client) -> None:
    """Run a transaction that another write overtakes."""
    with client.transaction() as transaction:
        transaction.get(b"sum")
        client.set(b"sum", b"2")
        transaction.set(b"other", b"lost")


pytestmark = pytest.mark.usefixtures("natively")


def test_the_metric_counts_by_reason(start_server: StartServer) -> None:
    server = start_server("--backend", "cpu")

    def reasons(name: str = "left") -> dict[str, int]:
        """Return the counts that are not 0."""
        samples = [sample for sample in server.samples() if sample.name == f"gpkvs_engine_{name}_batches_total"]
        assert [sample.labels["reason"] for sample in samples] == [reason.name.lower() for reason in Left]
        return {sample.labels["reason"]: int(sample.value) for sample in samples if sample.value}

    with Client(server.target) as client:
        client.set(b"key", b"value")
        client.get(b"key")
        assert reasons() == {}
        client.set(b"key", b"value", ttl=60)
        assert reasons() == {"expiry": 1}
        client.set(b"key", b"value", ttl=60)
        with pytest.raises(ConditionFailedError):
            client.set(b"key", b"other", if_absent=True)
        assert server.kv.Increment(kv_pb2.IncrementRequest(key=b"sum", delta=1)).number == 1
        assert reasons() == {"expiry": 1}
        with client.transaction() as transaction:
            assert transaction.get(b"sum") == b"1"
            transaction.set(b"other", b"value")
        with pytest.raises(ConflictError):
            lose(client)
        assert client.get(b"other") == b"value"
        assert reasons() == {"expiry": 1}
        client.create_table("numbers", layout="u64")
        numbers = client.table("numbers")
        assert numbers.incr(7, 5) == 5
        with pytest.raises(ConditionFailedError) as failed:
            numbers.set(7, 9, if_absent=True)
        assert failed.value.version == 5
        assert reasons() == {"expiry": 1}
        server.kv.MultiGet(kv_pb2.MultiGetRequest(keys=[b"key", b"none"]))
        assert reasons() == {"expiry": 1}
        server.kv.Batch(batch([(GET, b"key")], ttls=u64(TTL_MS_MAX + 1)))
        assert reasons() == {"expiry": 1}, "Python hands it on, and native code runs it"
        assert reasons("helped") == {"expiry": 1}
        assert client.get(b"key") == b"value"
