"""What recovery must bring back: updates, deletes and displaced occupants, the three that lose data when done wrong."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import numpy as np
import pytest

import gpkvs
from gpkvs.batch import Batch, Op
from gpkvs.media.directory import RECOVERY_FILE
from tests.conftest import assert_clean
from tests.recovery.startup.child import SIZES
from tests.recovery.startup.harness import Operation, apply, contents, run_child

pytestmark = pytest.mark.undo

OLD: list[Operation] = [["set", f"key{i}", f"old{i}"] for i in range(10)]
# The flag is ACTIVE, and none, half, or all of the slots are overwritten.
IN_PROGRESS = ["before_apply", "mid_apply", "before_apply_persist", "before_idle_flag"]


def undone_entries(path: Path) -> int:
    """Return how many slots the last recovery rolled back, which must have been one of an ACTIVE flag."""
    report = json.loads((path / RECOVERY_FILE).read_text())
    assert report["undone"] is True
    return int(report["undone_entries"])


@pytest.mark.parametrize(
    ("batch", "slots"),
    [
        pytest.param([["set", "key3", "NEW"]], 1, id="update"),
        pytest.param([["delete", "key3"]], 1, id="delete"),
        pytest.param([["set", "new", "NEW"]], 1, id="insert"),
        pytest.param([["set", "key3", "NEW"], ["delete", "key4"], ["set", "new", "NEW"]], 3, id="mixed"),
        pytest.param([["set", "key3", "A"], ["delete", "key3"], ["set", "key3", "B"]], 1, id="one-key-thrice"),
        pytest.param([["set", "new", "A"], ["delete", "new"]], 0, id="insert-and-delete"),
    ],
)
@pytest.mark.parametrize("failpoint", IN_PROGRESS)
def test_batch_in_progress_is_rolled_back(tmp_path: Path, batch: list[Operation], slots: int, failpoint: str) -> None:
    path = tmp_path / "store"
    outcome = run_child(path, [OLD, batch], f"{failpoint}:2")
    assert outcome.killed
    assert outcome.acknowledged == 1
    before = apply({}, OLD)
    assert contents(path, {*before, b"new"}) == before
    assert undone_entries(path) == slots
    assert_clean(path)


def changed_slots(store: gpkvs.Store, operation: Operation) -> int:
    """Run one SET and return how many slots it changed."""
    words = store._files.indexes[0].region.words(0, 2048 * 4).reshape(-1, 4)
    before = words.copy()
    store.set(operation[1].encode(), operation[2].encode())
    return int((words != before).any(axis=1).sum())


@pytest.mark.parametrize("failpoint", IN_PROGRESS)
def test_displaced_occupant_comes_back(tmp_path: Path, failpoint: str) -> None:
    path, copy = tmp_path / "store", tmp_path / "copy"
    fill = [["set", f"fill{i}", f"occupant{i}"] for i in range(1300)]  # 63 % of one block
    with gpkvs.open(path, **SIZES) as store:
        store.execute(Batch.of([(Op.SET, key.encode(), value.encode()) for _, key, value in fill]))
    shutil.copytree(path, copy)

    # Find the first key whose insertion moves an occupant; the copy has the same hash key, so it does so there too.
    with gpkvs.open(path, **SIZES) as store:
        more: list[Operation] = []
        while not more or changed_slots(store, more[-1]) == 1:
            assert len(more) < 600, "no occupant was displaced in a full table"
            more.append(["set", f"more{len(more)}", "NEW"])

    outcome = run_child(copy, [[operation] for operation in more], f"{failpoint}:{len(more)}")
    assert outcome.killed
    assert outcome.acknowledged == len(more) - 1
    model = apply({}, fill + more[:-1])
    assert contents(copy, {*model, more[-1][1].encode()}) == model
    assert undone_entries(copy) == 2
    assert_clean(copy)


def test_undo_restores_every_field_of_a_slot(tmp_path: Path) -> None:
    path, copy = tmp_path / "store", tmp_path / "copy"
    assert run_child(path, [OLD]).acknowledged == 1
    shutil.copytree(path, copy)
    assert run_child(path, [[["set", "key3", "NEW"], ["delete", "key4"]]], "before_idle_flag").killed
    with gpkvs.open(path) as store:
        after = store._files.indexes[0].region.words(0, 2048 * 4).copy()
    with gpkvs.open(copy) as store:
        assert np.array_equal(after, store._files.indexes[0].region.words(0, 2048 * 4))
