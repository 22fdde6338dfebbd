"""`gpkvs bench values` from end to end, with small sizes: that each row has a figure, never how fast."""

from __future__ import annotations

import json
import math
import tempfile
from pathlib import Path

import pytest

from gpkvs.bench.peers.contender import BenchError
from gpkvs.bench.report.results import Measurement, Run
from gpkvs.bench.values.limits import FLUSHED, MEMCPY
from gpkvs.bench.values.options import Found
from gpkvs.bench.values.payload import Payload, key_of, mixed_sizes
from gpkvs.bench.values.plain_files import PlainFiles
from gpkvs.config import KIB, MIB
from tests.bench.needed import SHM, needs_peers, needs_shm
from tests.bench.test_wear_and_growth import needs_redis
from tests.serving import run_gpkvs

SMALL = ("--size", "64KiB", "--size", "4GiB", "--total-bytes", "2MiB", "--runs", "1", "--seconds", "0.02")
PEERS = {"LMDB", "BlobDB", "files"}


def measure(results: Path, *options: str) -> dict:
    """Run some parts; return the only result."""
    with tempfile.TemporaryDirectory(dir=SHM) as stores:
        done = run_gpkvs("bench", "values", *SMALL, "--directory", stores, "--results", str(results), *options)
        assert done.returncode == 0, done.stderr.decode()
        assert not list(Path(stores).iterdir())
    (file,) = results.iterdir()
    result = json.loads(file.read_text())
    assert file.name == f"values-{result['promise']}.json"
    assert all(one["ratio"] > 0 and math.isfinite(one["ratio"]) for one in result["comparisons"])
    assert list(result["left_out"]) == ["values of 4,096 MiB"]
    assert "gpkvs takes values of up to" in result["left_out"]["values of 4,096 MiB"]
    return result


def assert_space(result: dict, peers: set[str]) -> None:
    """Each store's space stands there for one size and for mixed sizes, at each moment."""
    rows = [one for one in result["comparisons"] if one["beside"] == "live bytes"]
    moments = {"loaded": None, "at the peak": 1.15, "overwritten": 1.15, "at rest": 1.15}
    assert sorted((one["what"].rpartition(", ")[2], one["store"], str(one["aim"])) for one in rows) == sorted(
        (moment, store, str(aim if store == "gpkvs" else None))
        for moment, aim in moments.items()
        for store in {"gpkvs", *peers}
        for _ in ("one size", "mixed sizes")
    )


@needs_redis
@needs_peers
@needs_shm
def test_each_row_of_large_values_in_memory_is_measured(tmp_path: Path) -> None:
    parts = ("--part", "server", "--part", "embedded", "--part", "space")
    result = measure(tmp_path, *parts, "--idle", "0", "--format", "4")
    rows = {(one["what"], one["store"], one["beside"]): one["aim"] for one in result["comparisons"]}
    for connections in ("1 connection", "4 connections"):
        assert rows[f"SET 64 KiB, {connections}", "gpkvs", "redis"] == 2.0
        assert rows[f"GET 64 KiB, {connections}", "gpkvs", "redis"] == 1.5
    for operation in ("SET", "GET"):
        assert {(f"{operation} 64 KiB", "gpkvs", name) for name in (*PEERS, MEMCPY)} < set(rows)
    assert rows["GET 64 KiB", "gpkvs", MEMCPY] == 0.8
    assert_space(result, PEERS | {"redis"})
    assert result["contenders"]["redis"]["server"]["settings"] == "appendonly yes, appendfsync no, save off"
    settings = [result["contenders"]["gpkvs"][part]["settings"] for part in ("server", "embedded", "space")]
    assert all("format 4" in one for one in settings)
    assert sum(result["phases"]["SET 64 KiB"].values()) > 0


@needs_peers
@needs_shm
def test_each_row_of_durable_large_values_is_measured(tmp_path: Path, disk: Path) -> None:
    stores = disk / "stores"
    stores.mkdir()
    parts = ("--part", "disk", "--part", "disk-space")
    result = measure(tmp_path / "results", *parts, "--idle", "0", "--disk", str(stores))
    assert not list(stores.iterdir())
    assert_space(result, PEERS)
    sets = [one for one in result["comparisons"] if one["beside"] != "live bytes"]
    rows = {(one["what"], one["store"], one["beside"]): one["aim"] for one in sets}
    assert rows == {("SET 64 KiB", "gpkvs", name): 0.9 if name == FLUSHED else None for name in (*PEERS, FLUSHED)}
    assert all("sync=True" in result["contenders"][name]["disk"]["settings"] for name in ("LMDB", "BlobDB"))
    assert "commit journal" in result["contenders"]["gpkvs"]["disk"]["settings"]


@needs_shm
def test_a_size_that_no_store_takes_is_refused() -> None:
    done = run_gpkvs("bench", "values", "--size", "4GiB", "--part", "embedded", "--peer", "none")
    assert done.returncode == 1
    assert "give a smaller --size" in done.stderr.decode()


class _Forgetful(PlainFiles):
    """Files of which the first is forgotten."""

    def get_one(self, key: bytes) -> bytes:
        return b"" if key == key_of(0) else super().get_one(key)


def test_values_are_checked_once_they_are_loaded(tmp_path: Path) -> None:
    payload = Payload.of_sizes([1000, 2000, 3000])
    whole = PlainFiles(tmp_path, "msync")
    payload.load(whole)
    whole.set_one(key_of(1), payload.value(1, 2))
    assert whole.get_one(key_of(1)) == payload.values[0]
    assert sorted(file.name.encode() for file in tmp_path.iterdir()) == [key_of(number) for number in range(3)]
    whole.close()
    forgetful = _Forgetful(tmp_path, "process")
    with pytest.raises(BenchError, match="files does not return the values"):
        payload.load(forgetful)
    forgetful.close()


def test_mixed_sizes_fill_the_total_between_their_bounds() -> None:
    sizes = mixed_sizes(256 * KIB, 64 * MIB, 2000 * MIB)
    assert 256 * KIB <= min(sizes) < MIB
    assert 32 * MIB < max(sizes) <= 64 * MIB
    assert 2000 * MIB <= sum(sizes) < 2064 * MIB


def test_rates_of_large_values_are_told_in_bytes() -> None:
    found = Found()
    measured = {
        "gpkvs": Measurement("SET", "gpkvs", [Run(10, 1.0), Run(30, 1.0)]),
        MEMCPY: Measurement("SET", MEMCPY, [Run(20, 1.0), Run(40, 1.0)]),
    }
    found.add("SET", "gpkvs", measured, 50_000_000, {MEMCPY: 0.5})
    (row,) = found.comparisons
    assert (row.ratios, row.aim, row.note) == ([0.5, 0.75], 0.5, "1.00 GB/s, 1.50 GB/s")
    assert len(found.measurements) == 2
