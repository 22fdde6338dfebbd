"""Tables over the wire: made, listed, dropped, and gone or there after a restart."""

from __future__ import annotations

import threading
from typing import Any

import grpc
import pytest

from gpkvs.proto.v1 import admin_pb2, kv_pb2
from tests.server.wire import GET, SET, Refused, batch
from tests.serving import Server, StartServer

CODES = grpc.StatusCode


def names(server: Server) -> list[str]:
    return [table.name for table in server.admin.ListTables(admin_pb2.ListTablesRequest()).tables]


def test_tables_are_apart_and_survive_a_restart(start_server: StartServer) -> None:
    server = start_server()
    made = server.admin.CreateTable(admin_pb2.CreateTableRequest(name="users", index_bytes=1 << 20)).table
    assert (made.name, made.layout, made.records, made.index_bytes) == ("users", "bytes", 0, 1 << 20)
    made = server.admin.CreateTable(admin_pb2.CreateTableRequest(name="n", layout="u64", index_bytes=100_000)).table
    assert (made.layout, made.index_bytes) == ("u64", 128 << 10)  # whole blocks
    server.kv.Set(kv_pb2.SetRequest(table="users", key=b"k", value=b"users'"))
    server.kv.Set(kv_pb2.SetRequest(key=b"k", value=b"default's"))
    assert names(server) == ["default", "users", "n"]
    server.stop()
    server = start_server()
    assert names(server) == ["default", "users", "n"]
    assert server.kv.Get(kv_pb2.GetRequest(table="users", key=b"k")).value == b"users'"
    assert server.kv.Get(kv_pb2.GetRequest(key=b"k")).value == b"default's"
    server.admin.DropTable(admin_pb2.DropTableRequest(name="users"))
    assert names(server) == ["default", "n"]
    with Refused(CODES.NOT_FOUND, "no table 'users'"):
        server.kv.Get(kv_pb2.GetRequest(table="users", key=b"k"))
    server.admin.CreateTable(admin_pb2.CreateTableRequest(name="users", index_bytes=1 << 20))
    assert not server.kv.Get(kv_pb2.GetRequest(table="users", key=b"k")).found


def test_the_default_size(server: Server) -> None:
    made = server.admin.CreateTable(admin_pb2.CreateTableRequest(name="a.b_c-1")).table
    assert (made.name, made.layout, made.index_bytes) == ("a.b_c-1", "bytes", 4 << 20)


@pytest.mark.parametrize(
    ("request_", "code", "words"),
    [
        (admin_pb2.CreateTableRequest(name="default"), CODES.ALREADY_EXISTS, ["there is a table 'default'"]),
        (admin_pb2.CreateTableRequest(name="Upper"), CODES.INVALID_ARGUMENT, ["name", "'Upper'", "1 to 64"]),
        (admin_pb2.CreateTableRequest(), CODES.INVALID_ARGUMENT, ["name", "1 to 64"]),
        (admin_pb2.CreateTableRequest(name="a" * 65), CODES.INVALID_ARGUMENT, ["1 to 64"]),
        (admin_pb2.CreateTableRequest(name="../a"), CODES.INVALID_ARGUMENT, ["a-z 0-9 _ . -"]),
        (admin_pb2.CreateTableRequest(name="a", layout="u32"), CODES.INVALID_ARGUMENT, ["layout", "bytes, u64"]),
        (admin_pb2.CreateTableRequest(name="a", index_bytes=1), CODES.INVALID_ARGUMENT, ["index_bytes", "65,536"]),
        (admin_pb2.DropTableRequest(name="none"), CODES.NOT_FOUND, ["there is no table 'none'", "default"]),
        (admin_pb2.DropTableRequest(name="default"), CODES.INVALID_ARGUMENT, ["default table cannot be dropped"]),
    ],
    ids=str,
)
def test_what_cannot_be(server: Server, request_: Any, code: grpc.StatusCode, words: list[str]) -> None:
    call = server.admin.CreateTable if isinstance(request_, admin_pb2.CreateTableRequest) else server.admin.DropTable
    with Refused(code, *words):
        call(request_)
    assert names(server) == ["default"]


def test_tables_come_and_go_under_load(server: Server) -> None:
    """Requests for a table that is dropped meanwhile are refused as unknown; those for another one notice nothing."""
    done = threading.Event()
    written = {"": 0, "other": 0}
    refused: dict[str, set[Any]] = {"": set(), "other": set()}

    def write(table: str) -> None:
        while not done.is_set():
            i = written[table]
            try:
                server.kv.Batch(batch([(SET, b"%d" % i, b"v"), (GET, b"%d" % i)], table=table))
                written[table] += 1
            except grpc.RpcError as error:
                refused[table].add(error.code())  # type: ignore[attr-defined]

    writers = [threading.Thread(target=write, args=(table,)) for table in ("", "other")]
    for writer in writers:
        writer.start()
    for _ in range(10):
        server.admin.CreateTable(admin_pb2.CreateTableRequest(name="other", index_bytes=1 << 16))
        before = server.metric("gpkvs_batch_operations_count")
        while server.metric("gpkvs_batch_operations_count") < before + 5:
            pass
        server.admin.DropTable(admin_pb2.DropTableRequest(name="other"))
    done.set()
    for writer in writers:
        writer.join()
    assert refused == {"": set(), "other": {CODES.NOT_FOUND}}
    assert written["other"] > 0
    assert server.admin.Info(admin_pb2.InfoRequest()).tables[0].records == written[""]
