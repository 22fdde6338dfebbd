"""The preloaded shim, compiled once, and a process that runs a store's life under it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.serving import start_server

SHIM = Path(__file__).with_name("shim.c")
ZYGOTE = Path(__file__).with_name("zygote.py")
ROOT = Path(__file__).parents[2]

__all__ = ["start_server"]

Answer = dict[str, object]


@pytest.fixture(scope="session")
def shim(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the compiled shim, to be preloaded."""
    library = tmp_path_factory.mktemp("shim") / "shim.so"
    subprocess.run(["cc", "-O1", "-Wall", "-Werror", "-shared", "-fPIC", "-o", library, SHIM], check=True)
    return library


@pytest.fixture(scope="session")
def run_case(shim: Path) -> Iterator[Callable[..., Answer]]:
    """Return a function that runs a store's life with a fault (see zygote.py) and says how it ended."""
    environment = {**os.environ, "LD_PRELOAD": str(shim), "PYTHONPATH": str(ROOT)}
    command = [sys.executable, "-m", "tests.faults.zygote"]
    zygote = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=environment, cwd=ROOT)
    assert zygote.stdin
    assert zygote.stdout

    def run(**case: object) -> Answer:
        zygote.stdin.write(json.dumps(case, default=str).encode() + b"\n")
        zygote.stdin.flush()
        answer: Answer = json.loads(zygote.stdout.readline())
        return answer

    yield run
    zygote.stdin.close()
    assert zygote.wait(30) == 0


@pytest.fixture
def memory_path(tmp_path: Path) -> Iterator[Path]:
    """Return a directory in memory, where a store's life takes milliseconds; on a disk if there is none."""
    parent = Path("/dev/shm")
    if not os.access(parent, os.W_OK):
        yield tmp_path
        return
    with tempfile.TemporaryDirectory(prefix="gpkvs-test-", dir=parent) as directory:
        yield Path(directory)
