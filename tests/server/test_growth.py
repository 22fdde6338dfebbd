"""A table that grows under clients: what the server says of it, and when its growth waits."""

from __future__ import annotations

import json
import time
from collections.abc import Callable

import grpc
import pytest

from gpkvs.batch import Batch, Op
from gpkvs.cli.keys.info import _growth
from gpkvs.client import Client
from gpkvs.errors import InvalidArgumentError, NoSpaceError
from gpkvs.proto.v1 import admin_pb2
from tests.server.wire import SET, batch
from tests.serving import Server, StartServer, run_gpkvs

BLOCK_SLOTS = 2048
INDEX = ("--index-bytes", "512KiB")  # eight blocks


def write(server: Server, first: int, last: int) -> None:
    server.kv.Batch(batch([(SET, b"%d" % i, b"value") for i in range(first, last)]))


def told(server: Server) -> dict[str, str]:
    """Return what `gpkvs info` and `gpkvs top` print."""
    return {
        "info": run_gpkvs("info", "--target", server.target).stdout.decode(),
        "top": run_gpkvs("top", "--once", "--interval", "0.05", "--metrics", server.metrics_address).stdout.decode(),
    }


def table_of(server: Server) -> admin_pb2.TableInfo:
    (table,) = server.admin.ListTables(admin_pb2.ListTablesRequest()).tables
    return table


def wait_for(is_so: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 60
    while not is_so():
        assert time.monotonic() < deadline
        time.sleep(0.05)


def test_growth_is_told_everywhere(start_server: StartServer) -> None:
    """In idle time all blocks move. Then the catalogue is written, here not before something is out of its way."""
    server = start_server(*INDEX)
    number = max(int(file.stem.partition("-")[2]) for file in server.data.glob("catalog-*.json"))
    hindrance = server.data / f"catalog-{number + 1}.json.tmp"
    hindrance.unlink(missing_ok=True)
    hindrance.mkdir()
    write(server, 0, int(0.66 * 8 * BLOCK_SLOTS))
    for first in range(int(0.66 * 8 * BLOCK_SLOTS), int(0.72 * 8 * BLOCK_SLOTS), 100):
        write(server, first, first + 100)
        table = table_of(server)
        assert table.slots == (8 + table.moved_blocks) * BLOCK_SLOTS
    wait_for(lambda: table_of(server).moved_blocks == 8)
    assert table_of(server).growing_blocks == 8
    wait_for(lambda: server.metric("gpkvs_table_growth_waits", table="default") == 1)
    assert server.metric("gpkvs_table_moved_blocks", table="default") == 8
    shown = told(server)
    assert "growth of table default waits: the file system refuses" in shown["info"]
    assert "100 %" in shown["top"]

    hindrance.rmdir()
    wait_for(lambda: write(server, 0, 1) or not table_of(server).growing_blocks)
    assert table_of(server).slots == 16 * BLOCK_SLOTS


def test_growth_under_way_is_told_in_percent() -> None:
    """A server moves all blocks as soon as it is idle, so nobody can ask it for a part of them."""
    assert _growth(admin_pb2.TableInfo(growing_blocks=8, moved_blocks=5)) == "62%"
    assert _growth(admin_pb2.TableInfo()) == "-"


def test_a_limit_of_a_table_over_the_wire(start_server: StartServer) -> None:
    server = start_server(*INDEX)
    made = run_gpkvs("table", "create", "t", "--index-bytes", "64KiB", "--index-bytes-max", "128KiB", "--json",
                     "--target", server.target)  # fmt: skip
    assert json.loads(made.stdout)["index_bytes_max"] == 128 << 10
    listed = json.loads(run_gpkvs("table", "list", "--json", "--target", server.target).stdout)
    assert [table["index_bytes_max"] for table in listed] == [0, 128 << 10]
    assert b"of 128.0 KiB" in run_gpkvs("table", "list", "--target", server.target, env={"COLUMNS": "200"}).stdout
    with Client(server.target) as client:
        assert client.create_table("c", index_bytes=64 << 10, index_bytes_max=1 << 20).index_bytes_max == 1 << 20
        assert client.create_table("d", index_bytes=64 << 10).index_bytes_max == 0
        with pytest.raises(NoSpaceError, match="the table's own index_bytes_max, 131,072"):
            client.execute(Batch.of([(Op.SET, b"%d" % number, b"") for number in range(9000)]), table="t")
        with pytest.raises(InvalidArgumentError, match="index_bytes_max"):
            client.create_table("e", index_bytes=1 << 20, index_bytes_max=1)
    server.stop()
    server = start_server()
    tables = server.admin.ListTables(admin_pb2.ListTablesRequest()).tables
    assert [table.index_bytes_max for table in tables] == [0, 128 << 10, 1 << 20, 0]


def test_growth_that_waits_is_told_and_named(start_server: StartServer) -> None:
    server = start_server(*INDEX, "--index-bytes-max", "512KiB")
    write(server, 0, 8 * BLOCK_SLOTS * 7 // 10)
    with pytest.raises(grpc.RpcError) as refused:
        write(server, 100_000, 100_000 + 8 * BLOCK_SLOTS)
    assert refused.value.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
    assert "--index-bytes-max" in refused.value.details()
    assert server.metric("gpkvs_table_growth_waits", table="default") == 1
    assert "growth of table default waits: twice its 524,288 bytes" in told(server)["info"]
    info = json.loads(run_gpkvs("info", "--target", server.target, "--json").stdout)
    assert "--index-bytes-max" in info["tables"][0]["growth_waits"]
