"""Two processors store the slots of one batch."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import gpkvs
from gpkvs.backends.choose import PAIR, VARIABLE
from gpkvs.batch import Batch, Op
from gpkvs.engine.commit.chunked_slots import ChunkedSlots
from gpkvs.engine.commit.shared_slots import Balance

KEYS = 10_000
_OPTIONS: dict[str, Any] = {
    **{"index_bytes": 1 << 20, "heap_bytes": 1 << 22, "log_bytes": 1 << 21},
    **{"commit": "undo", "durability": "process"},  # on a disk, the host's threads store all
}


@pytest.mark.parametrize("layout", ["u64", "bytes"])
def test_each_processor_stores_a_part(store_path: Path, monkeypatch: pytest.MonkeyPatch, layout: str) -> None:
    parts: list[Any] = []
    divide = ChunkedSlots.prepare

    def noted(self: ChunkedSlots, *arguments: Any) -> Any:
        parts.extend(divided := divide(self, *arguments))
        return divided

    monkeypatch.setenv(VARIABLE, PAIR)
    keys = [key.to_bytes(8, "little") for key in range(KEYS)]

    def set_all(store: gpkvs.Store, add: int) -> None:
        store.execute(Batch.of([(Op.SET, key, (n + add).to_bytes(8, "big")) for n, key in enumerate(keys)]), table="t")

    with gpkvs.open(store_path, **_OPTIONS) as store:
        store.create_table("t", layout=layout, index_bytes=1 << 20)
        set_all(store, 1)
        monkeypatch.setattr(ChunkedSlots, "prepare", noted)
        set_all(store, 2)
        monkeypatch.undo()
    assert len(parts) == 1
    assert parts[0].chunk_count == 8
    assert 0.02 * KEYS < parts[0].host_slots < 0.98 * KEYS
    with gpkvs.open(store_path) as store:
        assert store.execute(Batch.of([(Op.GET, key) for key in keys]), table="t").value_list() == [
            (n + 2).to_bytes(8, "big") for n in range(KEYS)
        ]


def test_the_balance_follows_what_was_measured() -> None:
    balance, many, few = Balance(), 1 << 20, 1 << 14
    assert balance.part("u64", many) == 0.5
    for _ in range(20):
        part = balance.part("u64", many)
        balance.measured("u64", (int(many * part), part / 3), (int(many * (1 - part)), 1 - part))
    assert balance.part("u64", many) == pytest.approx(0.75, abs=0.01)
    assert balance.part("u64", few) == pytest.approx(0.75, abs=0.01)  # the nearest that is known
    assert balance.part("bytes", many) == 0.5
    for _ in range(20):
        balance.measured("u64", (few // 2, 1.0), (few // 2, 1e-6))
    assert 0 < balance.part("u64", few) < 0.05  # never nothing: it would not be measured again
    assert balance.part("u64", many) == pytest.approx(0.75, abs=0.01)


def test_who_begins_late_stores_less() -> None:
    """The threads take 1 s for all slots, the GPU 2 s, and it begins 0.5 s later: both end after 5/6 of a second."""
    balance, many = Balance(), 1_000_000
    for _ in range(20):
        part = balance.part("u64", many)
        balance.measured("u64", (int(many * part), part), (int(many * (1 - part)), 2 * (1 - part)), 0.5)
    assert balance.part("u64", many) == pytest.approx(5 / 6, abs=0.01)


def test_too_few_slots_tell_nothing() -> None:
    balance = Balance()
    balance.measured("u64", (50, 1.0), (50, 1e-6))
    assert balance.part("u64", 100) == 0.5
