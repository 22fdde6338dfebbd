"""A client of before there were conditions, counters and expiry: makes all calls of its time, and prints what it got.

The generated code beside this file is of then. It has the names of today's, so it needs a process of its own.
"""

from __future__ import annotations

import importlib
import json
import sys
from collections.abc import Iterator
from types import ModuleType
from typing import Any

import grpc


def _generated() -> Iterator[Any]:
    """Import the modules beside this file under the names by which they import each other."""
    for name in ("gpkvs", "gpkvs.proto", "gpkvs.proto.v1"):
        sys.modules[name] = ModuleType(name)
    for name in ("kv_pb2", "kv_pb2_grpc", "admin_pb2", "admin_pb2_grpc"):
        module = importlib.import_module(name)
        setattr(sys.modules["gpkvs.proto.v1"], name, module)
        yield module


kv_pb2, kv_pb2_grpc, admin_pb2, admin_pb2_grpc = _generated()

COLUMNS = {
    "ops": b"\2\1\3",
    "keys": b"abc",
    "key_size": 1,
    "values": b"one",
    "value_size": 3,
    "table": "t",
    "id": 7,
}


def _code(call: Any, *arguments: Any) -> list[str]:
    """Return the code and the trailing metadata of a call that must fail."""
    try:
        call(*arguments)
    except grpc.RpcError as error:
        told: Any = error
        return [told.code().name, dict(told.trailing_metadata()).get("gpkvs-executed", "")]
    raise AssertionError("it did not fail")


def main(target: str) -> None:
    """Make all calls."""
    channel = grpc.insecure_channel(target)
    kv, admin = kv_pb2_grpc.KVStub(channel), admin_pb2_grpc.AdminStub(channel)
    results: dict[str, object] = {"request": kv_pb2.BatchRequest(**COLUMNS).SerializeToString().hex()}
    created = admin.CreateTable(admin_pb2.CreateTableRequest(name="t", layout="bytes", index_bytes=1 << 20))
    results["created"] = created.table.name
    results["first"] = kv.Get(kv_pb2.GetRequest(table="t", key=b"a")).found
    version = kv.Set(kv_pb2.SetRequest(table="t", key=b"a", value=b"1")).version
    got = kv.Get(kv_pb2.GetRequest(table="t", key=b"a"))
    results["got"] = [got.found, got.value.hex(), got.version == version > 0]
    results["deleted"] = [kv.Delete(kv_pb2.DeleteRequest(table="t", key=b"a")).found for _ in range(2)]
    response = kv.Batch(kv_pb2.BatchRequest(**COLUMNS))
    results["batch"] = [response.id, response.status.hex(), response.value_lengths.hex(), len(response.versions)]
    responses = list(kv.Pipeline(iter([kv_pb2.BatchRequest(**COLUMNS), kv_pb2.BatchRequest(id=8)])))
    results["pipeline"] = [[response.id, response.code, response.status.hex()] for response in responses]
    results["empty"] = _code(kv.Get, kv_pb2.GetRequest())
    results["no table"] = _code(kv.Get, kv_pb2.GetRequest(table="none", key=b"a"))
    numbers = admin_pb2.CreateTableRequest(name="n", layout="u64", index_bytes=1 << 20)
    admin.CreateTable(numbers)
    results["twice"] = _code(admin.CreateTable, numbers)
    response = kv.Batch(
        kv_pb2.BatchRequest(table="n", ops=b"\2\1", keys=bytes(16), key_size=8, values=bytes(8), value_size=8)
    )
    results["numbers"] = [response.status.hex(), response.values.hex(), response.versions.hex()]
    results["tables"] = sorted(table.name for table in admin.ListTables(admin_pb2.ListTablesRequest()).tables)
    admin.DropTable(admin_pb2.DropTableRequest(name="n"))
    results["info"] = [table.name for table in admin.Info(admin_pb2.InfoRequest()).tables]
    print(json.dumps(results))


if __name__ == "__main__":
    main(sys.argv[1])
