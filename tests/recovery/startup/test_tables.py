"""Kills while tables are made, dropped, and written together."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import gpkvs
from gpkvs.process import failpoint
from tests.conftest import assert_clean
from tests.recovery.startup.child import SIZES
from tests.recovery.startup.harness import kill_at

WRITE = """
import sys, numpy as np, gpkvs
from gpkvs.batch import Batch, Op
keys = np.arange(3000, dtype=np.uint64)
def write(store, value):
    numbers = Batch(np.full(3000, Op.SET, np.uint8), keys.view(np.uint8), np.full(3000, 8, np.uint32),
                    np.full(3000, value, np.uint64).view(np.uint8), np.full(3000, 8, np.uint32),
                    table=store.table("numbers").id)
    records = Batch.of([(Op.SET, b"key%d" % i, b"%d" % value) for i in range(500)])
    store.execute_requests(records)
    store.execute_requests(numbers)
with gpkvs.open(sys.argv[1], threads=2) as store:
    write(store, 1)
    write(store, 2)
"""
CREATE = "import sys, gpkvs; gpkvs.open(sys.argv[1]).create_table('new', layout='u64', index_bytes=65536)"
KEYS = np.arange(3000, dtype=np.uint64)
DROP = "import sys, gpkvs; gpkvs.open(sys.argv[1]).drop_table('numbers')"


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """Return a store with a u64 table `numbers`."""
    path = tmp_path / "store"
    with gpkvs.open(path, **SIZES) as store:
        store.create_table("numbers", layout="u64", index_bytes=128 << 10)
    return path


# The third batch is one of records, the fourth of numbers.
@pytest.mark.undo
@pytest.mark.parametrize("batch", [3, 4])
@pytest.mark.parametrize(
    "point", ["before_log_persist", "before_apply", "mid_apply", "before_apply_persist", "before_idle_flag"]
)
@pytest.mark.parametrize("in_recovery", ["", "mid_undo", "before_undo_persist", "before_undo_idle_flag"])
def test_a_batch_is_rolled_back_whole(path: Path, point: str, batch: int, in_recovery: str) -> None:
    assert kill_at(["-c", WRITE, str(path)], f"{point}:{batch}")
    if in_recovery:
        kill_at(["-c", "import sys, gpkvs; gpkvs.open(sys.argv[1])", str(path)], in_recovery)
    with gpkvs.open(path) as store:
        records = {store.get(b"key%d" % i) for i in range(500)}
        numbers = store.get_many(KEYS, table="numbers")[0]
        assert records == {b"1" if batch == 3 else b"2"}
        assert set(numbers.tolist()) == {1}
    assert_clean(path)


@pytest.mark.parametrize("point", [*failpoint.SCHEMA, "between_roots:2"])
@pytest.mark.parametrize("change", [CREATE, DROP], ids=["create", "drop"])
def test_kill_while_tables_change(path: Path, change: str, point: str) -> None:
    with gpkvs.open(path) as store:
        store.set(b"key", b"value")
    assert kill_at(["-c", change, str(path)], point)
    with gpkvs.open(path) as store:
        names = [table.name for table in store.info().tables]
        changed = point in ("after_catalog_root", "between_roots:2")
        expected = {True: ["default", "numbers", "new"], False: ["default", "numbers"]}[changed]
        if change is DROP:
            expected = ["default"] if changed else ["default", "numbers"]
        assert names == expected
        assert store.get(b"key") == b"value"
        for table in store.info().tables[1:]:
            store.set_many(KEYS[:100], KEYS[:100], table=table.name)
    files = {file.name for file in path.iterdir() if file.name.startswith(("index", "catalog"))}
    # The catalogue, and the room that is kept for the next one.
    assert len(files) == len(names) + 2, f"orphans were left: {files}"
    assert_clean(path)
    subprocess.run([sys.executable, "-c", CREATE.replace("new", "again"), str(path)], check=True)
    assert_clean(path)
