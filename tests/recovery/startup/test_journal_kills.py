"""A kill at every place of a store with a journal, in recovery too: each batch is there whole or not at all."""

from __future__ import annotations

from pathlib import Path

import pytest

from gpkvs.process import failpoint
from gpkvs.recovery.startup.opening import COMMIT_VARIABLE
from tests.conftest import assert_clean
from tests.recovery.startup.harness import Model, Operation, apply, contents, run_child

FIRST: list[Operation] = [["set", f"key{i}", f"first{i}"] for i in range(200)]
# So many frames that the journal is full: they go on only after a checkpoint.
SMALL: list[list[Operation]] = [
    [
        ["set", f"key{i % 150}", f"small{i}"],
        ["delete", f"key{150 + i % 50}"],
        ["set", "gone", "x"],
        ["delete", "gone"],
    ]
    for i in range(300)
]
LAST: list[Operation] = [["set", f"key{i}", "last"] for i in range(0, 200, 3)]
KEYS = {operation[1].encode() for batch in (FIRST, *SMALL) for operation in batch}

IN_BATCH = (
    "before_record",
    "mid_record",
    "before_log",
    "mid_log",
    "before_frame",
    "before_apply",
    "mid_apply",
    "before_reply",
)
BEFORE_FRAME = frozenset(IN_BATCH[:5])  # nothing of the batch can be there
IN_CHECKPOINT = ("mid_checkpoint", "before_checkpoint_sync", "before_checkpoint_root", "between_roots:2")
IN_RECOVERY = (
    "before_settle",
    "mid_replay",
    "before_incarnation",
    "between_roots",
    "before_recount",
    "before_first_frame",
)


@pytest.fixture(autouse=True)
def _journal(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(COMMIT_VARIABLE, "journal")


def after(batches: list[list[Operation]]) -> Model:
    """Return what a store holds after batches."""
    model: Model = {}
    for batch in batches:
        model = apply(model, batch)
    return model


def test_every_failpoint_of_the_journal_is_visited() -> None:
    visited = {name.partition(":")[0] for name in (*IN_BATCH, *IN_CHECKPOINT, *IN_RECOVERY)}
    assert set(failpoint.JOURNAL) <= visited


@pytest.mark.parametrize("name", [*IN_BATCH, *IN_CHECKPOINT])
def test_kill(tmp_path: Path, name: str) -> None:
    path, batches = tmp_path / "store", [FIRST, *SMALL]
    where = f"{name}:20" if name in IN_BATCH else name
    outcome = run_child(path, batches, where)
    assert outcome.killed
    assert 0 < outcome.acknowledged < len(batches)
    possible = [after(batches[: outcome.acknowledged])]
    if name not in BEFORE_FRAME:
        possible.append(after(batches[: outcome.acknowledged + 1]))
    found = contents(path, KEYS)
    assert found in possible
    assert_clean(path)
    assert run_child(path, [LAST]).acknowledged == 1  # and the store goes on
    assert contents(path, KEYS) == apply(found, LAST)
    assert_clean(path)


@pytest.mark.parametrize("first", ["before_apply:20", "before_checkpoint_root"])
@pytest.mark.parametrize("name", IN_RECOVERY)
def test_kill_in_recovery(tmp_path: Path, name: str, first: str) -> None:
    path, batches = tmp_path / "store", [FIRST, *SMALL]
    outcome = run_child(path, batches, first)
    assert outcome.killed
    possible = [after(batches[: outcome.acknowledged + more]) for more in (0, 1)]
    for _ in range(2):
        again = run_child(path, [], name)
        assert again.killed
        assert not again.opened
    found = contents(path, KEYS)
    assert found in possible
    assert_clean(path)
    assert run_child(path, [LAST]).acknowledged == 1
    assert contents(path, KEYS) == apply(found, LAST)
    assert_clean(path)
