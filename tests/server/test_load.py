"""Many calls at once: they share transactions, and what does not fit is refused without harm to the rest."""

from __future__ import annotations

import asyncio
import time
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import grpc

from gpkvs.proto.v1 import kv_pb2, kv_pb2_grpc
from tests.server.wire import DELETE, GET, SET, Refused, batch, values_of
from tests.serving import Server, StartServer

FULL = grpc.StatusCode.RESOURCE_EXHAUSTED


async def concurrent_sets(target: str, count: int) -> list[Any]:
    """Send SETs all at once; return the responses and errors."""
    async with grpc.aio.insecure_channel(target) as channel:
        kv = kv_pb2_grpc.KVStub(channel)
        calls = [kv.Set(kv_pb2.SetRequest(key=b"%d" % i, value=b"v")) for i in range(count)]
        return await asyncio.gather(*calls, return_exceptions=True)


def test_concurrent_calls_share_transactions(server: Server) -> None:
    calls = 500
    responses = asyncio.run(concurrent_sets(server.target, calls))
    assert len({response.version for response in responses}) == calls
    assert server.metric("gpkvs_operations_total", op="set", status="ok") == calls
    assert server.metric("gpkvs_batch_operations_count") < calls / 2
    assert server.metric("gpkvs_batch_requests_sum") == calls


def test_a_batch_is_never_seen_in_part(server: Server) -> None:
    """Two writers overwrite the same keys; every read shows all keys from one writer."""
    keys = [b"%d" % i for i in range(50)]
    server.kv.Batch(batch([(SET, key, b"0") for key in keys]))

    def write(name: bytes) -> None:
        for i in range(40):
            server.kv.Batch(batch([(SET, key, name + b"%d" % i) for key in keys]))

    with ThreadPoolExecutor(2) as writers:
        jobs = [writers.submit(write, name) for name in (b"a", b"b")]
        seen = set()
        while not all(job.done() for job in jobs):
            values = values_of(server.kv.Batch(batch([(GET, key) for key in keys])))
            assert len(set(values)) == 1
            seen.add(values[0])
        for job in jobs:
            job.result()
    assert len(seen) > 2


def test_full_queue(start_server: StartServer) -> None:
    server = start_server("--queue-requests-max", "5")
    count = 20_000
    large = kv_pb2.BatchRequest(ops=bytes([SET]) * count, keys=b"".join(b"%08d" % i for i in range(count)), key_size=8)
    busy = server.kv.Batch.future(large)
    while server.metric("grpc_server_started_total", grpc_method="Batch") == 0:
        time.sleep(0.001)
    responses = asyncio.run(concurrent_sets(server.target, 200))
    assert busy.result().status == bytes(count)
    refused = [response for response in responses if isinstance(response, grpc.RpcError)]
    assert refused
    for error in refused:
        assert error.code() is FULL
        assert "queue full: 5 requests wait" in error.details()
        assert dict(error.trailing_metadata())["gpkvs-executed"] == "no"
    assert server.metric("gpkvs_requests_refused_total", reason="queue_full") == len(refused)
    for i, response in enumerate(responses):
        found = server.kv.Get(kv_pb2.GetRequest(key=b"%d" % i)).found
        assert found is not isinstance(response, grpc.RpcError)


def test_full_heap(start_server: StartServer) -> None:
    server = start_server("--heap-bytes", "1MiB")
    value = bytes(20_000)
    stored = 0
    error: Any = None
    while error is None:
        try:
            server.kv.Set(kv_pb2.SetRequest(key=b"%d" % stored, value=value))
            stored += 1
        except grpc.RpcError as refusal:
            error = refusal
    assert (error.code(), stored > 20) == (FULL, True)
    assert "heap full" in error.details()
    assert dict(error.trailing_metadata())["gpkvs-executed"] == "no"

    too_much = batch([(DELETE, b"0"), *[(SET, b"new-%d" % i, value) for i in range(20)]])
    with Refused(FULL, "heap full"):
        server.kv.Batch(too_much)
    assert server.kv.Get(kv_pb2.GetRequest(key=b"0")).value == value  # refused whole, the DELETE too
    assert not server.kv.Get(kv_pb2.GetRequest(key=b"new-0")).found
    assert server.kv.Delete(kv_pb2.DeleteRequest(key=b"0")).found
    assert server.kv.Batch(batch([(GET, b"1"), (DELETE, b"2"), (GET, b"2")])).status == bytes([0, 0, 1])
    assert server.metric("gpkvs_requests_refused_total", reason="heap_full") == 2
    lines = [line for line in server.log.read_text().splitlines() if "requests are refused: heap full: " in line]
    assert len(lines) == 1  # in a minute
    assert "delete keys, or start the store again with a larger --heap-bytes-max" in lines[0]


def test_full_index_refuses_what_does_not_fit_and_runs_the_rest(start_server: StartServer) -> None:
    server = start_server("--index-bytes", "64KiB", "--index-bytes-max", "64KiB")
    accepted = []
    for i in range(100):
        keys = [b"%d-%d" % (i, j) for j in range(50)]
        try:
            server.kv.Batch(batch([(SET, key, b"v") for key in keys]))
        except grpc.RpcError as refusal:
            full: Any = refusal
            break
        accepted += keys
    assert (full.code(), "index full" in full.details()) == (FULL, True)
    assert len(accepted) > 1_000
    with ThreadPoolExecutor(4) as pool:
        writes = [
            pool.submit(server.kv.Batch, batch([(SET, b"x%d-%d" % (n, j), b"") for j in range(300)])) for n in range(4)
        ]
        reads = [pool.submit(server.kv.Batch, batch([(GET, key) for key in accepted[n::4]])) for n in range(4)]
        deletes = [pool.submit(server.kv.Delete, kv_pb2.DeleteRequest(key=b"absent-%d" % n)) for n in range(4)]
    for write in writes:
        error: Any = write.exception()
        assert error.code() is FULL
    assert all(read.result().status == bytes(len(read.result().status)) for read in reads)
    assert not any(delete.result().found for delete in deletes)
    assert server.kv.Delete(kv_pb2.DeleteRequest(key=accepted[0])).found
