"""What an import brings along."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

import gpkvs
from gpkvs.cli.bench import Bench
from gpkvs.cli.lazy_commands import LazyGroup, load
from gpkvs.cli.main import Gpkvs
from tests.serving import Server


def run(code: str) -> str:
    return subprocess.run([sys.executable, "-c", code], capture_output=True, check=True, timeout=600).stdout.decode()


def test_the_client_alone_loads_neither_kernels_nor_store() -> None:
    loaded = run("import sys, gpkvs.client; print('\\n'.join(sys.modules))").split()
    assert "gpkvs.client" in loaded
    assert "gpkvs.batch" in loaded
    for name in ("native", "store", "engine", "backends", "pm", "server"):
        assert f"gpkvs.{name}" not in loaded


SLOW = ["numpy", "uvloop", "msgpack", "prometheus_client", "rich", "lmdb", "rocksdict", "matplotlib", "cupy"]
# Of any command.
ENTRY = (
    *("__main__", "lazy_commands", "main", "options", "options.environment", "terminal"),
    *("terminal.exit_status", "terminal.interrupt", "terminal.program", "terminal.streams"),
)
# The parts that a call of one key takes.
OF_A_CALL = {"cli", "config", "credentials", "errors", "process", "proto", "text"}


def loaded_by(*arguments: str) -> set[str]:
    """Return the modules that the command line has loaded when it ends."""
    code = f"""
import atexit, sys
atexit.register(lambda: print("LOADED", *sys.modules))
sys.argv = ["gpkvs", *{arguments!r}]
from gpkvs.cli.__main__ import main
main()
"""
    # Whoever sets a variable of gpkvs pays for a look at the names of all.
    environment = {name: value for name, value in os.environ.items() if not name.startswith("GPKVS_")}
    command = [sys.executable, "-c", code]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=600, env=environment)
    return set(done.stdout.rpartition("LOADED ")[2].split())


def test_a_call_of_one_key_loads_what_it_takes(server: Server) -> None:
    for words in (["set", "k", "v"], ["get", "k"], ["delete", "k"]):
        loaded = loaded_by(*words, "--target", server.target)
        assert "grpc" in loaded
        assert loaded.isdisjoint(SLOW)
        assert {name.split(".")[1] for name in loaded if name.startswith("gpkvs.")} == OF_A_CALL
        options = (f"options.{name}" for name in ("access", "channel", "connection", "typed_keys"))
        parts = ("keys", "keys.kv", "terminal.output", *options, *ENTRY)
        assert {name for name in loaded if name.startswith("gpkvs.cli.")} == {f"gpkvs.cli.{part}" for part in parts}


def test_a_server_loads_neither_what_reads_a_command_line_nor_grpcio() -> None:
    loaded = set(run("import sys, gpkvs.cli.serving.served; print('\\n'.join(sys.modules))").split())
    assert {"gpkvs.store", "gpkvs.server.door.native_door", "numpy"} <= loaded
    assert loaded.isdisjoint({"typer", "click", "rich", "pydantic", "grpc", "grpc_health", "grpc_reflection"})


@pytest.mark.parametrize("arguments", [["--help"], ["--version"]])
def test_help_and_version_load_no_command(arguments: list[str]) -> None:
    loaded = loaded_by(*arguments)
    assert "gpkvs.cli.main" in loaded
    assert loaded.isdisjoint(set(SLOW) - {"rich"} | {"grpc", "gpkvs.proto"})
    assert {name for name in loaded if name.startswith("gpkvs.cli.")} == {f"gpkvs.cli.{name}" for name in ENTRY}


@pytest.mark.parametrize(("group", "name"), [(group, name) for group in (Gpkvs, Bench) for name in group.subcommands])
def test_a_commands_line_in_the_help_is_the_first_of_its_own_help(group: type[LazyGroup], name: str) -> None:
    place, summary = group.subcommands[name]
    assert load(name, place).help.partition("\n\n")[0].replace("\n", " ") == summary


def test_the_store_is_there_when_it_is_asked_for() -> None:
    assert "gpkvs.native" in run("import sys, gpkvs; gpkvs.Store; print('\\n'.join(sys.modules))").split()
    assert gpkvs.open is gpkvs.store.open
    for name in gpkvs.__all__:
        assert getattr(gpkvs, name)
    with pytest.raises(AttributeError, match="nonsense"):
        _ = gpkvs.nonsense  # type: ignore[attr-defined]
