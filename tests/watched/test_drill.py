"""Three rounds of a drill in which a watcher and its server die; ``python -m tests.watched.drill`` has a thousand."""

from __future__ import annotations

import os
from pathlib import Path
from random import Random

import pytest

from tests.watched.drill import drill

ROUNDS = 3


@pytest.mark.parametrize("commit", ["undo", "journal"])
def test_no_change_is_missing_unless_the_watcher_hears_so(commit: str, tmp_path: Path) -> None:
    seed = int(os.environ.get("GPKVS_SEED", Random().randrange(1 << 32)))
    print(f"GPKVS_SEED={seed}")
    counts = drill(ROUNDS, seed, commit, tmp_path)
    print(counts)
    assert counts["entries told"] > 0
    heard = sum(count for what, count in counts.items() if " behind a kill of the watcher" in what)
    assert heard == ROUNDS
    assert sum(count for what, count in counts.items() if " of the server" in what) == ROUNDS
