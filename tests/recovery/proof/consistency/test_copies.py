"""Backups and restored moments are reads of the history: right ones are accepted, wrong ones are found."""

from __future__ import annotations

import json
import os
from pathlib import Path

import numpy as np
import pytest

from gpkvs.batch import Op
from gpkvs.recovery.proof.consistency.history import History, HistoryRecorder
from gpkvs.recovery.proof.consistency.serializability import judge
from gpkvs.recovery.proof.servers.server_process import run_gpkvs


def history_with(found: dict[int, tuple[int, int]], start: int, end: int) -> History:
    """Return three transactions at 100, 200 and 300 ns, of the keys 0 and 1, and a copy."""
    recorder = HistoryRecorder()
    numbers = np.arange(2, dtype=np.uint32)
    for at in range(3):
        number, _ = recorder.begin(np.full(2, Op.SET, np.uint8), numbers)
        recorder.respond(
            number, np.ones(2, np.bool_), np.empty(0, np.uint64), np.arange(2, dtype=np.uint64) + 1 + 2 * at
        )
    columns = recorder._requests.columns
    columns["start"][:3], columns["end"][:3] = (100, 200, 300), (110, 210, 310)
    value, version = (np.array([found.get(key, (0, 0))[at] for key in range(2)], np.uint64) for at in range(2))
    recorder.add_reading(start, end, numbers, np.array([key in found for key in range(2)]), value, version)
    return recorder.history()


def state(*, of_0: int, of_1: int) -> dict[int, tuple[int, int]]:
    """Return what the keys hold behind these transactions."""
    return {0: (of_0 << 8 | 1, 1 + 2 * of_0), 1: (of_1 << 8 | 2, 2 + 2 * of_1)}


@pytest.mark.parametrize(
    ("found", "start", "end", "is_right"),
    [
        (state(of_0=1, of_1=1), 215, 290, True),
        (state(of_0=1, of_1=1), 215, 900, True),
        (state(of_0=2, of_1=2), 215, 900, True),
        (state(of_0=0, of_1=0), 215, 900, False),  # it lacks what was acknowledged before it was asked for
        (state(of_0=1, of_1=2), 215, 900, False),  # half a transaction
        ({0: state(of_0=1, of_1=1)[0]}, 215, 900, False),  # a key is missing
        (state(of_0=2, of_1=2), 115, 190, False),  # it has what was sent when it was there
        ({}, 0, 90, True),
        ({}, 0, 115, True),
        ({}, 115, 190, False),
    ],
)
def test_a_copy_is_a_prefix_with_all_that_was_acknowledged(
    found: dict[int, tuple[int, int]], start: int, end: int, *, is_right: bool
) -> None:
    judged = judge(history_with(found, start, end))
    assert judged.is_serializable == is_right, judged.anomalies


@pytest.mark.parametrize("commit", ["undo"] if os.environ.get("CI") else ["undo", "journal"])
def test_copies_of_a_store_in_use_are_moments_of_its_history(commit: str, tmp_path: Path) -> None:
    options = ("--operations=2000", "--faults=1", "--backups=2", f"--commit={commit}", f"--data={tmp_path}", "--json")
    status, output = run_gpkvs("consistency", *options, seconds_max=300)
    print(output)
    assert status == 0
    report = json.loads(output[output.index("{") :])
    assert report["backups"] >= 2
    assert report["moments_restored"] >= 1
    assert report["anomalies"] == []
