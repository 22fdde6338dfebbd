"""What a command loads and starts before its work: nobody should wait for what it does not use."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

PROGRAM = """
import sys
from pathlib import Path
from gpkvs.cli.__main__ import main

try:
    main()
except SystemExit:
    threads = Path("/proc/self/status").read_text().partition("Threads:")[2].split()[0]
    found = [name for name in ("numpy", "grpc", "gpkvs.client") if name in sys.modules]
    print("loaded:", threads, *found, file=sys.stderr)
"""


def loaded_by(*arguments: str) -> list[str]:
    """Return the number of threads at the end of a command, and what it has loaded."""
    environment = {name: value for name, value in os.environ.items() if name != "OPENBLAS_NUM_THREADS"}
    command = [sys.executable, "-c", PROGRAM, *arguments]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    return done.stderr.rpartition("loaded:")[2].split()


def test_numpy_starts_no_threads_for_a_command_that_multiplies_no_matrices() -> None:
    assert loaded_by("size", "--records", "1000", "--value", "8") == ["1", "numpy"]


def test_a_command_without_a_server_loads_no_client() -> None:
    assert loaded_by("check", "--help")[1:] == ["numpy"]


# What takes longest to load, and what only the work of a command needs.
OF_WORK = ("numpy", "grpc", "google.protobuf", "asyncio", "uvloop", "prometheus_client", "msgpack", "cryptography")
OF_WORK_HERE = tuple(
    f"gpkvs.{name}"
    for name in ("client", "store", "engine", "backends", "recovery", "bench", "export", "backup", "archive")
)
LIGHT_HELPS = (
    *("serve", "config", "config show", "scan", "count", "export", "import", "top", "ycsb", "ycsb load", "ycsb run"),
    *("backup", "archive", "restore", "doctor", "demo", "bench"),
)

HELPS = f"""
import sys
from gpkvs.cli.main import app

for words in {LIGHT_HELPS}:
    try:
        app([*words.split(), "--help"])
    except SystemExit:
        loaded = [name for name in {OF_WORK + OF_WORK_HERE} if name in sys.modules]
        if loaded:
            sys.exit(f"the help of {{words}} loads {{loaded}}")
"""


def test_help_loads_nothing_that_only_the_work_needs() -> None:
    done = subprocess.run([sys.executable, "-c", HELPS], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("Usage:") == len(LIGHT_HELPS)


@pytest.mark.parametrize("arguments", [["--data", "/none"], []])
def test_settings_are_shown_without_numpy(arguments: list[str]) -> None:
    assert loaded_by("config", "show", *arguments) == ["1"]


def test_help_loads_nothing() -> None:
    assert loaded_by("bench", "--help") == ["1"]
