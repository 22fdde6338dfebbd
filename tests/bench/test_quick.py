"""`gpkvs bench quick` from end to end, with tiny sizes: that each row has a figure, never how fast."""

from __future__ import annotations

import importlib.util
import json
import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any
from xml.etree import ElementTree

import pytest

from gpkvs.bench.peers.contender import BenchError
from gpkvs.bench.peers.embedded_gpkvs import EmbeddedGpkvs
from gpkvs.bench.quick import served
from gpkvs.bench.quick.benchmark import STEPS, run_quick
from gpkvs.bench.quick.options import BATCH, QuickOptions
from tests.bench.needed import SHM, needs_lmdb, needs_shm
from tests.bench.test_wear_and_growth import needs_redis
from tests.serving import run_gpkvs

TINY = ("--seconds", "0.3", "--records", str(BATCH), "--runs", "2")
EMBEDDED = {
    f"embedded {operation}{rest}"
    for operation in ("SET", "GET")
    for rest in (", one a call", ", 4,096 a batch", " numbers, 4,096 a batch")
}
OVER_RESP = {f"served {operation}, {how}" for operation in ("SET", "GET") for how in ("one a call", "64 a pipeline")}
OVER_GRPC = {f"served {operation} numbers, gRPC stream" for operation in ("SET", "GET")}


@pytest.fixture
def memory() -> Iterator[Path]:
    with TemporaryDirectory(dir=SHM) as folder:
        yield Path(folder)


def rows(result: dict[str, Any]) -> set[tuple[str, str]]:
    return {(one["task"], one["contender"]) for one in result["measurements"]}


@needs_lmdb
@needs_redis
@needs_shm
@pytest.mark.parametrize(("place", "fsync"), [("memory", "no"), ("disk", "always")])
def test_each_row_is_measured(request: pytest.FixtureRequest, tmp_path: Path, place: str, fsync: str) -> None:
    folder = request.getfixturevalue(place) / "stores"
    folder.mkdir()
    kept, drawn = tmp_path / "quick.json", tmp_path / "pictures" / "quick.svg"
    files = ("--json", str(kept), "--svg", str(drawn))
    done = run_gpkvs("bench", "--quick", *TINY, "--directory", str(folder), *files)
    assert done.returncode == 0, done.stderr.decode()
    assert not list(folder.iterdir())
    result = json.loads(kept.read_text())
    assert rows(result) == {
        *((task, "LMDB") for task in EMBEDDED),
        *((task, "redis") for task in OVER_RESP),
        *((task, "gpkvs") for task in EMBEDDED | OVER_RESP | OVER_GRPC),
    }
    assert all(len(one["runs"]) == 2 and one["latencies_ms"]["p50"] > 0 for one in result["measurements"])
    assert {one["task"] for one in result["ratios"]} == EMBEDDED | OVER_RESP
    assert result["contenders"]["redis"]["settings"] == f"appendonly yes, appendfsync {fsync}, save off"
    assert f"sync={fsync == 'always'}" in result["contenders"]["LMDB"]["settings"]
    assert result["absent"] == {}
    panels = [text.text for text in ElementTree.parse(drawn).iter("{http://www.w3.org/2000/svg}text")]
    shown = done.stdout.decode()
    for task in EMBEDDED | OVER_RESP | OVER_GRPC:
        assert task in panels
        assert shown.count(task) == 2, "a row of the table, and a bar"
    assert f"appendfsync {fsync}" in shown
    assert ("not a loss of power" in shown) == (place == "memory")


@needs_shm
@pytest.mark.parametrize("missing", ["redis-server", "redis-benchmark", "door"])
def test_what_is_not_there_is_left_out_and_said(monkeypatch: pytest.MonkeyPatch, memory: Path, missing: str) -> None:
    find, which = importlib.util.find_spec, shutil.which
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None if name == "lmdb" else find(name))
    monkeypatch.setattr(shutil, "which", lambda name: None if name == missing else which(name) or "found")
    if missing == "door":
        monkeypatch.setattr(served, "versions", lambda: "")
    told: list[str] = []
    if missing == "redis-server" and not which("redis-benchmark"):
        pytest.skip("redis-benchmark is not installed")
    result = run_quick(QuickOptions(memory, 0.3, BATCH, 1), told.append)
    over_resp = OVER_RESP if missing == "redis-server" else set()
    over_grpc = set() if missing == "door" else OVER_GRPC
    assert rows(result) == {(task, "gpkvs") for task in EMBEDDED | over_resp | over_grpc}
    assert len(result["absent"]) == 2
    assert "pip install lmdb" in result["absent"].pop("LMDB")
    (why,) = result["absent"].values()
    assert {"door": "this build of gpkvs has none", "redis-server": "redis-server", "redis-benchmark": "redis-tools"}[
        missing
    ] in why
    assert not any("LMDB is" in limit or "redis" in limit for limit in result["limits"])


@needs_lmdb
@needs_redis
@needs_shm
def test_progress_is_told_as_often_as_announced(memory: Path) -> None:
    told: list[str] = []
    run_quick(QuickOptions(memory, 0.3, BATCH, 1), told.append)
    assert len(told) == STEPS


@needs_shm
@pytest.mark.parametrize(("load", "is_busy"), [(0.0, False), (99.0, True)])
def test_a_busy_machine_is_said(monkeypatch: pytest.MonkeyPatch, memory: Path, load: float, is_busy: bool) -> None:
    monkeypatch.setattr(os, "getloadavg", lambda: (load, 0.0, 0.0))
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {0, 1})
    result = run_quick(QuickOptions(memory, 0.3, BATCH, 1), lambda _: None)
    assert result["load_average"] == load
    assert any("a load of 99.0 on 2 processors" in limit for limit in result["limits"]) == is_busy


@needs_shm
def test_a_store_that_returns_wrong_values_is_not_measured(monkeypatch: pytest.MonkeyPatch, memory: Path) -> None:
    monkeypatch.setattr(EmbeddedGpkvs, "values", lambda *_: b"wrong")
    with pytest.raises(BenchError, match="gpkvs does not return the values"):
        run_quick(QuickOptions(memory, 0.3, BATCH, 1), lambda _: None)


@needs_shm
@pytest.mark.parametrize("option", ["--json", "--svg"])
def test_a_file_that_cannot_be_written_is_said_after_the_figures(memory: Path, option: str) -> None:
    (memory / "file").touch()
    done = run_gpkvs("bench", "quick", *TINY, "--runs", "1", "--directory", str(memory), option, str(memory / "file/x"))
    assert b"gRPC stream" in done.stdout
    assert f"cannot write {memory}/file/x: " in done.stderr.decode()
    assert done.returncode == 1


def test_fewer_records_than_a_batch_are_refused() -> None:
    done = run_gpkvs("bench", "quick", "--records", "100")
    assert done.returncode == 2
    assert b"4096" in done.stderr
