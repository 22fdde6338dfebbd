"""`gpkvs bench expiry` from end to end, with tiny sizes: that each figure is there, never how fast."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.programs import needs
from tests.serving import run_gpkvs


@needs("redis-server", "redis-benchmark")
@pytest.mark.skipif(not Path("/dev/shm").is_dir(), reason="there is no /dev/shm")
def test_the_lag_of_removals_is_measured_beside_redis(tmp_path: Path) -> None:
    kept = tmp_path / "expiry.json"
    done = run_gpkvs("bench", "expiry", "--keys", "500", "--spread", "0.2", "--json", str(kept))
    assert done.returncode == 0, done.stderr.decode()
    result = json.loads(kept.read_text())
    assert [measured["contender"] for measured in result["measurements"]] == ["gpkvs", "redis"]
    for measured in result["measurements"]:
        lag = measured["lag_seconds"]
        assert lag["p50"] <= lag["p99"] <= lag["max"]
        assert measured["batches_while_keys_expire"]["per_second"] > 0
