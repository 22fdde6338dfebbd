"""Programs in C++ that a benchmark compiles for itself."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

from gpkvs.bench.peers.contender import BenchError


def compile_program(source: Path, folder: Path, libraries: tuple[str, ...] = (), package: str | None = None) -> Path:
    """Compile a program into a folder; return it.

    Raises
    ------
    BenchError
        If there is no compiler, or it does not compile; the message names the package that may be missing.
    """
    program = folder / source.stem
    compiler = shutil.which("g++")
    if compiler is None:
        raise BenchError("there is no C++ compiler: apt-get install g++")
    command = [compiler, "-O2", "-std=c++17", "-o", str(program), str(source), *libraries]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        first = next((line for line in done.stderr.splitlines() if "error" in line), done.stderr)
        advice = f"; apt-get install {package}?" if package else ""
        raise BenchError(f"{source.name} does not compile: {first.strip()}{advice}")
    return program
