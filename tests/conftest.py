"""Fixtures for all tests: a small store, and `gpkvs check` on whatever a test leaves behind."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

import gpkvs
from gpkvs.check import check
from gpkvs.errors import StoreMissingError

SMALL = {"index_bytes": 1 << 20, "heap_bytes": 16 << 20, "log_bytes": 4 << 20}


def assert_clean(path: Path) -> None:
    """Fail unless every invariant of the store holds."""
    report = check(path)
    assert report.is_clean, report


@pytest.fixture
def store_path(tmp_path: Path) -> Iterator[Path]:
    """Return a directory for a store that must be clean when the test ends."""
    path = tmp_path / "store"
    yield path
    try:
        assert_clean(path)
    except StoreMissingError:
        pytest.fail("the test left no store in store_path")


@pytest.fixture
def store(store_path: Path) -> Iterator[gpkvs.Store]:
    """Return a small open store that must be clean when the test ends."""
    with gpkvs.open(store_path, **SMALL) as opened:
        yield opened
