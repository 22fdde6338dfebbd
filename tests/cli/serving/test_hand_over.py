"""The process of `gpkvs serve` executes its program again: what belongs to it stays, what it was told goes over."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from gpkvs.cli.options.environment import HANDED_OVER, unread_variables
from gpkvs.cli.options.settings_file import Reload
from gpkvs.cli.serving.hand_over import Settings, hand_over, take_over
from gpkvs.config import Limits, ServerConfig, StoreConfig
from gpkvs.server.serve_options import ServeOptions
from tests.serving import START_SECONDS_MAX, run_gpkvs


def test_settings_go_over_and_leave_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    store, server = StoreConfig(limits=Limits(key_bytes_max=77)), ServerConfig(tls_key=Path("key.pem"))
    reload = Reload(Path("gpkvs.toml"), ["listen"], {"listen": "127.0.0.1:1"}, "debug")
    options = ServeOptions(Path("store"), store, server, Path("ready"), reload)
    settings = Settings(options, "json", "warning", ["a slip"])
    executed: list[tuple[str, list[str], dict[str, str]]] = []
    monkeypatch.setattr(os, "execve", lambda *given: executed.append(given))
    with pytest.raises(AssertionError, match="does not return"):
        hand_over(settings)
    ((python, arguments, environment),) = executed
    assert (python, arguments) == (sys.executable, [sys.executable, *sys.orig_argv[1:]])
    monkeypatch.setenv(HANDED_OVER, environment[HANDED_OVER])
    assert take_over() == settings
    assert HANDED_OVER not in os.environ


@pytest.mark.parametrize("value", ["", "junk", "1:junk", "gASVCg"])
def test_a_variable_that_somebody_else_set_is_no_hand_over(value: str) -> None:
    done = run_gpkvs("--version", env={HANDED_OVER: value})
    assert done.returncode == 0, done.stderr.decode()
    assert done.stdout.startswith(b"gpkvs ")


@pytest.mark.own_python
def test_settings_that_are_too_long_are_a_wrong_option(tmp_path: Path) -> None:
    (tmp_path / "long.toml").write_text(f'ready_file = "{"x" * 150_000}"\n')
    command = [sys.executable, "-m", "gpkvs.cli", "serve", "--data", str(tmp_path / "s")]
    for given in (["--config", str(tmp_path / "long.toml")], ["--ready-file", "y" * 100_000]):
        done = subprocess.run([*command, *given], capture_output=True, text=True, check=False)
        assert done.returncode == 2
        assert "the settings are too long" in " ".join(done.stderr.replace("│", " ").split())
        assert "Traceback" not in done.stderr
    assert not (tmp_path / "s").exists()


def test_many_variables_that_nobody_reads_are_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    for number in range(2500):
        monkeypatch.setenv(f"GPKVS_X{number:04}", "x" * 100)
    lines = unread_variables()
    assert len(lines) == 21
    assert "GPKVS_X0000" in lines[0]
    assert lines[-1] == "2,480 more environment variables begin with GPKVS_ and have no effect"


def test_the_process_keeps_its_name_and_its_command_line(tmp_path: Path) -> None:
    ready = tmp_path / "ready"
    command = [str(Path(sys.executable).with_name("gpkvs")), "serve", "--data", str(tmp_path / "store")]
    command += ["--listen", "127.0.0.1:0", "--metrics", "127.0.0.1:0", "--ready-file", str(ready)]
    with subprocess.Popen(command, stderr=subprocess.DEVNULL) as process:
        try:
            give_up = time.monotonic() + START_SECONDS_MAX
            while not ready.exists():
                assert process.poll() is None
                assert time.monotonic() < give_up
                time.sleep(0.01)
            shown = Path(f"/proc/{process.pid}/cmdline").read_text().split("\0")
            assert shown[-len(command) - 1 : -1] == command
            assert Path(f"/proc/{process.pid}/comm").read_text() == "gpkvs\n"
        finally:
            process.terminate()
    assert process.returncode == 0
