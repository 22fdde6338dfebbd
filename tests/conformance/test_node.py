"""Libraries of Node.js do what their users do with them; in the middle of it the server is killed and comes back."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest

from gpkvs.bench.peers.ports import free_port
from gpkvs.client import Client
from tests.conformance.debian_source import CACHE
from tests.conformance.python_suites import alone
from tests.conftest import assert_clean
from tests.examples.node import node_tools
from tests.serving import Server

SCRIPTS = Path(__file__).parent / "node"
SECONDS_MAX = 60
DATABASE = "9"


@pytest.fixture(scope="module")
def environment(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """Return the environment with Node.js."""
    return os.environ | {"PATH": f"{node_tools(tmp_path_factory.mktemp('node') / 'tools')}:{os.environ['PATH']}"}


@pytest.fixture(scope="module")
def installed(environment: dict[str, str]) -> Path:
    """Return the folder with the scripts and the libraries; npm fetches these if others are there, or none."""
    folder = CACHE / "node"
    with alone(folder):
        lock, known = SCRIPTS / "package-lock.json", folder / "node_modules" / "known-lock.json"
        shutil.copytree(SCRIPTS, folder, dirs_exist_ok=True)
        if not known.exists() or known.read_bytes() != lock.read_bytes():
            install = ["npm", "ci", "--ignore-scripts", "--no-audit", "--no-fund"]
            done = subprocess.run(install, cwd=folder, env=environment, capture_output=True, timeout=200, check=False)
            assert done.returncode == 0, done.stderr.decode()
            shutil.copy(lock, known)
    return folder


@pytest.mark.parametrize("library", ["ioredis", "node-redis", "keyv", "connect-redis"])
def test_a_library(installed: Path, environment: dict[str, str], tmp_path: Path, library: str) -> None:
    port = free_port()

    def serve() -> Server:
        return Server(tmp_path / "store", tmp_path, "--resp", f"127.0.0.1:{port}")

    server = serve()
    with Client(server.target) as client:
        client.create_table(DATABASE)
    script = subprocess.Popen(
        ["node", f"{library}.js", str(port)],
        cwd=installed,
        env=environment,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        assert script.stdin is not None
        assert script.stdout is not None
        line = script.stdout.readline()
        if line == "restart\n":
            server.kill()
            server = serve()
            script.stdin.write("started\n")
            script.stdin.flush()
        output, errors = script.communicate(timeout=SECONDS_MAX)
        server.stop()
    finally:
        script.kill()
        script.wait()
        server.kill()
    assert_clean(tmp_path / "store")
    assert (script.returncode, line, output) == (0, "restart\n", ""), errors
