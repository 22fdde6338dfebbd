"""The benchmark of the Redis protocol, as its user runs it."""

from __future__ import annotations

import json
from pathlib import Path

from tests.bench.test_wear_and_growth import needs_redis, needs_shm
from tests.serving import run_gpkvs


@needs_redis
@needs_shm
def test_redis_is_measured_beside_gpkvs(tmp_path: Path) -> None:
    kept = tmp_path / "redis.json"
    sizes = ("--records", "1000", "--runs", "1", "--seconds", "0.02", "--connections", "4", "--load-processes", "2")
    done = run_gpkvs("bench", "redis", *sizes, "--idle", "0", "--json", str(kept))
    assert done.returncode == 0, done.stderr.decode()
    result = json.loads(kept.read_text())
    rows = {one["what"]: one for one in result["comparisons"]}
    assert len(rows) == 10
    assert all(one["ratio"] > 0 for one in rows.values())
    assert rows["SET -P 64, 4 connections"]["aim"] == 2.0
    what = "memory, 1,000 records, 16 B keys, 100 B values"
    assert rows[f"{what}, loaded"]["is_met"] is False
    assert {f"{what}, overwritten", f"{what}, at rest"} < set(rows)
    assert result["contenders"]["redis"]["settings"] == "appendonly yes, appendfsync no, save off"
    tasks = {(one["task"], one["contender"]) for one in result["measurements"]}
    assert len(tasks) == 14
    assert all(one["latencies_ms"]["p50"] > 0 for one in result["measurements"])
