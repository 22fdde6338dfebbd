"""Statuses arrive, with their metadata, however long the texts are that they are about."""

from __future__ import annotations

import re
from pathlib import Path

import grpc
import numpy as np
import pytest

from gpkvs.media.layout import BYTES_LAYOUT, UNIT_BYTES
from gpkvs.proto.v1 import admin_pb2, kv_pb2
from tests.server.wire import GET, SET, Refused, batch
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
    slots = np.fromfile(data / "index-0-0", np.uint64).reshape(-1, BYTES_LAYOUT.slot_bytes // 8)
    (reference,) = (int(slot[2]) for slot in slots if slot[3])
    with (data / "heap").open("r+b") as heap:
        heap.seek((reference >> 24) * UNIT_BYTES)
        at = heap.tell() + heap.read(8192).index(b"alue") - 1
        heap.seek(at)
        first = heap.read(1)[0]
        heap.seek(at)
        heap.write(bytes([first ^ 1]))


@pytest.mark.parametrize("letter", ["\x00", "é"])
def test_a_table_name_of_60_mib(start_server: StartServer, letter: str) -> None:
    """It is refused in a few words, takes the memory of some copies of it, and a Pipeline goes on behind it."""
    server = start_server()
    before = peak_bytes(server)
    name = letter * (60 * MIB // len(letter.encode()))
    length = f"({len(name):,} characters)"
    with Refused(CODES.NOT_FOUND, length):
        server.kv.Get(kv_pb2.GetRequest(table=name, key=b"k"))
    requests = [batch([(GET, b"k")], table=name, id=1), batch([(SET, b"k", b"v")], id=2)]
    refused, done = server.kv.Pipeline(iter(requests))
    assert (refused.id, refused.code, done.id, done.code) == (1, CODES.NOT_FOUND.value[0], 2, 0)
    assert length in refused.message
    assert len(refused.message) < 300
    assert peak_bytes(server) - before < 10 * 60 * MIB


def test_long_names_of_new_tables(server: Server) -> None:
    name = "é" * MIB
    for request in (
        admin_pb2.CreateTableRequest(name=name),
        admin_pb2.CreateTableRequest(name="a", layout=name),
    ):
        with Refused(CODES.INVALID_ARGUMENT, "(1,048,576 characters)"):
            server.admin.CreateTable(request)
