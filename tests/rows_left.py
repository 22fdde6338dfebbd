"""How many rows a GPU leaves to the host."""

from __future__ import annotations

from typing import Any

import pytest

from gpkvs.backends.row_cache import RowCache


def by_host(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Return how many rows each call leaves to the host, from here on."""
    left: list[int] = []
    read_cells = RowCache.read

    def counting(*given: Any) -> tuple[int, int]:
        counts = read_cells(*given)
        left.append(counts[0])
        return counts

    monkeypatch.setattr(RowCache, "read", counting)
    return left
