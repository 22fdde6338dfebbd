"""A batch that several processors plan and the host stores, as on a disk, is whole after a kill, or not there."""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import pytest

import gpkvs
from gpkvs.backends.choose import SHARDS, VARIABLE
from gpkvs.recovery.startup.check import check
from tests.recovery.startup.harness import kill_at

KEYS = np.arange(6000, dtype=np.uint64)
# Of the second batch: old keys get other values, and half as many keys are new.
CHANGED = np.arange(3000, 9000, dtype=np.uint64)
PLACES = [
    "before_log",
    "mid_log",
    "before_active_flag",
    "before_apply",
    "mid_apply",
    "before_idle_flag",
    "before_reply",
]


def child(path: Path) -> None:
    """Store both batches; the second one is killed."""
    with gpkvs.open(
        path, index_bytes=1 << 20, heap_bytes=1 << 22, log_bytes=4 << 20, commit="undo", durability="msync"
    ) as store:
        store.create_table("t", layout="u64", index_bytes=1 << 20)
        store.set_many(KEYS, KEYS + np.uint64(1), table="t")
        store.set_many(CHANGED, CHANGED + np.uint64(2), table="t")


@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize("restart", [SHARDS, "cpu"])
def test_a_killed_batch_is_whole_or_not_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, place: str, restart: str
) -> None:
    path = tmp_path / "store"
    monkeypatch.setenv(VARIABLE, SHARDS)
    # The transaction before the table is made goes by the flag, too.
    assert kill_at([Path(__file__), path], f"{place}:{3 if place == 'before_idle_flag' else 2}")
    monkeypatch.setenv(VARIABLE, restart)
    with gpkvs.open(path, create=False) as store:
        assert store.recovery.undone == (place in PLACES[3:-1])
        held = dict.fromkeys(KEYS.tolist(), 1)
        if place == "before_reply":
            held |= dict.fromkeys(CHANGED.tolist(), 2)
        everything = np.arange(9000, dtype=np.uint64)
        values, there = store.get_many(everything, table="t")
        assert there.tolist() == [int(key) in held for key in everything]
        assert values[there].tolist() == [key + add for key, add in sorted(held.items())]
    report = check(path)
    assert report.is_clean, report


if __name__ == "__main__":
    child(Path(sys.argv[1]))
