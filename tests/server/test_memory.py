"""The worst clients of each kind: the server stays within its memory, names each refusal, and serves others."""

from __future__ import annotations

import json
import statistics
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager

import grpc
import pytest

from gpkvs.bench.door.frames import message
from gpkvs.proto.v1 import kv_pb2
from tests.server.hostile import MIB, Hostile
from tests.server.test_faults import resident_bytes, wait_until
from tests.server.wire import Refused
from tests.serving import Server, StartServer, error_line, run_gpkvs

pytestmark = pytest.mark.own_python

MEMORY_BYTES = 256 * MIB
MESSAGE_BYTES = MEMORY_BYTES // 64  # what the server makes of it
ATTACK_SECONDS = 2.0


class Watch:
    """Looks at a server's memory, and writes as one more client would, until it is stopped."""

    def __init__(self, server: Server) -> None:
        self._server = server
        self._idle_bytes = resident_bytes(server)
        self._is_over = threading.Event()
        self.held_bytes_max = 0
        self.set_seconds: list[float] = []
        self._threads = [threading.Thread(target=run) for run in (self._look, self._write)]

    def held_bytes(self) -> int:
        """What the process holds beyond what it held when it was idle."""
        return resident_bytes(self._server) - self._idle_bytes

    def _look(self) -> None:
        while not self._is_over.wait(0.01):
            self.held_bytes_max = max(self.held_bytes_max, self.held_bytes())

    def _write(self) -> None:
        while not self._is_over.wait(0.02):
            began = time.monotonic()
            self._server.kv.Set(kv_pb2.SetRequest(key=b"k", value=b"v"), timeout=60)  # it is never refused
            self.set_seconds.append(time.monotonic() - began)

    def __enter__(self) -> Watch:
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *exception: object) -> None:
        self._is_over.set()
        for thread in self._threads:
            thread.join()


@contextmanager
def attack(kind: str, server: Server) -> Iterator[dict[str, int]]:
    """Attack inside this block; what became of the attacker's calls is there when it has ended."""
    command = [sys.executable, "-m", "tests.server.hostile", kind, server.target, str(MESSAGE_BYTES)]
    hostile = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    outcomes: dict[str, int] = {}
    try:
        yield outcomes
        out, _ = hostile.communicate(timeout=60)
        outcomes.update(json.loads(out))
    finally:
        hostile.kill()
        hostile.wait()


@pytest.mark.parametrize(
    ("kind", "reason"),
    [
        ("answers", "memory_full"),  # large responses that nobody reads
        ("bombs", "unsupported"),  # compressed messages
        ("queue", "memory_full"),  # large requests, faster than the engine takes them
        ("streams", "memory_full"),  # messages that never become whole: many calls on two connections,
        ("connections", "memory_full"),  # a few on each of many,
        ("health", "memory_full"),  # to a service of gRPC's own,
        ("pipelines", "memory_full"),  # or in streams, where a message may take its time
    ],
)
def test_the_worst_clients(start_server: StartServer, kind: str, reason: str) -> None:
    server = start_server("--memory-max", str(MEMORY_BYTES))
    server.kv.Set(kv_pb2.SetRequest(key=b"k", value=b"v"))
    counted_max = 0.0
    refused = lambda: server.metric("gpkvs_requests_refused_total", reason=reason)  # noqa: E731
    with attack(kind, server) as outcomes:
        wait_until(lambda: refused() > 0, "the attack does not begin")
        with Watch(server) as watch:
            until = time.monotonic() + ATTACK_SECONDS
            while time.monotonic() < until:
                counted_max = max(counted_max, server.metric("gpkvs_memory_bytes"))
                time.sleep(0.05)
    print(
        f"{kind}: counted {counted_max / MIB:.0f} MiB, held {watch.held_bytes_max / MIB:.0f} MiB, SET median "
        f"{statistics.median(watch.set_seconds):.3f} s, longest {max(watch.set_seconds):.3f} s, attacker: {outcomes}"
    )
    assert counted_max < MEMORY_BYTES == server.metric("gpkvs_memory_max_bytes")
    assert watch.held_bytes_max < 1.3 * MEMORY_BYTES
    assert statistics.median(watch.set_seconds) < 5  # on a busy machine; by itself it takes milliseconds
    # Each response is a named refusal before execution. HTTP/2 itself refuses streams above the limit.
    refused_stream = "reset 7"
    assert sum(n for outcome, n in outcomes.items() if outcome.startswith("not executed")) > 10
    assert not {outcome for outcome in outcomes if not outcome.startswith("not executed")} - {refused_stream}
    assert refused() > 10

    # The native door counts connections too; here are those of the channel and of the watch.
    wait_until(lambda: server.metric("gpkvs_memory_bytes") < 256 << 10, "not all is given back")
    wait_until(lambda: watch.held_bytes() < MEMORY_BYTES // 4, "the memory is kept")
    server.kv.Set(kv_pb2.SetRequest(key=b"after", value=bytes(1_000_000)))
    assert len(server.kv.Get(kv_pb2.GetRequest(key=b"after")).value) == 1_000_000


def test_a_message_that_never_becomes_whole_ends_its_call(start_server: StartServer) -> None:
    server = start_server("--receive-seconds-max", "0.3")
    outcomes: Counter[str] = Counter()
    hostile = Hostile(server.target, outcomes)
    hostile.call("/gpkvs.v1.KV/Set", message(b"half", size=8), ends=False)
    until = time.monotonic() + 30
    while not outcomes and time.monotonic() < until:
        hostile.step()
    hostile.close()
    assert outcomes == {"not executed": 1}
    assert server.metric("gpkvs_requests_refused_total", reason="slow") == 1
    ended = {"grpc_type": "unary", "grpc_method": "Set", "grpc_code": "DEADLINE_EXCEEDED"}
    assert server.metric("grpc_server_handled_total", **ended) == 1


def test_a_stop_does_not_wait_for_messages_on_their_way(start_server: StartServer) -> None:
    """Calls that wait for theirs, and those that wait for their turn to ask, are told at once."""
    server = start_server("--memory-max", str(MEMORY_BYTES))
    outcomes: Counter[str] = Counter()
    hostile = Hostile(server.target, outcomes)
    for _ in range(50):
        hostile.call("/gpkvs.v1.KV/Set", message(b"half", size=8), ends=False)
    until = time.monotonic() + 30
    while server.metric("grpc_server_started_total", grpc_method="Set") < 50 and time.monotonic() < until:
        hostile.step()
    server.process.terminate()
    while sum(outcomes.values()) < 50 and time.monotonic() < until:
        hostile.step()
    hostile.close()
    assert outcomes == {"not executed": 50}


@pytest.mark.parametrize("compression", [grpc.Compression.Gzip, grpc.Compression.Deflate])
def test_compressed_messages_are_refused_by_name(server: Server, compression: grpc.Compression) -> None:
    request = kv_pb2.SetRequest(key=b"k", value=bytes(1 << 20))
    with Refused(grpc.StatusCode.UNIMPLEMENTED, "compressed"):
        server.kv.Set(request, compression=compression)
    requests = [kv_pb2.BatchRequest(ops=b"\x02", keys=b"k", key_size=1, values=bytes(1 << 20), value_size=1 << 20)]
    with Refused(grpc.StatusCode.UNIMPLEMENTED, "compressed"):
        list(server.kv.Pipeline(iter(requests), compression=compression))
    assert server.metric("gpkvs_requests_refused_total", reason="unsupported") == 2
    assert not server.kv.Get(kv_pb2.GetRequest(key=b"k")).found


def test_a_unary_call_without_a_message_or_with_two(server: Server) -> None:
    """The first is refused by name; of the other, the first message counts, as always."""
    one = kv_pb2.SetRequest(key=b"k", value=b"1")
    call = server.channel.stream_unary(
        "/gpkvs.v1.KV/Set",
        request_serializer=kv_pb2.SetRequest.SerializeToString,
        response_deserializer=kv_pb2.SetResponse.FromString,
    )
    with Refused(grpc.StatusCode.UNIMPLEMENTED, "without a message"):
        call(iter([]))
    assert call(iter([one, kv_pb2.SetRequest(key=b"k", value=b"2")])).version
    assert server.kv.Get(kv_pb2.GetRequest(key=b"k")).value == b"1"


def test_thousands_of_calls_at_once_all_get_responses(start_server: StartServer) -> None:
    server = start_server()
    channels = [
        grpc.insecure_channel(server.target, options=[("grpc.use_local_subchannel_pool", 1)]) for _ in range(40)
    ]
    request = kv_pb2.SetRequest(key=b"k", value=bytes(1000)).SerializeToString()
    calls = [
        channel.unary_unary("/gpkvs.v1.KV/Set").future(request, timeout=60) for _ in range(100) for channel in channels
    ]
    codes = {call.code() for call in calls}
    for channel in channels:
        channel.close()
    assert codes == {grpc.StatusCode.OK}


def test_too_little_memory_is_refused_with_what_it_needs() -> None:
    result = run_gpkvs("serve", "--data", "/nowhere", "--memory-max", "1MiB", "--listen", "127.0.0.1:0")
    assert "memory_max: 1,048,576 bytes, a server needs at least 67,108,864" in error_line(result, 2)
