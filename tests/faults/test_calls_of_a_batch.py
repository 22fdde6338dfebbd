"""How many writes and flushes a batch takes in each domain: docs/persistence.md has them as a table."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest

from tests.faults.test_syscalls import RunCase, clear

# Where there is no call, bytes are stored to mappings and made durable by fences.
EXPECTED = {
    ("undo", "msync"): {"fdatasync": 5},
    ("undo", "fence"): {},
    ("undo", "process"): {},
    ("journal", "msync"): {"pwrite": 2, "fdatasync": 1},
    ("journal", "fence"): {"pwrite": 2, "fdatasync": 1},
    ("journal", "process"): {"pwrite": 2},
}


@pytest.mark.parametrize(("commit", "domain"), list(EXPECTED))
def test_calls_of_a_batch(run_case: RunCase, memory_path: Path, commit: str, domain: str) -> None:
    """The one before it has written zeros ahead."""
    found: Counter[str] = Counter()
    for call in ("pwrite", "write", "fdatasync", "fsync"):
        clear(memory_path / "store")
        how = {"steps": ["open", "batch", "batch"], "arm_at": 2, "durability": domain, "commit": commit}
        answer = run_case(path=memory_path / "store", fault=f"{call}:0:0", **how)
        assert answer["status"] == 0, answer
        found[call] = int(str(answer["calls"]))
    assert +found == EXPECTED[commit, domain]
