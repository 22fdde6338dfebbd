"""What clients, operators and disks do to a server: it stays within its memory, and says what is wrong."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import grpc
import pytest

from gpkvs.proto.v1 import kv_pb2
from tests.e2e.conftest import Server, StartServer
from tests.e2e.wire import GET, SET, batch

MIB = 1 << 20

# Asks for a large answer many times over one connection, then stops as a process that hangs: the kernel holds its
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
answers = [stub.Batch.future(request) for _ in range(calls)]
time.sleep(0.05)
os.kill(os.getpid(), signal.SIGSTOP)
codes = collections.Counter(str(answer.code()) for answer in answers)
print(dict(codes), {answer.details() for answer in answers} - {""})
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
    """60 calls ask for 2.7 GB and nobody reads; others are served, and all is given back."""
    limit = 256 * MIB
    server = start_server("--answer-bytes-max", str(limit))
    value = bytes(1_000_000)
    server.kv.Set(kv_pb2.SetRequest(key=b"large", value=value))
    before = resident_bytes(server)
    with hanging_client(server, batch([(GET, b"large")] * 45), 60) as client:
        refused = lambda: server.metric("gpkvs_requests_refused_total", reason="answers_full")  # noqa: E731
        wait_until(lambda: refused() > 50 and server.metric("gpkvs_queue_requests") == 0, "too much is answered")
        held = wait_settled(lambda: server.metric("gpkvs_answer_bytes"))
        print(f"held {held / MIB:.0f} MiB, memory {(resident_bytes(server) - before) / MIB:.0f} MiB more")
        assert 45_000_000 < held <= limit // 2 + 64 * MIB
        # gRPC keeps a copy of its own of what it sends.
        assert resident_bytes(server) - before < 2 * limit
        for _ in range(20):
            assert server.kv.Get(kv_pb2.GetRequest(key=b"large")).value == value
            server.kv.Set(kv_pb2.SetRequest(key=b"k", value=value))
        client.send_signal(signal.SIGCONT)
        report = client.stdout.read().decode()
    assert "StatusCode.OK" in report
    assert "StatusCode.RESOURCE_EXHAUSTED" in report
    assert "answer_bytes_max" in report
    wait_until(lambda: server.metric("gpkvs_answer_bytes") == 0, "not all is given back")


@pytest.mark.parametrize("file", ["root", "heap", "index-0-0", "log"])
def test_a_file_truncated_while_it_is_served_ends_the_server_with_its_name(tmp_path: Path, file: str) -> None:
    """No answer that could be wrong, a line in the log, and an exit status that is not 0."""
    server = Server(tmp_path / "store", tmp_path)
    value = bytes(1000)
    server.kv.Batch(batch([(SET, b"%d" % i, value) for i in range(1000)]))
    path = server.data / file
    os.truncate(path, 0)
    try:
        with pytest.raises(grpc.RpcError) as caught:
            server.kv.Batch(batch([(SET, b"%d" % i, value) for i in range(1000)] + [(GET, b"7")]), timeout=30)
        assert caught.value.code() is grpc.StatusCode.UNAVAILABLE
        assert server.process.wait(30) == 70
    finally:
        server.kill()
    lines = server.log.read_text().splitlines()
    [line] = [line for line in lines if "it was truncated" in line]
    assert str(path) in line
    assert "gpkvs check" in line
