"""The example in Node.js, from the .proto file alone, against a real server."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from gpkvs.proto.v1 import admin_pb2, kv_pb2
from tests.accounts import Account, Accounts
from tests.certificates import HERE, Authority, server_options
from tests.examples.node import node_tools
from tests.server.access.guarded import Guarded
from tests.serving import Server

REPOSITORY = Path(__file__).parents[2]
EXAMPLE = REPOSITORY / "examples" / "nodejs"


@pytest.fixture
def guarded(tmp_path: Path) -> Iterator[Guarded]:
    """Return a server with TLS and a user."""
    folder = tmp_path / "guarded"
    folder.mkdir()
    authority = Authority(folder)
    options = server_options(authority.issue("server", *HERE))
    accounts = Accounts(folder / "users.toml", root=Account(read=("*",), write=("*",), admin=("*",)))
    guarded = Guarded(accounts, folder, *options, authority=authority)
    yield guarded
    guarded.close()


def test_the_example_runs(server: Server, guarded: Guarded, tmp_path: Path) -> None:
    folder = tmp_path / "nodejs"
    shutil.copytree(EXAMPLE, folder, ignore=shutil.ignore_patterns("node_modules"))
    environment = os.environ | {"PATH": f"{node_tools(tmp_path / 'tools')}:{os.environ['PATH']}"}
    install = ["npm", "ci", "--ignore-scripts", "--no-audit", "--no-fund"]
    installed = subprocess.run(install, cwd=folder, env=environment, capture_output=True, timeout=200, check=False)
    assert installed.returncode == 0, installed.stderr.decode()
    proto = REPOSITORY / "proto" / "v1" / "kv.proto"

    def run(target: str, more: dict[str, str]) -> list[str]:
        command = ["node", "example.js", target, str(proto)]
        result = subprocess.run(
            command, cwd=folder, env=environment | more, capture_output=True, timeout=60, check=False
        )
        assert result.returncode == 0, result.stderr.decode()
        return result.stdout.decode().splitlines()

    expected = [
        "get answer: 42 (as set: true)",
        "get no such key: found false",
        "batch: one two three, status 0 0 0 1",
        "request 101 failed with code 3: ops: a request needs at least one operation",
        "pipeline: stored 10000 values in 100 requests",
    ]
    assert run(server.target, {}) == expected
    assert server.kv.Get(kv_pb2.GetRequest(key=b"100-99")).value == b"100-99"
    assert server.admin.Info(admin_pb2.InfoRequest()).tables[0].records == 10_004
    token = guarded.headers["root"][0][1].removeprefix("Bearer ")
    access = {"GPKVS_CLIENT_TLS_CA": str(tmp_path / "guarded" / "ca.pem"), "GPKVS_TOKEN": token}
    assert run(guarded.server.target, access) == expected
