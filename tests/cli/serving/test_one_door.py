"""The server has one door: who asks for another one hears of it, and so does who has a build without any."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from gpkvs.cli.options.environment import unread_variables
from tests.serving import error_line, run_gpkvs

GONE = "there is one door since 0.2: remove the "
EMBEDDED = """
import sys, gpkvs
with gpkvs.open(sys.argv[1], heap_bytes=1 << 20) as store:
    store.set(b"key", b"value")
    print(store.get(b"key"))
"""


@pytest.mark.parametrize("words", [("--door", "grpcio"), ("--door=native",)])
@pytest.mark.parametrize("command", [("serve",), ("config", "show")])
def test_the_option_is_gone(tmp_path: Path, command: tuple[str, ...], words: tuple[str, ...]) -> None:
    refused = run_gpkvs(*command, "--data", str(tmp_path / "store"), *words)
    assert error_line(refused, 2) == f"gpkvs: {GONE}option --door"
    assert not (tmp_path / "store").exists()


def test_the_setting_is_gone(tmp_path: Path) -> None:
    file = tmp_path / "gpkvs.toml"
    file.write_text('door = "grpcio"\n')
    refused = run_gpkvs("serve", "--data", str(tmp_path / "store"), "--config", str(file))
    assert error_line(refused, 2).endswith(f"gpkvs.toml: {GONE}setting door")


def test_the_variable_is_gone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GPKVS_DOOR", "grpcio")
    assert unread_variables() == [f"{GONE}environment variable GPKVS_DOOR; it has no effect"]


def test_a_build_without_a_door_has_no_server_and_an_embedded_store(tmp_path: Path) -> None:
    env = {"GPKVS_DOOR_LIBRARY": str(tmp_path / "none.so")}
    refused = run_gpkvs("serve", "--data", str(tmp_path / "served"), "--listen", "127.0.0.1:0", env=env)
    line = error_line(refused, 2)
    assert line.startswith("gpkvs: this build of gpkvs has no server, only the embedded store")
    for system in ("Debian", "Fedora", "Homebrew"):
        assert system in line
    assert b"native door: not built" in run_gpkvs("--version", env=env).stdout
    command = [sys.executable, "-c", EMBEDDED, str(tmp_path / "embedded")]
    done = subprocess.run(command, env={**os.environ, **env}, capture_output=True, check=False)
    assert done.stdout == b"b'value'\n", done.stderr
