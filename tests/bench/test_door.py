"""The benchmark of the door, as its user runs it."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

import pytest

from gpkvs.bench.door.bodies import write_single
from gpkvs.bench.door.empty_servers import GRPC_AIO, PYGRPC, build_empty_servers
from gpkvs.bench.door.h2load import METHODS, Load, require_h2load
from gpkvs.bench.door.measured_doors import Target
from gpkvs.bench.peers.contender import BenchError
from tests.bench.test_wear_and_growth import needs_shm
from tests.programs import needs
from tests.serving import Server, run_gpkvs

needs_h2load = needs("h2load")


@needs_shm
@needs_h2load
def test_the_door_is_measured_beside_servers_that_do_nothing(tmp_path: Path) -> None:
    kept = tmp_path / "door.json"
    sizes = ("--records", "2000", "--runs", "1", "--seconds", "0.02", "--message", "64", "--crowd", "10")
    parts = [word for part in ("unary", "methods", "pipeline", "crowd") for word in ("--part", part)]
    done = run_gpkvs("bench", "door", *sizes, *parts, "--json", str(kept))
    assert done.returncode == 0, done.stderr.decode()
    result = json.loads(kept.read_text())
    found = {(one["task"], one["contender"]): one["rate"] for one in result["measurements"]}
    for operation in ("SET", "GET"):
        for task in (f"{operation}, 50 connections", f"{operation}, 4 x 100 streams"):
            assert found[task, "empty nghttp2"] > 0
            assert found[task, "native"] > 0
        stream = f"{operation} stream, 64 a message"
        assert found[stream, "native"] > 0
        assert found[stream, "redis"] > 0
    rows = {(one["what"], one["store"], one["beside"]) for one in result["comparisons"]}
    assert ("GET, a crowd of 10: p99", "native flooded", "native") in rows
    assert ("SET, 50 connections", "native", "empty nghttp2") in rows
    methods = [(own, beside) for what, own, beside in rows if what == "single calls, 50 connections"]
    assert ("native: CHECK, SET", "native: SET") in methods
    assert len(methods) == 5


@needs_h2load
def test_errors_do_not_count_as_answers(server: Server, tmp_path: Path) -> None:
    """h2load takes an error of gRPC for an answer; the server's metrics and the bytes do not."""
    bodies = write_single(tmp_path)  # of a table that is not there
    for answer_bytes, told in ((None, "counts"), (5, "bytes")):
        load = Load(METHODS["SET"], bodies["SET"], answer_bytes=answer_bytes)
        target = Target("door", f"http://{server.target}", server.metrics_address)
        with pytest.raises(BenchError, match=told):
            asyncio.run(target.run(load, 0.01))


def test_what_is_missing_is_named(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(BenchError, match="apt-get install nghttp2-client"):
        require_h2load()
    missing: list[str] = []
    assert set(build_empty_servers(tmp_path, missing.append)) <= {GRPC_AIO, PYGRPC}
    assert all("apt-get install g++" in one for one in missing[:2])
