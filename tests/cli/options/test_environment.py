"""Variables of the environment: those that nothing reads are said, by every command and in the server's log."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import typer
from typer.testing import CliRunner

from gpkvs.cli.lazy_commands import load
from gpkvs.cli.main import app
from gpkvs.cli.options.environment import known_variables, unread_variables
from tests.serving import StartServer

ROOT = Path(__file__).parents[3]
_NAMED = re.compile(r"""["'](GPKVS_[A-Z0-9_]+)["']""")


def options(command: Any) -> Iterator[Any]:
    """Return the options of a command and of all beneath it."""
    yield from command.params
    for name, beneath in getattr(command, "commands", {}).items():
        place = getattr(command, "subcommands", {}).get(name)
        yield from options(load(name, place[0]) if place else beneath)


def test_all_that_is_read_is_known(monkeypatch: pytest.MonkeyPatch) -> None:
    read = {
        name
        for folder in ("gpkvs", "server", "client", "recovery", "bench")
        for file in (ROOT / folder).rglob("*.py")
        for name in _NAMED.findall(file.read_text())
    }
    assert {"GPKVS_TARGET", "GPKVS_FAILPOINT", "GPKVS_CACHE_DIR"} < read
    for option in options(typer.main.get_command(app)):
        names = option.envvar if isinstance(option.envvar, list) else [option.envvar]
        read |= {name for name in names if name}
    assert {"GPKVS_HEAP_BYTES", "GPKVS_MEMORY_MAX", "GPKVS_VALUE_BYTES_MAX"} < read
    for name in read:
        monkeypatch.setenv(name, "1")
    assert unread_variables() == []
    assert known_variables() <= read  # none that nothing reads


@pytest.mark.parametrize(
    ("slip", "meant"),
    [
        ("GPKVS_HEAP_BITES", "GPKVS_HEAP_BYTES"),
        ("GPKVS_TAGRET", "GPKVS_TARGET"),
        ("GPKVS_DATA_DIR", "GPKVS_DATA"),
        ("GPKVS_heap_bytes", "GPKVS_"),
    ],
)
def test_a_slip_is_said_with_the_nearest_names(monkeypatch: pytest.MonkeyPatch, slip: str, meant: str) -> None:
    monkeypatch.setenv(slip, "3")
    (line,) = unread_variables()
    assert line.startswith(f"there is no environment variable {slip!r}; ")
    assert meant in line.partition("nearest names are")[2]
    assert line.endswith("; it has no effect")


@pytest.mark.parametrize(
    "name",
    [
        *("GPKVS_SERVICE_HOST", "GPKVS_SERVICE_PORT", "GPKVS_SERVICE_PORT_GRPC", "GPKVS_PORT", "GPKVS_PORT_7171_TCP"),
        *("GPKVS_PORT_7171_TCP_ADDR", "GPKVS_METRICS_SERVICE_HOST", "GPKVS_METRICS_PORT_9171_TCP_PROTO"),
    ],
)
def test_variables_of_kubernetes_are_no_slips(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    monkeypatch.setenv(name, "tcp://10.0.0.1:7171")
    assert unread_variables() == []


def test_commands_warn_and_go_on() -> None:
    slip = {"GPKVS_TAGRET": "127.0.0.1:1"}
    done = CliRunner().invoke(app, ["check", "/nonexistent"], env=slip)
    assert done.stderr.startswith("gpkvs: warning: there is no environment variable 'GPKVS_TAGRET'; there are")
    assert "/nonexistent" in done.stderr
    assert done.exit_code != 0
    assert "GPKVS_TAGRET" not in done.stdout


def test_a_server_logs_it(start_server: StartServer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GPKVS_HEAP_BITES", "3")
    server = start_server("--log-format", "json")
    lines = [json.loads(line) for line in server.log.read_text().splitlines()]
    (said,) = [line for line in lines if "GPKVS_HEAP_BITES" in line["message"]]
    assert (said["level"], said["event"]) == ("warning", "setting_ignored")
