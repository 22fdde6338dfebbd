"""What a crew does for batches that the native engine leaves: they run natively, with the bytes of Python's way."""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import replace
from itertools import count
from pathlib import Path
from random import Random

import numpy as np
import pytest

from gpkvs.batch import Batch, Op
from gpkvs.config import CommitName
from gpkvs.engine.host import own_turn
from gpkvs.engine.seam.left import Left
from gpkvs.engine.space.compaction import Compactor
from gpkvs.engine.space.heap_growth import HeapGrowth
from gpkvs.errors import GpkvsError, NoSpaceError
from gpkvs.media.transaction import COUNTER_BITS
from gpkvs.store import Store
from tests.conftest import assert_clean
from tests.engine.native_driver import Ran
from tests.engine.twins import CROWDED, FAR, Served, Twins, alike, by_columns, columns_of, regions_of  # noqa: F401 - a fixture

_KEYS = 60


def _nobody_hears(what: Left, error: GpkvsError) -> None:
    pytest.fail(f"{what!r}: {error}")


@pytest.fixture(params=[False, True], ids=["door", "own"])
def is_own(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> bool:
    """Whether batches come as requests of this process, of any size, and not as those of a door."""
    monkeypatch.setattr(own_turn, "_BYTES_MAX", 1 << 30)
    return bool(request.param)


@pytest.fixture
def twins(tmp_path: Path, commit: CommitName, is_own: bool) -> Iterator[Twins]:
    made = Twins(tmp_path, commit, is_own=is_own)
    yield made
    made.both(Store.close)
    for name in ("native", "phases"):
        assert_clean(tmp_path / name)


def sets(count: int, expiry: int = 0) -> Batch:
    batch = Batch.of([(Op.SET, b"key %d" % number, b"value") for number in range(count)])
    return replace(batch, expiries=np.full(count, expiry, np.uint64)) if expiry else batch


def test_a_table_s_first_expiry(twins: Twins) -> None:
    twins.run(sets(3, twins.now + 1000))
    assert twins.served.helped == {Left.EXPIRY: 1}
    twins.run(sets(3, twins.now + 2000))
    assert twins.served.helped == {Left.EXPIRY: 1}
    assert twins.served.not_helped == {}
    assert all(store._files.root.may_expire for store in twins.stores)
    assert twins.stores[0].scan_step().expiry_list() == [twins.now + 2000] * 3


def test_a_column_of_expiries_may_give_none(twins: Twins) -> None:
    """As a door joins it, for requests of which one asks for something else."""
    twins.run(replace(Batch.of([(Op.SET, b"a", b"v"), (Op.GET, b"b")]), expiries=np.array([0, 1], np.uint64)))
    assert twins.served.store.meter.left_batches[Left.EXPIRY] == 0
    assert not any(store._files.root.may_expire for store in twins.stores)


def test_expired_keys_are_deleted_inside(twins: Twins) -> None:
    twins.run(sets(5, twins.now + 1000))
    twins.pass_by(1000)
    twins.run(Batch.of([(Op.GET, b"key 0"), (Op.EXISTS, b"key 1"), (Op.SET, b"key 2", b"new")]))
    assert twins.served.helped == {Left.EXPIRY: 1, Left.EXPIRED: 1}
    assert twins.served.not_helped == {}
    assert [store.meter.expired_keys for store in twins.stores] == [3, 3]


def test_the_time_is_taken_once_a_batch(twins: Twins) -> None:
    """What expires while the crew works is still there for the batch."""

    def let_time_pass(store: Store) -> None:
        expiry = store._engine.expiry
        remove_of = expiry.remove_of

        def slowly(batch: Batch, now: int) -> int:
            removed = remove_of(batch, now)
            expiry.time.begin_at(twins.now + 1000)
            return removed

        expiry.remove_of = slowly  # type: ignore[method-assign]

    twins.run(replace(sets(2), expiries=np.array([twins.now + 1000, twins.now + 2000], np.uint64)))
    twins.pass_by(1000)
    twins.both(let_time_pass)
    gets = Batch.of([(Op.GET, b"key 0"), (Op.GET, b"key 1")])
    assert twins.run(gets)[0][2] == [b"", b"value"]
    assert twins.served.helped == {Left.EXPIRY: 1, Left.EXPIRED: 1}
    assert twins.run(gets)[0][2] == [b"", b""]
    assert twins.served.helped == {Left.EXPIRY: 1, Left.EXPIRED: 2}
    assert twins.served.not_helped == {}


def test_a_batch_may_lack_several_things(twins: Twins) -> None:
    twins.run(sets(400, twins.now + 1000))
    assert twins.served.helped == {Left.COLUMNS: 1, Left.EXPIRY: 1}
    twins.pass_by(1000)
    twins.run(Batch.of([(Op.GET, b"key %d" % number) for number in range(600)]))
    assert twins.served.helped == {Left.COLUMNS: 2, Left.EXPIRY: 1, Left.EXPIRED: 1}
    assert twins.served.not_helped == {}


@pytest.mark.parametrize("layout", ["bytes", "u64"])
def test_an_index_grows_for_keys_that_find_no_way(twins: Twins, layout: str) -> None:
    def make(store: Store) -> int:
        store.create_table("small", layout=layout, index_bytes=64 << 10)
        return store.table("small").id

    number = make(twins.stores[0])
    make(twins.stores[1])
    keys = [(Op.SET, key.to_bytes(8, "little"), b"01234567") for key in range(6000)]
    twins.run(Batch.of(keys[:200]).on_table(number))
    blocks = twins.stores[0]._engine.tables[number].index.blocks
    twins.run(Batch.of(keys).on_table(number))
    assert twins.served.helped == {Left.COLUMNS: 1, Left.GROW_INDEX: 1}
    assert twins.served.not_helped == {}
    assert all(store._engine.tables[number].index.blocks > blocks for store in twins.stores)
    twins.run(Batch.of([(op, key) for (_, key, _) in keys[::7] for op in (Op.GET, Op.DELETE)]).on_table(number))


def test_a_heap_grows_for_records(
    tmp_path: Path, commit: CommitName, is_own: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(HeapGrowth, "_begin_ahead", lambda _: None)  # a thread grows it at any time
    twins = Twins(tmp_path, commit, is_own=is_own, heap_bytes=4 << 20, heap_bytes_max=16 << 20)
    heaps = [store._engine.heap for store in twins.stores]
    for number in range(50):
        keys = range(20 * number, 20 * number + 20)
        twins.run(Batch.of([(Op.SET, b"key %d" % key, b"v" * 9000) for key in keys]))
        assert heaps[0].present_bytes == heaps[1].present_bytes
        assert (heaps[0].state == heaps[1].state).all()
    assert heaps[0].present_bytes > 8 << 20
    assert twins.served.not_helped == {}
    assert {Left.FREE_HEAP, Left.GROW_HEAP} & twins.served.helped.keys()
    twins.both(Store.close)


def test_a_heap_that_is_as_large_as_may_be_refuses(tmp_path: Path, commit: CommitName, is_own: bool) -> None:
    twins = Twins(tmp_path, commit, is_own=is_own, **CROWDED)

    def fill() -> None:
        for number in count():
            twins.served.run(Batch.of([(Op.SET, b"key %d" % number, b"v" * 50_000)]))

    with pytest.raises(NoSpaceError):
        fill()
    assert twins.served.helped.keys() <= {Left.FREE_HEAP, Left.GROW_HEAP}
    assert twins.served.not_helped == {}
    assert twins.stores[0].count() * 50_000 > 2 << 20
    twins.both(Store.close)


@pytest.mark.format3
def test_records_that_are_longer_than_a_segment(twins: Twins, commit: CommitName) -> None:
    twins.compares_bytes = commit == "undo"  # when a journal lets space be used again is a matter of time (W6)
    seed = int(os.environ.get("GPKVS_SEED", Random().randrange(1 << 32)))
    print(f"GPKVS_SEED={seed}")
    random, model, longest = Random(seed), dict[bytes, bytes](), 0
    segment_bytes = twins.stores[0]._files.root.segment_bytes
    for _ in range(40):
        ops: list[tuple[Op, bytes] | tuple[Op, bytes, bytes]] = []
        found = []
        for _ in range(random.randrange(1, 5)):
            key = b"key %d" % random.randrange(8)
            value = random.randbytes(random.choice((20, segment_bytes - 100, segment_bytes, 900_000, 900_000)))
            match random.choice((Op.SET, Op.SET, Op.GET, Op.DELETE)):
                case Op.SET:
                    ops.append((Op.SET, key, value))
                    model[key] = value
                    longest = max(longest, len(value))
                case Op.GET:
                    ops.append((Op.GET, key))
                    found.append(model.get(key, b""))
                case op:
                    ops.append((op, key))
                    model.pop(key, None)
        assert twins.run(Batch.of(ops))[0][2] == found
    assert longest > 6 * segment_bytes
    assert dict(twins.stores[0].scan()) == model
    assert twins.served.not_helped == {}


def garbage_in_each_segment(served: Served) -> dict[bytes, int]:
    """Run batches in one turn, in which nobody frees segments, until one is left; return versions, with those of it.

    Each segment keeps a record.
    """
    held: dict[bytes, int] = {}
    native = served.driver.native
    native.begin_turn()
    for number in count():
        batch = Batch.of([(Op.SET, b"key %d" % key, b"v" * 2000) for key in (*range(20), 100 + number)])
        answer = served.driver.run(batch)
        if answer.ran is Ran.LEFT:
            assert served.store.meter.last_left is Left.FREE_HEAP
            answer = served.run_again(batch)
        held |= {b"key %d" % (100 + number): answer.versions[-1]}
        if served.helped:
            break
    native.end_turn()
    return held


def test_space_is_freed_for_records(tmp_path: Path, commit: CommitName) -> None:
    twins = Twins(tmp_path, commit, **CROWDED)
    served = twins.served
    held = garbage_in_each_segment(served)
    assert served.helped == {Left.FREE_HEAP: 1}
    assert served.not_helped == {}
    found = by_columns(served.store, Batch.of([(Op.EXISTS, key) for key in held]))[0][1]
    assert found == list(held.values())
    assert served.store.count() == len(held) + 20
    twins.both(Store.close)
    assert_clean(tmp_path / "native")


def test_a_heap_grows_where_no_space_can_be_freed(
    tmp_path: Path, commit: CommitName, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(HeapGrowth, "_begin_ahead", lambda _: None)
    monkeypatch.setattr(HeapGrowth, "is_preferred", False)
    monkeypatch.setattr(Compactor, "step", lambda *_, **__: False)
    twins = Twins(tmp_path, commit, heap_bytes=4 << 20, heap_bytes_max=16 << 20)
    held = garbage_in_each_segment(twins.served)
    assert twins.served.helped == {Left.FREE_HEAP: 2}
    assert twins.served.not_helped == {}
    assert twins.stores[0].count() == len(held) + 20
    twins.both(Store.close)
    assert_clean(tmp_path / "native")


def test_the_log_grows_for_a_batch(tmp_path: Path, commit: CommitName) -> None:
    twins = Twins(tmp_path, commit)
    grown: list[int] = []

    def grow_log(batch: Batch, entries_each: int) -> bool:
        grown.append(entries_each * len(batch))
        return len(grown) == 1

    store = twins.stores[0]
    store._engine._grow_log = grow_log  # type: ignore[method-assign]
    served, files = Served(store), store._files
    native, committer = served.driver.native, store._engine.committer
    native.begin_turn()
    for refused in (set(), {Left.GROW_LOG}):
        log = files.log.address if files.undo_log else 0
        committer.begin_turn().begin(files.growth, log, 63)  # type: ignore[union-attr]
        assert served.driver.run(sets(1)).ran is Ran.LEFT
        served.run_again(sets(1))
        assert served.refusals.keys() == refused
    assert grown == [2, 2]
    assert served.helped == {Left.GROW_LOG: 2}
    native.end_turn()
    twins.both(Store.close)


@pytest.mark.undo
@pytest.mark.parametrize("commit", ["undo"])
@pytest.mark.parametrize("is_own", [False])
def test_the_next_incarnation_begins(twins: Twins) -> None:
    def spend(store: Store) -> None:
        store._engine.committer.transaction._counter = (1 << COUNTER_BITS) - 1  # type: ignore[attr-defined]

    native = twins.served.driver.native
    native.begin_turn()
    twins.both(spend)
    served = twins.served
    assert served.driver.run(sets(1)).ran is Ran.LEFT
    served.run_again(sets(1))
    native.end_turn()
    assert twins.served.helped == {Left.RENEW: 1}
    by_columns(twins.stores[1], sets(1))
    twins.run(sets(2))


@pytest.mark.parametrize("is_own", [False])
def test_a_reason_that_comes_again_leaves_the_batch(twins: Twins) -> None:
    served = twins.served
    served.driver.native.begin_turn()
    many = sets(300)
    assert served.driver.run(many).ran is Ran.LEFT
    seen: list[Left | None] = []

    def run() -> bool:
        served.store.meter._words[8] = Left.COLUMNS
        seen.append(served.store.meter.last_left)
        return False

    assert not served._crew.run_again(many, run, _nobody_hears)
    assert seen == [Left.COLUMNS]
    served.driver.native.end_turn()


@pytest.mark.parametrize("is_own", [False])
def test_a_log_grows_again_for_keys_that_are_displaced(twins: Twins) -> None:
    """Before a batch is planned nobody knows whether it displaces keys, of which each takes two entries."""
    served, batch = twins.served, sets(1)
    words, grown = served.store.meter._words, list[int]()

    def grow_log(batch: Batch, entries_each: int) -> bool:
        grown.append(entries_each)
        return True

    def run() -> bool:
        words[8] = Left.GROW_LOG if len(grown) == 1 else 0
        return len(grown) == 2

    served._crew._grow_log = grow_log
    served.driver.native.begin_turn()
    words[8] = Left.GROW_LOG
    assert served._crew.run_again(batch, run, _nobody_hears)
    assert grown == [2, 2]
    served.driver.native.end_turn()


@pytest.mark.parametrize("is_own", [False])
def test_what_no_crew_can_do_is_left(twins: Twins) -> None:
    served = twins.served
    served.driver.native.begin_turn()
    served.driver.has_room = False
    assert served.driver.run(sets(1)).ran is Ran.LEFT
    assert not served._crew.run_again(sets(1), lambda: pytest.fail("it has not got more memory"), _nobody_hears)
    served.driver.native.end_turn()
    assert served.store.meter.last_left is Left.MEMORY
    assert served.helped == {}


@pytest.mark.undo
def test_damaged_records_only_look_expired(tmp_path: Path) -> None:
    """The crew can do nothing about them, so they are read as what they are."""
    twins = Twins(tmp_path, "undo")
    twins.run(sets(2, twins.now + 1000))

    def damage(store: Store) -> None:
        heap = store._files.heap._view
        assert heap is not None
        heap[heap.tobytes().index(b"key 0value") + 5] ^= 1

    twins.both(damage)
    twins.pass_by(1000)
    twins.run(Batch.of([(Op.GET, b"key 0")]))
    assert twins.served.helped == {Left.EXPIRY: 1, Left.EXPIRED: 1}
    assert twins.served.not_helped == {}
    twins.both(Store.close)


def test_random_batches_make_the_same_files(twins: Twins) -> None:
    seed = int(os.environ.get("GPKVS_SEED", Random().randrange(1 << 32)))
    print(f"GPKVS_SEED={seed}")
    random = Random(seed)
    for _ in range(150):
        count = random.choice((1, 3, 20, 300, 500))
        ops: list[tuple[Op, bytes] | tuple[Op, bytes, bytes]] = []
        for _ in range(count):
            op, key = random.choice((Op.GET, Op.SET, Op.SET, Op.DELETE, Op.EXISTS)), b"key %d" % random.randrange(_KEYS)
            ops.append((op, key, random.randbytes(random.randrange(40))) if op is Op.SET else (op, key))
        batch = Batch.of(ops)
        if random.random() < 0.6:
            given = [random.choice((0, twins.now + random.randrange(1, 500))) for _ in range(count)]
            batch = replace(batch, expiries=np.array(given, np.uint64))
        twins.run(batch)
        twins.pass_by(random.randrange(100))
    assert twins.served.not_helped == {}
    assert twins.served.helped.keys() == {Left.COLUMNS, Left.EXPIRY, Left.EXPIRED}
