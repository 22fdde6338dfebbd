"""Metrics of what surrounds the store: connections by port, and the disk."""

from __future__ import annotations

import asyncio
import os
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path

import grpc
import pytest

from gpkvs.proto.v1 import kv_pb2, kv_pb2_grpc
from gpkvs.server.signs import disk_watch
from gpkvs.server.signs.disk_watch import DiskWatch
from tests.server.redis.two_servers import Connection, resp_port
from tests.serving import Server, StartServer


def open_at(server: Server) -> dict[str, float]:
    return {port: server.metric("gpkvs_connections", port=port) for port in ("grpc", "redis")}


def test_connections_are_counted_by_port(start_server: StartServer) -> None:
    server = start_server("--resp", "127.0.0.1:0")
    before = open_at(server)
    with ExitStack() as stack:
        for _ in range(3):
            redis = stack.enter_context(Connection(resp_port(server)))
            assert redis.call(b"PING") == b"+PONG\r\n"
        for number in range(2):  # each with a connection of its own
            options = (("grpc.use_local_subchannel_pool", 1), ("number", number))
            channel = stack.enter_context(grpc.insecure_channel(server.target, options))
            kv_pb2_grpc.KVStub(channel).Get(kv_pb2.GetRequest(key=b"k"))
        assert open_at(server) == {"grpc": before["grpc"] + 2, "redis": before["redis"] + 3}
        assert server.metric("gpkvs_connections", port="metrics") == 1  # that of the scrape
        assert server.metric("gpkvs_connections_max") > 100
    end = time.monotonic() + 30
    while open_at(server) != before:
        assert time.monotonic() < end
        time.sleep(0.02)


def test_the_disk_is_told(start_server: StartServer) -> None:
    server = start_server()
    found = os.statvfs(server.data)
    assert server.metric("gpkvs_disk_bytes") == found.f_blocks * found.f_frsize
    assert 0 < server.metric("gpkvs_disk_free_bytes") <= server.metric("gpkvs_disk_bytes")


def test_a_disk_that_hangs_is_asked_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def run() -> None:
        asked = 0
        answers = asyncio.Event()
        monkeypatch.setattr(disk_watch, "_LOOK_SECONDS", 0.0)
        with ThreadPoolExecutor(1) as helpers:
            watch = DiskWatch(tmp_path, helpers)
            await watch.begin()
            last = watch.free_bytes, watch.all_bytes
            assert min(last) > 0
            loop = asyncio.get_running_loop()
            hang = loop.create_future()

            async def hanging() -> None:
                nonlocal asked
                asked += 1
                answers.set()
                await hang

            monkeypatch.setattr(loop, "run_in_executor", lambda *_: loop.create_task(hanging()))
            await answers.wait()
            for _ in range(100):
                await asyncio.sleep(0)
            assert asked == 1
            assert (watch.free_bytes, watch.all_bytes) == last
            watch.close()
            hang.set_result(None)

    asyncio.run(run())
