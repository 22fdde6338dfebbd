"""`gpkvs bench disk` from end to end, with tiny sizes: that each row has a figure, never how fast."""

from __future__ import annotations

import json
import math
from pathlib import Path

from gpkvs.bench.disk.rounds import in_turn
from gpkvs.bench.report.comparison import Comparison
from gpkvs.bench.report.report import BEGIN, END
from tests.bench.needed import needs_peers, needs_shm
from tests.programs import needs
from tests.serving import run_gpkvs

TINY = ("--records", "3000", "--server-records", "1000", "--batch", "4000", "--seconds", "0.02")
SIZES = ("--index-bytes", str(1 << 20), "--journal-bytes", str(18 << 20))

# What, whose, over what, the aim, whether it is at least.
ROWS = {
    ("u64 SET random", "gpkvs", "gpkvs, process", 0.8, True),
    ("u64 SET random", "gpkvs", "LMDB", 10, True),
    ("u64 SET random, 2 callers", "gpkvs", "gpkvs, process", None, True),
    ("u64 SET random, 2 callers", "gpkvs", "LMDB", None, True),
    ("u64 SET sorted", "gpkvs", "gpkvs, process", None, True),
    ("u64 SET sorted", "gpkvs", "LMDB", None, True),
    ("bytes SET random", "gpkvs", "gpkvs, process", 0.6, True),
    ("bytes SET random", "gpkvs", "LMDB", 7, True),
    ("bytes SET random", "gpkvs", "RocksDB", 7, True),
    ("bytes SET random, 2 callers", "gpkvs", "gpkvs, process", None, True),
    ("bytes SET random, 2 callers", "gpkvs", "LMDB", None, True),
    ("bytes SET random, 2 callers", "gpkvs", "RocksDB", None, True),
    ("bytes SET sorted", "gpkvs", "gpkvs, process", None, True),
    ("bytes SET sorted", "gpkvs", "LMDB", None, True),
    ("bytes SET sorted", "gpkvs", "RocksDB", None, True),
    ("one SET, 8 B keys, 8 B values, p50", "gpkvs", "fdatasync of 4 KiB", 1.6, False),
    ("one SET, 16 B keys, 100 B values, p50", "gpkvs", "fdatasync of 4 KiB", 1.6, False),
    ("GET of a key that nobody writes, p99 beside SETs of 1", "gpkvs", "p99 without", 1.5, False),
    ("GET of a key that nobody writes, p99 beside SETs of 4096", "gpkvs", "p99 without", None, False),
    ("device writes, batches of 4,096", "gpkvs", "user bytes", 4, False),
    ("device writes, batches of 4,096", "RocksDB", "user bytes", None, False),
    ("device writes, batches of 4,096", "LMDB", "user bytes", None, False),
    ("opening, 8 B keys, 8 B values", "gpkvs", "start and reading", 1.5, False),
    ("opening, 16 B keys, 100 B values", "gpkvs", "start and reading", 1.5, False),
}
TAILS = {
    ("SET of one record, p99 while a checkpoint runs", "gpkvs", "p99 without", 2, False),
    ("SET of 256 records, p99 while a checkpoint runs", "gpkvs", "p99 without", 2, False),
    ("SET of 256 records, p99 while it flushes or compacts", "RocksDB", "p99 without", None, False),
}
SERVER_ROWS = {
    ("SET stream", "gpkvs", "redis", 7.5, True),
    ("SET gathered", "gpkvs", "redis", 1.3, True),
    ("server: GET of a key that nobody writes, p99 beside SETs", "gpkvs", "p99 without", 1.5, False),
}

needs_redis = needs("redis-server", "redis-benchmark")


def measure(disk: Path, *parts: str, rounds: int = 1, sizes: tuple[str, ...] = TINY) -> Path:
    """Run some parts; return the folder of the results."""
    kept = disk / "results"
    chosen = [word for part in parts for word in ("--part", part)]
    done = run_gpkvs(
        "bench",
        "disk",
        "--directory",
        str(disk),
        "--rounds",
        str(rounds),
        *sizes,
        *SIZES,
        *chosen,
        "--results",
        str(kept),
    )
    assert done.returncode == 0, done.stderr.decode()
    assert not list(disk.glob("gpkvs-bench-*"))
    return kept


def assert_rows(result: dict, rows: set, rounds: int = 1) -> None:
    """Each row stands there once, and each of its ratios is a number that a figure can be."""
    found = [(one["what"], one["store"], one["beside"], one["aim"], one["is_least"]) for one in result["comparisons"]]
    assert sorted(found, key=str) == sorted(rows, key=str)
    for one in result["comparisons"]:
        assert len(one["ratios"]) == rounds, one
        assert all(math.isfinite(ratio) and ratio > 0 for ratio in one["ratios"]), one
        assert math.isfinite(one["ratio"]), one
        assert one["lowest"] <= one["highest"], one


@needs_peers
@needs_shm
def test_each_row_of_the_engine_is_measured(disk: Path) -> None:
    kept = measure(disk, "batches", "one-set", "reads", "writes", "opening")
    result = json.loads((kept / "engine-msync.json").read_text())
    assert_rows(result, ROWS)
    assert result["promise"] == "msync"
    assert "commit journal" in result["contenders"]["gpkvs"]["bytes"]["settings"]
    assert "commit undo" in result["contenders"]["gpkvs, process"]["bytes"]["settings"]
    assert "sync=True" in result["contenders"]["LMDB"]["u64"]["settings"]
    assert "sync=True" in result["contenders"]["RocksDB"]["bytes"]["settings"]
    notes = {one["what"]: one["note"] for one in result["comparisons"]}
    assert not notes["opening, 8 B keys, 8 B values"].endswith(" 0 batches replayed")
    assert not (kept / "server-msync.json").exists()


@needs_peers
@needs_shm
def test_tails_are_those_beside_checkpoints_and_compactions(disk: Path) -> None:
    # RocksDB has something to tidy up after 64 MB.
    larger = ("--records", "20000", "--batch", "40000", "--seconds", "0.01")
    kept = measure(disk, "tails", sizes=larger)
    assert_rows(json.loads((kept / "engine-msync.json").read_text()), TAILS)


@needs_redis
def test_the_server_is_measured_beside_redis_that_syncs_and_reported(disk: Path) -> None:
    kept, document = measure(disk, "server", rounds=2), disk / "performance.md"
    result = json.loads((kept / "server-msync.json").read_text())
    assert_rows(result, SERVER_ROWS, rounds=2)
    assert result["contenders"]["gpkvs"]["settings"] == "commit journal"
    assert "appendfsync always" in result["contenders"]["redis"]["settings"]
    document.write_text(f"{BEGIN}\n{END}\n")
    done = run_gpkvs("bench", "report", "--results", str(kept), "--document", str(document))
    assert done.returncode == 0, done.stderr.decode()
    text = document.read_text()
    assert "| SET stream | gpkvs | redis |" in text
    assert "at least 7.5:" in text
    assert (disk / "performance-server-msync.svg").exists()


def test_rounds_take_turns_and_begin_with_another_one_each_time() -> None:
    order: list[str] = []
    runs = [lambda name=name: order.append(name) or len(order) for name in "abc"]
    assert in_turn(3, runs) == [[1, 6, 8], [2, 4, 9], [3, 5, 7]]
    assert "".join(order) == "abcbcacab"


def test_a_comparison_says_whether_its_aim_is_met() -> None:
    at_least = Comparison("SET", "gpkvs", "LMDB", [1.0, 9.0, 5.0], aim=5)
    assert (at_least.as_json()["ratio"], at_least.as_json()["is_met"]) == (5.0, True)
    at_most = Comparison("p99", "gpkvs", "alone", [1.0, 9.0, 5.0], aim=4, is_least=False)
    assert at_most.as_json()["is_met"] is False
    overall = Comparison("writes", "gpkvs", "user bytes", [1.0, 9.0, 5.0], aim=4, is_least=False, overall=3.5)
    assert (overall.as_json()["ratio"], overall.as_json()["is_met"]) == (3.5, True)
