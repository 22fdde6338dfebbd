"""A GPU's mirror hears of every slot that a batch of the host has stored to, also if it ran natively."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import NoReturn

import numpy as np
import pytest

import gpkvs
from gpkvs.backends.fields import KernelFields
from gpkvs.batch import U64, Batch, Op
from gpkvs.engine.native_planner import NativePlanner
from gpkvs.media.index import Index
from gpkvs.store import Store
from tests.conftest import SMALL
from tests.engine.test_native_planner import lazily_freed_bytes
from tests.engine.twins import plan_by_phases

pytestmark = pytest.mark.usefixtures("natively")

TABLES = ("default", "other")


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
        self.late: dict[Index, set[int]] = {index: set() for index in self._indexes}
        self.has_memory = True
        native = store._engine.native
        patch.setattr(native, "_has_mirrors", True)
        native._words[[field.name for field in KernelFields("begin_turn").fields].index("keeps_columns")] = 1
        patch.setattr(store._backend, "host_stored", self.note)

    def note(self, index: Index, slots: U64) -> None:
        """See `Backend.host_stored`."""
        if not self.has_memory:
            raise MemoryError
        self.late[index].update(slots.tolist())

    def check(self) -> int:
        """Require that all slots were noted which have changed since the last time; return how many these are."""
        count = 0
        for number, index in enumerate(self._indexes):
            now = _slots(index)
            changed = np.flatnonzero((now != self._seen[number]).any(axis=1)).tolist()
            assert self.late[index].issuperset(changed)
            self._seen[number], self.late[index] = now, set()
            count += len(changed)
        return count


def _slots(index: Index) -> U64:
    words: U64 = index.region.words(0, index.region.bytes // 8).copy()
    return words.reshape(-1, index.layout.slot_bytes // 8)


@pytest.fixture(params=["undo", "journal"])
def store(tmp_path: Path, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[Store]:
    monkeypatch.setattr("gpkvs.engine.native_planner._KEPT_BYTES", 1 << 20)
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
    assert not any(mirrors.late.values()), "a read stores nothing"
    assert store.execute_requests(sets(1).on_table(77)).rejected, "there is no such table"


def test_columns_of_a_large_batch_are_lent_when_they_are_noted(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    mirrors, lent = Mirrors(store, monkeypatch), []
    planner = store._engine._native._of_layout["bytes"]

    def lent_bytes() -> int:
        at, size = (planner._words[planner._at[name]] for name in ("outside", "outside_bytes"))
        assert size > 2 << 20
        return lazily_freed_bytes(at + size // 2)

    def note(index: Index, slots: U64) -> None:
        lent.append(lent_bytes())
        mirrors.note(index, slots)

    monkeypatch.setattr(store._backend, "host_stored", note)
    store.execute(sets(12_000))
    assert mirrors.check() >= 12_000
    [before] = lent  # neighbours in memory may be lent, too
    assert lent_bytes() > before + (1 << 20), "the system could take the numbers of the slots"


@pytest.mark.parametrize("where", ["begin_stores", "note_stored"])
def test_an_interrupt_leaves_nothing_out(store: Store, monkeypatch: pytest.MonkeyPatch, where: str) -> None:
    """It may come before a batch or after it: what has been stored is noted before anything else happens."""
    mirrors = Mirrors(store, monkeypatch)
    call = getattr(NativePlanner, where)

    def interrupted(planner: NativePlanner, number: int) -> None:
        if where == "begin_stores":
            call(planner, number)
        raise KeyboardInterrupt

    store.execute(sets(600))
    assert mirrors.check() >= 600
    afterwards = (lambda: store.get(b"absent", table="other"), store.maintain, lambda: store.set(b"more", b"value"))
    for number, next_one in enumerate(afterwards):
        with monkeypatch.context() as patch:
            patch.setattr(NativePlanner, where, interrupted)
            with pytest.raises(KeyboardInterrupt):
                store.set(b"key %d" % number, b"other", table="other")
        assert not any(mirrors.late.values())
        next_one()
        mirrors.check()
        assert (store.get(b"key %d" % number, table="other") is None) == (where == "begin_stores")


def test_nothing_of_another_table_is_noted(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of a batch that is left before it is planned, and an interrupt that comes then."""
    mirrors = Mirrors(store, monkeypatch)
    native = store._engine.native
    assert native
    store.execute(sets(600))
    mirrors.check()
    other = store.table("other").id

    def left(*_: object) -> int:
        native._unnoted = other  # as if the interrupt came when it has just returned
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        native.run(other, left)
    assert store.get(b"absent", table="other") is None
    assert not any(mirrors.late.values())


def test_what_cannot_be_noted_ends_the_process(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    """A mirror that does not know of a batch would give other values."""
    mirrors = Mirrors(store, monkeypatch)
    monkeypatch.setattr("gpkvs.engine.native_engine.stop_process", ended)
    mirrors.has_memory = False
    with pytest.raises(EndedError):
        store.set(b"key", b"value")
    mirrors.has_memory = True
    assert store.get(b"key") == b"value"
    assert mirrors.check() == 1


def test_a_journal_notes_what_phases_plan(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gpkvs.engine.journal_committer.stop_process", ended)
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
