"""A GPU's mirror hears of every slot that a batch of the host has stored to."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import NoReturn

import numpy as np
import pytest

import gpkvs
from gpkvs.backends.late_slots import LateSlots
from gpkvs.batch import U64, Batch, Op
from gpkvs.media.index import Index
from gpkvs.store import Store
from tests.conftest import SMALL
from tests.engine.twins import plan_by_phases

pytestmark = pytest.mark.usefixtures("natively")

TABLES = ("default", "other")
ROOM = 20_000


class Mirrors:
    """Stands for the mirrors of a GPU.

    Attributes
    ----------
    late
        The slots that were noted since the last `check`.
    has_memory
        Whether there is any for more.
    """

    def __init__(self, store: Store, patch: pytest.MonkeyPatch) -> None:
        self._indexes = [store._tables[name].index for name in TABLES]
        self._seen = [_slots(index) for index in self._indexes]
        self.late = {index: LateSlots(ROOM) for index in self._indexes}
        self.has_memory = True
        patch.setattr(store._backend, "host_stored", self.note)
        patch.setattr(store._backend, "late_slots", lambda index: self.late[index].address)
        store._engine.native._generation = -1  # the tables are described again

    def note(self, index: Index, slots: U64) -> None:
        """See `Backend.host_stored`."""
        if not self.has_memory:
            raise MemoryError
        self.late[index].note(slots)

    @property
    def are_late(self) -> bool:
        """Whether slots were noted since the last `check`."""
        return any(late.is_any for late in self.late.values())

    def check(self) -> int:
        """Require that all slots were noted which have changed since the last time; return how many these are."""
        count = 0
        for number, index in enumerate(self._indexes):
            now, late = _slots(index), self.late[index]
            changed = np.flatnonzero((now != self._seen[number]).any(axis=1)).tolist()
            assert late.are_too_many or set(late.noted().tolist()).issuperset(changed)
            self._seen[number] = now
            late.forget()
            count += len(changed)
        return count


def _slots(index: Index) -> U64:
    words: U64 = index.region.words(0, index.region.bytes // 8).copy()
    return words.reshape(-1, index.layout.slot_bytes // 8)


@pytest.fixture(params=["undo", "journal"])
def store(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Store]:
    with gpkvs.open(tmp_path / "store", backend="cpu", durability="process", commit=request.param, **SMALL) as store:  # type: ignore[arg-type]
        store.create_table("other", index_bytes=64 << 10)
        yield store


def sets(count: int) -> Batch:
    return Batch.of([(Op.SET, b"key %d" % number, b"value") for number in range(count)])


def test_what_requests_store_is_noted(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    mirrors = Mirrors(store, monkeypatch)
    for table in TABLES:
        store.set(b"key", b"value", table=table)
        assert mirrors.check() == 1
        store.execute(sets(600), table=table)
        assert mirrors.check() >= 600
        store.delete(b"key 5", table=table)
        store.incr(b"number", table=table)
        assert mirrors.check() == 2
        store.set(b"soon", b"value", ttl=60, table=table)  # the table's first: it is left, and runs again
        assert mirrors.check() == 1
        assert store.get(b"key 5", table=table) is None
    assert not mirrors.are_late, "a read stores nothing"
    assert store.execute_requests(sets(1).on_table(77)).rejected, "there is no such table"


def test_too_many_late_slots_are_all_late(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    mirrors = Mirrors(store, monkeypatch)
    late = mirrors.late[store._tables["default"].index]
    late.room = 1000
    store.execute(sets(1000))
    assert late.count == 1000
    assert not late.are_too_many
    store.set(b"key 0", b"other")
    assert late.are_too_many
    late.room = 2000
    store.set(b"key 0", b"another")
    assert late.are_too_many, "what was not noted stays unknown, however much room there is"
    assert mirrors.check() >= 1000
    assert not late.is_any
    late.note(np.arange(2000, dtype=np.uint64))
    assert late.noted().tolist() == list(range(2000))
    late.note(np.arange(1, dtype=np.uint64))
    assert late.are_too_many


def test_a_journal_notes_what_phases_plan(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gpkvs.engine.commit.journal_committer.stop_process", ended)
    with gpkvs.open(tmp_path / "store", backend="cpu", durability="process", commit="journal", **SMALL) as store:  # type: ignore[arg-type]
        store.create_table("other", index_bytes=64 << 10)
        plan_by_phases(store)
        mirrors = Mirrors(store, monkeypatch)
        committer = store._engine.committer
        monkeypatch.setattr(committer, "_backend", SimpleNamespace(host=None, host_stored=mirrors.note))
        store._engine.execute(sets(3))
        assert mirrors.check() == 3
        mirrors.has_memory = False
        with pytest.raises(EndedError):
            store._engine.execute(Batch.of([(Op.SET, b"key 1", b"other")]))
        mirrors.has_memory = True
        monkeypatch.undo()


class EndedError(Exception):
    """Stands for the end of the process."""


def ended(_what: str, error: BaseException) -> NoReturn:
    raise EndedError from error
