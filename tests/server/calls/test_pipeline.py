"""Streams of batches: responses in order, errors in their responses, bounded in memory, and an orderly end."""

from __future__ import annotations

import asyncio
import signal
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import grpc
import pytest

from gpkvs.proto.v1 import admin_pb2, kv_pb2, kv_pb2_grpc
from tests.server.wire import DELETE, GET, SET, Refused, batch, u64s, values_of
from tests.serving import Server, StartServer

CODE = {code: code.value[0] for code in grpc.StatusCode}


def test_responses_come_in_order_and_see_what_came_before(server: Server) -> None:
    requests = []
    for i in range(300):
        requests.append(batch([(SET, b"k", b"%d" % i), (GET, b"k"), (DELETE, b"other")], id=2 * i))
        requests.append(batch([(GET, b"k"), (SET, b"other", b"")], id=2 * i + 1))
    responses = list(server.kv.Pipeline(iter(requests)))
    assert [response.id for response in responses] == list(range(600))
    assert not any(response.code for response in responses)
    for i in range(300):
        assert values_of(responses[2 * i]) == values_of(responses[2 * i + 1]) == [b"%d" % i]
        assert responses[2 * i].status == bytes([0, 0, int(i == 0)])
    versions = [u64s(response.versions)[0] for response in responses[::2]]
    assert versions == sorted(set(versions))
    assert server.metric("gpkvs_batch_requests_sum") == 600
    assert server.metric("gpkvs_batch_requests_count") < 600  # many were in flight
    labels = {"grpc_method": "Pipeline", "grpc_type": "bidi_stream"}
    assert server.metric("grpc_server_started_total", **labels) == 1
    assert server.metric("grpc_server_handled_total", grpc_code="OK", **labels) == 1


def test_an_error_is_a_response_and_the_stream_goes_on(start_server: StartServer) -> None:
    server = start_server("--heap-bytes", "1MiB")
    responses = list(
        server.kv.Pipeline(
            iter(
                [
                    batch([(SET, b"k", b"v")], id=1),
                    batch([(SET, b"k", b"w"), (SET, b"", b"")], id=2),
                    batch([(GET, b"k")], table="none", id=3),
                    batch([(SET, b"k", b"x")] + [(SET, b"%d" % i, bytes(40_000)) for i in range(50)], id=4),
                    kv_pb2.BatchRequest(id=5),
                    batch([(GET, b"k")], id=6),
                ]
            )
        )
    )
    assert [response.id for response in responses] == [1, 2, 3, 4, 5, 6]
    codes = grpc.StatusCode
    expected = [codes.OK, codes.INVALID_ARGUMENT, codes.NOT_FOUND, codes.RESOURCE_EXHAUSTED, codes.INVALID_ARGUMENT]
    assert [response.code for response in responses] == [CODE[code] for code in [*expected, codes.OK]]
    assert "operation 1, keys: a key of 0 bytes" in responses[1].message
    assert "no table 'none'" in responses[2].message
    assert "heap full" in responses[3].message
    assert values_of(responses[5]) == [b"v"]
    assert server.metric("gpkvs_requests_refused_total", reason="unknown_table") == 1
    assert server.metric("gpkvs_requests_refused_total", reason="invalid") == 2


def test_bytes_that_are_no_message_end_the_stream_after_what_came_before(server: Server) -> None:
    call = server.channel.stream_stream("/gpkvs.v1.KV/Pipeline")
    good = batch([(SET, b"k", b"v")], id=1).SerializeToString()
    responses = call(iter([good, b"\xff\xff", good]))
    assert kv_pb2.BatchResponse.FromString(next(responses)).status == b"\x00"
    with Refused(grpc.StatusCode.INVALID_ARGUMENT, "gpkvs.v1.BatchRequest"):
        next(responses)
    assert server.metric("gpkvs_batch_requests_sum") == 1


def test_u64_tables_over_a_stream(server: Server) -> None:
    server.admin.CreateTable(admin_pb2.CreateTableRequest(name="n", layout="u64", index_bytes=1 << 20))
    keys = b"".join(i.to_bytes(8, "little") for i in (0, 1, 2**64 - 1))
    stored = kv_pb2.BatchRequest(table="n", ops=bytes([SET] * 3), keys=keys, key_size=8, values=keys, value_size=8)
    read = kv_pb2.BatchRequest(table="n", ops=bytes([GET] * 3), keys=keys, key_size=8)
    wrong = batch([(SET, b"short", b"")], table="n")
    responses = list(server.kv.Pipeline(iter([stored, read, wrong])))
    assert responses[0].status == bytes(3)
    assert responses[1].values == keys
    assert responses[2].code == CODE[grpc.StatusCode.INVALID_ARGUMENT]


def _resident_bytes(server: Server) -> int:
    """Memory of the server beyond its mapped files."""
    status = Path(f"/proc/{server.process.pid}/status").read_text()
    return int(next(line.split()[1] for line in status.splitlines() if line.startswith("RssAnon"))) * 1024


def test_a_slow_reader_waits_alone(start_server: StartServer) -> None:
    """It gets no more read than its stream may hold, and others are served meanwhile."""
    server = start_server("--stream-bytes-max", "4MiB")
    value = bytes(1_000_000)
    server.kv.Set(kv_pb2.SetRequest(key=b"large", value=value))
    before = _resident_bytes(server)
    total, sent = 400, 0

    def requests() -> Iterator[kv_pb2.BatchRequest]:
        nonlocal sent
        for i in range(total):
            sent += 1
            yield batch([(GET, b"large")], id=i)

    responses = server.kv.Pipeline(requests())
    assert next(responses).id == 0
    quiet_since, last = time.monotonic(), -1.0
    while time.monotonic() - quiet_since < 0.5:  # until nothing moves any more
        executed = server.metric("gpkvs_batch_requests_sum")
        if executed != last:
            quiet_since, last = time.monotonic(), executed
    assert last < 60
    assert _resident_bytes(server) - before < 100 << 20
    assert server.kv.Get(kv_pb2.GetRequest(key=b"large")).value == value
    rest = list(responses)
    assert [response.id for response in rest] == list(range(1, total))
    assert all(response.values == value for response in rest)
    assert sent == total


def test_the_number_in_flight_is_bounded(start_server: StartServer) -> None:
    server = start_server("--stream-requests-max", "3")
    responses = list(server.kv.Pipeline(batch([(SET, b"%d" % i, b"")], id=i) for i in range(200)))
    assert [response.id for response in responses] == list(range(200))
    assert server.metric("gpkvs_batch_requests_sum") == 200
    assert server.metric("gpkvs_batch_requests_bucket", le="4.0") == server.metric("gpkvs_batch_requests_count")


@pytest.mark.parametrize("load", [True, False])
def test_a_stop_responds_to_what_was_read_and_ends_the_stream(start_server: StartServer, load: bool) -> None:
    server = start_server()
    stop = threading.Event()

    def requests() -> Iterator[kv_pb2.BatchRequest]:
        for i in range(100_000):
            if stop.is_set() or (not load and i == 10):
                break
            yield batch([(SET, b"%d-%d" % (i, j), b"v") for j in range(50)], id=i)
        stop.wait(30)

    seen = 0
    responses = server.kv.Pipeline(requests())
    ended: Any = None
    try:
        for response in responses:
            assert (response.id, response.code) == (seen, 0)
            seen += 1
            if seen == 10:
                server.process.send_signal(signal.SIGTERM)
    except grpc.RpcError as error:
        ended = error
    stop.set()
    assert ended.code() is grpc.StatusCode.UNAVAILABLE
    assert "stopping" in ended.details()
    assert dict(ended.trailing_metadata())["gpkvs-executed"] == "no"
    assert seen >= 10
    server.stop()
    again = start_server()
    assert again.admin.Info(admin_pb2.InfoRequest()).tables[0].records == 50 * seen


def test_a_client_that_goes_away_leaves_nothing_behind(server: Server) -> None:
    async def main() -> None:
        async with grpc.aio.insecure_channel(server.target) as channel:
            calls = []
            for _ in range(20):
                call = kv_pb2_grpc.KVStub(channel).Pipeline()
                for i in range(20):
                    await call.write(batch([(SET, b"%d-%d" % (i, j), b"v") for j in range(100)], id=i))
                calls.append(call)
            for call in calls:
                await call.read()  # gRPC never starts a call that is cancelled before the server takes it
            for call in calls:
                call.cancel()

    asyncio.run(main())
    # With any code: gRPC may take the end of a cancelled call for the end of its stream.
    deadline = time.monotonic() + 60
    while (ended := server.metric("grpc_server_handled_total", grpc_method="Pipeline")) < 20:
        started = server.metric("grpc_server_started_total", grpc_method="Pipeline")
        assert time.monotonic() < deadline, f"{started:.0f} of 20 calls started, {ended:.0f} ended"
        time.sleep(0.01)
    assert server.kv.Set(kv_pb2.SetRequest(key=b"after")).version > 0
    assert server.metric("gpkvs_queue_requests") == server.metric("gpkvs_memory_bytes", kind="requests") == 0
