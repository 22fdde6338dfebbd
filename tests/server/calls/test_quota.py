"""A server's quotas: tables by number, by bytes and by open files, refused by name."""

from __future__ import annotations

import resource

import grpc
import pytest

from gpkvs.proto.v1 import admin_pb2, kv_pb2
from tests.server.wire import Refused
from tests.serving import StartServer

EXHAUSTED = grpc.StatusCode.RESOURCE_EXHAUSTED
BLOCK = 64 << 10


@pytest.mark.parametrize(
    ("option", "words"),
    [
        ("--tables-max=3", ["tables full", "tables_max"]),
        ("--tables-bytes-max=1MiB", ["tables bytes full", "tables_bytes_max"]),
    ],
)
def test_tables_over_a_quota_are_refused_by_name(start_server: StartServer, option: str, words: list[str]) -> None:
    server = start_server(option)
    for name in ("a", "b"):
        if "bytes" not in option:
            server.admin.CreateTable(admin_pb2.CreateTableRequest(name=name, index_bytes=BLOCK))
    with Refused(EXHAUSTED, *words):
        server.admin.CreateTable(admin_pb2.CreateTableRequest(name="c", index_bytes=16 * BLOCK))


def test_new_connections_are_served_beside_as_many_tables_as_open_files_allow(start_server: StartServer) -> None:
    """With a limit of 256 files, the table that could not be opened was INTERNAL and new connections hung."""
    server = start_server()
    resource.prlimit(server.process.pid, resource.RLIMIT_NOFILE, (256, 256))
    made = 0
    with Refused(EXHAUSTED, "open files full", "ulimit -n"):
        while made < 400:
            server.admin.CreateTable(admin_pb2.CreateTableRequest(name=f"t{made}", index_bytes=BLOCK))
            made += 1
    assert made > 120
    for _ in range(20):
        with grpc.insecure_channel(server.target, options=[("grpc.use_local_subchannel_pool", 1)]) as channel:
            set_ = channel.unary_unary(
                "/gpkvs.v1.KV/Set",
                request_serializer=kv_pb2.SetRequest.SerializeToString,
                response_deserializer=kv_pb2.SetResponse.FromString,
            )
            set_(kv_pb2.SetRequest(key=b"key", value=b"value"), timeout=10)


def test_the_server_takes_as_many_open_files_as_it_may(start_server: StartServer) -> None:
    server = start_server()
    soft, hard = resource.prlimit(server.process.pid, resource.RLIMIT_NOFILE)
    assert soft == hard
