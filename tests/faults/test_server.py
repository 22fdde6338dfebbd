"""A server whose disk fails under it: it answers nothing that may be lost, and ends; the next one recovers."""

from __future__ import annotations

import errno
from pathlib import Path

import grpc
import pytest

from gpkvs.process.fatal import EXIT_FATAL
from gpkvs.proto.v1 import admin_pb2, kv_pb2
from tests.serving import StartServer


@pytest.mark.undo
@pytest.mark.parametrize("nth", [30, 31, 32, 33])
def test_a_failed_fdatasync_ends_the_server(start_server: StartServer, shim: Path, tmp_path: Path, nth: int) -> None:
    """Four in a row hit each of a batch's phases: heap, log and descriptor, flag, slots."""
    fault = f"fdatasync:{nth}:{errno.EIO}:forever"
    environment = {"LD_PRELOAD": str(shim), "GPKVS_SHIM": fault, "GPKVS_SHIM_PATH": str(tmp_path / "store")}
    server = start_server("--durability=msync", env=environment)
    acknowledged, failed = 0, None
    while failed is None and acknowledged < 1000:
        request = kv_pb2.SetRequest(key=b"key", value=b"%d" % (acknowledged + 1))
        failed = server.kv.Set.future(request, timeout=30).exception()
        acknowledged += failed is None
    assert isinstance(failed, grpc.RpcError)
    assert failed.code() is grpc.StatusCode.UNAVAILABLE
    assert server.process.wait(30) == EXIT_FATAL
    assert "a transaction could not be completed" in server.log.read_text()
    server.log.unlink()  # its traceback is meant
    assert acknowledged > 0
    server.process.returncode = 0  # it ended as it should; the fixture's own stop has nothing left to do
    again = start_server("--durability=msync")
    value = again.kv.Get(kv_pb2.GetRequest(key=b"key"), timeout=30).value
    assert int(value) in (acknowledged, acknowledged + 1)


@pytest.mark.parametrize(
    ("call", "error", "said"),
    [
        ("pwrite", errno.EIO, "a write to the store failed: Input/output error"),
        ("pwrite", errno.ENOSPC, "a write to the store failed: No space left on device"),
        ("fdatasync", errno.EIO, "a flush of the store failed: Input/output error"),
    ],
)
@pytest.mark.parametrize("nth", [40, 41])
def test_a_journal_that_cannot_be_written_ends_the_server(
    start_server: StartServer, shim: Path, tmp_path: Path, call: str, error: int, said: str, nth: int
) -> None:
    """With one line, and nothing that was acknowledged is lost. Two calls in a row: of the record, of the block."""
    start_server("--commit=journal").stop()
    fault = f"{call}:{nth}:{error}:forever"
    environment = {"LD_PRELOAD": str(shim), "GPKVS_SHIM": fault, "GPKVS_SHIM_PATH": str(tmp_path / "store/data")}
    server = start_server("--durability=msync", env=environment)
    acknowledged, failed = 0, None
    while failed is None and acknowledged < 1000:
        request = kv_pb2.SetRequest(key=b"key", value=b"%d" % (acknowledged + 1))
        failed = server.kv.Set.future(request, timeout=30).exception()
        acknowledged += failed is None
    assert isinstance(failed, grpc.RpcError)
    assert failed.code() is grpc.StatusCode.UNAVAILABLE
    assert server.process.wait(30) == EXIT_FATAL
    lines = [line for line in server.log.read_text().splitlines() if line.startswith("gpkvs: ")]
    assert lines == [f"gpkvs: {said}. The process stops here; the store is recovered when it is next opened"]
    assert acknowledged > 0
    server.process.returncode = 0  # it ended as it should; the fixture's own stop has nothing left to do
    again = start_server()
    value = again.kv.Get(kv_pb2.GetRequest(key=b"key"), timeout=30).value
    assert int(value) in (acknowledged, acknowledged + 1)


@pytest.mark.parametrize("commit", ["undo", "journal"])
def test_a_table_without_room_on_the_disk_is_refused_by_name(
    start_server: StartServer, shim: Path, tmp_path: Path, commit: str
) -> None:
    """All else goes on; the table can be made when there is room."""
    start_server(f"--commit={commit}").stop()
    environment = {
        "LD_PRELOAD": str(shim),
        "GPKVS_SHIM": f"fallocate:1:{errno.ENOSPC}",
        "GPKVS_SHIM_PATH": str(tmp_path / "store/index-"),
    }
    server = start_server(env=environment)
    request = admin_pb2.CreateTableRequest(name="new", layout="u64", index_bytes=1 << 20)
    with pytest.raises(grpc.RpcError) as refused:
        server.admin.CreateTable(request, timeout=30)
    assert refused.value.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
    assert str(refused.value.details()).startswith("disk full: ")
    assert dict(refused.value.trailing_metadata())["gpkvs-full"] == "disk"
    assert [table.name for table in server.admin.ListTables(admin_pb2.ListTablesRequest()).tables] == ["default"]
    server.kv.Set(kv_pb2.SetRequest(key=b"key", value=b"value"), timeout=30)
    server.admin.CreateTable(request, timeout=30)
    assert [table.name for table in server.admin.ListTables(admin_pb2.ListTablesRequest()).tables] == ["default", "new"]


def test_a_rotten_record_is_data_loss_to_its_reader_alone(start_server: StartServer, tmp_path: Path) -> None:
    server = start_server()
    for key in (b"rotten", b"sound"):
        server.kv.Set(kv_pb2.SetRequest(key=key, value=b"value of " + key))
    heap = next(path for path in (tmp_path / "store/heap", tmp_path / "store/data") if path.exists())
    at = heap.read_bytes().index(b"value of rotten")
    with heap.open("r+b") as file:
        file.seek(at)
        file.write(b"V")
    with pytest.raises(grpc.RpcError) as lost:
        server.kv.Get(kv_pb2.GetRequest(key=b"rotten"))
    assert lost.value.code() is grpc.StatusCode.DATA_LOSS
    assert server.kv.Get(kv_pb2.GetRequest(key=b"sound")).value == b"value of sound"
    server.kv.Set(kv_pb2.SetRequest(key=b"rotten", value=b"new"))
    assert server.kv.Get(kv_pb2.GetRequest(key=b"rotten")).value == b"new"


def test_an_empty_value_outlives_a_kill(start_server: StartServer) -> None:
    server = start_server()
    server.kv.Set(kv_pb2.SetRequest(key=b"empty", value=b""))
    server.process.kill()
    server.process.wait()
    server.process.returncode = 0
    again = start_server()
    empty, absent = (again.kv.Get(kv_pb2.GetRequest(key=key)) for key in (b"empty", b"absent"))
    assert (empty.found, empty.value) == (True, b"")
    assert (absent.found, absent.value) == (False, b"")
