"""What clients, operators and disks do to a server: it stays within its memory, and says what is wrong."""

from __future__ import annotations

import asyncio
import os
import random
import secrets
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import grpc
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc

import gpkvs
from gpkvs.proto.v1 import kv_pb2, kv_pb2_grpc
from tests.server.wire import GET, SET, batch, values_of
from tests.serving import COMMAND, WITHOUT_ROOT_RIGHTS, Server, StartServer, error_line

MIB = 1 << 20
STOP_SECONDS_MAX = 15  # 5 of them are for responses on their way to slow readers

# Asks for a large response many times over one connection, then stops as a process that hangs: the kernel holds its
# connections, nobody reads. Continued, it counts what became of its calls.
_HANGS = """
import collections, os, signal, sys, time
import grpc
from gpkvs.proto.v1 import kv_pb2, kv_pb2_grpc

target, calls = sys.argv[1], int(sys.argv[2])
request = kv_pb2.BatchRequest.FromString(sys.stdin.buffer.read())
channel = grpc.insecure_channel(target, options=[("grpc.max_receive_message_length", -1)])
stub = kv_pb2_grpc.KVStub(channel)
stub.Get(kv_pb2.GetRequest(key=b"connect"))
responses = [stub.Batch.future(request) for _ in range(calls)]
time.sleep(0.05)
os.kill(os.getpid(), signal.SIGSTOP)
codes = collections.Counter(str(response.code()) for response in responses)
print(dict(codes), {response.details() for response in responses} - {""})
"""


@contextmanager
def hanging_client(server: Server, request: kv_pb2.BatchRequest, calls: int) -> Iterator[subprocess.Popen[bytes]]:
    """Run a client that asks and then hangs; SIGCONT lets it read on."""
    command = [sys.executable, "-c", _HANGS, server.target, str(calls)]
    client = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    try:
        assert client.stdin and client.stdout  # noqa: PT018
        client.stdin.write(request.SerializeToString())
        client.stdin.close()
        wait_until(lambda: process_state(client.pid) == "T", "the client does not stop")
        yield client
    finally:
        client.kill()
        client.wait()


def process_state(pid: int) -> str:
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]


def wait_until(condition: Callable[[], bool], failure: str, seconds: float = 60) -> None:
    give_up = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < give_up, failure
        time.sleep(0.02)


def wait_settled(number: Callable[[], float]) -> float:
    """Wait until a number has not changed for half a second."""
    last, since = number(), time.monotonic()
    while time.monotonic() - since < 0.5:
        if (now := number()) != last:
            last, since = now, time.monotonic()
        time.sleep(0.02)
    return last


def resident_bytes(server: Server) -> int:
    """Memory of the server beyond its mapped files."""
    status = Path(f"/proc/{server.process.pid}/status").read_text()
    return int(next(line.split()[1] for line in status.splitlines() if line.startswith("RssAnon"))) * 1024


def test_memory_for_a_client_that_hangs_is_bounded(start_server: StartServer) -> None:
    """90 calls ask for 990 MB and nobody reads; others are served, and all is given back."""
    limit = 1024 * MIB
    server = start_server("--memory-max", str(limit))
    value = bytes(1_000_000)
    server.kv.Set(kv_pb2.SetRequest(key=b"large", value=value))
    before = resident_bytes(server)
    with hanging_client(server, batch([(GET, b"large")] * 11), 90) as client:
        refused = lambda: server.metric("gpkvs_requests_refused_total", reason="memory_full")  # noqa: E731
        wait_until(
            lambda: refused() > 40 and server.metric("gpkvs_queue_requests") == 0, "too few requests are refused"
        )
        held = wait_settled(lambda: server.metric("gpkvs_memory_bytes"))
        print(f"held {held / MIB:.0f} MiB, memory {(resident_bytes(server) - before) / MIB:.0f} MiB more")
        assert 100_000_000 < held <= limit // 2
        assert resident_bytes(server) - before < limit // 2
        for _ in range(20):
            assert server.kv.Get(kv_pb2.GetRequest(key=b"large")).value == value
            server.kv.Set(kv_pb2.SetRequest(key=b"k", value=value))
        client.send_signal(signal.SIGCONT)
        report = client.stdout.read().decode()
    assert "StatusCode.OK" in report
    assert "StatusCode.RESOURCE_EXHAUSTED" in report
    assert "--memory-max" in report
    wait_until(lambda: server.metric("gpkvs_memory_bytes") < 256 << 10, "not all is given back")


@pytest.mark.parametrize(
    ("commit", "file"),
    [("undo", "root"), ("undo", "heap"), ("undo", "index-0-0"), ("undo", "log"), ("journal", "data")],
)
def test_a_file_truncated_while_it_is_served_ends_the_server_with_its_name(
    tmp_path: Path, commit: str, file: str
) -> None:
    """No response that could be wrong, a line in the log, and an exit status that is not 0."""
    server = Server(tmp_path / "store", tmp_path, "--commit", commit)
    value = bytes(1000)
    writes = [(SET, b"%d" % i, value) for i in range(1000)]
    server.kv.Batch(batch(writes))
    path = server.data / file
    os.truncate(path, 0)
    try:
        with pytest.raises(grpc.RpcError) as caught:
            # With a journal, a write would make the file longer again.
            server.kv.Batch(batch([*(writes if commit == "undo" else []), (GET, b"7")]), timeout=30)
        assert caught.value.code() is grpc.StatusCode.UNAVAILABLE
        assert server.process.wait(30) == 70
    finally:
        server.kill()
    lines = server.log.read_text().splitlines()
    [line] = [line for line in lines if "it was truncated" in line]
    assert str(path) in line
    assert "gpkvs check" in line


def test_an_existing_store_that_may_not_be_written_is_refused_and_untouched(start_server: StartServer) -> None:
    server = start_server()
    server.kv.Set(kv_pb2.SetRequest(key=b"k", value=b"v"))
    server.stop()
    files = [path for path in server.data.iterdir() if path.is_file()]
    before = {path: path.read_bytes() for path in files}
    modes = {path: path.stat().st_mode for path in [server.data, *files]}
    try:
        for path, mode in modes.items():
            path.chmod(mode & ~0o222)
        command = [*COMMAND, "serve", f"--data={server.data}", "--listen=127.0.0.1:0", "--metrics=127.0.0.1:0"]
        result = subprocess.run(
            [sys.executable, "-c", WITHOUT_ROOT_RIGHTS, *command], capture_output=True, timeout=60, check=False
        )
    finally:
        for path, mode in modes.items():
            path.chmod(mode)
    line = error_line(result, 1)
    assert str(server.data) in line
    assert "ermission denied" in line
    assert {path: path.read_bytes() for path in server.data.iterdir() if path.is_file()} == before


def test_stopped_while_a_client_hangs_and_others_write(start_server: StartServer) -> None:
    """It takes no longer than its grace, exits 0, and everything acknowledged is there."""
    server = start_server()
    server.kv.Set(kv_pb2.SetRequest(key=b"large", value=bytes(1_000_000)))
    acknowledged: list[bytes] = []
    ended: list[grpc.StatusCode] = []

    def write(name: int) -> None:
        try:
            for i in range(1_000_000):
                server.kv.Set(kv_pb2.SetRequest(key=b"%d-%d" % (name, i), value=b"v"))
                acknowledged.append(b"%d-%d" % (name, i))
        except grpc.RpcError as error:
            ended.append(error.code())

    with hanging_client(server, batch([(GET, b"large")] * 40), 10) as client:
        watch = health_pb2_grpc.HealthStub(server.channel).Watch(health_pb2.HealthCheckRequest())
        assert next(iter(watch)).status == health_pb2.HealthCheckResponse.SERVING
        wait_until(lambda: server.metric("gpkvs_memory_bytes", kind="answers") > 40_000_000, "nothing is held")
        writers = [threading.Thread(target=write, args=(name,)) for name in range(4)]
        for writer in writers:
            writer.start()
        wait_until(lambda: len(acknowledged) > 200, "others are not served")
        began = time.monotonic()
        server.stop()
        assert time.monotonic() - began < STOP_SECONDS_MAX
        for writer in writers:
            writer.join(10)
        client.kill()
    assert len(ended) == 4
    with gpkvs.open(server.data) as store:
        assert all(store.get(key) == b"v" for key in acknowledged)


def test_calls_cancelled_in_the_middle_leave_nothing_behind(start_server: StartServer) -> None:
    """Their batch is done or it is not; the server goes on, and holds nothing for them."""
    server = start_server("--heap-bytes", "128MiB")  # room for all, since overwritten records are not compacted
    seed = secrets.randbits(32)
    print(f"seed {seed}")
    choose = random.Random(seed)
    values = {i: bytes([i]) * 5000 for i in range(100)}
    before = resident_bytes(server)
    done = cancelled = 0

    def begun() -> list[Any]:
        calls = []
        for _ in range(20):
            i = choose.choice(list(values))
            operations = [(SET, b"%d-%d" % (i, j), values[i]) for j in range(20)] + [(GET, b"%d-0" % i)]
            calls.append(server.kv.Batch.future(batch(operations)))
        return calls

    began = time.monotonic()
    for call in begun():
        call.result()
    took = time.monotonic() - began  # on this machine
    for _ in range(20):
        calls = begun()
        time.sleep(max(0.0, choose.random() - 0.5) * took)  # half of them at once
        for call in calls:
            call.cancel()
        for call in calls:
            if call.cancelled():
                cancelled += 1
            else:
                done += call.result().status == bytes(21)
    print(f"{done} done, {cancelled} cancelled")
    assert cancelled > 20
    for i, value in values.items():
        held = values_of(server.kv.Batch(batch([(GET, b"%d-%d" % (i, j)) for j in range(20)])))
        assert held in ([value] * 20, [b""] * 20)
    # The native door counts the open connection too.
    wait_until(lambda: server.metric("gpkvs_memory_bytes") < 256 << 10, "memory is held")
    assert server.metric("gpkvs_queue_requests") == 0
    assert resident_bytes(server) - before < 200 * MIB


def test_a_thousand_connections(server: Server) -> None:
    """All get a response while all are open, and the memory that they take is small."""
    count, value = 1000, bytes(10_000)
    before = resident_bytes(server)

    def connections() -> int:
        return len(list(Path(f"/proc/{server.process.pid}/fd").iterdir()))

    async def main() -> tuple[list[int], list[bytes], int]:
        channels = [
            grpc.aio.insecure_channel(server.target, options=[("grpc.use_local_subchannel_pool", 1)])
            for _ in range(count)
        ]
        stubs = [kv_pb2_grpc.KVStub(channel) for channel in channels]
        writes = await asyncio.gather(
            *[stub.Set(kv_pb2.SetRequest(key=b"%d" % i, value=value)) for i, stub in enumerate(stubs)]
        )
        reads = await asyncio.gather(*[stub.Get(kv_pb2.GetRequest(key=b"%d" % i)) for i, stub in enumerate(stubs)])
        open_now = connections()
        for channel in channels:
            await channel.close()
        return [write.version for write in writes], [read.value for read in reads], open_now

    versions, read, open_now = asyncio.run(main())
    assert len(set(versions)) == count
    assert read == [value] * count
    assert open_now > count
    taken = resident_bytes(server) - before
    print(f"{taken / MIB:.0f} MiB for {count} connections")
    assert taken < 300 * MIB
    assert server.kv.Get(kv_pb2.GetRequest(key=b"7")).value == value
