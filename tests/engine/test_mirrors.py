"""A GPU's mirror hears of every slot that a batch of the host has stored to, also if it ran natively."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

import gpkvs
from gpkvs.batch import U64, Batch, Op
from gpkvs.engine.native_engine import NativeEngine
from gpkvs.errors import NoMemoryError
from gpkvs.media.index import Index
from gpkvs.store import Store
from tests.conftest import SMALL

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
        patch.setattr(store._engine.native(), "_has_mirrors", True)
        patch.setattr(store._backend, "host_stored", self._note)

    def _note(self, index: Index, slots: U64) -> None:
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


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    with gpkvs.open(tmp_path / "store", backend="cpu", durability="process", commit="undo", **SMALL) as store:  # type: ignore[arg-type]
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


def test_an_interrupt_leaves_nothing_out(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    """It may come between a batch and what is noted of it: then that is noted before anything else happens."""
    mirrors = Mirrors(store, monkeypatch)
    note = NativeEngine._note_stored

    def interrupted(native: NativeEngine) -> None:
        if native._unnoted is not None:
            raise KeyboardInterrupt
        note(native)

    for number, next_one in enumerate((lambda: store.get(b"absent", table="other"), store.maintain)):
        with monkeypatch.context() as patch:
            patch.setattr(NativeEngine, "_note_stored", interrupted)
            with pytest.raises(KeyboardInterrupt):
                store.set(b"key %d" % number, b"value")
        assert not any(mirrors.late.values())
        next_one()
        assert mirrors.check() == 1


def test_want_of_memory_leaves_nothing_out(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    mirrors = Mirrors(store, monkeypatch)
    mirrors.has_memory = False
    assert store.set(b"key", b"value") == 1, "it is done"
    with pytest.raises(NoMemoryError):
        store.set(b"other", b"value")
    mirrors.has_memory = True
    assert store.get(b"other") is None
    assert mirrors.check() == 1
