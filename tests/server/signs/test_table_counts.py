"""What is counted of each table."""

from __future__ import annotations

import time

from gpkvs.media.layout import RECORD_HEADER_BYTES
from gpkvs.proto.v1 import admin_pb2, kv_pb2
from tests.record_header import HEADER_BYTES
from tests.server.wire import APPEND, DELETE, GET, SET, TTL_MS_MAX, batch, u64
from tests.serving import Server, StartServer, start_server

__all__ = ["start_server"]


def operations(server: Server, table: str) -> dict[str, float]:
    """Return the operations on a table, by kind."""
    return {
        sample.labels["op"]: sample.value
        for sample in server.samples()
        if sample.name == "gpkvs_table_operations_total" and sample.labels["table"] == table
    }


def moved(server: Server, table: str) -> tuple[float, float]:
    """Return the bytes that came, and that went."""
    return (
        server.metric("gpkvs_table_bytes_total", table=table, direction="in"),
        server.metric("gpkvs_table_bytes_total", table=table, direction="out"),
    )


def test_each_table_has_its_own(start_server: StartServer) -> None:
    server = start_server()
    for name, layout in (("numbers", "u64"), ("other", "bytes")):
        server.admin.CreateTable(admin_pb2.CreateTableRequest(name=name, layout=layout))
    server.kv.Set(kv_pb2.SetRequest(key=b"key", value=b"value"))
    server.kv.Get(kv_pb2.GetRequest(key=b"key"))
    server.kv.Get(kv_pb2.GetRequest(key=b"none"))
    server.kv.Increment(kv_pb2.IncrementRequest(table="numbers", key=u64(1), delta=1))
    mixed = [(SET, b"a", b"12"), (GET, b"a"), (APPEND, b"a", b"3"), (DELETE, b"b")]
    list(server.kv.Pipeline(iter([batch(mixed, table="other"), batch(mixed[:2], table="other")])))
    # One that the native door hands to Python, where that counts it.
    server.kv.Set(kv_pb2.SetRequest(table="other", key=b"long", value=b"lived", ttl_ms=TTL_MS_MAX))
    assert operations(server, "default") == {"set": 1, "get": 2}
    assert moved(server, "default") == (3 + 5 + 3 + 4, 5)
    assert operations(server, "numbers") == {"increment": 1}
    assert moved(server, "numbers") == (16, 8)
    assert operations(server, "other") == {"set": 3, "get": 2, "append": 1, "delete": 1}
    assert moved(server, "other") == (7 + 4 + 9, 4)
    server.admin.DropTable(admin_pb2.DropTableRequest(name="other"))
    assert operations(server, "other") == {}
    assert server.metric("gpkvs_operations_total", op="set") == 4  # the sum of all stays
    server.admin.CreateTable(admin_pb2.CreateTableRequest(name="other"))
    assert operations(server, "other") == {}
    server.kv.Get(kv_pb2.GetRequest(table="other", key=b"k"))
    assert operations(server, "other") == {"get": 1}


def test_what_each_table_holds_outlives_a_restart(start_server: StartServer) -> None:
    server = start_server()
    for name, layout in (("numbers", "u64"), ("other", "bytes")):
        server.admin.CreateTable(admin_pb2.CreateTableRequest(name=name, layout=layout))
    server.kv.Batch(batch([(SET, b"key%d" % number, bytes(100 + number)) for number in range(9)]))
    server.kv.Batch(batch([(SET, u64(1), u64(2))], table="numbers"))
    for number in range(3):
        server.kv.Set(kv_pb2.SetRequest(table="other", key=b"key%d" % number, value=bytes(100), ttl_ms=3_600_000))
    server.kv.Set(kv_pb2.SetRequest(table="other", key=b"key0", value=bytes(500)))
    server.kv.Batch(batch([(DELETE, b"key1")], table="other"))
    # Of a record the header, the key and the value, in units of 16 bytes.
    units = [-(-(HEADER_BYTES + 4 + length) // 16) for length in range(100, 109)]
    expiring, plain = -(-(RECORD_HEADER_BYTES + 4 + 100) // 16), -(-(HEADER_BYTES + 4 + 500) // 16)
    expected = {"default": (16 * sum(units), 0), "numbers": (0, 0), "other": (16 * (expiring + plain), 1)}
    for _ in range(2):
        info = server.admin.Info(admin_pb2.InfoRequest())
        assert {table.name: (table.heap_bytes, table.expiring_keys) for table in info.tables} == expected
        assert info.heap_live_bytes == sum(heap_bytes for heap_bytes, _ in expected.values())
        listed = server.admin.ListTables(admin_pb2.ListTablesRequest()).tables
        assert {table.name: (table.heap_bytes, table.expiring_keys) for table in listed} == expected
        for name, (heap_bytes, expiring_keys) in expected.items():
            assert server.metric("gpkvs_table_heap_bytes", table=name) == heap_bytes
            assert server.metric("gpkvs_table_expiring_keys", table=name) == expiring_keys
        server.stop()
        server = start_server()


def test_keys_that_expire_are_counted_by_table(start_server: StartServer) -> None:
    server = start_server()
    server.admin.CreateTable(admin_pb2.CreateTableRequest(name="other"))
    for key in (b"a", b"b", b"c"):
        server.kv.Set(kv_pb2.SetRequest(table="other", key=key, value=b"v", ttl_ms=1))
    end = time.monotonic() + 30
    while server.metric("gpkvs_table_expired_keys_total", table="other") < 3:
        assert time.monotonic() < end
        time.sleep(0.05)
    assert server.metric("gpkvs_table_expired_keys_total", table="default") == 0
    assert server.metric("gpkvs_table_expired_keys_total") == server.metric("gpkvs_expired_keys_total")
    assert server.metric("gpkvs_table_expiry_due_seconds", table="other") == 0
