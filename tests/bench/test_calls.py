"""`gpkvs bench calls` from end to end, with tiny sizes: that each row has a figure, never how fast."""

from __future__ import annotations

import json
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest

from gpkvs.bench.calls.benchmark import BUSY, CallsOptions, run_calls
from gpkvs.bench.peers.contender import BenchError
from gpkvs.bench.peers.embedded_gpkvs import EmbeddedGpkvs
from gpkvs.bench.report.report import BEGIN, END, write_report
from tests.bench.needed import SHM, needs_lmdb, needs_shm
from tests.serving import run_gpkvs


@needs_lmdb
@needs_shm
def test_each_row_is_measured(tmp_path: Path) -> None:
    kept = tmp_path / "calls-process.json"
    with TemporaryDirectory(dir=SHM) as folder:
        sizes = ("--records", "300", "--calls", "100", "--runs", "2", "--directory", folder)
        done = run_gpkvs("bench", "calls", *sizes, "--json", str(kept))
        assert done.returncode == 0, done.stderr.decode()
        assert not list(Path(folder).iterdir())
    result = json.loads(kept.read_text())
    kinds = [f"{kind}{beside}" for kind in ("SET", "GET", "increment") for beside in ("", f" {BUSY}")]
    assert {(one["task"], one["contender"]) for one in result["measurements"]} == {
        (kind, contender) for kind in kinds for contender in ("gpkvs", "LMDB")
    }
    assert {one["task"] for one in result["ratios"]} == {one["task"] for one in result["measurements"]}
    document = tmp_path / "performance.md"
    document.write_text(f"{BEGIN}\n{END}\n")
    write_report(tmp_path, document)
    assert BUSY in document.read_text()


@needs_shm
@pytest.mark.parametrize("wrong", ["get_one", "increment_one"])
def test_a_store_that_is_wrong_is_not_measured(monkeypatch: pytest.MonkeyPatch, wrong: str) -> None:
    monkeypatch.setattr(EmbeddedGpkvs, wrong, lambda *_: None)
    with TemporaryDirectory(dir=SHM) as folder, pytest.raises(BenchError, match=r"does not return|has counted"):
        run_calls(CallsOptions(Path(folder), records=50, calls=20, runs=1, peers=()), lambda _: None)
