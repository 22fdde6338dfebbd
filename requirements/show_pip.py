"""Runs pip, and says in one line what it does: which package, or which file is compiled.

    python requirements/show_pip.py TITLE LOG pip's arguments ...

On a terminal the line is written over, and counts seconds; elsewhere each step has a line. All that pip and compilers
print goes to LOG. If pip fails, what it printed about that is shown, and the log is named. No package is installed yet
when this runs: it needs Python alone.
"""

from __future__ import annotations

import os
import re
import select
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

_LINES_OF_A_FAILURE = 60
# What pip, CMake and Ninja print when something begins, or when a file is compiled; and how that is said.
_STEPS = (
    (re.compile(r"(?:Collecting|Processing) (\S+)"), "{}"),
    (re.compile(r"(Installing) collected packages"), "installing them"),
    (re.compile(r"\s*\*\*\* (Configuring) CMake"), "looking at the compiler and the libraries"),
    (re.compile(r"\s*\[(\d+)/(\d+)\] Building \w+ object CMakeFiles/\w+\.dir/(\S+)\.o"), "{} of {}: {}"),
    (re.compile(r"\s*\[(\d+)/(\d+)\] Linking .* (\S+)"), "{} of {}: {}"),
)
_FAILURE = re.compile(r"\s*(FAILED: |CMake Error|ERROR: |error: )")


def step_of(line: str) -> str:
    """Say what a line of pip's output tells; "" if it tells no step."""
    for pattern, text in _STEPS:
        if found := pattern.match(line):
            return text.format(*found.groups())
    return ""


def failure_in(lines: Sequence[str]) -> list[str]:
    """Return what pip printed from the first failure on, or last; a part of it if it is long."""
    first = next((number for number, line in enumerate(lines) if _FAILURE.match(line)), max(len(lines) - 20, 0))
    return [*lines[first : first + _LINES_OF_A_FAILURE]]


class Shown:
    """The line that says what is done now."""

    def __init__(self, title: str) -> None:
        self._title = title
        self._step = ""
        self._began = time.monotonic()
        self._is_terminal = sys.stdout.isatty()

    def step(self, step: str) -> None:
        """Show a step."""
        self._step = step
        if self._is_terminal:
            self.tick()
        else:
            print(f"{self._title}: {step}", flush=True)

    def tick(self) -> None:
        """Show how long it takes."""
        if self._is_terminal:
            text = f"{self._title}, {self._seconds} s: {self._step}"
            print(f"\r\033[K{text[: shutil.get_terminal_size().columns - 1]}", end="", flush=True)

    def end(self, result: str) -> None:
        """Say how it ended."""
        print(f"{chr(13) + chr(27) + '[K' if self._is_terminal else ''}{self._title}: {result}, {self._seconds} s")

    @property
    def _seconds(self) -> int:
        return round(time.monotonic() - self._began)


def lines_of(process: subprocess.Popen[bytes], shown: Shown) -> Iterator[str]:
    """Yield the lines that a process prints, and let the clock tick meanwhile."""
    assert process.stdout
    rest = b""
    while True:
        if not select.select([process.stdout], [], [], 1.0)[0]:
            shown.tick()
            continue
        data = os.read(process.stdout.fileno(), 1 << 16)
        *lines, rest = (rest + data).split(b"\n")
        yield from (line.decode(errors="replace") for line in lines)
        if not data:
            return


def packages_in(arguments: Sequence[str]) -> int:
    """Return how many packages the file of requirements names; 0 without one."""
    if "--requirement" not in arguments:
        return 0
    file = Path(arguments[arguments.index("--requirement") + 1])
    return sum("==" in line and not line.startswith("#") for line in file.read_text().splitlines())


def main(title: str, log: str, *arguments: str) -> int:
    """Run pip."""
    shown, lines = Shown(title), []
    number, total = 0, packages_in(arguments)
    Path(log).parent.mkdir(parents=True, exist_ok=True)
    command = [sys.executable, "-m", "pip", *arguments]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)  # builds print to the second
    with Path(log).open("w") as file, process:
        for line in lines_of(process, shown):
            lines.append(line)
            print(line, file=file)
            step = step_of(line)
            if step and total and line.startswith(("Collecting", "Processing")):
                number += 1
                step = f"{number} of {total}: {step}"
            if step:
                shown.step(step)
    if process.returncode == 0:
        shown.end("done")
    else:
        shown.end("failed")
        print("\n".join(failure_in(lines)), f"\nall that was printed is in {log}", file=sys.stderr)
    return process.returncode


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
