"""Stores of both kinds of commit, and batches by both planners."""

from __future__ import annotations

import pytest

from gpkvs.config import CommitName
from gpkvs.engine import engine
from gpkvs.engine.host.native_planner import OPS_MAX


@pytest.fixture(params=["undo", "journal"])
def commit(request: pytest.FixtureRequest) -> CommitName:
    name: CommitName = request.param
    return name


@pytest.fixture(params=[OPS_MAX, 0], ids=["at-once", "by-phases"])
def host_ops_max(request: pytest.FixtureRequest) -> int:
    ops: int = request.param
    return ops


@pytest.fixture
def long_turns(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let no turn of the native engine end because the machine is busy."""
    for name in ("_TURN_SECONDS", "_SHORT_TURN_SECONDS"):
        monkeypatch.setattr(engine, name, 600.0)
