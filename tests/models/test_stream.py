"""Followers and backups keep what is promised, and each rule is needed: without it, something is broken."""

from __future__ import annotations

import os
from collections import Counter

import pytest

from tests.models.stream import HARMLESS, OPEN, WRONG, run

RUNS = 400
# With which seed to begin where few runs find what is broken.
BEGIN = {"table_of_today": 500, "timelines_compared": 200}
# A watcher begins behind a number that was taken for nothing, and goes on in a copy from before it: all is well.
BEHIND_NOTHING = 381533935


def test_what_is_promised_is_kept() -> None:
    seed = int.from_bytes(os.urandom(4))
    print(f"seed {seed}")
    for number in (BEHIND_NOTHING, *range(seed, seed + 2 * RUNS)):
        assert not run(number), number


@pytest.mark.parametrize("rule", [rule for rules in WRONG.values() for rule in rules])
def test_each_rule_is_needed(rule: str) -> None:
    begin = BEGIN.get(rule, 0)
    assert any(run(seed, rule) for seed in range(begin, begin + RUNS))


@pytest.mark.parametrize("rule", HARMLESS)
def test_what_is_not_needed_breaks_nothing(rule: str) -> None:
    for seed in range(100):
        assert not run(seed, rule), seed


@pytest.mark.parametrize("rule", OPEN)
def test_what_no_rule_forbids_happens(rule: str) -> None:
    assert any(run(seed, rule).startswith("version") for seed in range(RUNS))


def test_what_matters_is_reached() -> None:
    expected = {
        "a backup of a restored store",
        "a copier comes back",
        "a copier comes back after a restart",
        "a copier's changes are lost",
        "a copy of the files",
        "a follower comes back",
        "a follower comes back after a restart",
        "a log ends",
        "a part of an entry comes again",
        "a piece waits",
        "a replica goes on",
        "a restored store",
        "a second backup",
        "a table goes while it is scanned",
        "a table that is watched goes",
        "a watcher falls behind",
        "a whole backup",
        "an entry in parts",
        "crash",
        "entries together across p1",
        "p1 of another timeline",
    }
    reached: Counter[str] = Counter()
    for seed in range(2000):
        run(seed, "", reached)
        if all(reached[what] for what in expected):
            return
    raise AssertionError([what for what in expected if not reached[what]])
