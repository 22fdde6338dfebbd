"""`gpkvs bench backup` from end to end, with tiny sizes: that each figure is there, never how fast."""

from __future__ import annotations

import json
from pathlib import Path
from xml.etree import ElementTree

import pytest

from tests.programs import needs
from tests.serving import run_gpkvs


@needs("redis-server", "redis-benchmark")
@pytest.mark.skipif(not Path("/dev/shm").is_dir(), reason="there is no /dev/shm")
def test_backups_are_measured_beside_redis(tmp_path: Path) -> None:
    kept = tmp_path / "backup.json"
    plot = tmp_path / "backup.svg"
    words = ("--records", "500", "--seconds", "0.1", "--json", str(kept), "--plot", str(plot))
    done = run_gpkvs("bench", "backup", *words)
    assert done.returncode == 0, done.stderr.decode()
    result = json.loads(kept.read_text())
    assert [measured["contender"] for measured in result["measurements"]] == ["gpkvs", "redis"]
    for measured in result["measurements"]:
        assert measured["idle_seconds"] > 0
        assert [beside["pipeline"] for beside in measured["beside"]] == [1, 64]
        for beside in measured["beside"]:
            for traffic in (beside["before"], beside["during"]):
                assert traffic["per_second"] > 0
                assert traffic["p50_ms"] <= traffic["p99_ms"] <= traffic["max_ms"]
                ends = [bucket["end_seconds"] for bucket in traffic["buckets"]]
                assert ends == sorted(set(ends))
                assert max(bucket["longest_ms"] for bucket in traffic["buckets"]) == round(traffic["max_ms"], 4)
    drawn = "".join(ElementTree.parse(plot).getroot().itertext())
    for contender in ("gpkvs", "redis"):
        for pipeline in (1, 64):
            assert f"{contender}, {pipeline} SETs at a time" in drawn
