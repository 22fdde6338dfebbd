"""Get, set, delete and batch over the wire, as any gRPC client sees them."""

from __future__ import annotations

import os

import grpc
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha.proto_reflection_descriptor_database import ProtoReflectionDescriptorDatabase

from gpkvs.backends.choose import VARIABLE
from gpkvs.proto.v1 import admin_pb2, kv_pb2
from tests.server.wire import DELETE, GET, SET, batch, u32s, u64s, values_of
from tests.serving import Server, StartServer


def test_set_get_delete(server: Server) -> None:
    kv = server.kv
    assert not kv.Get(kv_pb2.GetRequest(key=b"a")).found
    first = kv.Set(kv_pb2.SetRequest(key=b"a", value=b"one")).version
    second = kv.Set(kv_pb2.SetRequest(key=b"a", value=b"\x00two\xff", table="default")).version
    assert second > first > 0
    response = kv.Get(kv_pb2.GetRequest(key=b"a"))
    assert (response.found, response.value, response.version) == (True, b"\x00two\xff", second)
    assert kv.Delete(kv_pb2.DeleteRequest(key=b"a")).found
    assert not kv.Delete(kv_pb2.DeleteRequest(key=b"a")).found
    assert not kv.Get(kv_pb2.GetRequest(key=b"a")).found


def test_empty_value_is_not_a_miss(server: Server) -> None:
    server.kv.Set(kv_pb2.SetRequest(key=b"empty"))
    response = server.kv.Get(kv_pb2.GetRequest(key=b"empty"))
    assert (response.found, response.value) == (True, b"")


def test_largest_key_and_value(server: Server) -> None:
    limits = server.admin.Info(admin_pb2.InfoRequest())
    key, value = b"k" * limits.key_bytes_max, b"v" * limits.value_bytes_max
    server.kv.Set(kv_pb2.SetRequest(key=key, value=value))
    assert server.kv.Get(kv_pb2.GetRequest(key=key)).value == value


def test_operations_of_a_batch_see_those_before_them(server: Server) -> None:
    response = server.kv.Batch(
        batch(
            [
                (GET, b"k"),
                (SET, b"k", b"one"),
                (GET, b"k"),
                (SET, b"k", b""),
                (GET, b"k"),
                (SET, b"other", b"two"),
                (DELETE, b"k"),
                (GET, b"k"),
                (DELETE, b"k"),
            ],
            id=7,
        )
    )
    assert response.id == 7
    assert response.status == bytes([1, 0, 0, 0, 0, 0, 0, 1, 1])
    assert values_of(response) == [b"", b"one", b"", b""]
    versions = u64s(response.versions)
    assert versions[0] == versions[7] == versions[8] == 0
    assert 0 < versions[1] == versions[2] < versions[3] == versions[4] < versions[5]
    assert server.kv.Get(kv_pb2.GetRequest(key=b"other")).version == versions[5]


def test_columns_of_equal_lengths(server: Server) -> None:
    stored = server.kv.Batch(
        kv_pb2.BatchRequest(ops=bytes([SET] * 3), keys=b"aabbcc", key_size=2, values=b"112233", value_size=2)
    )
    assert stored.status == bytes(3)
    assert (stored.values, stored.value_lengths) == (b"", b"")
    read = server.kv.Batch(kv_pb2.BatchRequest(ops=bytes([GET] * 4), keys=b"ccxxbbaa", key_size=2))
    assert read.status == bytes([0, 1, 0, 0])
    assert u32s(read.value_lengths) == [2, 0, 2, 2]
    assert read.values == b"332211"
    assert u64s(read.versions)[1] == 0


def test_data_and_versions_survive_a_restart(start_server: StartServer) -> None:
    server = start_server()
    version = server.kv.Set(kv_pb2.SetRequest(key=b"a", value=b"one")).version
    server.stop()
    server = start_server()
    response = server.kv.Get(kv_pb2.GetRequest(key=b"a"))
    assert (response.value, response.version) == (b"one", version)
    assert server.kv.Set(kv_pb2.SetRequest(key=b"b")).version > version


def test_info_and_metrics_describe_the_store(server: Server) -> None:
    server.kv.Batch(batch([(SET, b"%d" % number, b"value") for number in range(100)] + [(GET, b"absent")]))
    info = server.admin.Info(admin_pb2.InfoRequest())
    table = info.tables[0]
    backend = info.backend
    assert backend.split()[0] == os.environ[VARIABLE]
    assert (info.path, table.name, table.records) == (str(server.data), "default", 100)
    assert table.load_factor == 100 / table.slots
    assert 0 < info.heap_live_bytes < info.heap_bytes
    assert info.domain in ("msync", "process")
    assert not info.last_recovery.undone
    assert server.metric("gpkvs_operations_total", op="set", status="ok") == 100
    assert server.metric("gpkvs_operations_total", op="get", status="not_found") == 1
    assert server.metric("gpkvs_table_records", table="default") == 100
    assert server.metric("gpkvs_heap_live_bytes") == info.heap_live_bytes
    assert server.metric("gpkvs_server_info", domain=info.domain, backend=backend, version=info.version) == 1
    assert server.metric("gpkvs_recoveries_total", outcome="clean") == 1
    assert server.metric("grpc_server_handled_total", grpc_method="Batch", grpc_code="OK") == 1
    assert server.metric("grpc_server_handling_seconds_count", grpc_method="Batch") == 1


def test_reflection_lists_the_services(server: Server) -> None:
    services = ProtoReflectionDescriptorDatabase(server.channel).get_services()
    assert {"gpkvs.v1.KV", "gpkvs.v1.Admin", "grpc.health.v1.Health"} <= set(services)


def test_health(server: Server) -> None:
    health = health_pb2_grpc.HealthStub(server.channel)
    for service in ("", "gpkvs.v1.KV", "gpkvs.v1.Admin"):
        response = health.Check(health_pb2.HealthCheckRequest(service=service))
        assert response.status == health_pb2.HealthCheckResponse.SERVING
    watch = health.Watch(health_pb2.HealthCheckRequest())
    assert next(watch).status == health_pb2.HealthCheckResponse.SERVING
    server.process.terminate()
    assert next(watch).status == health_pb2.HealthCheckResponse.NOT_SERVING
    try:
        list(watch)
    except grpc.RpcError as error:
        assert error.code() in (grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.CANCELLED)  # noqa: PT017 - one of two ends
