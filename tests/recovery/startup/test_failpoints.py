"""A kill at every boundary between two phases, and in recovery: each batch is there whole or not at all."""

from __future__ import annotations

from pathlib import Path

import pytest

import gpkvs
from gpkvs.process import failpoint
from gpkvs.recovery.startup.check import check
from tests.conftest import assert_clean
from tests.recovery.startup.harness import Operation, apply, contents, run_child

pytestmark = pytest.mark.undo

FIRST: list[Operation] = [["set", f"key{i}", f"first{i}"] for i in range(200)]
SECOND: list[Operation] = [
    *[["set", f"key{i}", f"second{i}"] for i in range(0, 100)],
    *[["delete", f"key{i}"] for i in range(100, 150)],
    *[["set", f"new{i}", f"second{i}"] for i in range(100)],
    ["get", "key3"],
]
THIRD: list[Operation] = [["set", f"key{i}", "third"] for i in range(0, 200, 3)]
KEYS = {operation[1].encode() for operation in FIRST + SECOND}

# A kill here finds the flag already stored as IDLE: the batch is there though nobody was told.
AFTER_COMMIT = {"before_idle_persist", "before_reply"}
UNDO_ONLY = {"before_undo", "mid_undo", "before_undo_persist", "before_undo_idle_flag"}


@pytest.mark.parametrize("name", failpoint.ENGINE)
def test_kill_between_phases(tmp_path: Path, name: str) -> None:
    path = tmp_path / "store"
    outcome = run_child(path, [FIRST, SECOND], f"{name}:2")
    assert outcome.killed
    assert outcome.acknowledged == 1
    before = apply({}, FIRST)
    expected = apply(before, SECOND) if name in AFTER_COMMIT else before
    assert contents(path, KEYS) == expected
    assert_clean(path)
    # And the store goes on.
    assert run_child(path, [THIRD]).acknowledged == 1
    assert contents(path, KEYS) == apply(expected, THIRD)
    assert_clean(path)


@pytest.mark.parametrize("active", [True, False], ids=["flag-active", "flag-idle"])
@pytest.mark.parametrize("name", failpoint.RECOVERY)
def test_kill_in_recovery(tmp_path: Path, name: str, active: bool) -> None:
    path = tmp_path / "store"
    assert run_child(path, [FIRST, SECOND], "mid_apply:2" if active else "before_active_flag:2").killed
    assert check(path).needs_recovery is active
    outcome = run_child(path, [], name)
    # Where nothing is to be undone, the failpoints of undo are not reached.
    assert outcome.killed is (active or name not in UNDO_ONLY)
    assert outcome.opened is not outcome.killed
    # Twice more, once at the same place: undo is idempotent (I5).
    run_child(path, [], name)
    assert contents(path, KEYS) == apply({}, FIRST)
    assert_clean(path)


@pytest.mark.parametrize("batch", [2, 3])
def test_a_batch_that_the_flag_never_named_gives_no_versions(tmp_path: Path, batch: int) -> None:
    """Its descriptor is durable and newer than the one that counts, in either of their two places."""
    path = tmp_path / "store"
    batches = [FIRST] * batch
    assert run_child(path, batches, f"before_active_flag:{batch}").acknowledged == batch - 1
    with gpkvs.open(path) as store:
        assert store.info().next_version == 1 + (batch - 1) * len(FIRST)
    assert_clean(path)


def test_unknown_failpoint_is_refused() -> None:
    with pytest.raises(ValueError, match="no failpoint named"):
        failpoint.arm("nowhere")


def test_unacknowledged_batches_vanish_whole_over_many_kills(tmp_path: Path) -> None:
    path = tmp_path / "store"
    model = apply({}, FIRST)
    assert run_child(path, [FIRST]).acknowledged == 1
    for round_number in range(5):
        batch = [["set", f"key{i}", f"round{round_number}"] for i in range(round_number, 200, 7)]
        outcome = run_child(path, [batch, batch[::-1]], "mid_apply:2")
        assert outcome.acknowledged == 1
        model = apply(model, batch)
        assert contents(path, KEYS) == model
    assert_clean(path)
