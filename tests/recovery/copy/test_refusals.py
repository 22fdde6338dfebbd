"""What is not copied: damaged and unsafe stores, and copies that are not what was read. None leaves a new store."""

from __future__ import annotations

import struct
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

import gpkvs
from gpkvs.batch import U8, U64, Batch, Op
from gpkvs.errors import CorruptStoreError, FormatError, GpkvsError, StoreError, StoreMissingError, UnsafeStoreError
from gpkvs.media.catalog import TableEntry
from gpkvs.media.layout import LOG_ENTRIES_OFFSET, ROOT_OFFSETS
from gpkvs.recovery.copy.writer import StoreWriter
from tests.recovery.copy.stores import assert_holds, change_root, copy, flip, format1, snapshot


def first_slot(path: Path, table_id: int, words: int) -> int:
    """Return the byte of the first slot that is not zero."""
    slots = np.frombuffer((path / f"index-{table_id}-0").read_bytes(), np.uint64).reshape(-1, words)
    return int(np.flatnonzero(slots.all(axis=1))[0]) * words * 8


def damage_record(path: Path) -> None:
    reference = struct.unpack_from("<Q", (path / "index-0-0").read_bytes(), first_slot(path, 0, 4) + 16)[0]
    flip(path / "heap", (reference >> 24) * 16 + 40)


def damage_number(path: Path) -> None:
    flip(path / "index-3-0", first_slot(path, 3, 2), 0x40)


def damage_fingerprint(path: Path) -> None:
    flip(path / "index-0-0", first_slot(path, 0, 4) + 7, 0x80)


def damage_kind(path: Path) -> None:
    flip(path / "index-0-0", first_slot(path, 0, 4) + 31, 0x20)


def damage_reference(path: Path) -> None:
    flip(path / "index-0-0", first_slot(path, 0, 4) + 23, 0x80)


def damage_version(path: Path) -> None:
    flip(path / "index-0-0", first_slot(path, 0, 4) + 24)


def damage_empty_number(path: Path) -> None:
    slots = np.frombuffer((path / "index-3-0").read_bytes(), np.uint64).reshape(-1, 2)
    flip(path / "index-3-0", int(np.flatnonzero(~slots.any(axis=1))[0]) * 16 + 8)


def store_twice(path: Path) -> None:
    """Have a key in two slots of its bucket."""
    data = bytearray((path / "index-0-0").read_bytes())
    at = first_slot(path, 0, 4)
    bucket = at // 256 * 256
    free = next(slot for slot in range(bucket, bucket + 256, 32) if not any(data[slot : slot + 32]))
    data[free : free + 32] = data[at : at + 32]
    (path / "index-0-0").write_bytes(data)


DAMAGES: dict[str, tuple[str, Callable[[Path], None]]] = {
    "root": ("root-copy", lambda path: [flip(path / "root", offset + 40) for offset in ROOT_OFFSETS]),
    "flag": ("flag", lambda path: flip(path / "root", 8192)),
    "descriptors": ("descriptor", lambda path: [flip(path / "log", offset + 10) for offset in ROOT_OFFSETS]),
    "log": ("undo-log", lambda path: flip(path / "log", LOG_ENTRIES_OFFSET + 100)),
    "catalogue": ("catalog", lambda path: flip(next(path.glob("catalog-*.json")), 5)),
    "short heap": ("file-size", lambda path: (path / "heap").write_bytes(b"x" * 4096)),
    "record": ("record-checksum", damage_record),
    "number": ("slot-bucket", damage_number),
    "fingerprint": ("slot-bucket", damage_fingerprint),
    "kind": ("slot-kind", damage_kind),
    "empty number": ("slot-kind", damage_empty_number),
    "reference": ("slot-reference", damage_reference),
    "version": ("record-version", damage_version),
    "twice": ("slot-unique", store_twice),
}


@pytest.mark.parametrize("name", DAMAGES)
def test_a_damaged_store(name: str, tmp_path: Path) -> None:
    old, _ = format1("active" if name == "log" else "clean", tmp_path)
    invariant, damage = DAMAGES[name]
    damage(old)
    before = snapshot(old)
    with pytest.raises(CorruptStoreError) as caught:
        copy(old, tmp_path / "new")
    assert caught.value.invariant == invariant
    assert caught.value.path.is_relative_to(old)
    assert snapshot(old) == before
    assert not (tmp_path / "new").exists()
    if "slot" in invariant or "record" in invariant:
        assert "slot " in str(caught.value)
        assert "gpkvs check" in str(caught.value)


def test_one_damaged_root_copy_is_enough(tmp_path: Path) -> None:
    old, expected = format1("clean", tmp_path)
    flip(old / "root", 40)
    copy(old, tmp_path / "new")
    assert_holds(tmp_path / "new", expected)


def test_an_unsafe_store(tmp_path: Path) -> None:
    old, _ = format1("clean", tmp_path)
    change_root(old, 64, struct.pack("<Q", 1))
    with pytest.raises(UnsafeStoreError, match="--accept-loss"):
        copy(old, tmp_path / "new")
    assert not (tmp_path / "new").exists()


def test_a_later_format(tmp_path: Path) -> None:
    old, _ = format1("clean", tmp_path)
    change_root(old, 8, struct.pack("<I", 9))
    with pytest.raises(FormatError, match=r"version 9.* a newer gpkvs"):
        copy(old, tmp_path / "new")


def test_no_store(tmp_path: Path) -> None:
    for path in (tmp_path, tmp_path / "missing"):
        with pytest.raises((StoreMissingError, StoreError)):
            copy(path, tmp_path / "new")
    assert not (tmp_path / "new").exists()


def write_wrong_records(_writer: StoreWriter, _offset: int, data: U8) -> None:
    data[50] ^= 1


def lose_a_key(_writer: StoreWriter, entry: TableEntry, _block: int, words: U64) -> None:
    if entry.name == "default":
        words[int(np.flatnonzero(words.any(axis=1))[0])] = 0


def change_a_number(_writer: StoreWriter, entry: TableEntry, _block: int, words: U64) -> None:
    if entry.name == "numbers":
        words[int(np.flatnonzero(words[:, 1])[0]), 1] ^= np.uint64(1)


@pytest.mark.parametrize(
    ("method", "mistake"),
    [("write_records", write_wrong_records), ("write_blocks", lose_a_key), ("write_blocks", change_a_number)],
)
def test_what_was_written_is_read_back(
    method: str, mistake: Callable[..., None], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    old, expected = format1("clean", tmp_path)
    write = getattr(StoreWriter, method)

    def wrong(writer: StoreWriter, *arguments: object) -> None:
        mistake(writer, *arguments)
        write(writer, *arguments)

    monkeypatch.setattr(StoreWriter, method, wrong)
    with pytest.raises(StoreError, match=r"record-checksum|read back"):
        copy(old, tmp_path / "new")
    assert not (tmp_path / "new").exists()
    monkeypatch.undo()
    copy(old, tmp_path / "new")
    assert_holds(tmp_path / "new", expected)


def test_a_disk_that_is_full(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    old, _ = format1("clean", tmp_path)
    (tmp_path / "new").mkdir()
    with pytest.raises(GpkvsError, match=r"disk full: the new store takes .* choose smaller --index-bytes"):
        copy(old, tmp_path / "new", heap_bytes=1 << 43)
    assert not list((tmp_path / "new").iterdir())


def test_a_store_in_use(tmp_path: Path) -> None:
    with gpkvs.open(tmp_path / "old", index_bytes=64 << 10, heap_bytes=1 << 20) as store:
        store.execute(Batch.of([(Op.SET, b"key", b"value")]))
        with pytest.raises(StoreError, match="open in this process already"):
            copy(tmp_path / "old", tmp_path / "new")
    copy(tmp_path / "old", tmp_path / "new")
