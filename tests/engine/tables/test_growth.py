"""Tables grow between batches: nothing is lost, refused or read in the wrong place, whatever the step."""

from __future__ import annotations

import ctypes
import errno
import os
import random
import subprocess
import sys
import threading
import time
from contextlib import suppress
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

import gpkvs
from gpkvs.backends.choose import VARIABLE
from gpkvs.backends.cpu.backend import CpuBackend
from gpkvs.batch import Batch, Op
from gpkvs.config import StoreConfig
from gpkvs.engine.commit import growth_steps
from gpkvs.engine.state.table import Held
from gpkvs.engine.tables import growth, index_room
from gpkvs.errors import InvalidArgumentError, NoSpaceError
from gpkvs.media import directory
from gpkvs.media.catalog import Catalog, TableEntry
from gpkvs.media.index import Index
from gpkvs.native import crc32c
from gpkvs.pm.region import Region
from gpkvs.recovery.copy.copy import CopySizes, copy_store
from gpkvs.recovery.startup.check import check
from tests.conftest import assert_clean, assert_counted

SIZES: dict[str, Any] = {
    "index_bytes": 64 << 10,
    "heap_bytes": 16 << 20,
    "log_bytes": 1 << 20,
    "journal_bytes": 4 << 20,
}
LAYOUTS = pytest.mark.parametrize("layout", ["bytes", "u64"])
COMMITS = pytest.mark.parametrize("commit", ["undo", "journal"])


def sets(keys: list[int], value: int = 7) -> Batch:
    return Batch.of([(Op.SET, key.to_bytes(8, "little"), value.to_bytes(8, "little")) for key in keys])


class Grown:
    """A store with a table, and what the table should hold."""

    def __init__(self, path: Path, layout: str, blocks: int, **options: Any) -> None:
        self.path = path
        self.held: dict[bytes, bytes] = {}
        self.store = gpkvs.open(path, **SIZES, **options)
        self.store.create_table("t", layout=layout, index_bytes=blocks << 16)

    @property
    def index(self) -> Index:
        return self.store._engine.tables[1].index

    def run(self, batch: list[tuple[Op, bytes] | tuple[Op, bytes, bytes]]) -> None:
        """Run a batch, and compare its results with those of a dictionary."""
        result = self.store.execute(Batch.of(batch), table="t")
        expected = []
        for operation in batch:
            kind, key = operation[:2]
            if kind is Op.SET:
                self.held[key] = operation[2]
            elif kind is Op.DELETE:
                self.held.pop(key, None)
            else:
                expected.append(self.held.get(key, b""))
        assert result.value_list() == expected

    def verify(self) -> None:
        keys = list(self.held)
        if not keys:
            return
        result = self.store.execute(Batch.of([(Op.GET, key) for key in keys]), table="t")
        assert result.value_list() == list(self.held.values())
        assert self.store.info().tables[1].records == len(keys)
        assert_counted(self.store)

    def step(self, rng: random.Random) -> None:
        """Begin growth if there is none, and move some blocks: where no block has moved, or when all have, too."""
        growing, table = self.store._engine.growth, self.store._engine.tables[1]
        with self.store._mutex, self.store._turn_over(), growing._waiting(table):
            if growing.table is None:
                growing.is_reserved(table, waits=True)
                growing.begin(table)
            growing._advance(table, rng.randint(0, table.index.unmoved))

    def reopen(self) -> None:
        self.store.close()
        report = check(self.path)
        assert report.is_clean, report
        if self.index.is_growing:
            moved = self.index.blocks - self.index.unmoved
            assert report.growing == f"table 't' is growing, {moved} of {self.index.blocks} blocks"
        assert report.records == len(self.held)
        self.store = gpkvs.open(self.path)


def test_the_faster_keys_come_the_earlier_the_file_is_reserved(
    store: gpkvs.Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    """To reserve it takes a second here, and what follows another one: so far ahead of growth it begins."""
    growing = store._engine.growth
    store.create_table("t", layout="u64", index_bytes=1 << 20)
    table = store._engine.tables[1]
    slots, now = table.index.slots, [100.0]
    monkeypatch.setattr("gpkvs.engine.tables.growth.time", SimpleNamespace(monotonic=lambda: now[0]))
    growing._seconds_per_byte = 1 / table.index.region.bytes
    assert growing._prepares_at(table) == int(growing._prepare_load * slots)  # nobody knows a rate yet
    table.add(Held(records=1000))
    for rate, load in ((0.001, growing._prepare_load), (0.1, 0.65 - 0.2), (10.0, 0.3)):
        growing._prepares_at(table)
        now[0] += 1000 / (rate * slots)
        table.add(Held(records=1000))
        assert growing._prepares_at(table) == pytest.approx(load * slots, abs=2)
        table.add(Held(records=-1000))
    table.add(Held(records=-1000))


def test_a_reservation_that_is_over_keeps_no_batch_waiting(store: gpkvs.Store) -> None:
    """And what a small file took says nothing of large ones."""
    growing = store._engine.growth
    for name, size in (("small", 64 << 10), ("large", 16 << 20)):
        store.create_table(name, layout="u64", index_bytes=size)
    small, large = (store._engine.tables[store.table(name).id] for name in ("small", "large"))
    assert growing.is_reserved(small, waits=True)
    assert growing._seconds_per_byte == 0
    assert not growing.wants_batches
    assert growing.is_reserved(large, waits=True)
    assert growing._seconds_per_byte > 0
    assert not growing.wants_batches


def test_a_table_leaves_the_reservation_of_another_one_alone(
    store: gpkvs.Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    growing, may_end = store._engine.growth, threading.Event()
    for name in ("one", "other"):
        store.create_table(name, layout="u64", index_bytes=4 << 20)
    one, other = (store._engine.tables[store.table(name).id] for name in ("one", "other"))
    extend = index_room.extend_file
    monkeypatch.setattr(index_room, "extend_file", lambda *given: (may_end.wait(60), extend(*given))[1])
    try:
        assert not growing.is_reserved(one, waits=False)
        assert not growing.is_reserved(other, waits=False)
        assert growing.wants_batches
    finally:
        may_end.set()
    assert growing.is_reserved(one, waits=True)
    assert growing.is_reserved(other, waits=True)


@LAYOUTS
@COMMITS
@pytest.mark.parametrize("blocks", [1, 2, 3, 5])
def test_any_steps_between_any_batches(tmp_path: Path, layout: str, commit: Any, blocks: int) -> None:
    seed = int.from_bytes(os.urandom(4))
    print(f"seed {seed}")
    rng = random.Random(seed)
    grown = Grown(tmp_path / "store", layout, blocks, commit=commit)
    keys = [rng.getrandbits(64).to_bytes(8, "little") for _ in range(500 * blocks)] + [bytes(8), b"\1" + bytes(7)]
    for number in range(40):
        batch: list[Any] = []
        for key in rng.sample(keys, rng.choice([1, 20, 400])):
            kind = rng.choice([Op.GET, Op.SET, Op.SET, Op.DELETE])
            batch.append((kind, key, number.to_bytes(8, "big")) if kind is Op.SET else (kind, key))
        grown.run(batch)
        if rng.random() < 0.5 and grown.index.blocks < 8 * blocks:
            grown.step(rng)
        if rng.random() < 0.2:
            grown.verify()
            grown.reopen()
    grown.verify()
    grown.store.close()
    assert_clean(grown.path)


@LAYOUTS
@COMMITS
def test_a_table_of_one_block_takes_as_many_keys_as_come(store_path: Path, layout: str, commit: Any) -> None:
    """In batches of any size: those that ask for steps, and those that do not fit before."""
    with gpkvs.open(store_path, **SIZES, commit=commit) as store:
        store.create_table("t", layout=layout, index_bytes=64 << 10)
        rng, keys = np.random.default_rng(3), np.empty(0, np.uint64)
        for count in (1, 1000, 15_000, *[500] * 30, 19_000):
            new = rng.integers(0, 1 << 63, count, np.uint64)
            store.execute(sets(new.tolist()), table="t")
            keys = np.concatenate((keys, new))
        table = store.info().tables[1]
        assert table.records == len(keys)
        assert 0.3 < table.load_factor < 0.8
        for part in np.array_split(keys, 10):
            result = store.execute(Batch.of([(Op.GET, key.tobytes()) for key in part]), table="t")
            assert set(result.value_list()) == {(7).to_bytes(8, "little")}


@LAYOUTS
def test_a_gpu_moves_slots_as_the_host_does(tmp_path: Path, layout: str) -> None:
    """Two kernels for one step: the host's goes bucket by bucket, a GPU's slot by slot."""
    grown = Grown(tmp_path / "store", layout, 6, commit="undo", backend="cpu")
    rng = random.Random(5)
    grown.run([(Op.SET, rng.getrandbits(64).to_bytes(8, "little"), bytes(8)) for _ in range(6000)])
    growing, table, index = grown.store._engine.growth, grown.store._engine.tables[1], grown.index
    growing.is_reserved(table, waits=True)
    growing.begin(table)
    region, moved = index.region, []
    for move in (growth_steps._split_on_device, partial(growth_steps._split, upper_only=False)):
        ctypes.memset(index.address + region.bytes // 2, 0xEE, region.bytes // 2)  # nothing lives there yet
        move(grown.store._backend, index, 3, 6)
        moved.append(region.read(region.bytes // 2, region.bytes // 2))
    assert moved[0] == moved[1]
    growing.move_to(table, 2)
    grown.verify()
    grown.reopen()
    grown.store.close()


def test_growth_keeps_its_pace(store_path: Path, by_phases: None) -> None:
    """It begins at 0.65 of the slots and ends by 0.78, a part of it after each batch."""
    with gpkvs.open(store_path, **{**SIZES, "index_bytes": 1 << 20}) as store:
        index = store._engine.tables[0].index
        slots, moves = index.slots, set()
        for first in range(0, int(0.8 * slots), 100):
            store.execute(sets(list(range(first, first + 100))))
            load = (first + 100) / slots
            assert index.is_growing or index.blocks == (16 if load < 0.7 else 32)
            if index.blocks == 16 and index.is_growing:
                assert load > 0.65
                moves.add(index.unmoved)
        assert index.blocks == 32
        assert len(moves) > 10


@LAYOUTS
def test_at_the_largest_size_new_keys_are_refused_and_the_rest_goes_on(store_path: Path, layout: str) -> None:
    with gpkvs.open(store_path, **SIZES, index_bytes_max=128 << 10) as store:
        store.create_table("t", layout=layout, index_bytes=64 << 10)
        with pytest.raises(NoSpaceError, match=r"index full: table 't' .* \(--index-bytes-max, 131,072\)"):
            store.execute(sets(list(range(19_000))), table="t")
        slots = store.info().tables[1].slots
        held = list(range(slots // 2))
        store.execute(sets(held), table="t")
        with pytest.raises(NoSpaceError, match="index_bytes_max"):
            store.execute(sets(list(range(slots // 2, 2 * slots))), table="t")
        store.execute(sets(held, 8), table="t")
        assert store.get((5).to_bytes(8, "little"), table="t") == (8).to_bytes(8, "little")
        assert store.delete((5).to_bytes(8, "little"), table="t")
        assert "index_bytes_max" in store.info().tables[1].growth_waits
        assert store.info().tables[1].index_bytes == 128 << 10


@LAYOUTS
def test_a_table_has_a_limit_of_its_own(store_path: Path, layout: str) -> None:
    """It is in the catalogue; the limit of the store holds too, and the text says which one it is."""
    few, many = list(range(1000)), list(range(100_000, 119_000))
    with gpkvs.open(store_path, **SIZES) as store:
        made = store.create_table("t", layout=layout, index_bytes=64 << 10, index_bytes_max=256 << 10)
        assert made.index_bytes_max == 256 << 10
        assert store.create_table("free", layout=layout, index_bytes=64 << 10).index_bytes_max == 0
        store.execute(sets(few), table="t")
    with gpkvs.open(store_path) as store:
        assert [table.index_bytes_max for table in store.info().tables] == [0, 256 << 10, 0]
        with pytest.raises(
            NoSpaceError, match=r"over the table's own index_bytes_max, 262,144, with which it was made"
        ):
            store.execute(sets(many), table="t")
        grown = store.info().tables[1]
        assert grown.index_bytes == 256 << 10
        assert "the table's own" in grown.growth_waits
        store.execute(sets(few, 8), table="t")
        store.execute(sets(many), table="free")
    with gpkvs.open(store_path, index_bytes_max=128 << 10) as store:
        with pytest.raises(NoSpaceError, match=r"own index_bytes_max, 262,144"):
            store.execute(sets(many), table="t")
        store.create_table("more", layout=layout, index_bytes=64 << 10, index_bytes_max=1 << 20)
        with pytest.raises(NoSpaceError, match=r"--index-bytes-max, 131,072"):
            store.execute(sets(many), table="more")
        for wrong in (64 << 10, (1 << 44) + 1):
            with pytest.raises(InvalidArgumentError, match=r"index_bytes_max.*allowed are 131,072 \(index_bytes\) to"):
                store.create_table("wrong", index_bytes=128 << 10, index_bytes_max=wrong)
    new = store_path.with_name("copied")
    copy_store(store_path, new, CopySizes(table_index_bytes={"more": 2 << 20}), lambda step, share: None)
    with gpkvs.open(new) as store:  # a limit below the size would say nothing
        assert [table.index_bytes_max for table in store.info().tables] == [0, 256 << 10, 0, 2 << 20]


def test_a_catalogue_says_nothing_of_a_limit_that_is_not_there() -> None:
    """So it is what versions wrote, and read, that knew no such limit."""
    limited = TableEntry(1, "t", "u64", 0, 1, 1 << 20)
    catalog = Catalog((TableEntry(0, "default", "bytes", 0, 4), limited), 2)
    packed = catalog.pack()
    assert packed.count(b"index_bytes_max") == 1
    assert Catalog.unpack(packed, crc32c(packed)) == catalog


def test_the_limit_of_all_tables_counts(store_path: Path) -> None:
    store_path.mkdir()
    with gpkvs.Store(store_path, StoreConfig(**SIZES, tables_bytes_max=192 << 10)) as store:
        store.create_table("t", index_bytes=64 << 10)
        with pytest.raises(NoSpaceError, match="tables_bytes_max"):
            store.execute(sets(list(range(4000))), table="t")
        store.execute(sets(list(range(2500))), table="t")


def test_growth_waits_for_the_disk_and_goes_on_by_itself(store_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(file: int, first: int, size: int) -> None:
        raise OSError(errno.ENOSPC, "no space")

    with gpkvs.open(store_path, **SIZES) as store:
        with monkeypatch.context() as patch:
            patch.setattr(growth, "_RETRY_SECONDS", 1800.0)
            patch.setattr(directory.os, "posix_fallocate", refuse)
            with pytest.raises(NoSpaceError, match="the disk has no room for 131,072 bytes"):
                store.execute(sets(list(range(3000))))
            store.execute(sets(list(range(1500))))
            store.execute(sets(list(range(1500)), 8))
            assert "the disk has no room" in store.info().tables[0].growth_waits
        with pytest.raises(NoSpaceError, match="the disk has no room"):
            store.execute(sets(list(range(1500, 3000))))  # not tried again yet
        monkeypatch.setattr(growth, "time", SimpleNamespace(monotonic=lambda: time.monotonic() + 1800))
        store.execute(sets(list(range(1500, 3000))))
        assert store.info().tables[0].growth_waits == ""
        assert store.info().tables[0].records == 3000


@pytest.mark.parametrize("mended", ["disk", "deletes"])
def test_it_waits_no_more_when_nobody_writes_new_keys(
    store_path: Path, monkeypatch: pytest.MonkeyPatch, mended: str
) -> None:
    def refuse(file: int, first: int, size: int) -> None:
        raise OSError(errno.ENOSPC, "no space")

    with gpkvs.open(store_path, **SIZES) as store, monkeypatch.context() as patch:
        patch.setattr(growth, "_RETRY_SECONDS", 0.01)
        monkeypatch.setattr(growth, "_LACK_SECONDS", 0.0)
        patch.setattr(directory.os, "posix_fallocate", refuse)
        with pytest.raises(NoSpaceError, match="the disk has no room for 131,072 bytes"):
            store.execute(sets(list(range(3000))))
        store.execute(sets(list(range(1500))))
        for _ in range(10):
            store.maintain()
            assert "the disk has no room" in store.info().tables[0].growth_waits, "it is still too full"
        if mended == "disk":
            patch.undo()
        else:
            store.execute(Batch.of([(Op.DELETE, number.to_bytes(8, "little")) for number in range(1000)]))
        deadline = time.monotonic() + 60
        while store.info().tables[0].growth_waits:
            assert time.monotonic() < deadline
            store.maintain()
        if mended == "deletes":  # and stays so, on the full disk
            for _ in range(10):
                store.maintain()
                assert not store.info().tables[0].growth_waits


def test_the_catalogue_waits_for_the_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """All blocks have moved, and the catalogue cannot be written: the table is used as it is, also after a restart."""

    def refuse(path: Path, data: bytes) -> None:
        raise OSError(errno.ENOSPC, "no space")

    grown = Grown(tmp_path / "store", "bytes", 2)
    monkeypatch.setattr("gpkvs.engine.tables.schema.write_file", refuse)
    rng = random.Random(1)
    while grown.index.unmoved > 0:
        with suppress(growth._WaitsError):
            grown.step(rng)
    grown.store.maintain()
    assert "disk" in grown.store.info().tables[1].growth_waits
    assert (grown.index.blocks, grown.index.unmoved) == (2, 0)
    grown.run([(Op.SET, b"%08d" % key, b"%08d" % key) for key in range(1000)])
    monkeypatch.undo()
    grown.reopen()
    assert (grown.index.blocks, grown.index.unmoved) == (2, 0)
    grown.verify()
    # A copy of such a store has the room of the new blocks.
    grown.run([(Op.SET, b"%08d" % key, b"%08d" % key) for key in range(8000)])
    assert grown.index.blocks == 8
    grown.verify()
    grown.store.close()
    assert_clean(grown.path)


def test_a_table_is_not_doubled_for_keys_that_are_aimed_at_a_block(store_path: Path) -> None:
    with gpkvs.open(store_path, **{**SIZES, "index_bytes": 1 << 20}) as store:
        index = store._engine.tables[0].index
        keys, found = np.arange(200_000, dtype=np.uint64), np.empty((2, 200_000), np.uint64)
        store._backend.launch(
            "route_u64",
            len(keys),
            keys=keys.view(np.uint8),
            hash_key0=index.hash_keys[0],
            hash_key1=index.hash_keys[1],
            fingerprint0=found[0],
            fingerprint1=found[1],
        )
        aimed = keys[found[0] >> np.uint64(60) == 5]  # all of block 5 of 16
        with pytest.raises(NoSpaceError, match="most of its slots are free, and it is not doubled"):
            store.execute(sets(aimed[:3000].tolist()))
        assert store.info().tables[0].index_bytes == 1 << 20


@COMMITS
def test_a_table_is_dropped_while_it_grows(store_path: Path, commit: Any) -> None:
    grown = Grown(store_path, "bytes", 3, commit=commit)
    grown.run([(Op.SET, b"%08d" % key, bytes(8)) for key in range(2000)])
    rng = random.Random(2)
    while not 0 < grown.index.unmoved < 3:
        grown.step(rng)
    grown.store.drop_table("t")
    assert grown.store.info().heap_live_bytes == 0
    grown.store.set(b"other", b"value")
    grown.store.create_table("u", index_bytes=64 << 10)
    grown.store.execute(sets(list(range(3000))), table="u")
    grown.store.close()
    assert not check(store_path).growing
    with gpkvs.open(store_path) as store:
        assert store.get(b"other") == b"value"
        assert store.info().tables[1].records == 3000


@COMMITS
@LAYOUTS
def test_a_growing_store_is_copied(tmp_path: Path, commit: Any, layout: str) -> None:
    grown = Grown(tmp_path / "store", layout, 3, commit=commit)
    grown.run([(Op.SET, b"%08d" % key, b"%08d" % key) for key in range(4000)])
    rng = random.Random(2)
    while not 0 < grown.index.unmoved < 3:
        grown.step(rng)
    grown.store.close()
    copy_store(grown.path, tmp_path / "copy", CopySizes(), lambda step, share: None)
    assert_clean(tmp_path / "copy")
    grown.store = gpkvs.open(tmp_path / "copy")
    grown.verify()
    grown.store.close()


def test_two_tables_grow_one_after_the_other(store_path: Path) -> None:
    with gpkvs.open(store_path, **SIZES) as store:
        store.create_table("t", layout="u64", index_bytes=64 << 10)
        default, other = (store._engine.tables[number].index for number in range(2))
        for first in range(0, 12_000, 50):
            store.execute(sets(list(range(first, first + 50))))
            store.execute(sets(list(range(first, first + 50))), table="t")
            assert not (default.is_growing and other.is_growing)
        assert (default.blocks, other.blocks) == (16 // 2, 8 // 2) or default.blocks > 4
        assert [table.records for table in store.info().tables] == [12_000, 12_000]


def test_a_file_that_is_longer_than_the_catalogue_says_is_no_damage(store_path: Path) -> None:
    """A growth was prepared, then the process was killed."""
    with gpkvs.open(store_path, **SIZES) as store:
        store.execute(sets(list(range(1000))))
    directory.extend_file(store_path / "index-0-0", 64 << 10, 128 << 10)
    assert_clean(store_path)
    with gpkvs.open(store_path) as store:
        assert store.info().tables[0].index_bytes == 64 << 10
        store.execute(sets(list(range(5000))))
    (store_path / "index-0-0").open("r+b").truncate((256 << 10) - 4096)
    with pytest.raises(gpkvs.errors.CorruptStoreError, match="file-size"):
        gpkvs.open(store_path)
    (store_path / "index-0-0").open("r+b").truncate(256 << 10)


def test_the_last_step_is_durable_before_the_catalogue(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """W7: else a crash leaves a catalogue of twice the blocks beside blocks that have not moved."""
    grown = Grown(tmp_path / "store", "u64", 1, commit="journal")
    grown.run([(Op.SET, b"%08d" % key, b"%08d" % key) for key in range(100)])
    committer = grown.store._engine.committer
    waited, wait = [], committer.wait
    monkeypatch.setattr(committer, "wait", lambda gate: waited.append(gate) or wait(gate))
    monkeypatch.setattr(growth, "double_table", lambda files, index, then: waited.append("catalogue"))
    grown.step(random.Random(1))
    grown.store.maintain()  # a batch does not wait for the last step
    assert waited[-2:] == [committer.read_gate(), "catalogue"]
    assert committer.is_durable(committer.read_gate())
    monkeypatch.undo()
    grown.store.close()


def test_a_batch_does_not_wait_for_the_last_step(
    tmp_path: Path, by_phases: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The next one after that is durable writes the catalogue, whatever it stores."""
    grown = Grown(tmp_path / "store", "bytes", 1, commit="journal")
    grown.run([(Op.SET, b"%08d" % key, b"%08d" % key) for key in range(100)])
    with monkeypatch.context() as patch:
        patch.setattr(grown.store._engine.committer, "is_durable", lambda gate: False)
        grown.step(random.Random(1))
        assert (grown.index.unmoved, grown.index.blocks) == (0, 1)
        grown.run([(Op.SET, b"%08d" % 1, b"again")])
        assert grown.index.blocks == 1
    grown.store._engine.settle()
    grown.run([(Op.SET, b"%08d" % 2, b"again")])
    assert (grown.index.blocks, grown.store._engine.growth.table) == (2, None)
    grown.reopen()
    grown.verify()
    grown.store.close()


@COMMITS
def test_a_table_grows_to_its_end_while_nothing_else_is_to_do(tmp_path: Path, commit: Any) -> None:
    grown = Grown(tmp_path / "store", "bytes", 40, commit=commit)
    grown.run([(Op.SET, b"%08d" % key, b"%08d" % key) for key in range(1000)])
    growing, table = grown.store._engine.growth, grown.store._engine.tables[1]
    growing.is_reserved(table, waits=True)
    growing.begin(table)
    left = []
    while grown.store.maintain():
        left.append(grown.index.unmoved)
    assert left == [24, 8]
    assert grown.index.blocks == 80
    grown.verify()
    grown.reopen()
    grown.verify()
    grown.store.close()


@COMMITS
@pytest.mark.usefixtures("natively")  # a GPU touches pages where it registers them
def test_pages_are_there_before_blocks_move_to_them(
    tmp_path: Path, commit: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And whoever drops the table meanwhile waits for the helper."""
    monkeypatch.setattr(Region, "is_memory", True)
    monkeypatch.setenv(VARIABLE, "cpu")
    grown = Grown(tmp_path / "store", "bytes", 64, commit=commit)
    growing, table = grown.store._engine.growth, grown.store._engine.tables[1]
    growing.is_reserved(table, waits=True)
    growing.begin(table)
    pages = growing._pages
    assert pages
    pages.join()
    region = table.index.region
    assert all(is_mapped(region.address + at) for at in range(region.bytes // 2, region.bytes, 4096))
    grown.store.drop_table("t")
    assert growing._pages is None
    grown.store.close()


def is_mapped(address: int) -> bool:
    """Whether a page of this process is in memory (proc(5), pagemap)."""
    with Path("/proc/self/pagemap").open("rb") as pages:
        pages.seek(address // 4096 * 8)
        return bool(int.from_bytes(pages.read(8), "little") >> 63)


def test_a_file_is_extended_in_pieces(tmp_path: Path) -> None:
    """So who writes to it need not wait for all of it; and it ends where somebody has enough."""
    path, ends = tmp_path / "file", list[int]()
    path.touch()
    assert directory.extend_file(path, 0, 5 << 20, lambda seconds, end: bool(ends.append(end))) == 5 << 20
    assert ends == [1 << 20, 2 << 20, 3 << 20, 4 << 20]
    assert path.stat().st_size == 5 << 20
    assert directory.extend_file(path, 5 << 20, 9 << 20, lambda seconds, end: end >= 7 << 20) == 7 << 20
    assert path.stat().st_size == 7 << 20


def test_a_checkpoint_knows_how_far_a_table_has_grown(tmp_path: Path) -> None:
    grown = Grown(tmp_path / "store", "bytes", 3, commit="journal")
    grown.run([(Op.SET, b"%08d" % key, b"%08d" % key) for key in range(2000)])
    rng = random.Random(2)
    while not 0 < grown.index.unmoved < 3:
        grown.step(rng)
    committer = grown.store._engine.committer
    grown.store._engine.settle()
    committer.checkpointer.write(paced=False)
    assert grown.store._files.root.checkpoint.growth == (1, grown.index.blocks, grown.index.unmoved)
    grown.reopen()
    grown.verify()
    grown.store.close()


@LAYOUTS
def test_an_opening_maps_a_growing_index_before_a_backend_takes_its_address(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, layout: str
) -> None:
    """A GPU registers the address, and makes a mirror of the size."""
    monkeypatch.setenv(VARIABLE, "cpu")  # whose method stands for a GPU's here
    grown = Grown(tmp_path / "store", layout, 3, commit="undo")
    grown.run([(Op.SET, b"%08d" % key, b"%08d" % key) for key in range(2000)])
    rng = random.Random(2)
    while not 0 < grown.index.unmoved < 3:
        grown.step(rng)
    attached: dict[int, tuple[int, int]] = {}

    def attach(_backend: CpuBackend, index: Index) -> None:
        attached[index.entry.id] = (index.address, index.region.bytes)

    monkeypatch.setattr(CpuBackend, "attach_index", attach)
    grown.reopen()
    assert attached[1] == (grown.index.address, grown.index.region.bytes)
    grown.verify()
    grown.store.close()


def test_a_failed_sync_of_a_longer_file_ends_the_process(tmp_path: Path) -> None:
    """As any other: the system may take for written what it could not write."""
    program = f"""
import errno
import gpkvs
from gpkvs.batch import Batch, Op
from gpkvs.engine.tables import index_room

def refuse(path):
    raise OSError(errno.EIO, "no")

index_room.sync_path = refuse
with gpkvs.open({str(tmp_path / "store")!r}, index_bytes=64 << 10) as store:
    store.execute(Batch.of([(Op.SET, b"%d" % key, b"v") for key in range(1500)]))
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, check=False, timeout=60)
    assert done.returncode == 70
    assert b"the file of a growing table could not be synced" in done.stderr
