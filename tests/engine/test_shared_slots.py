"""Two processors log and store the slots of one batch."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import gpkvs
from gpkvs.backends.choose import PAIR, VARIABLE
from gpkvs.backends.cpu.backend import CpuBackend
from gpkvs.backends.cpu.pair import PairBackend
from gpkvs.batch import Batch, Op
from gpkvs.engine.shared_slots import Balance

KEYS = 10_000
_OPTIONS: dict[str, Any] = {"index_bytes": 1 << 20, "heap_bytes": 1 << 22, "log_bytes": 1 << 21, "commit": "undo"}


@pytest.mark.parametrize("layout", ["u64", "bytes"])
def test_each_processor_logs_and_stores_a_part(store_path: Path, monkeypatch: pytest.MonkeyPatch, layout: str) -> None:
    items: dict[tuple[type, str], int] = defaultdict(int)

    def counted(launch: Callable[..., Any]) -> Callable[..., Any]:
        def run(self: CpuBackend, kernel: str, count: int, /, **arguments: Any) -> Any:
            items[type(self), kernel] += count
            return launch(self, kernel, count, **arguments)

        return run

    monkeypatch.setenv(VARIABLE, PAIR)
    keys = [key.to_bytes(8, "little") for key in range(KEYS)]

    def set_all(store: gpkvs.Store, add: int) -> None:
        store.execute(Batch.of([(Op.SET, key, (n + add).to_bytes(8, "big")) for n, key in enumerate(keys)]), table="t")

    with gpkvs.open(store_path, **_OPTIONS) as store:
        store.create_table("t", layout=layout, index_bytes=1 << 20)
        set_all(store, 1)
        for name in ("launch", "launch_unawaited"):
            monkeypatch.setattr(CpuBackend, name, counted(getattr(CpuBackend, name)))
        set_all(store, 2)
        monkeypatch.undo()
    for step in ("log_undo", "apply"):
        shares = [items[kind, f"{step}_{layout}"] for kind in (PairBackend, CpuBackend)]
        assert sum(shares) == KEYS
        assert min(shares) > 0.02 * KEYS, (step, shares)
    with gpkvs.open(store_path) as store:
        assert store.execute(Batch.of([(Op.GET, key) for key in keys]), table="t").value_list() == [
            (n + 2).to_bytes(8, "big") for n in range(KEYS)
        ]


def test_the_balance_follows_what_was_measured() -> None:
    balance, many, few = Balance(), 1 << 20, 1 << 14
    assert balance.part("log", many) == 0.5
    for _ in range(20):
        part = balance.part("log", many)
        balance.measured("log", (int(many * part), part / 3), (int(many * (1 - part)), 1 - part))
    assert balance.part("log", many) == pytest.approx(0.75, abs=0.01)
    assert balance.part("log", few) == pytest.approx(0.75, abs=0.01)  # the nearest that is known
    assert balance.part("apply", many) == 0.5
    for _ in range(20):
        balance.measured("log", (few // 2, 1.0), (few // 2, 1e-6))
    assert 0 < balance.part("log", few) < 0.05  # never nothing: it would not be measured again
    assert balance.part("log", many) == pytest.approx(0.75, abs=0.01)


def test_too_few_slots_tell_nothing() -> None:
    balance = Balance()
    balance.measured("log", (50, 1.0), (50, 1e-6))
    assert balance.part("log", 100) == 0.5
