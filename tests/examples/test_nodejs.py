"""The example in Node.js, from the .proto file alone, against a real server."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

from gpkvs.proto.v1 import admin_pb2, kv_pb2
from tests.examples.node import node_tools
from tests.serving import Server

REPOSITORY = Path(__file__).parents[2]
EXAMPLE = REPOSITORY / "examples" / "nodejs"


def test_the_example_runs(server: Server, tmp_path: Path) -> None:
    folder = tmp_path / "nodejs"
    shutil.copytree(EXAMPLE, folder, ignore=shutil.ignore_patterns("node_modules"))
    environment = os.environ | {"PATH": f"{node_tools(tmp_path / 'tools')}:{os.environ['PATH']}"}
    install = ["npm", "ci", "--ignore-scripts", "--no-audit", "--no-fund"]
    installed = subprocess.run(install, cwd=folder, env=environment, capture_output=True, timeout=200, check=False)
    assert installed.returncode == 0, installed.stderr.decode()
    proto = REPOSITORY / "proto" / "v1" / "kv.proto"
    command = ["node", "example.js", server.target, str(proto)]
    result = subprocess.run(command, cwd=folder, env=environment, capture_output=True, timeout=60, check=False)
    assert result.returncode == 0, result.stderr.decode()
    assert result.stdout.decode().splitlines() == [
        "get answer: 42 (as set: true)",
        "get no such key: found false",
        "batch: one two three, status 0 0 0 1",
        "request 101 failed with code 3: ops: a request needs at least one operation",
        "pipeline: stored 10000 values in 100 requests",
    ]
    assert server.kv.Get(kv_pb2.GetRequest(key=b"100-99")).value == b"100-99"
    assert server.admin.Info(admin_pb2.InfoRequest()).tables[0].records == 10_004
