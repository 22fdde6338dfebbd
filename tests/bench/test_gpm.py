"""`gpkvs bench gpm` from end to end, with tiny sizes: that each row has a figure, never how fast."""

from __future__ import annotations

import json
import math
import tempfile
from pathlib import Path
from xml.etree import ElementTree

import numpy as np
import pytest

from gpkvs.bench.gpm.benchmark import WORKLOADS
from gpkvs.bench.gpm.cap import MODES, VOLATILE, Cap
from gpkvs.bench.gpm.tables import PAPER
from gpkvs.gpm import find_place
from tests.serving import run_gpkvs

SHM = Path("/dev/shm")
pytestmark = pytest.mark.skipif(not SHM.is_dir(), reason="there is no /dev/shm")


def test_computing_alone_persists_nothing(tmp_path: Path) -> None:
    with Cap(tmp_path, 4096, find_place("cpu"), "auto") as cap:
        for mode, stored in ((VOLATILE, 0), *((mode, 4096) for mode in MODES)):
            cap.mode, cap.stored_bytes = mode, 0
            cap.persist(np.full(512, 7.0))
            assert cap.stored_bytes == stored
            assert any((tmp_path / "cap.bin").read_bytes()) is bool(stored)


def test_each_workload_is_measured(tmp_path: Path) -> None:
    kept, plot = tmp_path / "gpm.json", tmp_path / "gpm.svg"
    with tempfile.TemporaryDirectory(dir=SHM) as files:
        options = (
            "--size",
            "tiny",
            "--runs",
            "1",
            "--directory",
            files,
            "--disk",
            str(tmp_path),
            "--json",
            str(kept),
            "--plot",
            str(plot),
        )
        done = run_gpkvs("bench", "gpm", *options)
        assert done.returncode == 0, done.stderr.decode()
        assert not list(Path(files).iterdir())
    result = json.loads(kept.read_text())
    found = {one["name"]: one for one in result["operations"]}
    assert found.keys() == PAPER.keys()
    for one in found.values():
        assert one["speedup"]["CAP-fs"] == 1
        assert all(math.isfinite(speedup) and speedup > 0 for speedup in one["speedup"].values())
        assert one["stored_bytes"] > 0
        assert one["limit_seconds"] > 0
        assert one["computing_seconds"]
    table = 121 * 64  # 120 rows, and row 0
    assert found["gpDB (U)"]["write_amplification"] == pytest.approx(table / (40 * 64))
    for name in ("gpDB (I)", "DNN", "CFD", "BLK", "HS", "SRAD", "PS"):
        assert found[name]["write_amplification"] == 1
    assert {name for name, one in found.items() if "restore_seconds" in one} == {
        "gpDB (I)", "gpDB (U)", "DNN", "CFD", "BLK", "HS",
    }  # fmt: skip
    assert all(one["coalesced_ms"] > 0 and one["conventional_ms"] > 0 for one in result["logs"])
    rows = {row["what"]: row for row in result["library"]}
    assert {"save", "restore, checked", "save to a disk", "safetensors.numpy: load"} < rows.keys()
    assert all(math.isfinite(row["value"]) for row in rows.values())
    assert rows["save"]["limit"] > 0
    ElementTree.parse(plot)


def test_what_is_not_known_is_refused() -> None:
    done = run_gpkvs("bench", "gpm", "--workload", "sudoku")
    assert done.returncode == 2
    assert b"prefix_sum" in done.stderr
    assert len(WORKLOADS) == 9
