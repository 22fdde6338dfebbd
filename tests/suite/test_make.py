"""What `make` tells who installs gpkvs."""

from __future__ import annotations

import os
import re
import subprocess
from pathlib import Path

from gpkvs.cli.main import Gpkvs

ROOT = Path(__file__).parents[2]


def planned(target: str) -> list[str]:
    """Return the commands of a target as on a fresh machine; none is run."""
    command = ["make", "--dry-run", "--always-make", "--no-print-directory", target]
    # As from a shell: a make above, whose test this may be, has settings of its own.
    env = {name: text for name, text in os.environ.items() if name not in ("MAKEFLAGS", "MFLAGS", "MAKELEVEL")}
    done = subprocess.run(command, cwd=ROOT, env=env, capture_output=True, text=True, check=True, timeout=60)
    return done.stdout.splitlines()


def test_install_says_what_takes_long_before_it_begins() -> None:
    commands = planned("install")
    said = [re.search(r'"(\d) of (\d): [^"]+"', line) for line in commands]
    assert [step.groups() for step in said if step] == [(str(number), "4") for number in range(1, 5)]
    slow = [index for index, line in enumerate(commands) if re.search(r"-m (venv|compileall)|show_pip\.py", line)]
    assert len(slow) == 4
    assert all(said[index] or said[index - 1] for index in slow)  # on the line itself, or by the echo before it


def test_install_ends_with_commands_that_there_are() -> None:
    shown = [re.fullmatch(r'echo "  \.venv/bin/gpkvs (\w+) .*"', line) for line in planned("install")[-2:]]
    assert [command[1] for command in shown if command] == ["serve", "set"]
    assert {"serve", "set"} <= Gpkvs.subcommands.keys()
    assert not [line for line in planned("demo") if "Next" in line]  # the demo says it at its own end


def test_python_writes_bytecode_also_where_it_is_told_not_to() -> None:
    show = "shown:; @$(PYTHON) -c 'import sys; print(sys.dont_write_bytecode)'"
    env = {**os.environ, "PYTHONDONTWRITEBYTECODE": "1"}
    command = ["make", "--silent", f"--eval={show}", "shown"]
    done = subprocess.run(command, cwd=ROOT, env=env, capture_output=True, text=True, check=True, timeout=60)
    assert done.stdout.split()[-1] == "False"
