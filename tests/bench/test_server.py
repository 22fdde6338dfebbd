"""`gpkvs bench server` and `report` from end to end, with tiny sizes: that they measure what they say, not how fast."""

from __future__ import annotations

import asyncio
import json
import mmap
import os
from collections.abc import Iterable
from pathlib import Path
from xml.etree import ElementTree

import pytest

from gpkvs.bench.peers.contender import BenchError
from gpkvs.bench.report.report import BEGIN, END
from gpkvs.bench.server import transactions
from gpkvs.bench.server.call_counts import count_calls
from gpkvs.bench.server.measured_server import ServerBenchOptions
from gpkvs.bench.server.memory_and_start import measure_start
from gpkvs.bench.server.process_usage import cpu_seconds, resident
from tests.programs import needs
from tests.serving import error_line, run_gpkvs

SHM = Path("/dev/shm")
TINY = ("--records", "2000", "--large-records", "300", "--runs", "1", "--seconds", "0.1", "--message", "100")

needs_redis = needs("redis-server", "redis-benchmark")
needs_shm = pytest.mark.skipif(not SHM.is_dir(), reason="there is no /dev/shm")


def silent(step: str) -> None:
    """Tell no progress."""


@needs_redis
@needs_shm
def test_the_server_is_measured_beside_redis_and_reported(tmp_path: Path) -> None:
    kept, document = tmp_path / "results" / "server-process.json", tmp_path / "performance.md"
    callers = ("--connections", "3", "--callers", "8")
    parts = ("--part", "throughput", "--part", "memory", "--part", "metrics")
    done = run_gpkvs("bench", "server", *TINY, *callers, *parts, "--profile", "--json", str(kept))
    assert done.returncode == 0, done.stderr.decode()
    result = json.loads(kept.read_text())
    tasks = {f"{op} {kind}" for op in ("SET", "GET") for kind in ("stream", "single", "gathered")}
    rates = {(found["task"], found["contender"]): found["rate"] for found in result["measurements"]}
    singles = {("SET single", "empty gRPC"), ("GET single", "empty gRPC")}
    assert set(rates) == {(task, contender) for task in tasks for contender in ("gpkvs", "redis")} | singles
    assert result["spent"]["SET single"]["empty_server_cpu_us"] > 0
    assert min(rates.values()) > 0
    aims = {ratio["task"]: ratio["aim"] for ratio in result["ratios"]}
    assert (aims["SET stream"], aims["GET stream"], aims["SET gathered"], aims["SET single"]) == (10, 5, 0.5, None)
    assert "appendfsync no" in result["contenders"]["redis"]["settings"]
    assert set(result["spent"]) == tasks
    assert "log" in result["phases"]["SET stream"]
    assert "log" not in result["phases"]["GET stream"]
    assert result["memory"]["loaded"]["store_bytes"] > 300 * 1024 > result["memory"]["empty"]["store_bytes"] / 100
    assert all(len(found["with"]) == len(found["without"]) == 4 for found in result["metrics_cost"].values())

    document.write_text(f"# Before\n{BEGIN}\nold figures\n{END}\nafter\n")
    done = run_gpkvs("bench", "report", "--results", str(kept.parent), "--document", str(document))
    assert done.returncode == 0, done.stderr.decode()
    text = document.read_text()
    assert text.startswith(f"# Before\n{BEGIN}\n")
    assert text.endswith(f"{END}\nafter\n")
    assert "old figures" not in text
    assert "| SET stream | redis |" in text
    plot = ElementTree.parse(tmp_path / "performance-server-process.svg").getroot()
    bars = [one for one in plot.iter() if one.tag.endswith("rect")][1:]
    assert len(bars) == len(rates)


def test_transactions_are_measured_and_the_sum_is_checked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(transactions, "find_etcd", lambda: None)
    options = ServerBenchOptions(tmp_path, records=5000, runs=1, seconds=0.1)
    found = asyncio.run(transactions.measure_transactions(options, tmp_path, silent))
    assert [(one.beside, one.aim) for one in found] == [("the same without checks", 0.7), ("gathered SETs", None)]
    assert all(0 < one.ratio < 10 for one in found)

    class Table:
        """A table in which one account has lost something."""

        async def get_all(self, keys: Iterable[bytes]) -> dict[bytes, bytes]:
            return {key: b"999" if key == b"00000007" else b"1000" for key in keys}

    with pytest.raises(BenchError, match="the accounts hold 99,999 after the transactions, 100,000 before"):
        asyncio.run(transactions._require_sum(Table(), 100))  # type: ignore[arg-type]


@needs_shm
def test_a_message_costs_the_same_calls_and_objects_whatever_it_holds(
    tmp_path: Path,
) -> None:
    """No Python object per operation between the socket and the kernels.

    A turn of the native engine costs some 250 calls. It serves many messages; on a busy machine, few.
    """
    sizes = (64, 4096)
    counted = asyncio.run(count_calls(ServerBenchOptions(SHM), tmp_path, sizes))
    for operation, found in counted.items():
        few, many = (found[str(size)] for size in sizes)
        assert few["calls_per_message"] <= 400, operation
        # A busy machine adds calls that wait: tens of them, where one for each operation would add 4,032.
        assert abs(many["calls_per_message"] - few["calls_per_message"]) < 400, (operation, few, many)
        assert many["objects_most"] - few["objects_most"] < 1000, (operation, few, many)


@needs_shm
def test_start_up_is_timed_after_a_stop_and_after_a_kill(tmp_path: Path) -> None:
    options = ServerBenchOptions(SHM, records=50, large_records=1, starts=1)
    found = asyncio.run(measure_start(options, tmp_path, silent))
    assert [one["records"] for one in found] == [1, 5, 50, 1]
    for one in found:
        assert len(one["clean_seconds"]) == len(one["killed_seconds"]) == 1
        assert one["clean_seconds"][0] > 0
        assert one["store_bytes"] > 1 << 20


def test_the_mapped_store_is_not_counted_as_other_memory(tmp_path: Path) -> None:
    size = 64 << 20
    file = tmp_path / "store" / "heap"
    file.parent.mkdir()
    file.write_bytes(b"x" * size)
    before = resident(os.getpid(), file.parent)
    with file.open("r+b") as opened, mmap.mmap(opened.fileno(), 0) as mapped:
        assert mapped[:: mmap.PAGESIZE].count(b"x") == size // mmap.PAGESIZE
        during = resident(os.getpid(), file.parent)
        elsewhere = resident(os.getpid(), tmp_path / "other")
    assert before.store_bytes == 0
    assert during.store_bytes == size
    assert abs(during.other_bytes - before.other_bytes) < size // 4
    assert elsewhere.other_bytes >= size
    assert cpu_seconds(os.getpid()) > 0


@needs_shm
def test_without_redis_the_message_says_what_to_do() -> None:
    result = run_gpkvs("bench", "server", *TINY, "--part", "throughput", env={"PATH": "/nonexistent"})
    assert "apt-get install redis-server" in error_line(result, 1)


def test_a_document_without_marks_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "performance.md").write_text("mine")
    (tmp_path / "engine.json").write_text("{}")
    arguments = ("bench", "report", "--results", str(tmp_path), "--document", str(tmp_path / "performance.md"))
    assert "is not a result of gpkvs bench" in error_line(run_gpkvs(*arguments), 1)
    (tmp_path / "engine.json").write_text('{"promise": "process", "measurements": []}')
    assert "needs the lines" in error_line(run_gpkvs(*arguments), 1)
    assert (tmp_path / "performance.md").read_text() == "mine"
