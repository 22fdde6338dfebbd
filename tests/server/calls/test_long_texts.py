"""Statuses arrive, with their metadata, however long the texts are that they are about."""

from __future__ import annotations

import re
from pathlib import Path

import grpc

from gpkvs.proto.v1 import admin_pb2, kv_pb2
from tests.server.wire import GET, Refused, batch
from tests.serving import Server, StartServer

CODES = grpc.StatusCode
MIB = 1 << 20


def peak_bytes(server: Server) -> int:
    """Return the most memory that the server ever had."""
    found = re.search(r"VmHWM:\s+(\d+) kB", Path(f"/proc/{server.process.pid}/status").read_text())
    assert found
    return 1024 * int(found[1])


def test_an_unknown_table_beside_300(start_server: StartServer) -> None:
    server = start_server()
    for i in range(300):
        name = f"table-{i:03}-{'x' * 50}"
        server.admin.CreateTable(admin_pb2.CreateTableRequest(name=name, layout="u64", index_bytes=1 << 16))
    with Refused(CODES.NOT_FOUND, "no table 'table-07'", "there are 301", "table-070-xxx"):
        server.kv.Get(kv_pb2.GetRequest(table="table-07", key=b"k"))
    with Refused(CODES.NOT_FOUND, "no table 'none'"):
        server.admin.DropTable(admin_pb2.DropTableRequest(name="none"))
    (response,) = server.kv.Pipeline(iter([batch([(GET, b"k")], table="table-07")]))
    assert response.code == CODES.NOT_FOUND.value[0]
    assert len(response.message) < 300


def test_a_damaged_record_of_the_longest_key(start_server: StartServer) -> None:
    server = start_server()
    key = bytes(4096)
    server.kv.Set(kv_pb2.SetRequest(key=key, value=b"value"))
    server.stop()
    flip_value(server.data)
    server = start_server()
    try:
        with Refused(CODES.DATA_LOSS, "(4,096 bytes)", "gpkvs check", executed=None):
            server.kv.Get(kv_pb2.GetRequest(key=key))
    finally:
        server.stop()
        flip_value(server.data)  # as it was: what a test leaves must be clean


def flip_value(data: Path) -> None:
    """Damage the value of the store's only record, or mend it again."""
    path = next(path for path in (data / "heap", data / "data") if path.exists())
    content = path.read_bytes()
    assert content.count(b"alue") == 1
    at = content.index(b"alue") - 1
    with path.open("r+b") as file:
        file.seek(at)
        file.write(bytes([content[at] ^ 1]))
