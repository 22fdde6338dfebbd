"""What a client may get wrong: each is refused with a code and the words that help, and nothing is written."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import grpc
import pytest

from gpkvs.proto.v1 import admin_pb2, kv_pb2
from tests.server.wire import DELETE, GET, SET, Refused, batch, u32
from tests.serving import Server

INVALID = grpc.StatusCode.INVALID_ARGUMENT


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """Return one server for the whole module: no test here may leave a record."""
    folder = tmp_path_factory.mktemp("bad-input")
    options = ("--key-bytes-max", "64", "--value-bytes-max", "1KiB", "--message-bytes-max", "1MiB")
    server = Server(folder / "store", folder, *options, "--request-ops-max", "1000")
    try:
        yield server
        assert server.admin.Info(admin_pb2.InfoRequest()).tables[0].records == 0
        assert server.metric("gpkvs_batch_operations_count") == 0
        server.stop()
    finally:
        server.kill()
    assert "Traceback" not in server.log.read_text()


@pytest.mark.parametrize(
    ("method", "message", "words"),
    [
        ("Get", kv_pb2.GetRequest(), ["key", "0 bytes", "1 to 64"]),
        ("Get", kv_pb2.GetRequest(key=bytes(65)), ["key", "65 bytes", "1 to 64 (key_bytes_max)"]),
        ("Set", kv_pb2.SetRequest(value=b"v"), ["key", "0 bytes"]),
        ("Set", kv_pb2.SetRequest(key=bytes(65)), ["key", "65 bytes"]),
        ("Set", kv_pb2.SetRequest(key=b"k", value=bytes(1025)), ["value", "1,025 bytes", "1,024 (value_bytes_max)"]),
        ("Delete", kv_pb2.DeleteRequest(), ["key", "0 bytes"]),
        ("Delete", kv_pb2.DeleteRequest(key=bytes(65)), ["key", "65 bytes"]),
    ],
)
def test_single_operations(shared: Server, method: str, message: Any, words: list[str]) -> None:
    with Refused(INVALID, *words):
        getattr(shared.kv, method)(message)


TWO = [(SET, b"a", b"1"), (SET, b"b", b"22")]


def columns(**changed: Any) -> kv_pb2.BatchRequest:
    """Return a good request of two SETs, with some columns changed."""
    request = batch(TWO)
    for name, value in changed.items():
        setattr(request, name, value)
    return request


@pytest.mark.parametrize(
    ("request_", "words"),
    [
        pytest.param(kv_pb2.BatchRequest(), ["ops", "at least one"], id="empty"),
        pytest.param(batch([(GET, b"k")] * 1001), ["ops", "1,001", "1,000 (request_ops_max)"], id="too many"),
        *(
            pytest.param(
                columns(ops=bytes([SET, op])), ["operation 1", "ops", f"unknown operation {op}"], id=f"op {op}"
            )
            for op in (11, 13, 16, 255)
        ),
        pytest.param(columns(ops=bytes([0, SET])), ["operation 0", "ops", "unknown operation 0"], id="op zero"),
        pytest.param(batch([(GET, b"k"), (GET, b"")]), ["operation 1", "keys", "0 bytes"], id="empty key"),
        pytest.param(batch([*TWO, (DELETE, bytes(65))]), ["operation 2", "keys", "65", "1 to 64"], id="long key"),
        pytest.param(
            batch([*TWO, (GET, b"g"), (SET, b"k", bytes(1025))]), ["operation 3", "values", "1,024"], id="long value"
        ),
        pytest.param(columns(key_lengths=u32(1, 2)), ["operation 1, keys", "3 bytes", "has 2"], id="keys too short"),
        pytest.param(columns(keys=b"abc"), ["keys", "2 bytes", "has 3"], id="keys too long"),
        pytest.param(columns(key_lengths=u32(1)), ["operation 1, key_lengths", "1 length for 2"], id="few key lengths"),
        pytest.param(columns(key_lengths=u32(1, 1, 1)), ["key_lengths", "3 lengths for 2"], id="many key lengths"),
        pytest.param(columns(key_lengths=bytes(7)), ["key_lengths", "7 bytes"], id="odd key lengths"),
        pytest.param(columns(key_lengths=u32(0xFFFFFFFF, 3)), ["operation 0", "4,294,967,295"], id="huge key length"),
        pytest.param(columns(key_size=1), ["key_lengths", "key_size"], id="key lengths and size"),
        pytest.param(columns(key_lengths=b""), ["operation 0", "keys", "0 bytes"], id="no key lengths"),
        pytest.param(columns(key_lengths=b"", key_size=2), ["keys", "4 bytes", "has 2"], id="wrong key size"),
        pytest.param(columns(key_lengths=b"", key_size=65), ["operation 0", "65"], id="key size over limit"),
        pytest.param(columns(values=b"12"), ["operation 1, values", "3 bytes", "has 2"], id="values too short"),
        pytest.param(columns(values=b"1234"), ["values", "3 bytes", "has 4"], id="values too long"),
        pytest.param(
            columns(value_lengths=u32(3)), ["operation 1, value_lengths", "1 length for 2"], id="few value lengths"
        ),
        pytest.param(columns(value_lengths=bytes(9)), ["value_lengths", "9 bytes"], id="odd value lengths"),
        pytest.param(columns(value_size=2), ["value_lengths", "value_size"], id="value lengths and size"),
        pytest.param(columns(value_lengths=b""), ["values", "0 bytes", "has 3"], id="no value lengths"),
        pytest.param(
            columns(ops=bytes([SET, GET])), ["value_lengths", "2 lengths for 1 value"], id="a value for a get"
        ),
    ],
)
def test_columns(shared: Server, request_: kv_pb2.BatchRequest, words: list[str]) -> None:
    with Refused(INVALID, *words):
        shared.kv.Batch(request_)


def test_unknown_table(shared: Server) -> None:
    for call, message in (
        (shared.kv.Get, kv_pb2.GetRequest(table="users", key=b"k")),
        (shared.kv.Set, kv_pb2.SetRequest(table="users", key=b"k")),
        (shared.kv.Delete, kv_pb2.DeleteRequest(table="users", key=b"k")),
        (shared.kv.Batch, batch([(SET, b"k", b"v")], table="users")),
    ):
        with Refused(grpc.StatusCode.NOT_FOUND, "'users'", "there are default"):
            call(message)


@pytest.mark.parametrize("method", ["Get", "Set", "Delete", "Batch", "Increment", "MultiGet"])
@pytest.mark.parametrize(
    "data", [b"\xff\xff\xff\xff", b"\x12\x10short", b"\x0a\x02\xff\xfe"], ids=["tag", "cut", "utf8"]
)
def test_malformed_protobuf(shared: Server, method: str, data: bytes) -> None:
    call = shared.channel.unary_unary(f"/gpkvs.v1.KV/{method}")
    with Refused(INVALID, f"gpkvs.v1.{method}Request"):
        call(data)


def test_message_over_the_limit(shared: Server) -> None:
    with Refused(grpc.StatusCode.RESOURCE_EXHAUSTED, "1048576", executed="no"):
        shared.kv.Set(kv_pb2.SetRequest(key=b"k", value=bytes(1 << 20)))


def test_unknown_method(shared: Server) -> None:
    with Refused(grpc.StatusCode.UNIMPLEMENTED, executed=None):
        shared.channel.unary_unary("/gpkvs.v1.KV/Rename")(b"")


def test_refusals_are_counted(shared: Server) -> None:
    before = shared.metric("gpkvs_requests_refused_total", reason="invalid")
    with Refused(INVALID):
        shared.kv.Get(kv_pb2.GetRequest())
    assert shared.metric("gpkvs_requests_refused_total", reason="invalid") == before + 1
    assert shared.metric("grpc_server_handled_total", grpc_method="Get", grpc_code="INVALID_ARGUMENT") >= 1


def test_response_too_large_for_a_message(tmp_path: Any) -> None:
    """The request is refused whole, before its SETs are done."""
    server = Server(tmp_path / "store", tmp_path, "--message-bytes-max", "256KiB")
    try:
        server.kv.Set(kv_pb2.SetRequest(key=b"large", value=bytes(60_000)))
        many = batch([(SET, b"new", b"v"), *[(GET, b"large")] * 4])
        with Refused(INVALID, "its GETs read too many", "result_bytes_max"):
            server.kv.Batch(many)
        assert not server.kv.Get(kv_pb2.GetRequest(key=b"new")).found
        assert len(server.kv.Batch(batch([(GET, b"large")])).values) == 60_000
        server.stop()
    finally:
        server.kill()
