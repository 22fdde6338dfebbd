"""Expired keys are removed in a turn of their own, within the run of a batch: that batch does not notice."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

import gpkvs
from gpkvs.batch import Batch, Op, Status
from gpkvs.config import CommitName
from gpkvs.engine.host.crew import Crew
from gpkvs.engine.host.native_planner import _LayoutPlanner
from gpkvs.engine.seam.left import Left
from gpkvs.errors import InvalidArgumentError
from gpkvs.store import Store
from tests.conftest import SMALL

pytestmark = pytest.mark.usefixtures("natively")
NOW = 1 << 42  # milliseconds since 1970, which the machine's clock does not reach


def opened(path: Path, commit: CommitName, expiring: int) -> Store:
    """Return a store with so many keys that have expired, which nobody has removed."""
    store = gpkvs.open(path, backend="cpu", commit=commit, **SMALL)  # type: ignore[arg-type]
    store.create_table("numbers", layout="u64", index_bytes=64 << 10)
    store._engine.expiry._look_at = float("inf")
    for first in range(0, expiring, 200):  # no batch needs more columns than there are from the first
        batch = Batch.of([(Op.SET, b"%d" % number, b"value") for number in range(first, min(first + 200, expiring))])
        store.execute(replace(batch, expiries=np.full(len(batch), NOW, np.uint64)))
    store._engine.expiry.time.begin_at(NOW + 10_000)
    return store


def test_a_sweep_takes_no_words_from_requests_that_are_refused(
    store_path: Path, commit: CommitName, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It needs columns, so its DELETEs lack something, too."""
    with opened(store_path, commit, 1000) as store:
        refusal = Crew._refusal

        def sweep_next(crew: Crew, reason: Left, batch: Batch) -> Exception:
            store._engine.expiry._look_at = 0.0
            return refusal(crew, reason, batch)

        monkeypatch.setattr(Crew, "_refusal", sweep_next)
        pair = [Batch.of([(Op.SET, bytes(8), bytes(8))]), Batch.of([(Op.SET, b"k" * 8, bytes(8))])]
        batch = Batch.concatenate(pair).on_table(store.table("numbers").id)
        result = store.execute_requests(replace(batch, expiries=np.array([0, NOW * 2], np.uint64)))
        assert store.meter.expired_keys > 256
        assert store.meter.left_batches[Left.COLUMNS] == 1
        assert isinstance(result.rejected[1], InvalidArgumentError)
        assert store.get(bytes(8), table="numbers") == bytes(8)


def test_a_large_batch_keeps_its_columns(store_path: Path, commit: CommitName, monkeypatch: pytest.MonkeyPatch) -> None:
    """What is removed for it is few keys, for which there could be fewer columns."""
    monkeypatch.setattr("gpkvs.engine.host.native_planner._KEPT_BYTES", 1 << 20)
    with opened(store_path, commit, 10) as store:
        gets = Batch.of([(Op.GET, b"%d" % (number % 20)) for number in range(20_000)])
        assert set(store.execute(gets).status.tolist()) == {Status.NOT_FOUND}
        assert store.meter.expired_keys == 10
        assert store.meter.left_batches[Left.COLUMNS] == 1


def test_columns_whose_making_was_interrupted_are_made_again(
    store_path: Path, commit: CommitName, monkeypatch: pytest.MonkeyPatch
) -> None:
    with opened(store_path, commit, 0) as store:
        set_words = _LayoutPlanner._set

        def interrupted(planner: _LayoutPlanner, **words: int) -> None:
            if words.get("ops_room"):
                raise KeyboardInterrupt
            set_words(planner, **words)

        batch = Batch.of([(Op.SET, b"%d" % number, b"value") for number in range(400)])
        with monkeypatch.context() as patched:
            patched.setattr(_LayoutPlanner, "_set", interrupted)
            with pytest.raises(KeyboardInterrupt):
                store.execute(batch)
        store.set(b"key", b"value")
        assert store.execute(batch).status.tolist() == [Status.OK] * 400


def test_a_turn_in_which_requests_are_refused_ends_with_an_interrupt(
    store_path: Path, commit: CommitName, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The next batch may find what this one lacked."""
    with opened(store_path, commit, 0) as store:
        native, own_turn = store._engine.native, store._engine.own_turn
        run = own_turn._run_long

        def interrupted(*given: object) -> int:
            if store._engine.meter.helped_batches[Left.LAYOUT]:
                raise KeyboardInterrupt
            return int(run(*given))

        batch = Batch.of([(Op.APPEND, bytes(8), b"v")]).on_table(store.table("numbers").id)
        with monkeypatch.context() as patched:
            for name in ("_run_short", "_run_long"):
                patched.setattr(own_turn, name, interrupted)
            with pytest.raises(KeyboardInterrupt):
                store.execute_requests(Batch.concatenate([batch, batch]))
        assert not native.is_in_turn
