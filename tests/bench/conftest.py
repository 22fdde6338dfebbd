"""What tests of several benchmarks share."""

from __future__ import annotations

from pathlib import Path

import pytest

from gpkvs.bench.peers.contender import BenchError, require_promise


@pytest.fixture
def disk(tmp_path: Path) -> Path:
    """Return a folder on a disk."""
    try:
        require_promise(tmp_path, "msync")
    except BenchError as error:
        pytest.skip(str(error))
    return tmp_path
