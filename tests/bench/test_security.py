"""The benchmark of what security costs, as its user runs it."""

from __future__ import annotations

import json
from pathlib import Path

from tests.bench.test_wear_and_growth import needs_shm
from tests.serving import run_gpkvs


@needs_shm
def test_security_is_measured_beside_none(tmp_path: Path) -> None:
    kept = tmp_path / "security.json"
    sizes = ("--records", "2000", "--runs", "1", "--seconds", "0.02", "--clients", "1")
    done = run_gpkvs("bench", "security", *sizes, "--json", str(kept))
    assert done.returncode == 0, done.stderr.decode()
    result = json.loads(kept.read_text())
    rows = {one["what"]: one for one in result["comparisons"]}
    assert len(rows) == 8
    assert all(one["ratio"] > 0 for one in rows.values())
    assert rows["GET stream, 4,096 a message"]["aim"] == 0.8
    assert result["handshakes"]["rate"] > 0
    assert 0 < result["login_us"] < 100
    assert all(one["done"] for one in (*result["token"]["with"], *result["token"]["without"]))
    assert b"TLS handshakes" in done.stdout
    assert "gpkvs_" not in kept.read_text()  # no token
