"""`gpkvs bench rows` from end to end, with tiny sizes: that each row has a figure, never how fast."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any
from xml.etree import ElementTree

import numpy as np
import pytest

from gpkvs.bench.peers.contender import BenchError, found_promise
from gpkvs.bench.rows.benchmark import run_rows
from gpkvs.bench.rows.gpkvs_rows import GpkvsRows
from gpkvs.bench.rows.numpy_rows import NumpyRows
from gpkvs.bench.rows.options import RowsOptions, layout_of
from gpkvs.bench.rows.sqlite_rows import SqliteRows
from gpkvs.bench.rows.table import RowTable
from gpkvs.bench.rows.turns import require_rows
from tests.bench.needed import SHM, needs_lmdb, needs_shm
from tests.bench.test_wear_and_growth import needs_redis
from tests.serving import run_gpkvs

TINY = ("--rows-max", "600", "--batch", "100", "--runs", "2", "--seconds", "0.005")
DIMS = ("--dim", "8", "--dim", "200")
LAYOUTS = ("float32[8]", "float32[200]")
PEERS = {"NumPy", "LMDB", "SQLite", "redis"}


@pytest.fixture
def memory() -> Iterator[Path]:
    with TemporaryDirectory(dir=SHM) as folder:
        yield Path(folder)


@needs_redis
@needs_lmdb
@needs_shm
@pytest.mark.parametrize(("place", "fsync", "synchronous"), [("memory", "no", "OFF"), ("disk", "always", "FULL")])
def test_each_row_is_measured(
    request: pytest.FixtureRequest, tmp_path: Path, place: str, fsync: str, synchronous: str
) -> None:
    pytest.importorskip("redis")
    folder = request.getfixturevalue(place) / "stores"
    folder.mkdir()
    kept, drawn = tmp_path / "rows.json", tmp_path / "pictures" / "rows.svg"
    files = ("--directory", str(folder), "--profile", "--json", str(kept), "--svg", str(drawn))
    done = run_gpkvs("bench", "rows", *TINY, *DIMS, *files)
    assert done.returncode == 0, done.stderr.decode()
    assert not list(folder.iterdir())
    result = json.loads(kept.read_text())
    assert result["promise"] == ("process" if place == "memory" else "msync")
    assert result["parameters"]["rows"] == dict.fromkeys(LAYOUTS, 600)
    measured = {(one["task"], one["contender"]): one for one in result["measurements"]}
    wanted = {
        (f"{task}, {layout}", store)
        for layout in LAYOUTS
        for task in ("get", "get into out", "set", "add", "step")
        for store in ({"gpkvs", "NumPy"} if task == "get into out" else PEERS | {"gpkvs"})
    }
    assert set(measured) == wanted
    assert all(len(one["runs"]) == 2 and one["latencies_ms"]["p50"] > 0 for one in measured.values())
    assert_comparisons(result)
    settings = {name: one["float32[8]"]["settings"] for name, one in result["contenders"].items()}
    assert f"appendfsync {fsync}" in settings["redis"]
    assert f"synchronous={synchronous}" in settings["SQLite"]
    assert f"sync={fsync == 'always'}" in settings["LMDB"]
    assert "integerkey" in settings["LMDB"]
    assert "NOT durable" in settings["NumPy"]
    assert f"commit {'undo' if place == 'memory' else 'journal'}" in settings["gpkvs"]
    assert "record" in result["phases"]["set, float32[200]"]
    panels = [text.text for text in ElementTree.parse(drawn).iter("{http://www.w3.org/2000/svg}text")]
    assert {task for task, _ in wanted} < set(panels)


def assert_comparisons(result: dict[str, Any]) -> None:
    """Each figure has its ratio, and those that have aims have theirs."""
    found = {(one["what"], one["store"], one["beside"]): one for one in result["comparisons"]}
    assert all(one["ratio"] > 0 and math.isfinite(one["ratio"]) for one in found.values())
    aims = {beside: found["get, float32[200]", "gpkvs", beside]["aim"] for beside in PEERS}
    assert aims == {"NumPy": 0.5, "LMDB": 5.0, "redis": 10.0, "SQLite": None}
    assert found["get, float32[8]", "gpkvs", "NumPy"]["aim"] is None
    assert found["add, float32[200]", "gpkvs", "get and set"]["aim"] == 0.7
    assert "GB/s" in found["step, float32[8]", "gpkvs", "redis"]["note"]
    for when in ("loaded", "overwritten"):
        space = {store: found[f"bytes of a row, float32[200], {when}", store, "800 B"] for store in PEERS | {"gpkvs"}}
        assert space["NumPy"]["ratio"] == 1
        assert all(one["ratio"] > 1 for store, one in space.items() if store != "NumPy")
        assert space["gpkvs"]["aim"] == pytest.approx(829 / 800, abs=0.001)


@needs_shm
def test_a_table_has_as_many_rows_as_its_bytes(memory: Path) -> None:
    options = RowsOptions(memory, (8, 64), 64_000, 1000, 50, 1, 0.001, peers=())
    told: list[str] = []
    result = run_rows(options, told.append)
    assert result["parameters"]["rows"] == {"float32[8]": 1000, "float32[64]": 250}
    assert result["ratios"] == []
    assert "loading 250 rows of float32[64] into gpkvs" in told


class _Forgetful(SqliteRows):
    """A database that forgets what is added."""

    def add(self, adds: object) -> None:
        """Do nothing."""


class _Mixed(GpkvsRows):
    """A store that returns the rows in another order."""

    def get(self, keys: Any) -> Any:
        """Return them reversed."""
        return super().get(keys)[::-1]


@pytest.mark.parametrize("make", [_Forgetful, _Mixed])
def test_a_store_that_returns_wrong_rows_is_not_timed(make: type[_Forgetful | _Mixed], tmp_path: Path) -> None:
    table = RowTable(layout_of(4), 300, 50)
    store = make(tmp_path, table, found_promise(tmp_path))
    store.load(table)
    with pytest.raises(BenchError, match="does not return the rows"):
        require_rows(store, table)
    store.close()


def test_a_fifth_of_the_keys_of_an_add_come_twice_and_their_order_is_kept() -> None:
    table = RowTable(layout_of(3), 1_000_000, 500)
    batch = table.with_duplicates()
    assert 95 <= len(batch) - len(np.unique(batch.places)) <= 105
    limit = NumpyRows()
    limit.load(table)
    limit.add(limit.adds_of(batch))
    held = table.rows.copy()
    np.add.at(held, batch.places, batch.rows)
    assert np.array_equal(limit.get(np.arange(table.count)), held)


def test_an_unknown_peer_is_refused() -> None:
    assert b"there are numpy" in run_gpkvs("bench", "rows", "--peer", "oracle").stderr
