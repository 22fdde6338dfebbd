"""A native door that the system gives no more memory, nor threads: it refuses what it cannot do, and serves on."""

from __future__ import annotations

import contextlib

import grpc
import pytest

from gpkvs.proto.v1 import kv_pb2
from tests.door.resp_door import answers, command, connect
from tests.server.test_little_memory import MIB, no_more_memory
from tests.serving import StartServer

pytestmark = pytest.mark.own_python


def test_no_memory_for_one_more_thread(start_server: StartServer) -> None:
    """All that a server does for the first time finds the thread that it needs."""
    server = start_server("--commit", "journal", "--resp", "127.0.0.1:0")
    port = server.resp_addresses[0].rsplit(":", 1)[1]
    with connect(int(port)) as redis:
        redis.sendall(command(b"SET", b"k", b"v"))
        assert answers(redis, 1) == b"+OK\r\n"
    with connect(int(port)) as redis, no_more_memory(server, 4 * MIB):  # half of a thread's stack
        redis.sendall(command(b"SET", b"k", b"value", b"XX", b"KEEPTTL"))  # Python's request waits for the disk
        assert answers(redis, 1) == b"+OK\r\n"
        redis.sendall(command(b"SETRANGE", b"k", b"0", b"va") + command(b"INCRBYFLOAT", b"n", b"1.5"))
        assert answers(redis, 2) == b":5\r\n$3\r\n1.5\r\n"
        redis.sendall(command(b"DEL", b"n"))
        assert answers(redis, 1) == b":1\r\n"
        redis.sendall(command(b"KEYS", b"*"))
        assert answers(redis, 1) == b"*1\r\n$1\r\nk\r\n"
        assert "gpkvs_serving 1" in server.metrics_text()
        assert len(list(server.kv.Scan(kv_pb2.ScanRequest()))) == 1
        server.stop()


@pytest.mark.format3  # whose values take memory on their way
def test_no_memory_at_all(start_server: StartServer) -> None:
    """What is refused says why, and nothing else happens: not even a thread that throws for the first time."""
    server = start_server("--resp", "127.0.0.1:0", "--heap-bytes-max", "1GiB")
    port = int(server.resp_addresses[0].rsplit(":", 1)[1])
    stored, refused = {}, []
    with no_more_memory(server, 0):
        for number in range(120):
            key, value = b"%d" % number, bytes([number]) * 800_000
            if number % 2:
                try:
                    server.kv.Set(kv_pb2.SetRequest(key=key, value=value), timeout=60)
                    stored[key] = value
                except grpc.RpcError as error:
                    refused.append(error.code())
            else:
                with contextlib.suppress(ConnectionError), connect(port) as redis:
                    redis.sendall(command(b"SET", key, value))
                    answer = answers(redis, 1)
                    assert not answer or answer.startswith((b"+OK", b"-OOM")), answer
                    if answer.startswith(b"+OK"):
                        stored[key] = value
            assert server.process.poll() is None, server.log.read_text()
    assert refused
    assert set(refused) <= {grpc.StatusCode.RESOURCE_EXHAUSTED, grpc.StatusCode.UNAVAILABLE}
    for key, value in stored.items():
        assert server.kv.Get(kv_pb2.GetRequest(key=key)).value == value
    server.stop()
    assert server.log.read_text().count("the heap could not be compacted") < 10
