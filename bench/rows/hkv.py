"""HierarchicalKV beside gpkvs: a program of ours that uses a checkout of it is compiled, run, and its figures read.

It is a hash table of vectors in a GPU's memory. It keeps nothing when its process ends.
"""

from __future__ import annotations

import json
import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from gpkvs.bench.peers.contender import BenchError
from gpkvs.bench.report.results import Measurement, Run

NAME = "HierarchicalKV"
SETTINGS = "LRU, half of its places filled, distinct keys; NOT durable"

HkvMemory = Literal["gpu", "host"]
"""Where it keeps the values; the keys are on the GPU."""

HkvCall = Literal["find", "insert_or_assign"]

_SOURCE = Path(__file__).with_name("hkv.cu")
_HEADER = Path("include", "merlin_hashtable.cuh")
_USUAL_NVCC = Path("/usr/local/cuda/bin/nvcc")
_COMPILE_SECONDS_MAX, _RUN_SECONDS_MAX = 300, 120


@dataclass(frozen=True)
class HkvFigures:
    """What one run of the program has found.

    Attributes
    ----------
    device
        The GPU.
    capacity
        Rows that the table has room for.
    runs
        By memory and call.
    """

    device: str
    capacity: int
    runs: dict[tuple[HkvMemory, HkvCall], list[Run]]

    def measurement(self, task: str, memory: HkvMemory, call: HkvCall) -> Measurement:
        """Return the runs of one call under the name that a task has elsewhere."""
        return Measurement(task, NAME, self.runs[memory, call])


def require_hkv(checkout: Path) -> Path:
    """Return the compiler that a checkout needs.

    Raises
    ------
    BenchError
        If it is no checkout of HierarchicalKV, or there is no nvcc.
    """
    if not (checkout / _HEADER).is_file():
        raise BenchError(
            f"{checkout} has no {_HEADER}: --hkv names a checkout of https://github.com/NVIDIA-Merlin/HierarchicalKV"
        )
    found = shutil.which("nvcc") or shutil.which(_USUAL_NVCC)
    if found is None:
        raise BenchError(
            f"there is no nvcc in PATH or {_USUAL_NVCC.parent}, and {NAME} is compiled here: install the CUDA toolkit, "
            "or leave --hkv out"
        )
    return Path(found)


def revision_of(checkout: Path) -> str:
    """Return the commit of a checkout; ``unknown`` without git's data."""
    command = ["git", "-C", str(checkout), "rev-parse", "--show-toplevel", "HEAD"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=False)
    except FileNotFoundError:
        return "unknown"
    top, _, commit = done.stdout.strip().partition("\n")
    # A folder without git's data may lie in another repository.
    return commit if not done.returncode and Path(top) == checkout.resolve() else "unknown"


def compiled(checkout: Path, folder: Path, architecture: str) -> Path:
    """Compile the program into a folder; return it. It takes a minute or two.

    Parameters
    ----------
    architecture
        Of the GPU, as nvcc names it: sm_90.

    Raises
    ------
    BenchError
        As `require_hkv`, or if it does not compile.
    """
    nvcc, program = require_hkv(checkout), folder / "hkv"
    options = ["-std=c++17", "-O3", f"-arch={architecture}", "-I", str(checkout / _HEADER.parent)]
    done = _ran([str(nvcc), *options, "-o", str(program), str(_SOURCE)], _COMPILE_SECONDS_MAX)
    if done.returncode:
        lines = done.stderr.splitlines()
        first = next((line for line in lines if "error" in line), done.stderr[-500:])
        raise BenchError(f"{_SOURCE.name} does not compile with {checkout}: {first.strip()}")
    return program


def run_hkv(program: Path, dim: int, rows: int, batch: int, runs: int, seconds: float) -> HkvFigures:
    """Run the program; the parameters are those of ``hkv.cu``.

    Raises
    ------
    BenchError
        If it fails, or says something else than figures.
    """
    done = _ran([str(program), *map(str, (dim, rows, batch, runs, seconds))], _RUN_SECONDS_MAX)
    if done.returncode:
        said = (done.stderr.strip().splitlines() or ["nothing"])[-1]
        raise BenchError(f"{NAME} with rows of {dim} ended with status {done.returncode}: {said}")
    return figures_of(done.stdout, batch)


def figures_of(text: str, batch: int) -> HkvFigures:
    """Return the figures of the program's output: its last line is JSON; the library may print before that.

    Raises
    ------
    BenchError
        If it is not.
    """
    lines = text.strip().splitlines()
    try:
        found: dict[str, Any] = json.loads(lines[-1])
        return HkvFigures(
            device=found["device"],
            capacity=found["gpu"]["capacity"],
            runs={
                (memory, call): [Run(calls * batch, seconds) for calls, seconds in found[memory][call]]
                for memory in ("gpu", "host")
                for call in ("find", "insert_or_assign")
            },
        )
    except (IndexError, ValueError, KeyError, TypeError) as error:
        raise BenchError(f"{NAME} gave no figures: {(lines or ['nothing'])[-1][:200]}") from error


def _ran(command: list[str], seconds_max: int) -> subprocess.CompletedProcess[str]:
    try:
        return subprocess.run(command, capture_output=True, text=True, check=False, timeout=seconds_max)
    except subprocess.TimeoutExpired as error:
        raise BenchError(f"{Path(command[0]).name} is not done after {seconds_max} s") from error
    except OSError as error:
        raise BenchError(f"cannot run {command[0]}: {error.strerror}") from error
