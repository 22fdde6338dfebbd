"""A client of before there were conditions, counters and expiry works as it did."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

from gpkvs.batch import Batch, Op
from gpkvs.client.codec import encode
from tests.serving import Server

CALLS = Path(__file__).parent / "old_client" / "calls.py"


def test_every_call_of_an_old_client(server: Server) -> None:
    done = subprocess.run([sys.executable, str(CALLS), server.target], capture_output=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr.decode()
    results = json.loads(done.stdout)
    # A request without anything new is byte for byte what an old client sent.
    plain = encode(Batch.of([(Op.SET, b"a", b"one"), (Op.GET, b"b"), (Op.DELETE, b"c")]), "t")
    plain.id = 7
    assert results.pop("request") == plain.SerializeToString().hex()
    assert results == {
        "created": "t",
        "first": False,
        "got": [True, b"1".hex(), True],
        "deleted": [True, False],
        "batch": [7, "000101", "00000000", 24],
        "pipeline": [[7, 0, "000101"], [8, 3, ""]],
        "empty": ["INVALID_ARGUMENT", "no"],
        "no table": ["NOT_FOUND", "no"],
        "twice": ["ALREADY_EXISTS", "no"],
        "numbers": ["0000", bytes(8).hex(), ""],
        "tables": ["default", "n", "t"],
        "info": ["default", "t"],
    }
