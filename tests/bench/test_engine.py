"""`gpkvs bench` from end to end, with tiny sizes: that it measures what it says, never how fast."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from gpkvs.bench.engine.benchmark import EngineOptions, run_engine, steps
from gpkvs.bench.engine.workload import SHAPES, Columns, Workload, mixed
from gpkvs.bench.peers.contender import BenchError
from gpkvs.bench.peers.embedded_gpkvs import EmbeddedGpkvs
from tests.bench.needed import SHM, needs_peers, needs_shm
from tests.serving import error_line, run_gpkvs

TINY = ("--records", "3000", "--batch", "500", "--runs", "2", "--batches", "3", "--seconds", "0.1")


@needs_peers
@needs_shm
def test_the_engine_is_measured_beside_its_peers(tmp_path: Path) -> None:
    kept = tmp_path / "results" / "engine.json"
    done = run_gpkvs("bench", "engine", *TINY, "--profile", "--json", str(kept))
    assert done.returncode == 0, done.stderr.decode()
    result = json.loads(kept.read_text())
    assert result["benchmark"] == "engine"
    assert result["promise"] == "process"
    assert result["machine"]["file_system"] == "tmpfs"
    assert result["commit"]
    assert set(result["contenders"]) == {"gpkvs", "LMDB", "RocksDB"}
    measured = {(found["task"], found["contender"]): found for found in result["measurements"]}
    assert len(measured) == 2 * 2 * 2 * 3
    for found in measured.values():
        rates = [run["operations"] / run["seconds"] for run in found["runs"]]
        assert len(rates) == 2
        assert found["rate"] == pytest.approx(np.median(rates))
        assert all(run["operations"] == 3 * 500 for run in found["runs"])
        assert 0 < found["latencies_ms"]["p50"] <= found["latencies_ms"]["p99"]
    ratio = next(one for one in result["ratios"] if (one["task"], one["peer"]) == ("u64 SET random", "LMDB"))
    own, peer = (measured["u64 SET random", name]["rate"] for name in ("gpkvs", "LMDB"))
    assert ratio["ratio"] == pytest.approx(own / peer)
    assert ratio["aim"] == 15
    # A GET has no log, a SET has.
    assert "log" in result["phases"]["u64 SET random"]
    assert "log" not in result["phases"]["u64 GET random"]
    shown = done.stdout.decode()
    assert "RocksDB" in shown
    assert "phase" in shown


@needs_shm
def test_another_promise_than_asked_for_is_refused(tmp_path: Path) -> None:
    assert "name another directory" in error_line(
        run_gpkvs("bench", "engine", *TINY, "--peer", "none", "--promise", "msync", "--directory", str(SHM)), 1
    )


def test_an_unknown_peer_is_refused() -> None:
    assert b"there are lmdb, rocksdb" in run_gpkvs("bench", "engine", *TINY, "--peer", "oracle").stderr


@needs_shm
def test_a_store_that_returns_wrong_values_is_not_timed(monkeypatch: pytest.MonkeyPatch) -> None:
    load = EmbeddedGpkvs.load

    def load_and_spoil(self: EmbeddedGpkvs, workload: Workload) -> None:
        load(self, workload)
        columns = next(workload.loads("random"))
        self.set(self.prepare_set(Columns(columns.numbers[:1], columns.keys[:1], columns.values[:1] ^ 1)))

    monkeypatch.setattr(EmbeddedGpkvs, "load", load_and_spoil)
    options = EngineOptions(SHM, records=1000, batch=100, runs=1, batches_max=1, peers=())
    with pytest.raises(BenchError, match="does not return the values"):
        run_engine(options, lambda step: None)


@needs_shm
def test_progress_is_told_as_often_as_announced() -> None:
    options = EngineOptions(SHM, records=1000, batch=100, runs=1, batches_max=1, peers=())
    told: list[str] = []
    run_engine(options, told.append)
    assert len(told) == steps(options)


@pytest.mark.parametrize("shape", SHAPES.values(), ids=SHAPES)
def test_sorted_batches_are_sorted_as_bytes_and_hold_loaded_keys(shape) -> None:
    workload = Workload(shape, records=5000, batch=700)
    loaded = [key.tobytes() for columns in workload.loads("sorted") for key in columns.keys]
    assert loaded == sorted(set(loaded))
    assert len(loaded) == 5000
    for order in ("random", "sorted"):
        columns = next(workload.batches(order, seed=3))
        keys = [key.tobytes() for key in columns.keys]
        assert (keys == sorted(keys)) == (order == "sorted")
        assert set(keys) <= set(loaded)
        assert columns.values.shape == (700, shape.value_bytes)


def test_mixed_numbers_are_distinct_and_spread() -> None:
    numbers = mixed(np.arange(100_000, dtype=np.uint64))
    assert len(np.unique(numbers)) == 100_000
    counts = np.bincount((numbers >> np.uint64(60)).astype(int), minlength=16)
    assert counts.min() > 5_500
