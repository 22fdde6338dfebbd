"""Tab completion of the command line, in bash and zsh."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from gpkvs.cli.main import Gpkvs

GPKVS = Path(sys.executable).with_name("gpkvs")


def completed(shell: str, line: str) -> str:
    """Return what a shell is told at the end of a line."""
    words = {"bash": {"COMP_WORDS": line, "COMP_CWORD": str(line.count(" "))}, "zsh": {"_TYPER_COMPLETE_ARGS": line}}
    environment = {**os.environ, **words[shell], "_GPKVS_COMPLETE": f"complete_{shell}"}
    done = subprocess.run([GPKVS], env=environment, capture_output=True, text=True, check=True, timeout=60)
    assert not done.stderr
    return done.stdout


@pytest.mark.parametrize(
    ("line", "offers"),
    [
        ("gpkvs ", [name for names in Gpkvs.panels.values() for name in names if name in Gpkvs.subcommands]),
        ("gpkvs table ", ["create", "list", "drop"]),
        ("gpkvs ycsb run --thr", ["--threads"]),
        ("gpkvs serve --backend c", ["cpu", "cuda"]),
        ("gpkvs table create t --layout ", ["bytes", "u64"]),
        ("gpkvs bench dis", ["disk"]),
    ],
)
def test_bash_is_offered_commands_options_and_choices(line: str, offers: list[str]) -> None:
    assert completed("bash", line).split() == offers


def test_bash_itself_completes_a_line() -> None:
    script = """
eval "$("$1" --show-completion)"
complete -p gpkvs > /dev/null
COMP_WORDS=(gpkvs table cr) COMP_CWORD=2
_gpkvs_completion "$1"
echo "${COMPREPLY[*]}"
"""
    done = subprocess.run(["bash", "-c", script, "bash", GPKVS], capture_output=True, text=True, check=True, timeout=60)
    assert done.stdout.strip() == "create"


def test_zsh_is_offered_commands_with_what_they_do() -> None:
    assert completed("zsh", "gpkvs exi").startswith(
        """_arguments '*: :(("exists":"Say by the exit status whether"""  # and the rest, cut by typer
    )


@pytest.mark.parametrize("line", ["gpkvs bench ", "gpkvs serve --"])
def test_a_completion_loads_neither_arrays_nor_a_server(line: str) -> None:
    code = """
import atexit, sys
atexit.register(lambda: print("LOADED", *sys.modules))
sys.argv = ["gpkvs"]
from gpkvs.cli.__main__ import main
main()
"""
    words = {"COMP_WORDS": line, "COMP_CWORD": str(line.count(" ")), "_GPKVS_COMPLETE": "complete_bash"}
    done = subprocess.run(
        [sys.executable, "-c", code], env=os.environ | words, capture_output=True, text=True, check=True, timeout=60
    )
    offered, _, loaded = done.stdout.rpartition("LOADED ")
    assert offered.strip()
    assert {"numpy", "gpkvs.store", "gpkvs.server.app", "gpkvs.bench.disk"}.isdisjoint(loaded.split())
