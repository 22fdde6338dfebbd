"""Records of several tables that lie side by side move in one step, and none is written over another."""

from __future__ import annotations

import shutil
from pathlib import Path

import numpy as np
import pytest

import gpkvs
from gpkvs.batch import Batch, Op
from gpkvs.recovery.startup.opening import COMMIT_VARIABLE
from gpkvs.store import Store
from tests.conftest import assert_clean

TABLES = ("default", "other", "third")
_KEYS, _BATCHES, _BATCH = 400, 900, 8  # a batch takes less than a page of the heap
_CRASHES = 45  # one after so many batches


def test_records_of_tables_that_lie_side_by_side_move(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A crash at any time finds all of them: a frame of the journal holds the entries of all tables of a step."""
    monkeypatch.setenv(COMMIT_VARIABLE, "journal")  # it writes whole pages
    rng = np.random.default_rng(7)
    expected: dict[tuple[str, bytes], bytes] = {}
    with gpkvs.open(tmp_path / "store", index_bytes=1 << 20, heap_bytes=1 << 20, log_bytes=1 << 20) as store:
        for name in TABLES[1:]:
            store.create_table(name, index_bytes=1 << 18)
        for turn in range(_BATCHES):
            name = TABLES[turn % len(TABLES)]
            batch = {
                b"key %d" % key: b"%d %d " % (turn, key) * int(rng.integers(1, 80))
                for key in rng.integers(0, _KEYS, _BATCH).tolist()
            }
            store.execute(sets(batch), table=name)
            expected.update({(name, key): value for key, value in batch.items()})
            if turn % _CRASHES == _CRASHES - 1:
                shutil.copytree(tmp_path / "store", tmp_path / "crashed")
                with gpkvs.open(tmp_path / "crashed") as crashed:
                    require(crashed, expected)
                shutil.rmtree(tmp_path / "crashed")
        assert store.info().heap_moved_bytes > 100_000
        require(store, expected)
    assert_clean(tmp_path / "store")


def require(store: Store, expected: dict[tuple[str, bytes], bytes]) -> None:
    for (name, key), value in expected.items():
        assert store.get(key, table=name) == value


def sets(records: dict[bytes, bytes]) -> Batch:
    """Return one request that stores records."""
    return Batch(
        ops=np.full(len(records), Op.SET, np.uint8),
        keys=np.frombuffer(b"".join(records), np.uint8),
        key_lengths=np.array([len(key) for key in records], np.uint32),
        values=np.frombuffer(b"".join(records.values()), np.uint8),
        value_lengths=np.array([len(value) for value in records.values()], np.uint32),
    )
