"""Files damaged by hand: what is refused at open, what `check` names, what is served all the same."""

from __future__ import annotations

import shutil
import struct
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

import gpkvs
from gpkvs.batch import Batch, Op, Status
from gpkvs.errors import CorruptRecordError, CorruptStoreError, FormatError, StoreError
from gpkvs.media.files import open_files
from gpkvs.media.layout import (
    BYTES_LAYOUT,
    DESCRIPTOR_OFFSETS,
    FLAG_OFFSET,
    LOG_ENTRIES_OFFSET,
    ROOT_OFFSETS,
)
from gpkvs.native import crc32c
from gpkvs.recovery.startup.check import check
from tests.conftest import assert_clean
from tests.record_header import LENGTHS_AT
from tests.recovery.startup.child import SIZES
from tests.recovery.startup.harness import run_child

pytestmark = pytest.mark.undo

ROOT_A, ROOT_B = ROOT_OFFSETS
SLOT_BYTES, BUCKET_BYTES = BYTES_LAYOUT.slot_bytes, BYTES_LAYOUT.bucket_bytes


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """Return a closed store of 100 records."""
    path = tmp_path / "store"
    with gpkvs.open(path, **SIZES) as store:
        store.execute(Batch.of([(Op.SET, b"key%d" % i, b"value%d" % i) for i in range(100)]))
    return path


def flip(path: Path, offset: int, mask: int = 0x10) -> None:
    with path.open("r+b") as file:
        file.seek(offset)
        byte = file.read(1)[0]
        file.seek(offset)
        file.write(bytes([byte ^ mask]))


def first_slot(path: Path) -> int:
    """Return the byte offset of the first slot in use."""
    slots = np.fromfile(path / "index-0-0", np.uint64).reshape(-1, 4)
    return int(np.flatnonzero(slots[:, 3])[0]) * SLOT_BYTES


def invariants(path: Path) -> set[str]:
    return {violation.invariant for violation in check(path).violations}


def digest(path: Path) -> dict[str, bytes]:
    return {file.name: file.read_bytes() for file in path.iterdir() if file.name != "LOCK"}


@pytest.mark.parametrize("offset", [ROOT_A, ROOT_A + 30, ROOT_A + 505, ROOT_B + 8, ROOT_B + 100])
def test_one_damaged_root_copy_is_reported_and_repaired(path: Path, offset: int) -> None:
    flip(path / "root", offset)
    assert invariants(path) == {"root-copy"}
    with gpkvs.open(path) as store:
        assert store.recovery.root_copy_repaired == ("A" if offset < ROOT_B else "B")
        assert store.get(b"key5") == b"value5"
    assert_clean(path)


@pytest.mark.parametrize(
    ("damage", "invariant"),
    [
        pytest.param(lambda p: (flip(p / "root", ROOT_A + 20), flip(p / "root", ROOT_B + 20)), "root-copy", id="roots"),
        pytest.param(lambda p: flip(p / "root", FLAG_OFFSET + 3), "flag", id="flag"),
        pytest.param(
            lambda p: [flip(p / "log", offset + 40) for offset in DESCRIPTOR_OFFSETS],
            "descriptor",
            id="descriptors",
        ),
        pytest.param(lambda p: flip(p / "catalog-0.json", 5), "catalog", id="catalogue"),
        *[
            pytest.param(lambda p, n=name: shrink(p / n), "file-size", id=f"truncated-{name}")
            for name in ("root", "log", "heap", "index-0-0", "catalog-0.json")
        ],
        *[
            pytest.param(lambda p, n=name: (p / n).unlink(), "file-size", id=f"missing-{name}")
            for name in ("log", "heap", "index-0-0", "catalog-0.json")
        ],
    ],
)
def test_damage_that_is_refused(path: Path, damage: Callable[[Path], object], invariant: str) -> None:
    damage(path)
    before = digest(path)
    with pytest.raises(CorruptStoreError) as refused:
        gpkvs.open(path)
    assert refused.value.invariant == invariant
    assert digest(path) == before, "a refused store was written to"
    assert invariants(path) == {invariant}


def shrink(path: Path) -> None:
    with path.open("r+b") as file:
        file.truncate(path.stat().st_size - 8)


@pytest.mark.parametrize("byte_order", [0x01020304, 0x04030201])
def test_another_format_is_refused_untouched(path: Path, byte_order: int) -> None:
    version = 5 if byte_order == 0x01020304 else 2
    for offset in ROOT_OFFSETS:
        with (path / "root").open("r+b") as file:
            file.seek(offset + 8)
            file.write(struct.pack("<II", version, byte_order))
    before = digest(path)
    for refuse in (gpkvs.open, check):
        with pytest.raises(FormatError, match="format version 5" if version == 5 else "byte order"):
            refuse(path)
    assert digest(path) == before


def test_root_file_missing_beside_data(path: Path) -> None:
    (path / "root").unlink()
    for refuse in (gpkvs.open, check):
        with pytest.raises(StoreError, match="holds no store"):
            refuse(path)


def test_flipped_bit_in_a_record_is_never_served(path: Path) -> None:
    heap = (path / "heap").read_bytes()
    flip(path / "heap", heap.index(b"value42") + 2)
    assert invariants(path) == {"record-checksum"}
    with gpkvs.open(path) as store:
        with pytest.raises(CorruptRecordError):
            store.get(b"key42")
        assert store.get(b"key41") == b"value41"
        store.set(b"key42", b"again")
        assert store.get(b"key42") == b"again"
    assert_clean(path)


def slot_words(path: Path, offset: int) -> list[int]:
    with (path / "index-0-0").open("rb") as file:
        file.seek(offset)
        return list(struct.unpack("<4Q", file.read(SLOT_BYTES)))


def store_slot(path: Path, offset: int, words: list[int]) -> None:
    with (path / "index-0-0").open("r+b") as file:
        file.seek(offset)
        file.write(struct.pack("<4Q", *words))


def break_kind(path: Path, at: int, words: list[int]) -> None:
    store_slot(path, at, [*words[:3], words[3] | 7 << 60])


def break_kind_of_a_store_without_expiries(path: Path, at: int, words: list[int]) -> None:
    store_slot(path, at, [*words[:3], words[3] + (1 << 60)])


def break_bucket(path: Path, at: int, words: list[int]) -> None:
    # A bucket three further on is neither of the two: none of them holds the key's copy.
    store_slot(path, at, [0, 0, 0, 0])
    for step in range(1, 256):
        target = (at // BUCKET_BYTES + step) % 256 * BUCKET_BYTES
        first = words[1] * 256 >> 64  # both follow from the second half of the fingerprint
        candidates = {first, (first + 1 + words[1] % 255) % 256}
        if target // BUCKET_BYTES not in candidates and slot_words(path, target)[3] == 0:
            return store_slot(path, target, words)
    raise AssertionError("no room")


def break_unique(path: Path, at: int, words: list[int]) -> None:
    bucket = at // BUCKET_BYTES * BUCKET_BYTES
    free = next(o for o in range(bucket, bucket + BUCKET_BYTES, SLOT_BYTES) if slot_words(path, o)[3] == 0)
    store_slot(path, free, words)


def break_reference(path: Path, at: int, words: list[int]) -> None:
    store_slot(path, at, [*words[:2], words[2] | 1 << 60, words[3]])


def break_version(path: Path, at: int, words: list[int]) -> None:
    store_slot(path, at, [*words[:3], words[3] + 1000])


def break_key(path: Path, at: int, words: list[int]) -> None:
    """Point a slot at the whole record of another key that is as long."""
    others = (slot_words(path, o) for o in range(at + SLOT_BYTES, 65536, SLOT_BYTES))
    other = next(o for o in others if o[3] and key_bytes(path, o) == key_bytes(path, words))
    store_slot(path, at, [*words[:2], *other[2:]])


def key_bytes(path: Path, words: list[int]) -> int:
    """Return the length of the key in a slot's record."""
    with (path / "heap").open("rb") as file:
        file.seek((words[2] >> 24) * 16 + LENGTHS_AT[0])
        (size,) = struct.unpack("<H", file.read(2))  # it is short
    return int(size)


def break_table(path: Path, at: int, words: list[int]) -> None:
    """Give a record another table, with a right checksum."""
    offset, length = (words[2] >> 24) * 16, (words[2] & 0xFFFFFF) * 16
    with (path / "heap").open("r+b") as file:
        file.seek(offset)
        record = bytearray(file.read(length))
        record[4:8] = struct.pack("<I", 9)
        record[:4] = struct.pack("<I", crc32c(bytes(record[4:8]) + bytes(4) + bytes(record[8:])))
        file.seek(offset)
        file.write(record)


def break_segment(path: Path, at: int, words: list[int]) -> None:
    """Put a whole record across the end of a segment, and point its slot there."""
    units, length = 65536 // 16, words[2] & 0xFFFFFF
    with (path / "heap").open("r+b") as file:
        file.seek((words[2] >> 24) * 16)
        record = file.read(16 * length)
        file.seek((units - 1) * 16)
        file.write(record)
    store_slot(path, at, [*words[:2], (units - 1) << 24 | length, words[3]])


def break_long(path: Path, at: int, words: list[int]) -> None:
    """Have a slot refer to more than a segment, from inside one on."""
    store_slot(path, at, [*words[:2], 2 << 24 | 65536 // 16 + 1, words[3]])


@pytest.mark.parametrize(
    ("damage", "expected"),
    [
        (break_kind, {"slot-kind"}),
        (break_kind_of_a_store_without_expiries, {"slot-kind"}),
        (break_bucket, {"slot-bucket"}),
        (break_unique, {"slot-unique"}),
        (break_reference, {"slot-reference"}),
        (break_segment, {"slot-reference"}),
        (break_long, {"slot-reference"}),
        (break_version, {"record-version"}),
        (break_key, {"record-key"}),
        (break_table, {"record-table"}),
    ],
)
def test_check_names_the_invariant(
    path: Path, damage: Callable[[Path, int, list[int]], None], expected: set[str]
) -> None:
    at = first_slot(path)
    damage(path, at, slot_words(path, at))
    assert invariants(path) == expected


@pytest.mark.parametrize("damage", [break_version, break_key, break_table])
def test_a_record_that_is_not_the_slots_is_never_served(
    path: Path, damage: Callable[[Path, int, list[int]], None]
) -> None:
    """It is whole, but of another version, key or table: the slot or the record is not what was stored."""
    at = first_slot(path)
    damage(path, at, slot_words(path, at))
    with gpkvs.open(path) as store:
        names = [b"key%d" % i for i in range(100)]
        [foreign] = [key for key in names if not readable(store, key)]
        for key in names:
            assert key == foreign or store.get(key) == key.replace(b"key", b"value")
        # Also in a batch that writes, where another kernel finds the slot.
        result = store.execute(Batch.of([(Op.SET, b"other", b""), (Op.GET, foreign)]))
        assert result.status.tolist() == [Status.OK, Status.CORRUPT]
        assert result.values.tobytes() == b""


def test_roots_that_differ(path: Path, tmp_path: Path) -> None:
    older = tmp_path / "older"
    shutil.copytree(path, older)
    for _ in range(2):  # of the last change, a kill may leave one copy
        gpkvs.open(path).close()
    with (older / "root").open("rb") as source, (path / "root").open("r+b") as target:
        target.write(source.read(512))
    assert invariants(path) == {"roots-equal"}
    with gpkvs.open(path) as store:
        assert store.recovery.root_copy_repaired == "A"
        assert store.get(b"key1") == b"value1"
    assert_clean(path)


@pytest.mark.parametrize("offset", [0, 8 * 32, 3000])
def test_damaged_active_log_is_refused_before_anything_is_undone(tmp_path: Path, offset: int) -> None:
    path = tmp_path / "store"
    batch = [["set", f"key{i}", "value"] for i in range(100)]
    assert run_child(path, [batch, batch], "before_apply_persist:2").killed
    flip(path / "log", LOG_ENTRIES_OFFSET + offset)
    before = digest(path)
    with pytest.raises(CorruptStoreError) as refused:
        gpkvs.open(path)
    assert refused.value.invariant == "undo-log"
    assert digest(path) == before
    assert invariants(path) == {"undo-log"}


def test_damaged_idle_log_is_harmless(path: Path) -> None:
    flip(path / "log", LOG_ENTRIES_OFFSET + 5)
    assert_clean(path)
    with gpkvs.open(path) as store:
        assert store.get(b"key7") == b"value7"


def test_torn_older_descriptor_is_harmless(path: Path) -> None:
    files = open_files(path, None)
    files.close()
    flip(path / "log", DESCRIPTOR_OFFSETS[0] + 9)  # epoch 0, long replaced
    assert_clean(path)
    with gpkvs.open(path) as store:
        assert store.get(b"key7") == b"value7"
        store.set(b"key7", b"new")
    with gpkvs.open(path) as store:
        assert store.get(b"key7") == b"new"


def test_damaged_occupant_is_not_moved_over_a_neighbour(tmp_path: Path) -> None:
    """A slot whose fingerprint rotted belongs to no block; whatever the batch does, other keys keep their records."""
    path = tmp_path / "store"
    with gpkvs.open(path, index_bytes=256 << 10, heap_bytes=4 << 20) as store:
        store.execute(Batch.of([(Op.SET, b"key%d" % i, b"v") for i in range(5200)]))
    slots = np.fromfile(path / "index-0-0", np.uint64).reshape(-1, 4)
    rng = np.random.default_rng(3)
    used = np.flatnonzero(slots[:, 3])
    damaged = rng.choice(used, 1500, replace=False)
    slots[damaged, 0] = rng.integers(0, 2**63, 1500, np.uint64)
    slots.tofile(path / "index-0-0")
    with gpkvs.open(path) as store:
        acknowledged = []
        for i in range(200):
            batch = Batch.concatenate([Batch.of([(Op.SET, b"new%d-%d" % (i, j), b"w")]) for j in range(40)])
            result = store.execute_requests(batch)
            acknowledged += [b"new%d-%d" % (i, j) for j in range(40) if j not in result.rejected]
        assert len(acknowledged) > 500
        assert {store.get(key) for key in acknowledged} == {b"w"}


def test_damaged_kind_does_not_free_a_segment_with_live_records(tmp_path: Path) -> None:
    path = tmp_path / "store"
    value = b"x" * 3000
    with gpkvs.open(path, **SIZES) as store:
        for i in range(16):
            store.set(b"key%d" % i, value)
    slots = np.fromfile(path / "index-0-0", np.uint64).reshape(-1, 4)
    slots[np.flatnonzero(slots[:, 3])[0], 3] |= np.uint64(2 << 60)
    slots.tofile(path / "index-0-0")
    with gpkvs.open(path) as store:
        intact = [key for key in (b"key%d" % i for i in range(16)) if readable(store, key)]
        for key in [b"key%d" % i for i in range(16) if b"key%d" % i != intact[0]]:
            store.delete(key)
        for i in range(400):
            store.set(b"again", b"%d" % i * 500)
        assert store.get(intact[0]) == value


def readable(store: gpkvs.Store, key: bytes) -> bool:
    try:
        return store.get(key) is not None
    except CorruptRecordError:
        return False


def test_damaged_reference_can_be_deleted(path: Path) -> None:
    at = first_slot(path)
    words = slot_words(path, at)
    store_slot(path, at, [*words[:2], words[2] ^ 1 << 50, words[3]])
    with gpkvs.open(path) as store:
        for i in range(100):
            assert store.delete(b"key%d" % i)
        assert store.info().tables[0].records == 0


def test_left_over_creation_marker_does_not_cost_a_store(path: Path) -> None:
    (path / "CREATING").touch()
    gpkvs.open(path).close()
    assert not (path / "CREATING").exists()
    (path / "CREATING").touch()
    (path / "root").unlink()
    before = digest(path)
    with pytest.raises(StoreError, match="holds no store"):
        gpkvs.open(path)
    assert digest(path) == before


def test_copy_without_a_lock_file_can_be_checked(path: Path) -> None:
    (path / "LOCK").unlink()
    assert_clean(path)


def test_recovery_report_that_cannot_be_written_does_not_keep_a_store_from_starting(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("gpkvs.recovery.startup.recover.write_file", full)
    with gpkvs.open(path) as store:
        assert store.get(b"key5") == b"value5"
