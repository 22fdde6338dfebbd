"""The blob of a key whose expiry changes: its new record names the blob of the old one."""

from __future__ import annotations

import random
import shutil
import struct
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import gpkvs
from gpkvs.batch import Condition, Op, Status
from gpkvs.config import CommitName, Limits, StoreConfig
from gpkvs.engine.commit.journal_committer import JournalCommitter
from gpkvs.errors import CorruptRecordError, InvalidArgumentError, NoSpaceError
from gpkvs.media.image import Image
from gpkvs.media.layout import PAGE_BYTES, blob_pages, reference_length, reference_offset
from gpkvs.recovery.proof.model import Asked, Held, Kept, Model, batch_of
from gpkvs.recovery.startup.check import check
from gpkvs.store import Store
from tests.conftest import SMALL, assert_clean, assert_counted
from tests.engine.native_driver import NativeDriver, result_of
from tests.engine.state.test_blobs import LARGER, MIB, SIZES, flip, references_of, reopened

LARGE, OTHER = b"1" * 200_001, b"2" * 150_000
LATER = 10**14  # milliseconds since 1970
KIND_BLOB, KIND_EXPIRING_BLOB = 4, 7  # of a slot
SOUND: Any = 4  # a condition of the door's own (kernels/plan/resolve.hpp)


@pytest.fixture(params=["undo", "journal"])
def commit(request: pytest.FixtureRequest) -> CommitName:
    name: CommitName = request.param
    return name


@pytest.fixture
def store(store_path: Path, commit: CommitName) -> Iterator[gpkvs.Store]:
    with gpkvs.open(store_path, store_format="4", commit=commit, durability="process", **LARGER) as opened:
        yield opened
    assert_clean(store_path)


def expire(key: bytes = b"key", expiry: int = LATER) -> Asked:
    return Asked(Op.EXPIRE, key, expiry=expiry)


def differences(model: Model, store: gpkvs.Store, requests: list[list[Asked]]) -> list[str]:
    """Run a batch, and say where its results are not those of the model."""
    result = store.execute_requests(batch_of(0, requests))
    assert result.requests == len(requests)
    return [text for at, one in enumerate(requests) for text in model.differences(one, result, at)]


def held_by(store: gpkvs.Store, keys: list[bytes]) -> Held:
    """Return what the store has of some keys."""
    found = store.execute(batch_of(0, [[Asked(Op.GET, key) for key in keys]]))
    expiries = store.execute(batch_of(0, [[Asked(Op.EXPIRY, key) for key in keys]])).value_list()
    columns = zip(keys, found.status, found.value_list(), found.versions.tolist(), expiries, strict=True)
    return {
        key: Kept(value, version, int.from_bytes(expiry, "little"))
        for key, status, value, version, expiry in columns
        if status == Status.OK
    }


def expect_blobs(store: gpkvs.Store, held: Held) -> None:
    """Fail unless each large value has a blob, all of them have what is live, and nothing is lost or out."""
    references = references_of(store)
    sizes = [len(kept.value) for key, kept in held.items() if 32 + len(key) + len(kept.value) > 65_536]
    assert sorted(reference_length(reference) for reference in references) == sorted(map(blob_pages, sizes))
    assert len({reference_offset(reference) for reference in references}) == len(references)
    assert store.info().blobs_live_bytes == PAGE_BYTES * sum(map(blob_pages, sizes))
    assert store._engine.heap.blobs
    counts = store._engine.heap.blobs._space.pages.counts
    assert (counts.taken, counts.read, counts.lost) == (0, 0, 0)
    assert counts.file == sum(counts[1:-1])


def test_the_blob_stays_where_it_is(store: gpkvs.Store, store_path: Path) -> None:
    store.set(b"key", LARGE)
    before, written = references_of(store), store.info()
    model = Model(held_by(store, [b"key"]), has_records=True)
    for request in ([expire()], [expire(expiry=LATER + 1)], [expire(expiry=0)], [expire()]):
        assert not differences(model, store, [request])
        assert references_of(store) == before
        assert held_by(store, [b"key"]) == model.held
        expect_blobs(store, model.held)
    assert store.info().blobs_bytes == written.blobs_bytes
    store.close()
    with reopened(store_path) as again:
        assert held_by(again, [b"key"]) == model.held
        expect_blobs(again, model.held)
        assert references_of(again) == before


APPENDS, NOTHING = Asked(Op.APPEND, b"key", b"more"), Asked(Op.APPEND, b"key")
READS, GOES = Asked(Op.GET, b"key"), Asked(Op.DELETE, b"key")
REPLACES, SHRINKS = Asked(Op.SET, b"key", OTHER), Asked(Op.SET, b"key", b"small")
BATCHES = {
    "expire and set": [expire(), REPLACES],
    "expire and set a small one": [expire(), SHRINKS],
    "expire and delete": [expire(), GOES],
    "set and expire": [REPLACES, expire()],
    "set a small one and expire": [SHRINKS, expire()],
    "twice": [expire(), expire(expiry=LATER + 1)],
    "append and expire": [APPENDS, expire()],
    "expire and append": [expire(), APPENDS],
    "expire, append nothing, expire": [expire(), NOTHING, expire(expiry=0)],
    "append nothing": [NOTHING],
    "expire and read": [READS, expire(), READS],
    "expire, read and set": [expire(), READS, REPLACES, READS],
    "expire, read and delete": [expire(), READS, GOES, READS],
    "delete, make nothing and expire": [GOES, NOTHING, expire(), READS],
    "delete and expire": [GOES, expire()],
    "beside others": [
        Asked(Op.SET, b"a", OTHER),
        expire(),
        Asked(Op.SET, b"b", b"small"),
        expire(b"other"),
        Asked(Op.SET, b"c", LARGE),
        READS,
    ],
    "on a condition": [Asked(Op.EXPIRE, b"key", b"", Condition.ABSENT, 0, LATER), READS],
    "in a request that is stopped": [expire(), Asked(Op.CHECK, b"key", b"", Condition.ABSENT)],
}


@pytest.mark.parametrize("batch", BATCHES)
def test_a_batch_may_touch_its_key_again(store: gpkvs.Store, store_path: Path, batch: str) -> None:
    """In one request, and in one for each operation; what is written then takes no page that is in use."""
    keys = [b"key", b"other", b"a", b"b", b"c"]
    for requests in ([BATCHES[batch]], [[one] for one in BATCHES[batch]]):
        store.set(b"key", LARGE)
        store.set(b"other", OTHER)
        model = Model(held_by(store, keys), has_records=True)
        assert not differences(model, store, requests)
        for number in range(4):
            store.set(b"more%d" % number, bytes([number]) * 70_000)
        assert held_by(store, keys) == model.held
        for number in range(4):
            store.delete(b"more%d" % number)
        expect_blobs(store, model.held)
        assert_counted(store)
    store.close()
    with reopened(store_path) as again:
        assert held_by(again, keys) == model.held
        expect_blobs(again, model.held)


def any_operation(rng: random.Random) -> Asked:
    key, kind = b"key%d" % rng.randrange(6), rng.random()
    expiry = rng.choice((0, LATER, LATER + rng.randrange(1000)))
    if kind < 0.4:
        return Asked(Op.EXPIRE, key, expiry=expiry)
    if kind < 0.55:
        return Asked(Op.SET, key, rng.randbytes(rng.choice(SIZES[:7])), expiry=expiry)
    if kind < 0.65:
        return Asked(Op.APPEND, key, rng.choice((b"", b"x", b"y" * 70_000)))
    condition = rng.choice((Condition.ABSENT, Condition.PRESENT)) if kind < 0.7 else Condition.NONE
    op = rng.choice((Op.GET, Op.GET, Op.GET, Op.DELETE, Op.EXPIRY, Op.EXISTS, Op.INCREMENT))
    return Asked(op, key, bytes(8) if op is Op.INCREMENT else b"", condition if op is Op.DELETE else Condition.NONE)


@pytest.mark.parametrize("how", ["embedded", "as a door", "phases"])
def test_any_batches_are_those_of_a_dictionary(
    store: gpkvs.Store, store_path: Path, how: str, request: pytest.FixtureRequest
) -> None:
    if how == "phases":
        request.getfixturevalue("by_phases")
    seed = random.randrange(1 << 32)
    print(f"{seed=}")
    rng, keys = random.Random(seed), [b"key%d" % number for number in range(6)]
    model = Model({}, has_records=True)
    driver = NativeDriver(store)
    for _ in range(60):
        requests = [[any_operation(rng) for _ in range(rng.randint(1, 4))] for _ in range(rng.randint(1, 4))]
        if rng.random() < 0.2:
            requests[-1].append(Asked(Op.CHECK, rng.choice(keys), condition=Condition.PRESENT))
        if how == "as a door":
            batch = batch_of(0, requests)
            answer = driver.run_with_help(batch)
            assert answer
            result = result_of(batch, answer, driver.refusals)
            assert result.requests == len(requests)
            assert not [text for at, one in enumerate(requests) for text in model.differences(one, result, at)]
        else:
            assert not differences(model, store, requests)
        assert held_by(store, keys) == model.held
        expect_blobs(store, model.held)
        assert_counted(store)
    store.close()
    with reopened(store_path) as again:
        assert held_by(again, keys) == model.held
        expect_blobs(again, model.held)


def test_what_one_batch_may_make_does_not_count(store_path: Path, commit: CommitName) -> None:
    limits = Limits(result_bytes_max=MIB)
    config = StoreConfig(
        store_format="4", commit=commit, durability="process", limits=limits, batch_result_bytes_max=MIB, **LARGER
    )
    keys = [b"%d" % number for number in range(3)]
    with Store(store_path, config) as store:
        for key in keys:
            store.set(key, key * (3 * MIB))
        before = references_of(store)
        assert store.execute(batch_of(0, [[expire(key) for key in keys]])).status.tolist() == [Status.OK] * 3
        assert references_of(store) == before
        store.append(keys[0], b"")
        assert references_of(store) == before
        with pytest.raises(InvalidArgumentError, match="batch_result_bytes_max"):
            store.append(keys[0], b"x")
    assert_clean(store_path)


def test_it_expires_once(store: gpkvs.Store) -> None:
    store.set(b"key", LARGE)
    store.set(b"stays", OTHER)
    for _ in range(3):
        store.execute(batch_of(0, [[expire()]]))
    store.expire(b"key", 0.001)
    time.sleep(0.01)
    assert store.get(b"key") is None
    expect_blobs(store, held_by(store, [b"key", b"stays"]))
    for number in range(5):
        store.set(b"more%d" % number, bytes([number]) * 200_000)
    assert store.get(b"stays") == OTHER


def test_a_dropped_table_frees_it(store: gpkvs.Store) -> None:
    store.create_table("other")
    store.set(b"key", LARGE, table="other")
    store.expire(b"key", 10**6, table="other")
    store.drop_table("other")
    while store.maintain():
        pass
    assert store.info().blobs_live_bytes == 0


def test_compaction_moves_the_record_that_names_it(store: gpkvs.Store) -> None:
    store.set(b"key", LARGE)
    store.expire(b"key", 10**6)
    before, at = references_of(store), int(store._files.indexes[0].region.words(0, 8192).reshape(-1, 4)[:, 2].max())
    for number in range(3000):
        store.set(b"fill%d" % (number % 40), bytes(30_000))
    compactor, segment_units = store._engine.free_space.compactor, store._files.segment_units
    with store._mutex:
        compactor.empty(reference_offset(at) // segment_units)
    assert references_of(store) == before
    store.expire(b"key", 10**6)
    assert references_of(store) == before
    assert store.get(b"key") == LARGE


def test_the_space_of_records_that_named_it_is_used_again(store_path: Path, commit: CommitName) -> None:
    """The heap is nearly full, so segments are emptied meanwhile: records move, and batches are planned again."""
    keys = [b"key%d" % number for number in range(40)]
    with gpkvs.open(store_path, store_format="4", commit=commit, durability="process", **SMALL) as store:
        for key in keys:
            store.set(key, key * 20_000)
        before = references_of(store)
        with suppress(NoSpaceError):
            for number in range(1000):
                store.set(b"fill%d" % number, bytes(30_000))
        assert store.get(b"fill999") is None
        store.delete(b"fill0")
        model = Model(held_by(store, keys), has_records=True)
        for number in range(1000):
            assert not differences(model, store, [[expire(key, LATER + number) for key in keys]])
        assert sorted(references_of(store)) == sorted(before)
        assert held_by(store, keys) == model.held
    assert_clean(store_path)


# Damage: to give a key an expiry reads its record, and not its value.


def damaged_store(path: Path, commit: CommitName) -> None:
    with gpkvs.open(path, store_format="4", commit=commit, durability="process", **SMALL) as store:
        store.set(b"key", LARGE)
        [reference] = references_of(store)
    flip(path / "blobs", reference_offset(reference) * PAGE_BYTES + 150_000)


def test_damage_stays_damage(tmp_path: Path, commit: CommitName) -> None:
    path = tmp_path / "store"
    damaged_store(path, commit)
    with reopened(path) as store:
        assert store.expire(b"key", 10**6)
        with pytest.raises(CorruptRecordError):
            store.get(b"key")
    assert [violation.invariant for violation in check(path).violations] == ["blob-checksum"]


@pytest.mark.parametrize(
    ("batch", "status"),
    [
        ([expire(), READS], [Status.OK, Status.CORRUPT]),
        ([expire(), APPENDS, READS], [Status.OK, Status.CORRUPT, Status.CORRUPT]),
        ([expire(), NOTHING, APPENDS], [Status.OK, Status.OK, Status.CORRUPT]),
        ([APPENDS, expire(), READS], [Status.CORRUPT, Status.OK, Status.CORRUPT]),
        ([expire(), REPLACES, READS], [Status.OK, Status.OK, Status.OK]),
    ],
)
def test_nothing_is_made_of_a_damaged_value(
    tmp_path: Path, commit: CommitName, batch: list[Asked], status: list[Status]
) -> None:
    """Also where the batch has given its key an expiry before."""
    path = tmp_path / "store"
    damaged_store(path, commit)
    with reopened(path) as store:
        assert store.execute(batch_of(0, [batch])).status.tolist() == status
        if status[-1] is Status.CORRUPT:
            with pytest.raises(CorruptRecordError):
                store.get(b"key")


@pytest.mark.parametrize(("op", "status"), [(Op.DELETE, Status.CORRUPT), (Op.EXPIRE, Status.OK)])
def test_who_asks_for_a_sound_value_hears_of_the_damage(
    tmp_path: Path, commit: CommitName, op: Op, status: Status
) -> None:
    """As commands that return what they replace ask: also behind an expiry. One that changes the expiry needs none."""
    path = tmp_path / "store"
    damaged_store(path, commit)
    with reopened(path) as store:
        asked = Asked(op, b"key", condition=SOUND, expiry=LATER)
        for request, found in (([asked], [status]), ([expire(), asked], [Status.OK, status])):
            answer = NativeDriver(store).run_with_help(batch_of(0, [request]))
            assert answer
            assert answer.status == found
        assert len(references_of(store)) == 1


def test_a_slot_of_the_wrong_kind_is_damage(tmp_path: Path) -> None:
    """It says that its record has no blob: the opening took the pages of that for free."""
    path = tmp_path / "store"
    with gpkvs.open(path, store_format="4", commit="undo", durability="process", **SMALL) as store:
        store.set(b"key", LARGE)
        words = store._files.indexes[0].region.words(0, store.info().tables[0].slots * 4).reshape(-1, 4)
        [slot] = np.flatnonzero(words[:, 3])
        meta = int(words[slot, 3])
    with (path / "index-0-0").open("r+b") as file:
        file.seek(32 * int(slot) + 24)
        file.write(struct.pack("<Q", meta & ((1 << 60) - 1) | 1 << 60))
    with reopened(path) as store:
        assert store.execute(batch_of(0, [[expire()]])).status.tolist() == [Status.CORRUPT]


# Crashes.


@pytest.mark.parametrize("is_rotten", [False, True])
def test_a_frame_that_keeps_a_blob_needs_no_look_at_it(tmp_path: Path, is_rotten: bool) -> None:
    """The last frame was acknowledged: a value that rotted long before must not take it away."""
    path, copied = tmp_path / "store", tmp_path / "copied"
    with gpkvs.open(path, store_format="4", commit="journal", durability="process", **SMALL) as store:
        store.set(b"key", LARGE)
        [reference] = references_of(store)
        store.set(b"covers", b"it")
        store.set(b"covers", b"and says so")
        result = store.execute(batch_of(0, [[expire(), Asked(Op.SET, b"beside", b"it")]]))
        shutil.copytree(path, copied)  # as a crash leaves it
    if is_rotten:
        flip(copied / "blobs", reference_offset(reference) * PAGE_BYTES + 100)
    with reopened(copied) as opened:
        assert opened.get(b"beside") == b"it"
        [version] = opened.execute(batch_of(0, [[Asked(Op.EXISTS, b"key")]])).versions.tolist()
        assert version == result.versions[0]
        assert references_of(opened) == [reference]
        if not is_rotten:
            assert opened.get(b"key") == LARGE
    assert [one.invariant for one in check(copied).violations] == ["blob-checksum"] * is_rotten


@pytest.mark.parametrize("is_rotten", [False, True])
def test_a_checkpoint_that_shows_a_later_batch_takes_no_acknowledged_one_along(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_rotten: bool
) -> None:
    """It was writing when the process died: the index has not the record any more whose blob the frame kept."""
    path, copied, sets = tmp_path / "store", tmp_path / "copied", [b"beside %d" % number for number in range(30)]
    with gpkvs.open(path, store_format="4", commit="journal", durability="msync", **SMALL) as store:
        committer, image = store._engine.committer, store._files.indexes[0].region
        assert isinstance(committer, JournalCommitter)
        assert isinstance(image, Image)
        monkeypatch.setattr(committer, "cover", lambda: False)  # the death comes before an idle moment
        while True:  # until both frames are written before the first one is durable
            store.set(b"key", LARGE)
            [reference] = references_of(store)
            store.set(b"covers", b"it")
            store.set(b"covers", b"and says so")
            committer.checkpointer.write(paced=False)
            gates = [
                store._engine.execute(batch_of(0, [requests]))[1]
                for requests in ([expire(), *(Asked(Op.SET, key, b"it") for key in sets)], [Asked(Op.DELETE, b"key")])
            ]
            if not committer.is_durable(gates[0]):
                break
            for key in sets:
                store.delete(key)
        committer.wait(gates[1])
        shutil.copytree(path, copied)
        pages = image.words(0, image.bytes // 8).copy()
    written = np.fromfile(copied / "index-0-0", np.uint64)
    kinds = written.reshape(-1, 4)[:, 3] >> np.uint64(60)
    [slot] = np.flatnonzero((kinds == KIND_BLOB) | (kinds == KIND_EXPIRING_BLOB)).tolist()
    page = slot * 4 // (PAGE_BYTES // 8) * (PAGE_BYTES // 8)
    written[page : page + PAGE_BYTES // 8] = pages[page : page + PAGE_BYTES // 8]
    written.tofile(copied / "index-0-0")
    if is_rotten:
        flip(copied / "blobs", reference_offset(reference) * PAGE_BYTES + 100)
    with reopened(copied) as opened:
        assert [opened.get(key) for key in sets] == [b"it"] * len(sets)
        assert opened.get(b"key") is None
    assert_clean(copied)


@pytest.mark.parametrize("is_lost", [False, True])
def test_a_blob_that_was_lost_takes_the_frame_that_keeps_it_along(tmp_path: Path, is_lost: bool) -> None:
    """Of a crash that kept two frames, of a value and of its expiry, and not the pages of the blob."""
    path, copied, value = tmp_path / "store", tmp_path / "copied", b"8" * (8 * MIB)
    with gpkvs.open(path, store_format="4", commit="journal", durability="msync", **LARGER) as store:
        store.set(b"key", OTHER, ttl=10**6)
        while True:  # until both frames are written before the first one is durable
            committer = store._engine.committer
            gates = [store._engine.execute(batch_of(0, [[one]]))[1] for one in (Asked(Op.SET, b"key", value), expire())]
            if not committer.is_durable(gates[0]):
                break
            store.set(b"key", OTHER)
        committer.wait(gates[1])
        shutil.copytree(path, copied)
        [reference] = references_of(store)
    if is_lost:
        with (copied / "blobs").open("r+b") as file:
            file.seek(reference_offset(reference) * PAGE_BYTES + 100_000)
            file.write(bytes(4096))
    with reopened(copied) as opened:
        assert opened.get(b"key") == (OTHER if is_lost else value)
    assert_clean(copied)


KILLED = """
import sys, gpkvs
store = gpkvs.open(sys.argv[1], durability="process")
number = 0
while True:
    number += 1
    key = b"key%d" % (number % 3)
    if number % 4 == 0:
        store.set(key, b"%d" % (number % 10) * 70_000)
    elif number % 4 == 1:
        store.set(b"other", b"%d" % (number % 10) * 90_000)
    else:
        store.expire(key, 10**6 + number)
    print(number, flush=True)
"""


def test_a_kill_leaves_each_value_to_its_key(store: gpkvs.Store, store_path: Path) -> None:
    for number in range(3):
        store.set(b"key%d" % number, b"0" * 70_000)
    store.close()
    for round_number in range(3):
        process = subprocess.Popen([sys.executable, "-c", KILLED, str(store_path)], stdout=subprocess.PIPE, text=True)
        assert process.stdout
        for line in process.stdout:
            if int(line) >= 30 + 7 * round_number:
                process.kill()
        process.wait()
        with reopened(store_path) as opened:
            for number in range(3):
                value = opened.get(b"key%d" % number)
                assert value
                assert len(value) == 70_000
                assert value == value[:1] * 70_000
            expect_blobs(opened, held_by(opened, [b"key0", b"key1", b"key2", b"other"]))
        assert_clean(store_path)
