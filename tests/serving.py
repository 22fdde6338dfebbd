"""A real server process for each test that asks for one; its store is checked when it has stopped."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path

import grpc
import pytest
from prometheus_client.parser import text_string_to_metric_families
from prometheus_client.samples import Sample

from gpkvs.proto.v1 import admin_pb2_grpc, kv_pb2_grpc
from tests import warm
from tests.certificates import Authority, Pair
from tests.conftest import assert_clean

COMMAND = [sys.executable, "-m", "gpkvs.cli"]
SIZES = ("--index-bytes", "1MiB", "--heap-bytes", "16MiB", "--log-bytes", "4MiB", "--journal-bytes", "18MiB")
START_SECONDS_MAX = 60
STOP_SECONDS_MAX = 60

# Root may write anywhere: without this capability it obeys permissions like anyone else.
WITHOUT_ROOT_RIGHTS = """
import ctypes, os, sys
PR_CAPBSET_DROP, CAP_DAC_OVERRIDE = 24, 1
if os.geteuid() == 0 and ctypes.CDLL(None, use_errno=True).prctl(PR_CAPBSET_DROP, CAP_DAC_OVERRIDE, 0, 0, 0):
    sys.exit("prctl failed")
os.execv(sys.argv[1], sys.argv[1:])
"""


class Server:
    """A `gpkvs serve` process; its stubs speak TLS if it is given its CA (and the certificate to show)."""

    def __init__(
        self,
        data: Path,
        folder: Path,
        *options: str,
        env: dict[str, str] | None = None,
        authority: Authority | None = None,
        client: Pair | None = None,
        start_seconds_max: float = START_SECONDS_MAX,
        own_python: bool = False,
    ) -> None:
        self.data = data
        self.log = folder / "server.log"
        ready = folder / "ready"
        ready.unlink(missing_ok=True)
        arguments = ["serve", "--data", str(data), "--ready-file", str(ready), *SIZES, *options]
        if "--listen" not in options:
            arguments += ["--listen", "127.0.0.1:0"]
        if "--metrics" not in options:
            arguments += ["--metrics", "127.0.0.1:0"]
        if "--memory-max" not in options:  # the limits that follow from it must not depend on the machine
            arguments += ["--memory-max", "16GiB"]
        with self.log.open("ab") as log, Path(os.devnull).open("r+b") as null:
            command = ["-m", "gpkvs.cli", *arguments]
            start = warm.start_python if own_python else warm.start
            self.process = start(command, {**os.environ, **(env or {})}, null, null, log)
        give_up = time.monotonic() + start_seconds_max
        while not ready.exists():
            if self.process.poll() is not None or time.monotonic() > give_up:
                self.kill()
                pytest.fail(f"the server did not start:\n{self.log.read_text()}")
            time.sleep(0.01)
        self.target, self.metrics_address, *self.resp_addresses = ready.read_text().split()
        any_size = [("grpc.max_receive_message_length", -1), ("grpc.max_send_message_length", -1)]
        self.metrics_headers: dict[str, str] = {}  # to get at the metrics
        self.metrics_url, self._context = f"http://{self.metrics_address}", None
        if authority is None:
            self.channel = grpc.insecure_channel(self.target, any_size)
        else:
            self.channel = grpc.secure_channel(self.target, authority.credentials(client), any_size)
            self.metrics_url, self._context = f"https://{self.metrics_address}", authority.context(client)
        self.kv = kv_pb2_grpc.KVStub(self.channel)
        self.admin = admin_pb2_grpc.AdminStub(self.channel)

    def metrics_text(self) -> str:
        """Return what the server exports, as Prometheus reads it."""
        request = urllib.request.Request(f"{self.metrics_url}/metrics", headers=self.metrics_headers)
        with urllib.request.urlopen(request, timeout=30, context=self._context) as response:
            text: str = response.read().decode()
        return text

    def samples(self) -> list[Sample]:
        """Return what the server exports."""
        return [sample for family in text_string_to_metric_families(self.metrics_text()) for sample in family.samples]

    def metric(self, name: str, **labels: str) -> float:
        """Return the sum of a metric's samples that have these labels."""
        return sum(
            sample.value for sample in self.samples() if sample.name == name and labels.items() <= sample.labels.items()
        )

    def stop(self, number: int = signal.SIGTERM) -> None:
        """Stop in order; fail if it does not exit 0."""
        if self.process.poll() is None:
            self.process.send_signal(number)
        code = self.process.wait(STOP_SECONDS_MAX)
        self.channel.close()
        assert code == 0, self.log.read_text()

    def freeze(self) -> None:
        """Let it stand still until `thaw`; each of its threads does when this returns."""
        self.process.send_signal(signal.SIGSTOP)
        while any(_state(thread) != "T" for thread in Path(f"/proc/{self.process.pid}/task").iterdir()):
            time.sleep(0.001)

    def thaw(self) -> None:
        """Let it go on."""
        self.process.send_signal(signal.SIGCONT)

    def kill(self) -> None:
        """Make sure that no process is left."""
        self.process.kill()
        self.process.wait()


def _state(thread: Path) -> str:
    return (thread / "stat").read_text().rpartition(")")[2].split()[0]


StartServer = Callable[..., Server]


@pytest.fixture
def start_server(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[StartServer]:
    """Return a function that starts a server on ``tmp_path/store`` with more options."""
    servers: list[Server] = []
    data = tmp_path / "store"
    own_python = request.node.get_closest_marker("own_python") is not None

    def start(
        *options: str,
        env: dict[str, str] | None = None,
        authority: Authority | None = None,
        client: Pair | None = None,
    ) -> Server:
        servers.append(
            Server(data, tmp_path, *options, env=env, authority=authority, client=client, own_python=own_python)
        )
        return servers[-1]

    try:
        yield start
        for server in servers:
            server.stop()
    finally:
        for server in servers:
            server.kill()
    assert_clean(data)
    if servers:
        assert "Traceback" not in servers[-1].log.read_text()


@pytest.fixture
def server(start_server: StartServer) -> Server:
    """Return a small server; after the test it must stop in order and leave a clean store."""
    return start_server()


def run_gpkvs(
    *arguments: str, stdin: bytes = b"", env: dict[str, str] | None = None
) -> subprocess.CompletedProcess[bytes]:
    """Run the command line to its end."""
    return warm.run(["-m", "gpkvs.cli", *arguments], env={**os.environ, **(env or {})}, stdin=stdin)


def error_line(result: subprocess.CompletedProcess[bytes], status: int) -> str:
    """Return the error of a command that must have failed with one clear line."""
    text = result.stderr.decode()
    errors = [line for line in text.splitlines() if line.startswith("gpkvs: ")]
    assert result.returncode == status, text
    assert "Traceback" not in text
    assert len(errors) == 1, text
    return errors[0]
