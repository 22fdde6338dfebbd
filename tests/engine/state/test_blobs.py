"""Blobs: values too long for the heap, in a file of their own; written, read, replaced, damaged and lost."""

from __future__ import annotations

import errno
import os
import random
import shutil
import struct
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

import gpkvs
from gpkvs.batch import U64, Batch, Op, Status
from gpkvs.config import CommitName
from gpkvs.engine.space.recount import recount
from gpkvs.engine.state.heap import SegmentCounts
from gpkvs.errors import CorruptRecordError, InvalidArgumentError, NoSpaceError, StoreError
from gpkvs.media.layout import (
    BLOB_PIECE_BYTES,
    KEY_BYTES_MAX,
    PAGE_BYTES,
    blob_pages,
    reference_length,
    reference_offset,
)
from gpkvs.native import crc32c
from gpkvs.recovery.startup.check import check
from tests.conftest import SMALL, assert_clean, assert_counted

KIB, MIB = 1 << 10, 1 << 20
LARGER = SMALL | {"heap_bytes": 64 * MIB}
SIZES = (0, 100, 64 * KIB - 100, 64 * KIB, 64 * KIB + 1, 128 * KIB, 200_001, MIB, 3 * MIB + 7)


@pytest.fixture(params=["undo", "journal"])
def commit(request: pytest.FixtureRequest) -> CommitName:
    name: CommitName = request.param
    return name


@pytest.fixture
def store(store_path: Path, commit: CommitName) -> Iterator[gpkvs.Store]:
    with gpkvs.open(store_path, store_format="4", commit=commit, durability="process", **LARGER) as opened:
        yield opened


def reopened(path: Path) -> gpkvs.Store:
    return gpkvs.open(path, durability="process")


def references_of(store: gpkvs.Store) -> list[int]:
    """Return the references of all blobs of the default table."""
    index = store._files.indexes[0]
    found: list[U64] = []
    recount(store._files, store._backend, index, SegmentCounts.of(store._files.segments), found)
    return [int(reference) for part in found for reference in part]


def read(store: gpkvs.Store, keys: list[bytes]) -> list[bytes]:
    return store.execute(Batch.of([(Op.GET, key) for key in keys])).value_list()


def test_the_bytes_are_those_of_the_document(store: gpkvs.Store) -> None:
    """Each length, around a page, a piece and a word."""
    rng = random.Random(1)
    for size in (65_529, 65_536, 65_537, 69_632 - 8, 131_071, 131_072, 131_080, 3 * 65_536 + 4_000):
        value = rng.randbytes(size)
        store.set(b"key", value)
        [reference] = references_of(store)
        assert reference_length(reference) == blob_pages(size)
        assert store._files.blobs
        blob = store._files.blobs.read(reference_offset(reference) * PAGE_BYTES, blob_pages(size) * PAGE_BYTES)
        padded = value + bytes(-size % 8)
        assert blob[: len(padded)] == padded
        pieces = [value[at : at + BLOB_PIECE_BYTES] for at in range(0, size, BLOB_PIECE_BYTES)]
        checksums = struct.pack(f"<{len(pieces)}I", *(crc32c(piece + bytes(-len(piece) % 8)) for piece in pieces))
        assert blob[len(padded) : len(padded) + len(checksums)] == checksums


def test_any_operations_are_those_of_a_dictionary(store: gpkvs.Store, store_path: Path, commit: CommitName) -> None:
    seed = random.randrange(1 << 32)
    print(f"{seed=}")
    rng = random.Random(seed)
    model: dict[bytes, bytes] = {}
    for turn in range(3):
        with store if turn == 0 else reopened(store_path) as opened:
            for _ in range(120):
                key, chance = b"key%d" % rng.randrange(12), rng.random()
                if chance < 0.4:
                    value = rng.randbytes(rng.choice(SIZES))
                    opened.set(key, value, **({"ttl": 10**6} if rng.random() < 0.3 else {}))
                    model[key] = value
                elif chance < 0.5:
                    opened.delete(key)
                    model.pop(key, None)
                elif chance < 0.6:
                    opened.append(key, b"x" * 70_000)
                    model[key] = model.get(key, b"") + b"x" * 70_000
                elif chance < 0.7 and key in model:
                    opened.expire(key, 10**6)
                elif chance < 0.8:
                    pairs = {b"key%d" % number: rng.randbytes(rng.choice(SIZES)) for number in range(3)}
                    opened.execute(Batch.of([(Op.SET, *pair) for pair in pairs.items()]))
                    model |= pairs
                elif chance < 0.9:
                    keys = [b"key%d" % number for number in range(12)]
                    assert read(opened, keys) == [model.get(other, b"") for other in keys]
                else:
                    assert opened.get(key) == model.get(key)
            assert dict(opened.scan()) == model
            live = sum(reference_length(reference) for reference in references_of(opened))
            assert opened.info().blobs_live_bytes == live * PAGE_BYTES
            assert_counted(opened)
        assert_clean(store_path)


def test_what_becomes_free_is_used_again(store: gpkvs.Store, commit: CommitName) -> None:
    for number in range(60):
        store.set(b"key%d" % (number % 3), os.urandom(MIB))
    info = store.info()
    assert info.blobs_live_bytes == 3 * blob_pages(MIB) * PAGE_BYTES
    # With a journal, what was freed last waits for a frame that covers it.
    assert info.blobs_bytes <= (6 if commit == "undo" else 10) * MIB


def test_what_nobody_committed_is_given_back(store: gpkvs.Store) -> None:
    """A request whose second record finds no room in the heap is refused; the pages for its first one are free."""
    for number in range(700):
        store.set(b"fill%d" % number, bytes(60_000))
    before = store.info()
    rows = [(Op.SET, b"large", bytes(MIB)), *((Op.SET, b"more%d" % number, bytes(60_000)) for number in range(300))]
    with pytest.raises(NoSpaceError, match="heap full"):
        store.execute(Batch.of(rows))
    assert store.get(b"large") is None
    store.set(b"large", bytes(MIB))
    assert store.info().blobs_live_bytes == before.blobs_live_bytes + blob_pages(MIB) * PAGE_BYTES
    assert store.info().blobs_bytes <= 3 * MIB


def test_a_batch_that_sets_a_key_twice_has_one_blob(store: gpkvs.Store) -> None:
    rows = [(Op.SET, b"key", b"1" * MIB), (Op.GET, b"key"), (Op.SET, b"key", b"2" * MIB), (Op.SET, b"gone", b"3" * MIB)]
    assert store.execute(Batch.of([*rows, (Op.DELETE, b"gone")])).value_list() == [b"1" * MIB]
    assert store.get(b"key") == b"2" * MIB
    assert len(references_of(store)) == 1


def test_a_dropped_table_gives_its_blobs_back(store: gpkvs.Store) -> None:
    store.create_table("other")
    for number in range(5):
        store.set(b"key%d" % number, os.urandom(MIB), table="other")
    store.set(b"stays", b"s" * MIB)
    store.drop_table("other")
    while store.maintain():
        pass
    assert store.info().blobs_live_bytes == blob_pages(MIB) * PAGE_BYTES
    assert store.get(b"stays") == b"s" * MIB


def test_an_expired_value_gives_its_blob_back(store: gpkvs.Store) -> None:
    store.set(b"key", bytes(MIB), ttl=0.001)
    time.sleep(0.01)
    assert store.get(b"key") is None
    assert store.info().blobs_live_bytes == 0


def test_limits(tmp_path: Path) -> None:
    with gpkvs.open(tmp_path / "usual", store_format="4", durability="process") as store:
        assert store.limits.value_bytes_max == 128 * MIB
        with pytest.raises(InvalidArgumentError, match="134,217,728"):
            store.set(b"key", bytes(128 * MIB + 1))
    with gpkvs.open(tmp_path / "small", store_format="4", durability="process", **SMALL) as store:
        most = store.limits.value_bytes_max  # all that blobs may take, nearly
        assert 15 * MIB < most < 16 * MIB
        store.set(b"key", bytes(most))
        with pytest.raises(InvalidArgumentError, match="value_bytes_max"):
            store.set(b"key", bytes(most + 1))
    with gpkvs.open(tmp_path / "three", store_format="3", **SMALL) as store:
        assert store.limits.value_bytes_max < MIB  # a sixteenth of its heap


def test_the_longest_value_there_is(tmp_path: Path) -> None:
    """1 GiB, if it is allowed."""
    limits = gpkvs.Limits(value_bytes_max=1 << 40)
    with gpkvs.open(tmp_path / "store", store_format="4", durability="process", limits=limits) as store:
        assert store.limits.value_bytes_max == 1 << 30
        assert store.limits.result_bytes_max == 1 << 30


def test_a_limit_of_the_heap_is_one_of_blobs_too(store: gpkvs.Store) -> None:
    """It is told, nothing is lost, and what is deleted makes room."""

    def fill() -> None:
        for number in range(100):
            store.set(b"key%d" % number, bytes(4 * MIB))

    with pytest.raises(NoSpaceError, match=r"heap-bytes-max"):
        fill()
    assert store.info().blobs_bytes <= LARGER["heap_bytes"]
    assert store.get(b"key0") == bytes(4 * MIB)
    store.set(b"small", b"goes on")
    store.delete(b"key0")
    store.set(b"key0", b"1" * (4 * MIB))
    assert store.get(b"key0") == b"1" * (4 * MIB)


@pytest.mark.parametrize("where", ["first", "middle", "last", "checksums"])
def test_rot_is_damage_of_one_key(tmp_path: Path, commit: CommitName, where: str) -> None:
    """It is never served; check names it; whoever sets the key again heals it."""
    path, size = tmp_path / "store", 16 * MIB
    value = os.urandom(size)
    with gpkvs.open(path, store_format="4", commit=commit, durability="process") as store:
        store.set(b"key", value)
        store.set(b"other", value)
        first = min(references_of(store))
    at = {"first": 0, "middle": size // 2 + 3, "last": size - 1, "checksums": size + 5}[where]
    flip(path / "blobs", reference_offset(first) * PAGE_BYTES + at)
    assert [violation.invariant for violation in check(path).violations] == ["blob-checksum"]
    with reopened(path) as store:
        damaged, sound = (b"key", b"other") if reference_offset(first) == 0 else (b"other", b"key")
        with pytest.raises(CorruptRecordError):
            store.get(damaged)
        with pytest.raises(CorruptRecordError):
            store.append(damaged, b"more")
        assert store.execute(Batch.of([(Op.GET, damaged), (Op.GET, sound)])).status.tolist() == [
            Status.CORRUPT.value,
            Status.OK.value,
        ]
        assert store.get(sound) == value
        store.set(damaged, b"new" * 100_000)
        assert store.get(damaged) == b"new" * 100_000
    assert_clean(path)


def flip(path: Path, at: int) -> None:
    with path.open("r+b") as file:
        file.seek(at)
        byte = file.read(1)[0]
        file.seek(at)
        file.write(bytes([byte ^ 0x10]))


def test_a_damaged_record_frees_no_blob_of_another_key(tmp_path: Path) -> None:
    """A slot that rotted refers to the record of another key. To set its key again leaves that one's blob alone."""
    path = tmp_path / "store"
    with gpkvs.open(path, store_format="4", commit="undo", durability="process", **SMALL) as store:
        store.set(b"one", b"1" * MIB)
        store.set(b"two", b"2" * MIB)
        index = store._files.indexes[0].region
        words = index.words(0, store.info().tables[0].slots * 4).reshape(-1, 4)
        slots = {int(words[slot, 2]): int(slot) for slot in np.flatnonzero(words[:, 3])}
        (one, slot_of_one), (two, _) = sorted(slots.items())
        at = 32 * slot_of_one + 16
    with (path / "index-0-0").open("r+b") as file:
        file.seek(at)
        file.write(struct.pack("<Q", two))
    del one
    with reopened(path) as store:
        store.set(b"one", b"3" * MIB)
        for number in range(4):
            store.set(b"more%d" % number, b"4" * MIB)
        assert store.get(b"two") == b"2" * MIB
        assert store.get(b"one") == b"3" * MIB
    assert_clean(path)


KILLED = """
import os, sys, gpkvs
from gpkvs.process import failpoint
store = gpkvs.open(sys.argv[1], durability="process")
number = 0
while True:
    number += 1
    store.set(b"key%d" % (number % 7), b"%d" % (number % 10) * (65_000 + 40_000 * (number % 9)))
    print(number, flush=True)
"""


def test_a_kill_loses_nothing_that_was_acknowledged(store: gpkvs.Store, store_path: Path) -> None:
    store.close()
    for round_number in range(3):
        process = subprocess.Popen(
            [sys.executable, "-c", KILLED, str(store_path)], stdout=subprocess.PIPE, text=True, bufsize=1
        )
        assert process.stdout
        last = 0
        for line in process.stdout:
            last = int(line)
            if last >= 20 + 7 * round_number:
                process.kill()
        process.wait()
        with reopened(store_path) as opened:
            for number in range(max(last - 6, 1), last + 1):
                value = opened.get(b"key%d" % (number % 7))
                choices = [number, number + 7]  # the next round may have been durable, and not told
                assert value in [b"%d" % (n % 10) * (65_000 + 40_000 * (n % 9)) for n in choices]
        assert_clean(store_path)


@pytest.mark.parametrize("is_lost", [False, True])
def test_a_frame_whose_blob_was_lost_is_cut(tmp_path: Path, is_lost: bool) -> None:
    """Of a crash that kept the last frame and its record, and not the pages of the blob: nobody was told of it."""
    path, copied = tmp_path / "store", tmp_path / "copied"
    store = gpkvs.open(path, store_format="4", commit="journal", durability="process", **SMALL)
    store.set(b"key", b"1" * MIB)
    store.set(b"key", b"2" * MIB)
    shutil.copytree(path, copied)  # as a crash leaves it: the frame of the second one is not covered by another
    reference = max(references_of(store))
    store.close()
    if is_lost:
        with (copied / "blobs").open("r+b") as file:
            file.seek(reference_offset(reference) * PAGE_BYTES + 500_000)
            file.write(bytes(4 * KIB))
    with reopened(copied) as opened:
        assert opened.get(b"key") == (b"1" if is_lost else b"2") * MIB
    assert_clean(copied)


def test_threads_stand_for_a_gpu(tmp_path: Path, by_phases: None, commit: CommitName) -> None:
    """The host writes and frees blobs; what stands for a GPU reads them."""
    path, rng, model = tmp_path / "store", random.Random(3), dict[bytes, bytes]()
    with gpkvs.open(path, store_format="4", commit=commit, durability="process", **SMALL) as store:
        for _ in range(60):
            rows = {b"key%d" % rng.randrange(9): rng.randbytes(rng.choice(SIZES[:7])) for _ in range(3)}
            store.execute(Batch.of([(Op.SET, *row) for row in rows.items()]))
            model |= rows
            keys = [b"key%d" % number for number in range(9)]
            assert read(store, keys) == [model.get(key, b"") for key in keys]
    assert_clean(path)


def test_rot_in_each_piece(tmp_path: Path) -> None:
    path, size = tmp_path / "store", 10 * BLOB_PIECE_BYTES + 100
    with gpkvs.open(path, store_format="4", durability="process", **SMALL) as store:
        store.set(b"key", os.urandom(size))
        [reference] = references_of(store)
    for piece in range(11):
        at = reference_offset(reference) * PAGE_BYTES + piece * BLOB_PIECE_BYTES + 99
        flip(path / "blobs", at)
        with reopened(path) as store, pytest.raises(CorruptRecordError):
            store.get(b"key")
        flip(path / "blobs", at)
    with reopened(path) as store:
        assert len(store.get(b"key") or b"") == size


def test_what_a_frame_frees_waits_for_the_next(tmp_path: Path) -> None:
    """W6: if the frame that replaced a value is lost, the old value must still be there."""
    with gpkvs.open(tmp_path / "store", store_format="4", commit="journal", durability="process", **SMALL) as store:
        blobs = store._engine.heap.blobs
        assert blobs
        store.set(b"key", b"1" * MIB)
        store.set(b"key", b"2" * MIB)
        assert blobs._space.pages.counts.waiting == blob_pages(MIB)
        store.set(b"other", b"covers it")
        store.set(b"other", b"and this one says so")
        assert blobs._space.pages.counts.waiting == 0


@pytest.mark.parametrize("value", [b"", b"v", b"v" * 24, b"v" * 25, b"v" * 100])
def test_the_longest_key_with_any_value(tmp_path: Path, commit: CommitName, value: bytes) -> None:
    """A value that is no longer than what a record says of a blob stays in the record."""
    limits, key = gpkvs.Limits(key_bytes_max=1 << 20), b"k" * KEY_BYTES_MAX[4]
    path = tmp_path / "store"
    with gpkvs.open(path, store_format="4", commit=commit, durability="process", limits=limits, **SMALL) as store:
        assert store.limits.key_bytes_max == len(key)
        store.set(key, b"")
        store.set(key, value)
        store.set(b"large", b"l" * 100_000)
        assert len(references_of(store)) == 1 + (len(value) > 24)
        assert (store.get(key), store.get(b"large")) == (value, b"l" * 100_000)
    with reopened(path) as store:
        assert store.get(b"large") == b"l" * 100_000
    assert_clean(path)


@pytest.mark.parametrize("error", [OSError(errno.ENOMEM, "Cannot allocate memory"), KeyboardInterrupt()])
def test_a_file_that_cannot_be_mapped_is_not_used(
    store: gpkvs.Store, monkeypatch: pytest.MonkeyPatch, error: BaseException
) -> None:
    """Its new pages are nobody's, so nothing is stored where no memory is; it is tried again."""
    store.set(b"first", b"1" * MIB)
    blobs = store._files.blobs
    assert blobs
    grow, errors = blobs.grow, [error, error]  # before it refuses a blob, it tries twice

    def grows(size: int) -> None:
        if errors:
            raise errors.pop()
        grow(size)

    monkeypatch.setattr(blobs, "grow", grows)
    with pytest.raises((NoSpaceError, KeyboardInterrupt)):
        store.set(b"second", b"2" * (4 * MIB))
    assert store.get(b"first") == b"1" * MIB
    errors.clear()
    for number in range(3):
        store.set(b"more%d" % number, b"3" * (4 * MIB))
        assert store.get(b"more%d" % number) == b"3" * (4 * MIB)
    assert store.get(b"first") == b"1" * MIB


def test_an_interrupt_while_it_is_mapped_costs_nothing(store: gpkvs.Store, monkeypatch: pytest.MonkeyPatch) -> None:
    store.set(b"first", b"1" * MIB)
    blobs = store._engine.heap.blobs
    assert blobs
    real = blobs._map

    def interrupted() -> None:
        monkeypatch.setattr(blobs, "_map", real)
        raise KeyboardInterrupt

    monkeypatch.setattr(blobs, "_map", interrupted)
    with pytest.raises(KeyboardInterrupt):
        store.set(b"second", b"2" * (4 * MIB))
    assert store.get(b"first") == b"1" * MIB
    store.set(b"second", b"2" * (4 * MIB))
    assert store.get(b"second") == b"2" * (4 * MIB)


@pytest.mark.parametrize("how", ["symbolic", "hard"])
def test_blobs_under_another_name_are_refused(tmp_path: Path, how: str) -> None:
    path = tmp_path / "store"
    gpkvs.open(path, store_format="4", **SMALL).close()
    (path / "blobs").rename(tmp_path / "elsewhere")
    if how == "symbolic":
        (path / "blobs").symlink_to(tmp_path / "elsewhere")
    else:
        (path / "blobs").hardlink_to(tmp_path / "elsewhere")
    with pytest.raises(StoreError, match="blobs"):
        gpkvs.open(path)


def test_a_batch_of_several_large_values_finds_room(store: gpkvs.Store) -> None:
    """The room of one of them looks spare when the next one asks: they must not take it from each other for ever."""
    seed = random.getrandbits(32)
    print(f"seed {seed}")
    rng = random.Random(seed)
    model: dict[bytes, bytes] = {}
    for number in range(150):
        sizes = [rng.choice((70_000, 2 * MIB, 2 * MIB, 2 * MIB + 5000, 3 * MIB)) for _ in range(rng.randrange(2, 5))]
        new = {b"k%d-%d" % (number, at): bytes([number]) * size for at, size in enumerate(sizes)}
        store.execute(Batch.of([(Op.SET, *row) for row in new.items()]))
        model |= new
        while len(model) > 3:
            gone = rng.choice(list(model))
            store.delete(gone)
            del model[gone]
        assert {key: store.get(key) for key in model} == model
