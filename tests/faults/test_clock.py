"""A wall clock that jumps forth and back: nothing depends on it."""

from __future__ import annotations

import subprocess
import sys
import time
from pathlib import Path

import grpc
import pytest

from gpkvs.proto.v1 import kv_pb2
from tests.serving import StartServer

DAY_SECONDS = 86_400


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
