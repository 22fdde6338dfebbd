"""`gpkvs copy`: what is in the new store, from both formats, and what the old one is afterwards."""

from __future__ import annotations

import os
import random
from dataclasses import replace
from pathlib import Path
from typing import get_args

import numpy as np
import pytest

import gpkvs
from gpkvs.batch import Batch, Op
from gpkvs.config import CommitName
from gpkvs.errors import FormatError, InvalidArgumentError, NoSpaceError, StoreError, StoreLockedError
from gpkvs.media.layout import BLOCK_BYTES
from gpkvs.media.store_lock import StoreLock
from gpkvs.recovery.copy import copy as copying
from gpkvs.recovery.copy import records
from gpkvs.recovery.copy.image import FullError, Image
from gpkvs.recovery.startup.opening import COMMIT_VARIABLE, format_of
from tests.conftest import assert_clean
from tests.recovery.copy.stores import AFTER, Expected, Records, assert_holds, copy, format1, read_all, snapshot
from tests.recovery.startup.harness import run_child

_ROWS = "int8[3,7]"
SIZES = {"index_bytes": 64 << 10, "heap_bytes": 1 << 20, "log_bytes": 128 << 10}


@pytest.mark.parametrize("name", ["clean", "active"])
@pytest.mark.parametrize("commit", ["undo", "journal"])
def test_a_store_of_format_1(name: str, commit: CommitName, tmp_path: Path) -> None:
    old, expected = format1(name, tmp_path)
    before = snapshot(old)
    report = copy(old, tmp_path / "new", commit)
    assert snapshot(old) == before, "the old store was changed"
    assert report.old_format == "1"
    assert ("taken as before it" in report.recovery) == (name == "active")
    assert report.keys == sum(len(records) for records in expected.tables.values())
    assert_holds(tmp_path / "new", expected)
    # The copy is of today's format, and can be copied as well, into either kind.
    expected.tables["default"][AFTER] = (b"x", expected.next_sequence)
    expected = replace(expected, next_sequence=expected.next_sequence + 1)
    for kind in get_args(CommitName):
        before = snapshot(tmp_path / "new")
        assert copy(tmp_path / "new", tmp_path / kind, kind).old_format == str(format_of("auto"))
        assert snapshot(tmp_path / "new") == before
        assert_holds(tmp_path / kind, expected)


def test_a_store_of_format_1_is_not_opened(tmp_path: Path) -> None:
    old, _ = format1("clean", tmp_path)
    before = snapshot(old)
    with pytest.raises(FormatError, match="gpkvs copy OLD NEW"):
        gpkvs.open(old)
    assert {name: found for name, found in snapshot(old).items() if name != "LOCK"} == before


def test_a_batch_in_progress_is_taken_back_in_memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(COMMIT_VARIABLE, "undo")
    old = tmp_path / "old"
    first = [["set", f"key{i}", "first"] for i in range(50)]
    second = [["set", f"key{i}", "second"] for i in range(25, 75)] + [["delete", f"key{i}"] for i in range(10)]
    assert run_child(old, [first, second], "mid_apply:2").killed
    before = snapshot(old)
    report = copy(old, tmp_path / "new")
    assert snapshot(old) == before
    assert "60 slots" in report.recovery
    with gpkvs.open(tmp_path / "new") as store:
        assert [store.get(b"key%d" % i) for i in range(75)] == [b"first"] * 50 + [None] * 25


def test_a_journal_is_replayed_in_memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(COMMIT_VARIABLE, "journal")
    old = tmp_path / "old"
    batches = [[["set", f"key{i}", f"batch {batch}"] for i in range(batch, 50)] for batch in range(4)]
    assert run_child(old, batches, "before_reply:4").killed
    before = snapshot(old)
    report = copy(old, tmp_path / "new", "undo")
    assert snapshot(old) == before
    assert "of the journal replayed in memory" in report.recovery
    with gpkvs.open(tmp_path / "new") as store:
        found = [store.get(b"key%d" % i) for i in range(50)]
    # The last batch was not acknowledged; it is there whole or not at all.
    assert found[:3] == [b"batch 0", b"batch 1", b"batch 2"]
    assert found[3:] in ([b"batch 2"] * 47, [b"batch 3"] * 47)


def test_nothing_of_the_old_store_is_opened_for_writing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    old, expected = format1("active", tmp_path)
    for file in old.iterdir():
        file.chmod(0o444)
    old.chmod(0o555)
    opened = os.open

    def watched(path: str | Path, flags: int, *arguments: int) -> int:
        if Path(path).is_relative_to(old):
            assert not flags & (os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC), path
        return opened(path, flags, *arguments)

    monkeypatch.setattr(os, "open", watched)
    copy(old, tmp_path / "new")
    monkeypatch.undo()
    old.chmod(0o755)
    assert_holds(tmp_path / "new", expected)


def test_the_lock(tmp_path: Path) -> None:
    old, _ = format1("clean", tmp_path)
    lock = StoreLock(old)
    with pytest.raises(StoreLockedError):
        copy(old, tmp_path / "new")
    lock.release()
    assert not (tmp_path / "new").exists()
    copy(old, tmp_path / "new")
    for path in (old, tmp_path / "new"):
        StoreLock(path).release()


def test_id_and_key(tmp_path: Path) -> None:
    old, new = tmp_path / "old", tmp_path / "new"
    with gpkvs.open(old, **SIZES) as store:
        one = store._files.root
    copy(old, new)
    with gpkvs.open(new) as store:
        other = store._files.root
    assert one.hash_key == other.hash_key, "fingerprints stay"
    assert one.store_id != other.store_id, "it is another store"
    assert_clean(new)


@pytest.mark.parametrize("index_blocks", [1, 2, 7, 64])
@pytest.mark.parametrize("heap_bytes", [256 << 10, 64 << 20])
def test_other_sizes(index_blocks: int, heap_bytes: int, tmp_path: Path) -> None:
    old, expected = format1("active", tmp_path)
    size = index_blocks * BLOCK_BYTES
    report = copy(
        old,
        tmp_path / "new",
        index_bytes=size,
        heap_bytes=heap_bytes,
        log_bytes=1 << 20,
        commit="undo",
        table_index_bytes={"wide": size, "other": size + 1},
    )
    sizes = {table.name: table.index_bytes for table in report.tables}
    assert sizes == {"default": size, "wide": size, "other": size + BLOCK_BYTES, "numbers": BLOCK_BYTES}
    assert_holds(tmp_path / "new", expected)
    with gpkvs.open(tmp_path / "new") as store:
        assert (store.info().heap_bytes, store.info().log_bytes) == (heap_bytes, 1 << 20)


@pytest.mark.parametrize(
    ("sizes", "text"),
    [
        ({"heap_bytes": 128 << 10}, r"heap full: .* --heap-bytes-max \d+MiB"),
        ({"index_bytes": 64 << 10}, r"index full: table 'default' holds 3,000 keys.* --index-bytes 1MiB or more"),
        ({"table_index_bytes": {"numbers": 64 << 10}}, r"--table-index-bytes numbers=1MiB or more"),
    ],
)
def test_sizes_that_are_too_small(sizes: dict[str, object], text: str, tmp_path: Path) -> None:
    old, new = tmp_path / "old", tmp_path / "new"
    with gpkvs.open(old, index_bytes=1 << 20, heap_bytes=1 << 20) as store:
        store.create_table("numbers", layout="u64", index_bytes=1 << 20)
        store.execute(Batch.of([(Op.SET, b"key%d" % i, b"value" * 5) for i in range(3000)]))
        for numbers in np.array_split(np.arange(5000, dtype=np.uint64), 2):  # a small journal takes small requests
            store.set_many(numbers, numbers, table="numbers")
    with pytest.raises(NoSpaceError, match=text):
        copy(old, new, **sizes)
    assert not new.exists()


def no_ways(*_: object) -> None:
    raise FullError


@pytest.mark.parametrize("finds_ways", [True, False])
@pytest.mark.parametrize("layout", ["bytes", "u64"])
def test_an_index_that_is_nearly_full(
    layout: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *, finds_ways: bool
) -> None:
    """Keys that found ways in the order in which they came may find none in another one: they stay where they are."""
    if not finds_ways:
        monkeypatch.setattr(Image, "place", no_ways)
    old, new = tmp_path / "old", tmp_path / "new"
    choose = np.random.default_rng()
    with gpkvs.open(old, **SIZES, index_bytes_max=4 * BLOCK_BYTES) as store:  # else it grows before it is full
        table = store.create_table("full", layout=layout, index_bytes=4 * BLOCK_BYTES)
        keys = choose.integers(0, 1 << 64, int(0.84 * table.slots), np.uint64)
        for part in np.array_split(keys, 20):
            pairs = [(Op.SET, int(key).to_bytes(8, "little"), bytes(8)) for key in part]
            store.execute(Batch.of(pairs), table="full")
        records = store.info().tables[1].records
    copy(old, new)
    assert_clean(new)
    with gpkvs.open(new) as store:
        assert store.info().tables[1].records == records
        found = read_all(store, "full", [int(key).to_bytes(8, "little") for key in keys])
        assert len(found) == records


def test_an_index_that_fills_up_while_it_is_written(tmp_path: Path) -> None:
    old, new = tmp_path / "old", tmp_path / "new"
    with gpkvs.open(old, index_bytes=1 << 20, heap_bytes=1 << 20) as store:
        store.execute(Batch.of([(Op.SET, b"key%d" % i, b"") for i in range(2040)]))
    new.mkdir()
    with pytest.raises(NoSpaceError, match=r"holds 2,040 keys, .* has 2,048 slots.* --index-bytes 1MiB"):
        copy(old, new, index_bytes=64 << 10)
    assert not list(new.iterdir())


def test_a_heap_that_grows(tmp_path: Path) -> None:
    """The new one is as large as its records need, and may grow as far as the old one, or as the options say."""
    old, batch = tmp_path / "old", Batch.of([(Op.SET, b"%d" % key, b"%d" % key * 2000) for key in range(2000)])
    with gpkvs.open(old, index_bytes=1 << 20, heap_bytes_max=256 << 20) as store:
        for _ in range(2):
            store.execute(batch)
        before = store.info()
        assert before.heap_bytes > 1.5 * before.heap_live_bytes
    for name, sizes, heap_bytes_max in (
        ("same", {}, 256 << 20),
        ("larger", {"heap_bytes_max": 1 << 30}, 1 << 30),
        ("fixed", {"heap_bytes": 64 << 20}, 64 << 20),
    ):
        new = tmp_path / name
        copy(old, new, **sizes)
        assert_clean(new)
        with gpkvs.open(new) as store:
            info = store.info()
            assert info.heap_bytes_max == heap_bytes_max
            assert info.heap_live_bytes == before.heap_live_bytes
            if name == "fixed":
                assert info.heap_bytes == heap_bytes_max
            else:
                assert info.heap_live_bytes <= info.heap_bytes < 1.2 * info.heap_live_bytes
            for key in range(2000):
                assert store.get(b"%d" % key) == b"%d" % key * 2000
            store.execute(batch)
            assert store.info().heap_bytes_max == heap_bytes_max
    with pytest.raises(NoSpaceError, match=r"heap full: .* --heap-bytes-max \d+MiB"):
        copy(old, tmp_path / "new", heap_bytes_max=8 << 20)


def test_a_record_longer_than_a_segment(tmp_path: Path) -> None:
    old, new = tmp_path / "old", tmp_path / "new"
    with gpkvs.open(old, index_bytes=64 << 10, heap_bytes=8 << 20, store_format="3") as store:
        store.set(b"long", bytes(400_000))
    with pytest.raises(NoSpaceError, match=r"the longest one 400,0(48|32); .* --heap-bytes-max (\d+)MiB") as caught:
        copy(old, new, store_format="3", heap_bytes=4 << 20)
    enough = int(str(caught.value).partition("--heap-bytes-max ")[2].partition("MiB")[0])
    copy(old, new, store_format="3", heap_bytes=enough << 20)
    with gpkvs.open(new) as store:
        assert store.get(b"long") == bytes(400_000)


@pytest.mark.parametrize("sizes", [{"heap_bytes": 1}, {"log_bytes": 1}, {"index_bytes": 1}])
def test_sizes_that_cannot_be(sizes: dict[str, object], tmp_path: Path) -> None:
    old, _ = format1("clean", tmp_path)
    with pytest.raises(InvalidArgumentError, match="allowed are"):
        copy(old, tmp_path / "new", **sizes)
    with pytest.raises(InvalidArgumentError, match="there is no table 'nope'"):
        copy(old, tmp_path / "new", table_index_bytes={"nope": 1 << 20})
    assert not (tmp_path / "new").exists()


def test_a_directory_that_cannot_be_the_new_one(tmp_path: Path) -> None:
    old, _ = format1("clean", tmp_path)
    before = snapshot(old)
    for new in (old, old / "new", old / ".." / "store", old / "a" / "b"):
        with pytest.raises(InvalidArgumentError, match="old store or lies in it"):
            copy(old, new)
    (tmp_path / "link").symlink_to(old)
    with pytest.raises(InvalidArgumentError, match="old store or lies in it"):
        copy(old, tmp_path / "link")
    (tmp_path / "used").mkdir()
    (tmp_path / "used" / "mine").write_text("precious")
    with pytest.raises(StoreError, match="not empty"):
        copy(old, tmp_path / "used")
    (tmp_path / "file").touch()
    with pytest.raises(StoreError, match="no directory"):
        copy(old, tmp_path / "file")
    copy(old, tmp_path / "new")
    with pytest.raises(StoreError, match="holds a store"):
        copy(old, tmp_path / "new")
    assert snapshot(old) == before
    assert (tmp_path / "used" / "mine").read_text() == "precious"


@pytest.mark.parametrize("commit", ["undo", "journal"])
def test_only_what_is_live_is_written(commit: CommitName, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    old, new = tmp_path / "old", tmp_path / "new"
    with gpkvs.open(old, index_bytes=32 << 20, heap_bytes=64 << 20) as store:
        for i in range(10):
            store.set(b"key%d" % i, b"value")
    written = []
    pwrite = os.pwrite
    monkeypatch.setattr(os, "pwrite", lambda *arguments: written.append(pwrite(*arguments)) or written[-1])
    copy(old, new, commit)
    assert sum(written) < 20 * 4096
    heap = new / ("heap" if commit == "undo" else "data")
    assert heap.stat().st_blocks * 512 >= 64 << 20, "the space is reserved"
    assert_clean(new)


def test_an_empty_store(tmp_path: Path) -> None:
    gpkvs.open(tmp_path / "old", **SIZES).close()
    assert copy(tmp_path / "old", tmp_path / "new").keys == 0
    assert_holds(tmp_path / "new", Expected({"default": {}}, {"default": 0}, 1, 1))


@pytest.mark.parametrize("round_number", range(8))
def test_random_stores(round_number: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    seed = random.SystemRandom().randrange(1 << 32)
    print(f"seed {seed}")  # pytest shows it where the test fails
    choose = random.Random(seed)
    old, new, expected = tmp_path / "old", tmp_path / "new", Expected({}, {}, 0, 0)
    with gpkvs.open(
        old, index_bytes=choose.randint(1, 8) * BLOCK_BYTES, heap_bytes=8 << 20, log_bytes=4 << 20
    ) as store:
        for number in range(choose.randint(0, 3)):
            blocks = choose.randint(1, 8)
            store.create_table(
                f"t{number}", layout=choose.choice(["bytes", "u64", _ROWS]), index_bytes=blocks * BLOCK_BYTES
            )
            if choose.random() < 0.2:
                store.drop_table(f"t{number}")
        catalog = store._files.catalog
        for table in catalog.tables:
            expected.tables[table.name] = _fill(store, table.name, table.layout, table.slots, choose)
            expected.ids[table.name] = table.id
        expected = Expected(expected.tables, expected.ids, store.info().next_version, catalog.next_table_id)
        blocks_of = {table.name: table.blocks for table in catalog.tables}
    # Small parts, so that they have edges.
    monkeypatch.setattr(copying, "_BLOCKS_AT_ONCE", choose.randint(1, 4))
    monkeypatch.setattr(records, "_WRITTEN_AT_ONCE", choose.choice([1 << 12, 1 << 16, 8 << 20]))
    sizes = {name: choose.randint(max(1, blocks), 3 * blocks) * BLOCK_BYTES for name, blocks in blocks_of.items()}
    copy(old, new, heap_bytes=choose.randint(10, 64) << 20, table_index_bytes=sizes)
    assert_holds(new, expected)


@pytest.mark.parametrize("commit", ["undo", "journal"])
def test_rows_are_those_of_the_old_store(tmp_path: Path, commit: CommitName) -> None:
    """Whoever reads rows of a copy reads arrays, and adds to them."""
    keys = np.arange(3000)
    given = np.random.default_rng(5).integers(-128, 128, (len(keys), 3, 7), np.int8)
    with gpkvs.open(tmp_path / "old", **SIZES, commit=commit) as store:
        store.create_table("rows", layout=_ROWS, index_bytes=BLOCK_BYTES)
        rows = store.rows(_ROWS, table="rows")
        rows.set(keys, given, atomic=False)
        rows.set([5], given[5:6], ttl=1000)
        rows.delete([7])
    copy(tmp_path / "old", tmp_path / "new", table_index_bytes={"rows": 8 * BLOCK_BYTES})
    with gpkvs.open(tmp_path / "new") as store:
        rows = store.rows(_ROWS, table="rows")
        found, is_there = rows.get(keys, default=given[7])
        assert np.array_equal(found, given)
        assert np.flatnonzero(~is_there).tolist() == [7]
        ttl = store.ttl((5).to_bytes(8, "little"), table="rows")
        assert ttl is not None
        assert ttl <= 1000
        rows.add([5], given[5:6])
        assert np.array_equal(rows.get([5])[0], given[5:6] * np.int8(2))
    assert_clean(tmp_path / "new")


def _fill(store: gpkvs.Store, table: str, layout: str, slots: int, choose: random.Random) -> Records:
    """Fill a table, in part nearly full, in several batches; return what it holds."""
    content: Records = {}
    wanted = int(slots * choose.choice([0.01, 0.4, 0.8]))
    for _ in range(4):
        operations: list[tuple[Op, bytes] | tuple[Op, bytes, bytes]] = []
        for _ in range(wanted // 4):
            if layout == "u64":
                number = choose.randrange(40) if choose.random() < 0.1 else choose.getrandbits(64)
                key, value = number.to_bytes(8, "little"), choose.randbytes(8)
            elif layout == _ROWS:
                key, value = choose.randbytes(8), choose.randbytes(21)
            else:
                key, value = choose.randbytes(choose.randint(1, 40)), choose.randbytes(choose.randint(0, 60))
            if choose.random() < 0.1 and content:
                key = choose.choice(list(content)[:100])
            operations.append((Op.DELETE, key) if choose.random() < 0.1 else (Op.SET, key, value))
        if not operations:
            continue
        versions = store.execute(Batch.of(operations), table=table).versions.tolist()
        for operation, version in zip(operations, versions, strict=True):
            if operation[0] is Op.SET:
                content[operation[1]] = (operation[2], 0 if layout == "u64" else version)
            else:
                content.pop(operation[1], None)
    return content


def test_a_chosen_heap_that_would_refuse_every_write_is_refused(tmp_path: Path) -> None:
    old = tmp_path / "old"
    with gpkvs.open(old, index_bytes=1 << 20, heap_bytes=8 << 20) as store:
        store.execute(Batch.of([(Op.SET, b"%d" % key, bytes(1000)) for key in range(3400)]))
    with pytest.raises(
        NoSpaceError, match=r"a heap of 4,194,304 bytes cannot take them: use --heap-bytes-max \d+MiB"
    ) as caught:
        copy(old, tmp_path / "small", heap_bytes_max=4 << 20)
    enough = int(str(caught.value).rsplit("max ", 1)[1].removesuffix("MiB or more")) << 20
    copy(old, tmp_path / "enough", heap_bytes_max=enough)
    with gpkvs.open(tmp_path / "enough") as store:
        store.set(b"one", b"more")


@pytest.mark.parametrize("commit", ["undo", "journal"])
def test_the_digest_of_numbers_is_the_same_while_their_table_grows(tmp_path: Path, commit: CommitName) -> None:
    path, numbers = tmp_path / "store", np.arange(3000, dtype=np.uint64)
    with gpkvs.open(path, **SIZES, commit=commit) as store:
        store.create_table("numbers", layout="u64", index_bytes=4 * BLOCK_BYTES)
        store.set_many(numbers, numbers, table="numbers", atomic=False)
    before = copying.digests_of_numbers(path)
    assert before.keys() == {"numbers"}
    with gpkvs.open(path) as store:
        table, growth = store._engine.tables[store.table("numbers").id], store._engine.growth
        with store._mutex, store._turn_over():
            assert growth.is_reserved(table, waits=True)
            growth.begin(table)
            growth.move_to(table, 2)
    assert copying.digests_of_numbers(path) == before
    with gpkvs.open(path) as store:
        store.set_many([7], [8], table="numbers")
    assert copying.digests_of_numbers(path) != before
