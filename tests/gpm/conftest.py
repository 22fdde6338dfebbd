"""Where kernels of these tests run: the CPU, or with --backend cuda a GPU; and files that kernels can store to."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from gpkvs.gpm import Checkpoint, Place, find_place


@pytest.fixture(scope="session", autouse=True)
def _cache(tmp_path_factory: pytest.TempPathFactory) -> None:
    """Keep compiled kernels of one run together."""
    os.environ.setdefault("GPKVS_CACHE_DIR", str(tmp_path_factory.getbasetemp().parent / "gpm-kernels"))


@pytest.fixture(scope="session")
def place(request: pytest.FixtureRequest) -> Place:
    """Return where kernels run."""
    return find_place("cuda" if request.config.getoption("--backend").startswith("cuda") else "cpu")


@pytest.fixture
def memory() -> Iterator[Path]:
    """Return a directory in memory: kernels make what they store there durable, as far as a tmpfs does."""
    with tempfile.TemporaryDirectory(dir="/dev/shm", prefix="gpm-") as folder:
        yield Path(folder)


def require_disk(checkpoint: Checkpoint) -> None:
    """Skip a test of what a checkpoint does to a disk, where temporary files lie in memory."""
    if checkpoint._disk is None:
        pytest.skip("temporary files lie in memory: TMPDIR may name a directory of a disk")
