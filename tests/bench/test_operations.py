"""The benchmark of operations that look first, as its user runs it."""

from __future__ import annotations

import json
from pathlib import Path

from tests.bench.test_wear_and_growth import needs_shm
from tests.serving import run_gpkvs


@needs_shm
def test_operations_are_measured_beside_sets(tmp_path: Path) -> None:
    kept = tmp_path / "operations.json"
    done = run_gpkvs(
        *("bench", "operations", "--records", "2000", "--batch", "256", "--rounds", "2", "--json", str(kept))
    )
    assert done.returncode == 0, done.stderr.decode()
    rows = {one["what"]: one for one in json.loads(kept.read_text())["comparisons"]}
    assert all(one["ratio"] > 0 for one in rows.values())
    assert (rows["u64 INCREMENT"]["aim"], rows["bytes INCREMENT"]["aim"]) == (0.7, 0.5)
    assert rows["bytes EXISTS"]["beside"] == "GET"
    assert "bytes APPEND" in rows
    assert "u64 APPEND" not in rows
