"""No garbage is collected while modules are loaded, and it is afterwards."""

from __future__ import annotations

import gc
import subprocess
import sys
from contextlib import suppress

import pytest

from gpkvs.process.garbage import without_collections
from tests.serving import Server

# What a command finds when it calls a server, and when the process ends. A module that is loaded says what it found.
COMMAND = """
import atexit, gc, sys
import gpkvs.cli.terminal.interrupt
from gpkvs.cli.__main__ import main
class Finder:
    def find_spec(self, name, path=None, target=None):
        if name in ("typer", "gpkvs.cli.keys.kv"):
            print("LOADING", gc.isenabled(), file=sys.stderr)
sys.meta_path.insert(0, Finder())
atexit.register(lambda: print("END", gc.isenabled(), gc.get_freeze_count() > 10_000, file=sys.stderr))
sys.argv = ["gpkvs", *sys.argv[1:]]
main()
"""


def test_a_command_loads_its_modules_without_collections_and_runs_with_them(server: Server) -> None:
    command = [sys.executable, "-c", COMMAND, "set", "k", "v", "--target", server.target]
    done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=60)
    assert done.stderr.splitlines() == ["LOADING False", "LOADING False", "END True True"]


@pytest.mark.parametrize("enabled", [True, False])
def test_collections_are_afterwards_as_they_were(enabled: bool) -> None:
    was_enabled = gc.isenabled()
    try:
        (gc.enable if enabled else gc.disable)()
        with suppress(ZeroDivisionError), without_collections():
            assert not gc.isenabled()
            _ = 1 / 0
        assert gc.isenabled() is enabled
    finally:
        (gc.enable if was_enabled else gc.disable)()
