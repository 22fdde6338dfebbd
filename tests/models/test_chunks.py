"""The rules of chunks and of two batches in flight lose nothing, and each is needed: without it, something is lost."""

from __future__ import annotations

import os
from collections import Counter
from types import ModuleType

import pytest

from tests.models import chunks, frames
from tests.models.runs import run

RUNS = 400
# With which seed to begin where few runs find what is broken.
BEGIN = {
    "table_outside_checksum+rot": 2742,
    "block_0_without_room": 661,
    "heap_used_before_root": 150,
    "renewal_clears_late": 124,
    "recovery_idle_early": 108,
    "image_before_begin": 135,
    "numbers_at_plan": 684,
    "cells_free_at_flush": 575,
}
MODELS = pytest.mark.parametrize("model", [chunks, frames])


@MODELS
@pytest.mark.parametrize("rule", ["", "+rot"])
def test_nothing_is_lost(model: ModuleType, rule: str) -> None:
    seed = int.from_bytes(os.urandom(4))
    print(f"seed {seed}")
    for number in range(seed, seed + (RUNS // 2 if os.environ.get("CI") else RUNS)):
        assert not run(model.Store, number, rule), number


@pytest.mark.parametrize(
    ("model", "rule"),
    [(model, rule) for model in (chunks, frames) for rules in model.WRONG.values() for rule in rules],
)
def test_each_rule_is_needed(model: ModuleType, rule: str) -> None:
    begin = BEGIN.get(rule, 0)
    assert any(run(model.Store, seed, rule) for seed in range(begin, begin + RUNS))


@pytest.mark.parametrize("rule", chunks.HARMLESS)
def test_what_is_not_needed_loses_nothing(rule: str) -> None:
    for seed in range(100):
        assert not run(chunks.Store, seed, rule), seed


@pytest.mark.parametrize(
    ("model", "expected"),
    [
        (
            chunks,
            {
                "crash between the markers of two halves",
                "crash under ACTIVE with markers of the next batch only",
                "crash in: growth, with markers of batches before it",
                "crash in: growth of the log, with markers of batches before it",
                "crash in: block 0",
                "crash in: a new table",
                "crash in: a table dropped",
                "crash in: renewal",
                "crash in recovery",
                "a batch of several tables undone",
                "a batch undone while a table grows",
                "a table dropped while it grows",
                "an epoch given again after a renewal",
                "processors out of step at a crash",
                "recovery met a marker of a table that was dropped",
                "short entries with equal words in two tables",
            },
        ),
        (
            frames,
            {
                "a frame cut for its rows",
                "a frame of a table that was dropped",
                "a full journal with two in flight",
                "an empty frame between two in flight",
                "an opening with a full journal",
                "crash with two in flight and a full journal",
                "read beside a commit",
            },
        ),
    ],
)
def test_what_matters_is_reached(model: ModuleType, expected: set[str]) -> None:
    reached: Counter[str] = Counter()
    for seed in range(2000):
        run(model.Store, seed, "", reached)
        if all(reached[what] for what in expected):
            return
    raise AssertionError([what for what in expected if not reached[what]])
