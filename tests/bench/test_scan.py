"""`gpkvs bench scan` from end to end, with tiny sizes: that each row has a figure, never how fast."""

from __future__ import annotations

import json
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest

from gpkvs.bench.peers.contender import BenchError
from gpkvs.bench.peers.embedded_gpkvs import EmbeddedGpkvs
from gpkvs.bench.report.report import BEGIN, END, write_report
from gpkvs.bench.scan.benchmark import ScanOptions, run_scan
from gpkvs.store import Store
from tests.bench.needed import SHM, needs_lmdb, needs_shm
from tests.serving import run_gpkvs


@needs_lmdb
@needs_shm
def test_each_row_is_measured(tmp_path: Path) -> None:
    kept = tmp_path / "scan-process.json"
    with TemporaryDirectory(dir=SHM) as folder:
        sizes = ("--records", "3000", "--runs", "2", "--directory", folder)
        done = run_gpkvs("bench", "scan", *sizes, "--json", str(kept))
        assert done.returncode == 0, done.stderr.decode()
        assert not list(Path(folder).iterdir())
    result = json.loads(kept.read_text())
    measured = {(one["task"], one["contender"]): one for one in result["measurements"]}
    for shape in ("u64", "bytes"):
        keys = {contender for task, contender in measured if task == f"all keys, {shape}"}
        records = {contender for task, contender in measured if task == f"all records, {shape}"}
        assert keys == {"gpkvs", "gpkvs, as columns", "LMDB", "gpkvs, a client"}
        assert records == {*keys, "gpkvs, an export"}
    assert all(run["operations"] == 3000 and run["seconds"] > 0 for one in measured.values() for run in one["runs"])
    rows = {(one["what"], one["store"], one["beside"]): one["aim"] for one in result["comparisons"]}
    assert rows["all keys, bytes", "gpkvs, as columns", "1 M a second"] == 5
    assert rows["all records, u64", "gpkvs, an export", "1 M a second"] == 1
    assert ("all records, bytes", "gpkvs", "LMDB") in rows
    document = tmp_path / "performance.md"
    document.write_text(f"{BEGIN}\n{END}\n")
    assert len(write_report(tmp_path, document)) == 2
    assert "gpkvs, an export" in document.read_text()


@needs_shm
def test_a_scan_that_loses_a_record_is_no_measurement(monkeypatch: pytest.MonkeyPatch) -> None:
    load = EmbeddedGpkvs.load

    def load_and_lose(self: EmbeddedGpkvs, workload: Any) -> None:
        load(self, workload)
        store: Store = self.store
        store.delete(next(iter(store.scan_step().key_list())))

    monkeypatch.setattr(EmbeddedGpkvs, "load", load_and_lose)
    bytes_shape = ScanOptions(SHM).shapes[1]
    options = ScanOptions(SHM, records=100, runs=1, shapes=(bytes_shape,), peers=())
    with pytest.raises(BenchError, match="99 records, 100 are there"):
        run_scan(options, lambda _step: None)
