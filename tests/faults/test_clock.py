"""A wall clock that jumps forth and back: no data depend on it, and times to live count as ever."""

from __future__ import annotations

import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import grpc
import pytest

from gpkvs.proto.v1 import kv_pb2
from tests.serving import Server, StartServer, run_gpkvs

DAY_SECONDS = 86_400
PATIENCE_SECONDS = 60  # much less than a clock is set back


class WallClock:
    """The wall clock of a server, as many seconds ahead of this machine's as somebody says."""

    def __init__(self, file: Path, shim: Path) -> None:
        self._file = file
        self.env = {"LD_PRELOAD": str(shim), "GPKVS_SHIM": f"wall:{file}"}
        file.write_bytes(bytes(8))

    def set_ahead(self, seconds: int) -> None:
        with self._file.open("r+b") as file:
            file.write(seconds.to_bytes(8, "little", signed=True))


@pytest.fixture
def wall(tmp_path: Path, shim: Path) -> WallClock:
    return WallClock(tmp_path / "wall", shim)


Ask = Callable[..., bytes]


@contextmanager
def redis_of(server: Server) -> Iterator[Ask]:
    """Yield a function that has a server of the Redis protocol run a command; it returns lines of the answer."""
    host, port = server.resp_addresses[0].rsplit(":", 1)
    with (
        socket.create_connection((host, int(port)), PATIENCE_SECONDS) as connection,
        connection.makefile("rb") as stream,
    ):

        def ask(*words: str, lines: int = 1) -> bytes:
            connection.sendall(" ".join(words).encode() + b"\r\n")
            return b"".join(stream.readline() for _ in range(lines)).rstrip()

        yield ask


def wait_until(happens: Callable[[], bool]) -> None:
    give_up = time.monotonic() + PATIENCE_SECONDS
    while not happens():
        assert time.monotonic() < give_up
        time.sleep(0.02)


def is_there(server: Server, key: bytes) -> bool:
    return bool(server.kv.Get(kv_pb2.GetRequest(key=key)).found)


def test_times_to_live_count_as_ever_while_the_clock_is_behind(start_server: StartServer, wall: WallClock) -> None:
    wall.set_ahead(DAY_SECONDS)
    server = start_server("--resp", "127.0.0.1:0", env=wall.env)
    with redis_of(server) as ask:
        assert ask("SET", "before", "1", "PX", "2500") == b"+OK"
        assert server.metric("gpkvs_clock_back_seconds") < 1
        wall.set_ahead(0)
        began = time.monotonic()
        assert ask("SET", "lock", "1", "NX", "PX", "2000") == b"+OK"
        server.kv.Set(kv_pb2.SetRequest(key=b"lease", value=b"1", ttl_ms=2000))
        assert ask("SET", "long", "1", "EX", "1000") == b"+OK"
        from_here, (first, at) = time.monotonic(), (int(ask("PTTL", "long")[1:]), time.monotonic())
        wait_until(lambda: not is_there(server, b"lease"))
        assert time.monotonic() - began >= 2
        wait_until(lambda: ask("EXISTS", "lock") == b":0")
        assert ask("SET", "lock", "2", "NX", "PX", "2000") == b"+OK"
        wait_until(lambda: ask("EXISTS", "before") == b":0")
        to_here, (second, until) = time.monotonic(), (int(ask("PTTL", "long")[1:]), time.monotonic())
        assert 1000 * (to_here - at) - 2 <= first - second <= 1000 * (until - from_here) + 2
        assert DAY_SECONDS - 1 <= server.metric("gpkvs_clock_back_seconds") <= DAY_SECONDS
        wait_until(lambda: "the clock was set back by 86400 s" in server.log.read_text())
        wall.set_ahead(DAY_SECONDS + 1)
        wait_until(lambda: "the clock has caught up" in server.log.read_text())
        assert server.metric("gpkvs_clock_back_seconds") == 0
        assert server.log.read_text().count("set back") == 1
        assert 997_000 - 1000 * PATIENCE_SECONDS < int(ask("PTTL", "long")[1:]) < second


def test_moments_are_compared_with_the_time_that_counts(start_server: StartServer, wall: WallClock) -> None:
    wall.set_ahead(DAY_SECONDS)
    server = start_server("--resp", "127.0.0.1:0", env=wall.env)
    with redis_of(server) as ask:
        assert ask("SET", "key", "1", "EX", "100") == b"+OK"
        wall.set_ahead(0)
        now = int(time.time())
        assert ask("SET", "soon", "1", "EXAT", str(now + 1000)) == b"+OK"
        assert ask("EXISTS", "soon") == b":0", "that moment has passed"
        assert ask("SET", "later", "1", "EXAT", str(now + DAY_SECONDS + 1000)) == b"+OK"
        assert 900 - PATIENCE_SECONDS < int(ask("TTL", "later")[1:]) <= 1000
        says = int(ask("TIME", lines=5).splitlines()[2])
        assert now + DAY_SECONDS <= says < now + DAY_SECONDS + PATIENCE_SECONDS


def test_a_restart_keeps_the_time_until_somebody_resets_it(
    start_server: StartServer, wall: WallClock, tmp_path: Path
) -> None:
    wall.set_ahead(DAY_SECONDS)
    server = start_server("--resp", "127.0.0.1:0", env=wall.env)
    with redis_of(server) as ask:
        assert ask("SET", "before", "1", "EX", "1000") == b"+OK"
        wall.set_ahead(0)
        assert ask("SET", "meanwhile", "1", "EX", "1000") == b"+OK"
    wait_until(lambda: server.log.read_text().count("the clock was set back by") == 1)
    server.stop()
    server = start_server("--resp", "127.0.0.1:0", env=wall.env)
    with redis_of(server) as ask:
        for key in ("before", "meanwhile"):
            assert 1000 - PATIENCE_SECONDS < int(ask("TTL", key)[1:]) <= 1000
        assert ask("SET", "moment", "1", "EXAT", str(int(time.time()) + 1000)) == b"+OK"
        assert ask("EXISTS", "moment") == b":0"
    assert DAY_SECONDS - PATIENCE_SECONDS < server.metric("gpkvs_clock_back_seconds") <= DAY_SECONDS
    wait_until(lambda: server.log.read_text().count("the clock was set back by") == 2)
    server.stop()
    assert run_gpkvs("recover", str(tmp_path / "store"), "--reset-time").returncode == 0
    server = start_server("--resp", "127.0.0.1:0", env=wall.env)
    with redis_of(server) as ask:
        assert DAY_SECONDS < int(ask("TTL", "meanwhile")[1:]) <= DAY_SECONDS + 1000
        assert ask("SET", "moment", "1", "EXAT", str(int(time.time()) + 1000)) == b"+OK"
        assert ask("EXISTS", "moment") == b":1"
    assert server.metric("gpkvs_clock_back_seconds") == 0


@pytest.mark.parametrize("seconds", [400 * DAY_SECONDS, -400 * DAY_SECONDS], ids=["ahead", "back"])
def test_data_and_versions_do_not_depend_on_the_clock(start_server: StartServer, shim: Path, seconds: int) -> None:
    server = start_server(env={"LD_PRELOAD": str(shim), "GPKVS_SHIM": f"clock:{seconds}:3"})
    versions = []
    for i in range(200):
        versions.append(server.kv.Set(kv_pb2.SetRequest(key=b"key", value=b"%d" % i)).version)
        assert server.kv.Get(kv_pb2.GetRequest(key=b"key")).value == b"%d" % i
    assert versions == sorted(set(versions))


@pytest.mark.parametrize("seconds", [400 * DAY_SECONDS, -400 * DAY_SECONDS], ids=["ahead", "back"])
def test_deadlines_are_those_of_a_clock_that_does_not_jump(start_server: StartServer, shim: Path, seconds: int) -> None:
    """Only a call that is being received while the clock jumps may miss its deadline; it is then not executed."""
    server = start_server(env={"LD_PRELOAD": str(shim), "GPKVS_SHIM": f"clock:{seconds}:101"})
    missed, stored = 0, b""
    for i in range(300):
        try:
            server.kv.Set(kv_pb2.SetRequest(key=b"key", value=b"%d" % i), timeout=20)
            stored = b"%d" % i
        except grpc.RpcError as error:
            assert error.code() is grpc.StatusCode.DEADLINE_EXCEEDED  # noqa: PT017 - most calls raise nothing
            missed += 1
    assert missed < 30
    assert server.kv.Get(kv_pb2.GetRequest(key=b"key")).value == stored

    server.freeze()
    began = time.monotonic()
    with pytest.raises(grpc.RpcError) as late:
        server.kv.Get(kv_pb2.GetRequest(key=b"key"), timeout=1)
    server.thaw()
    assert late.value.code() is grpc.StatusCode.DEADLINE_EXCEEDED
    assert 0.9 < time.monotonic() - began < 10


def test_the_clock_does_jump(shim: Path) -> None:
    """The two tests above would prove nothing if the shim did not work in a server."""
    program = "import time; print(max(abs(time.time() - time.time()) for _ in range(9)))"
    done = subprocess.run(
        [sys.executable, "-c", program],
        env={"LD_PRELOAD": str(shim), "GPKVS_SHIM": f"clock:{DAY_SECONDS}:1"},
        capture_output=True,
        text=True,
        check=True,
    )
    assert float(done.stdout) > DAY_SECONDS / 2
