"""A server that ends with an error says so in the format of its log, to the end."""

from __future__ import annotations

import json
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from gpkvs.cli.terminal.exit_status import UNEXPECTED, WRONG_OPTIONS
from tests.serving import START_SECONDS_MAX

# A fault of the product: nothing that a user does brings one.
A_FAULT = """
import sys
from gpkvs.cli.__main__ import main
from gpkvs.server import app

def fails(options):
    raise IndexError("planted")

app.run = fails
main()
"""


def last_line(*options: str, program: tuple[str, ...] = ("-m", "gpkvs.cli"), status: int) -> dict[str, Any]:
    """Run a server that cannot serve; return what it logged last, after a look at every line."""
    command = [sys.executable, *program, "serve", "--log-format", "json", "--listen", "127.0.0.1:0", *options]
    done = subprocess.run(command, capture_output=True, text=True, timeout=START_SECONDS_MAX, check=False)
    assert (done.returncode, done.stdout) == (status, ""), done.stderr
    *_, last = [json.loads(line) for line in done.stderr.splitlines()]
    assert (last["level"], last["event"]) == ("critical", "failed")
    return dict(last)


def test_a_port_that_is_taken(tmp_path: Path) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        line = last_line("--data", str(tmp_path / "store"), "--metrics", f"127.0.0.1:{port}", status=1)
    assert str(port) in line["message"]


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (("--tls-cert", "{folder}/none.pem", "--tls-key", "{folder}/none.key"), "none.pem"),
        (("--users", "{folder}/none.toml"), "none.toml"),
    ],
    ids=["certificate", "users"],
)
def test_options_that_are_wrong(tmp_path: Path, options: tuple[str, ...], words: str) -> None:
    given = [option.format(folder=tmp_path) for option in options]
    assert words in last_line("--data", str(tmp_path / "store"), *given, status=WRONG_OPTIONS)["message"]


def test_a_store_that_is_none(tmp_path: Path) -> None:
    (tmp_path / "store").mkdir()
    (tmp_path / "store" / "other").write_text("a file of somebody else")
    assert str(tmp_path / "store") in last_line("--data", str(tmp_path / "store"), status=1)["message"]


def test_a_fault_of_gpkvs_with_its_traceback(tmp_path: Path) -> None:
    line = last_line("--data", str(tmp_path / "store"), program=("-c", A_FAULT), status=UNEXPECTED)
    assert "a fault of gpkvs" in line["message"]
    assert "IndexError: planted" in line["error"]
