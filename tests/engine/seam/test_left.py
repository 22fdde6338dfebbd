"""Why batches are left: each reason is provoked and counted."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

import gpkvs
from gpkvs.backends.choose import PAIR, VARIABLE
from gpkvs.batch import Batch, Condition, Op
from gpkvs.config import CommitName, Limits, StoreConfig
from gpkvs.engine.seam.left import Left
from gpkvs.media.transaction import COUNTER_BITS
from gpkvs.store import Store
from tests.conftest import SMALL
from tests.engine.native_driver import NO_BOUND, NativeDriver, Ran
from tests.engine.test_resolve import batch_of

_CROWDED = {"index_bytes": 1 << 20, "heap_bytes": 4 << 20, "heap_bytes_max": 4 << 20}


pytestmark = pytest.mark.usefixtures("natively")


def sets(count: int, first: int = 0, size: int = 8) -> Batch:
    return Batch.of([(Op.SET, b"key %d" % number, b"v" * size) for number in range(first, first + count)])


def gets(*counts: int) -> Batch:
    """Return requests of so many GETs of one key."""
    return Batch.concatenate([Batch.of([(Op.GET, b"key 0")] * count) for count in counts])


class Counted:
    """A store that is driven natively, and the reasons that it has counted since it was last asked."""

    def __init__(self, store: Store) -> None:
        self.store = store
        self.driver = NativeDriver(store)
        self._before = store.meter.left_batches

    def reasons(self) -> list[Left]:
        """Return the reasons since the last time, each as often as it was counted."""
        before, self._before = self._before, self.store.meter.left_batches
        return [reason for reason in Left for _ in range(self._before[reason] - before[reason])]

    def run(self, batch: Batch, bound: int = NO_BOUND, messages: list[int] | None = None) -> list[Left]:
        """Run a batch natively; return why it was left."""
        answer = self.driver.run(batch, bound, messages)
        reasons = self.reasons()
        assert (answer.ran is Ran.LEFT) == bool(reasons)
        return reasons

    def run_until_left(self, batch_at: Callable[[int], Batch]) -> list[Left]:
        """Run batch after batch in one turn, in which Python does nothing, until one is left."""
        for number in range(1000):
            if reasons := self.run(batch_at(number)):
                return reasons
        raise AssertionError("no batch was left")


def opened(path: Path, commit: CommitName = "undo", **sizes: int) -> Store:
    return gpkvs.open(path, backend="cpu", durability="process", commit=commit, **(sizes or SMALL))  # type: ignore[arg-type]


def made(counted: Counted, table: str, layout: str = "bytes") -> int:
    """Make a table; return its id."""
    counted.store.create_table(table, layout=layout)
    return counted.store.table(table).id


def turn(counted: Counted, monkeypatch: pytest.MonkeyPatch) -> None:
    assert counted.run(sets(1)) == [Left.TURN]
    counted.driver.native.leave_all()
    assert counted.run(sets(1)) == [Left.TURN]


def unknown_table(counted: Counted, monkeypatch: pytest.MonkeyPatch) -> None:
    counted.driver.native.begin_turn()
    assert counted.run(sets(1).on_table(made(counted, "later"))) == [Left.TABLE]


def columns(counted: Counted, monkeypatch: pytest.MonkeyPatch) -> None:
    counted.driver.native.begin_turn()
    assert counted.run(sets(300)) == [Left.COLUMNS]
    counted.store.execute_requests(sets(300))
    assert counted.reasons() == [Left.COLUMNS], "the store's own turn finds out anew"
    counted.store.execute_requests(sets(counted.driver.operations_max + 1))
    assert counted.reasons()[0] is Left.COLUMNS
    assert counted.store.meter.helped_batches[Left.COLUMNS] == 3, "of any size"


def numbers(counted: Counted, monkeypatch: pytest.MonkeyPatch) -> None:
    table = made(counted, "numbers", "u64")
    counted.driver.native.begin_turn()
    one = (1).to_bytes(8, "little")
    append = batch_of([[(Op.APPEND, b"01234567", one, Condition.NONE, 0)]], table)
    assert counted.run(append) == [Left.LAYOUT]
    assert counted.run(replace(Batch.of([(Op.SET, one, one)]).on_table(table), expiries=np.ones(1, np.uint64))) == [
        Left.LAYOUT
    ]


def large_reads(counted: Counted, monkeypatch: pytest.MonkeyPatch) -> None:
    counted.store.execute_requests(sets(1, size=1000))
    counted.reasons()
    counted.driver.native.begin_turn()
    assert counted.run(gets(5, 5)) == []
    assert counted.run(gets(11)) == [Left.LARGE_READS], "it may read 10,000 bytes"
    assert counted.run(gets(10), 5000) == [], "a lone request may"
    assert counted.run(gets(5, 5), 5000, [2]) == [Left.LARGE_READS], "others would wait for it"
    assert counted.run(gets(21)) == [Left.LARGE_READS], "the records are too many to look at"


def large_values(counted: Counted, monkeypatch: pytest.MonkeyPatch) -> None:
    counted.driver.native.begin_turn()
    append = (Op.APPEND, b"key", b"v" * 15_000, Condition.NONE, 0)
    assert counted.run(batch_of([[append]], 0)) == []
    assert counted.run(batch_of([[append]], 0)) == [Left.LARGE_VALUES]


def expired(counted: Counted, monkeypatch: pytest.MonkeyPatch) -> None:
    store = counted.store
    store.set(b"key 0", b"value", ttl=60)
    assert counted.reasons() == [Left.EXPIRY]  # of the table
    store.set(b"key 1", b"value")
    assert counted.reasons() == []
    counted.driver.native.begin_turn()
    store._engine.expiry.time.begin_at(store.now_ms + 60_000)  # time passes in the middle of the turn
    assert counted.run(gets(1)) == [Left.EXPIRED]
    assert counted.run(sets(1, first=1)) == []
    looks_first = (Op.APPEND, b"key 0", b"", Condition.NONE, 0)
    assert counted.run(batch_of([[looks_first]], 0)) == [Left.EXPIRED]


def first_expiry(counted: Counted, monkeypatch: pytest.MonkeyPatch) -> None:
    counted.driver.native.begin_turn()
    gives = replace(sets(1), expiries=np.array([counted.store.now_ms + 60_000], np.uint64))
    assert counted.run(gives) == [Left.EXPIRY]
    counted.store.execute_requests(gives)
    assert counted.reasons() == [Left.EXPIRY]
    counted.driver.native.begin_turn()
    assert counted.run(gives) == []


def full_index(counted: Counted, monkeypatch: pytest.MonkeyPatch) -> None:
    counted.driver.native.begin_turn()
    assert counted.run_until_left(lambda number: sets(200, 200 * number)) == [Left.GROW_INDEX]


def no_free_segment(counted: Counted, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each segment keeps a few live records: compaction could free them."""
    counted.driver.native.begin_turn()
    of_one = sets(20, size=2000)

    def batch_at(number: int) -> Batch:
        return Batch.concatenate([of_one, sets(1, 100 + number, 2000)])

    assert counted.run_until_left(batch_at) == [Left.FREE_HEAP]


def full_heap(counted: Counted, monkeypatch: pytest.MonkeyPatch) -> None:
    counted.driver.native.begin_turn()
    assert counted.run_until_left(lambda number: sets(20, 20 * number, 2000)) == [Left.GROW_HEAP]


def few_pages(counted: Counted, monkeypatch: pytest.MonkeyPatch) -> None:
    counted.driver.native.begin_turn()
    assert counted.run(sets(1, 0, 100_000)) == [Left.GROW_BLOBS]


def full_log(counted: Counted, monkeypatch: pytest.MonkeyPatch) -> None:
    counted.driver.native.begin_turn()
    committer, files = counted.store._engine.committer, counted.store._files
    committer.begin_turn().begin(files.growth, files.log.address if files.undo_log else 0, 63)  # type: ignore[union-attr]
    assert counted.run(gets(1)) == []
    assert counted.run(sets(1)) == [Left.GROW_LOG]


def last_epoch(counted: Counted, monkeypatch: pytest.MonkeyPatch) -> None:
    counted.driver.native.begin_turn()
    transaction = counted.store._engine.committer.transaction  # type: ignore[attr-defined]
    transaction._counter = (1 << COUNTER_BITS) - 2
    assert counted.run(sets(1)) == []
    assert counted.run(sets(1)) == [Left.RENEW]
    counted.driver.native.begin_turn()
    assert counted.run(sets(1)) == [], "the next incarnation has begun"


def no_memory(counted: Counted, monkeypatch: pytest.MonkeyPatch) -> None:
    counted.driver.native.begin_turn()
    counted.driver.has_room = False
    assert counted.run(sets(1)) == [Left.MEMORY]


Provoked = Callable[[Counted, pytest.MonkeyPatch], None]
_PROVOKED: dict[Left, Provoked] = {
    Left.TURN: turn,
    Left.TABLE: unknown_table,
    Left.COLUMNS: columns,
    Left.LAYOUT: numbers,
    Left.LARGE_READS: large_reads,
    Left.LARGE_VALUES: large_values,
    Left.EXPIRED: expired,
    Left.EXPIRY: first_expiry,
    Left.GROW_INDEX: full_index,
    Left.FREE_HEAP: no_free_segment,
    Left.GROW_HEAP: full_heap,
    Left.GROW_BLOBS: few_pages,
    Left.GROW_LOG: full_log,
    Left.RENEW: last_epoch,
    Left.MEMORY: no_memory,
}
_SIZES = {Left.GROW_INDEX: SMALL | {"index_bytes": 64 << 10}, Left.FREE_HEAP: _CROWDED, Left.GROW_HEAP: _CROWDED}
_SIZES[Left.GROW_BLOBS] = SMALL | {"store_format": "4"}
_NARROW = {Left.LARGE_READS, Left.LARGE_VALUES}
_UNDO_ONLY = {Left.RENEW}


@pytest.mark.parametrize(
    ("reason", "commit"),
    [
        pytest.param(reason, commit, id=f"{reason.name.lower()}-{commit}")
        for reason in _PROVOKED
        for commit in ("undo", "journal")
        if commit == "undo" or reason not in _UNDO_ONLY
    ],
)
def test_each_reason_is_counted(
    store_path: Path, reason: Left, commit: CommitName, monkeypatch: pytest.MonkeyPatch
) -> None:
    if reason in _NARROW:
        limits = Limits(result_bytes_max=10_000)
        config = StoreConfig(backend="cpu", commit=commit, limits=limits, batch_result_bytes_max=20_000, **SMALL)
        store = Store(store_path, config)
    else:
        store = opened(store_path, commit, **_SIZES.get(reason, SMALL))
    with store:
        _PROVOKED[reason](Counted(store), monkeypatch)


def test_batches_of_a_device_are_counted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(VARIABLE, PAIR)
    with gpkvs.open(tmp_path / "store", commit="undo", **SMALL) as store:  # type: ignore[arg-type]
        store.set(b"key", b"value")
        assert store.meter.left_batches[Left.DEVICE] == 1


def test_nothing_is_left_behind_a_native_door(store_path: Path) -> None:
    with opened(store_path) as store:
        counted = Counted(store)
        counted.store.execute_requests(Batch.concatenate([sets(1), sets(1)]))
        counted.store.begin_turns(lambda: None)  # as a server with one does
        counted.store.execute_requests(Batch.concatenate([sets(1), sets(1)]))
        assert counted.reasons() == []


def test_every_reason_has_its_case() -> None:
    assert set(_PROVOKED) | {Left.DEVICE} == set(Left)
