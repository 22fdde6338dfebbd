"""Commands of the machine on which wheels are made."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

REPOSITORY = Path(__file__).parents[2]
WORK = REPOSITORY / "build" / "wheel"


def run(*command: str | Path, cwd: Path = REPOSITORY, **variables: str) -> str:
    """Run a command and return what it prints; if it fails, end with the last of its output.

    Parameters
    ----------
    command
        The program and its arguments.
    cwd
        The folder in which it runs.
    variables
        What its environment has beside that of this process.
    """
    done = subprocess.run(
        command,
        check=False,
        cwd=cwd,
        env=os.environ | variables,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    if done.returncode:
        sys.exit(f"{done.stdout[-4000:]}\n{' '.join(map(str, command))}: exit status {done.returncode}")
    return done.stdout


def say(text: str) -> None:
    """Tell the user what happens."""
    print(text, file=sys.stderr, flush=True)
