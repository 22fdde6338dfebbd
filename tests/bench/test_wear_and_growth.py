"""`gpkvs bench wear` and `growth` from end to end, with tiny sizes: that each row has a figure, never how fast."""

from __future__ import annotations

import json
import math
import tempfile
from itertools import islice
from pathlib import Path
from xml.etree import ElementTree

import numpy as np
import pytest

from gpkvs.bench.engine.workload import SHAPES, Workload
from gpkvs.bench.growth.timeline import BUCKETS, Timeline
from gpkvs.bench.report.report import BEGIN, END
from gpkvs.bench.report.timeline_plot import draw_timelines
from gpkvs.bench.wear.overwrites import OWN, comparisons_of
from gpkvs.bench.wear.worn_store import Worn
from gpkvs.bench.wear.zipfian import overwrites
from tests.bench.needed import SHM, needs_peers, needs_shm
from tests.programs import needs
from tests.serving import run_gpkvs

needs_redis = needs("redis-server", "redis-benchmark")


@needs_peers
@needs_shm
def test_each_row_of_wear_is_measured(tmp_path: Path) -> None:
    kept = tmp_path / "wear.json"
    sizes = ("--heap-bytes", str(4 << 20), "--overwrites", "2", "--large-records", "500", "--large-overwrites", "2")
    sizes += ("--share", "0.85", "--share", "0.5", "--batch", "1000", "--idle", "0")
    with tempfile.TemporaryDirectory(dir=SHM) as stores:
        done = run_gpkvs("bench", "wear", *sizes, "--directory", stores, "--json", str(kept))
        assert done.returncode == 0, done.stderr.decode()
        assert not list(Path(stores).iterdir())
    result = json.loads(kept.read_text())
    rows = {(one["what"], one["store"], one["beside"]): one for one in result["comparisons"]}
    for distribution in ("uniform", "zipfian"):
        for share in ("0.50", "0.85"):
            task = f"{distribution} at {share}"
            refused = rows[f"{task}: refused", "gpkvs", "all overwrites"]
            assert refused["aim"] == 0
            assert refused["is_met"] == (refused["ratio"] == 0)
            for peer in ("BlobDB", "LMDB"):
                assert (f"{task}: rate", peer, "rate of the emptiest heap") in rows or share == "0.50"
    for store, files in (("gpkvs", "heap file"), ("BlobDB", "files"), ("LMDB", "files")):
        assert rows[f"500 records of 1 KB, overwritten: {files}", store, "live records"]["ratio"] >= 1
        assert rows[f"500 records of 1 KB, nine tenths deleted: {files}", store, "live records"]["ratio"] >= 1
    assert all(math.isfinite(one["ratio"]) for one in rows.values())
    assert "enable_blob_gc" in result["contenders"]["BlobDB"]["bytes"]["settings"]


def test_a_store_that_refuses_meets_no_aim_and_its_moves_count_as_written() -> None:
    peer, half = Worn(taken=100, seconds=1.0), Worn(taken=100, seconds=0.1, moved_bytes=0)
    slow, quick = [0.004] * 50, [0.001] * 50
    whole = Worn(taken=100, seconds=0.4, moved_bytes=100 * 144 * 2, quick=quick, slow=slow)
    found = {one.what: one for one in comparisons_of("t", 0.85, "uniform", {OWN: whole, "LMDB": peer}, {OWN: half})}
    assert (found["t: heap written"].ratio, found["t: heap written"].aim) == (3.0, 4.2)
    assert found["t: p99 of batches while records are moved"].ratio == pytest.approx(4.0)
    rates = [
        one
        for one in comparisons_of("t", 0.85, "uniform", {OWN: whole, "LMDB": peer}, {OWN: half, "LMDB": peer})
        if one.what == "t: rate"
    ]
    assert [(one.beside, one.ratio, one.aim) for one in rates] == [
        ("rate of the emptiest heap", pytest.approx(0.25), 0.25),
        ("LMDB", pytest.approx(2.5), 2.0),
    ]
    refusing = Worn(taken=50, refused=50, seconds=0.1, moved_bytes=0)
    rows = list(comparisons_of("t", 0.85, "uniform", {OWN: refusing, "LMDB": peer}, {OWN: half}))
    assert [one.as_json()["is_met"] for one in rows] == [False, *[None] * (len(rows) - 1)]


def test_zipfian_keys_are_records_and_some_are_popular() -> None:
    workload = Workload(SHAPES["bytes"], 1000, 500)
    records = {number for columns in workload.loads("random") for number in columns.numbers.tolist()}
    drawn = np.concatenate([columns.numbers for columns in islice(overwrites(workload, "zipfian", 1), 20)])
    assert set(drawn.tolist()) <= records
    counts = np.sort(np.unique(drawn, return_counts=True)[1])[::-1]
    assert counts[0] > 0.1 * len(drawn) > counts[10] * 3
    assert len(counts) > 500


@needs_redis
@needs_shm
def test_growth_is_measured_beside_redis_and_reported(tmp_path: Path) -> None:
    kept, document = tmp_path / "results" / "growth-process.json", tmp_path / "performance.md"
    sizes = ("--records", "20000", "--batch", "500", "--index-bytes", str(4 << 20), "--steps-bytes", str(1 << 20))
    done = run_gpkvs("bench", "growth", *sizes, "--json", str(kept))
    assert done.returncode == 0, done.stderr.decode()
    result = json.loads(kept.read_text())
    lines = {line["store"]: line for line in result["timelines"]}
    assert list(lines) == ["gpkvs", "gpkvs, made large", "redis"]
    for line in lines.values():
        assert (line["operations"], line["refusal"]) == (20_000, "")
        assert all(0 < one["p50_ms"] <= one["p99_ms"] <= one["longest_ms"] for one in line["buckets"])
    rows = {(one["what"], one["beside"]): one for one in result["comparisons"]}
    assert rows["inserts: throughput", "gpkvs, made large"]["aim"] == 0.7
    assert rows["inserts: throughput", "redis"]["ratio"] > 0
    assert all(rows[f"steps of growth alone, {layout}", "a copy"]["ratio"] > 0 for layout in ("u64", "bytes"))

    document.write_text(f"{BEGIN}\n{END}\n")
    done = run_gpkvs("bench", "report", "--results", str(kept.parent), "--document", str(document))
    assert done.returncode == 0, done.stderr.decode()
    assert "performance-growth-process-timeline.svg" in document.read_text()
    plot = ElementTree.parse(tmp_path / "performance-growth-process-timeline.svg").getroot()
    assert len([one for one in plot.iter() if one.tag.endswith("polyline")]) == 3 * len(lines)


def test_a_timeline_keeps_the_longest_batch_and_what_happened_beside_it() -> None:
    line = Timeline("a store")
    for number in range(1000):
        line.add(10, 0.5 if number == 700 else 0.001, is_growing=300 <= number < 400, is_moving=number == 999)
    found = line.as_json()
    assert len(found["buckets"]) <= BUCKETS
    assert max(one["longest_ms"] for one in found["buckets"]) == pytest.approx(500)
    assert found["rate"] == pytest.approx(10_000 / 1.499)
    assert sum(one["is_moving"] for one in found["buckets"]) == 1
    assert line.percentile_ms(99, growing=True) == pytest.approx(1)
    assert line.percentile_ms(100, growing=False) == pytest.approx(500)
    assert Timeline("refused at once", refusal="full").as_json()["buckets"] == []
    result = {
        "timelines": [found, Timeline("empty").as_json()],
        "parameters": {"batch": 10},
        "machine": {"processors": 1, "processor": "a", "file_system": "b"},
        "date": "2026-01-01",
    }
    drawn = ElementTree.fromstring(draw_timelines(result))
    colors = [one.get("fill") for one in drawn.iter() if one.tag.endswith("rect")]
    assert colors.count("#dafbe1") - 1 == sum(one["is_growing"] for one in found["buckets"]) > 0
