"""`gpkvs copy` from each format into each other one: every key, value, version and expiry; and what drafts are told."""

from __future__ import annotations

import random
import struct
from dataclasses import replace
from pathlib import Path
from typing import cast

import numpy as np
import pytest

import gpkvs
from gpkvs.batch import Batch, Op
from gpkvs.config import CommitName, FormatName, Limits
from gpkvs.errors import CorruptStoreError, FormatError, InvalidArgumentError
from gpkvs.media.layout import DRAFTS, FINAL_DRAFT, UNIT_BYTES, reference_length, reference_offset
from gpkvs.recovery.startup.check import check
from gpkvs.recovery.startup.opening import FORMAT_VARIABLE
from tests.conftest import assert_clean
from tests.recovery.copy.stores import AFTER, assert_holds, change_root, copy, flip, format4, snapshot

SIZES = {"index_bytes": 128 << 10, "heap_bytes": 4 << 20, "log_bytes": 128 << 10}
DRAFT_AT = 228
BEHIND_FIELDS = 464
LARGE = (65_400, 65_536, 200_000)  # the last ones have blobs in format 4
ENOUGH = 32 << 20  # bytes of a heap: a record may take a sixteenth
LARGER = {**SIZES, "heap_bytes": ENOUGH}
Held = dict[bytes, tuple[bytes, int, float]]  # value, version and seconds to live


def held(store: gpkvs.Store, keys: list[bytes]) -> Held:
    found = {key: (*pair, store.ttl(key)) for key in keys if (pair := store.get_with_version(key)) is not None}
    return cast(Held, found)


def assert_equal(found: Held, expected: Held) -> None:
    """Fail unless both hold the same; time has gone on meanwhile."""
    assert {key: row[:2] for key, row in found.items()} == {key: row[:2] for key, row in expected.items()}
    for key, row in expected.items():
        assert row[2] - 600 < found[key][2] <= row[2] or row[2] == found[key][2]


@pytest.mark.parametrize("commit", ["undo", "journal"])
@pytest.mark.parametrize(("first", "then"), [("3", "4"), ("4", "3"), ("4", "4")])
def test_between_formats(tmp_path: Path, first: FormatName, then: FormatName, commit: CommitName) -> None:
    seed = random.randrange(1 << 32)
    print(f"{seed=}")
    rng = random.Random(seed)
    keys = [rng.randbytes(rng.randrange(1, 60)) + b"%d" % i for i in range(600)]
    with gpkvs.open(tmp_path / "old", store_format=first, commit=commit, durability="process", **LARGER) as store:
        for key in keys:
            ttl = {"ttl": rng.randrange(10_000, 10**8)} if rng.random() < 0.4 else {}
            size = rng.choice(LARGE if rng.random() < 0.03 else (0, 1, 7, 8, 9, 100, 1000, rng.randrange(8_000)))
            store.set(key, rng.randbytes(size), **ttl)
            if rng.random() < 0.2:
                store.delete(rng.choice(keys))
        expected = held(store, keys)
        charged, next_version = store.info().heap_live_bytes, store.info().next_version
    report = copy(tmp_path / "old", tmp_path / "new", commit, store_format=then, heap_bytes_max=ENOUGH)
    assert report.old_format == first
    assert report.keys == len(expected)
    assert_clean(tmp_path / "new")
    with gpkvs.open(tmp_path / "new") as store:
        assert store.info().store_format == then
        assert store.info().next_version == next_version
        assert_equal(held(store, keys), expected)
        live = store.info().heap_live_bytes
        assert (live < charged, live == charged) == (first < then, first == then)
        for key in keys:
            store.set(key, b"again")
        assert [store.get(key) for key in keys] == [b"again"] * len(keys)
    assert_clean(tmp_path / "new")


@pytest.mark.parametrize("first", ["3", "4"])
def test_by_default_format_4(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, first: FormatName) -> None:
    monkeypatch.delenv(FORMAT_VARIABLE)
    gpkvs.open(tmp_path / "old", store_format=first, **SIZES).close()
    copy(tmp_path / "old", tmp_path / "copy")
    gpkvs.open(tmp_path / "new", **SIZES).close()
    for name in ("copy", "new"):
        with gpkvs.open(tmp_path / name) as store:
            assert store.info().store_format == "4"
        version, draft = struct.unpack_from("<8xI216xI", (tmp_path / name / "root").read_bytes())
        assert (version, draft) == (4, FINAL_DRAFT)


@pytest.mark.parametrize("number", DRAFTS)
def test_the_kept_store_of_a_draft(tmp_path: Path, number: int) -> None:
    old, expected = format4(number, tmp_path)
    before = snapshot(old)
    for store_format in ("3", "4"):
        report = copy(old, tmp_path / store_format, store_format=store_format, heap_bytes_max=ENOUGH)
        assert report.old_format == f"4, draft {number}"
        assert_holds(tmp_path / store_format, expected)
    for refuse in (gpkvs.open, check):
        with pytest.raises(FormatError, match=f"draft {number} .* opens the final one: run `gpkvs copy OLD NEW`"):
            refuse(old)
    assert {name: found for name, found in snapshot(old).items() if name != "LOCK"} == before


def test_the_kept_store(tmp_path: Path) -> None:
    old, expected = format4(FINAL_DRAFT, tmp_path)
    before = snapshot(old)
    for number, store_format in enumerate(("3", "4")):
        new = tmp_path / f"new{number}"
        copy(old, new, store_format=store_format, heap_bytes_max=ENOUGH)
        assert_holds(new, expected)
    assert snapshot(old) == before
    assert_holds(old, expected)  # it opens, too
    expected.tables["default"][AFTER] = (b"x", expected.next_sequence)
    assert_holds(old, replace(expected, next_sequence=expected.next_sequence + 1))


def test_an_unknown_field_is_refused_untouched(tmp_path: Path) -> None:
    """This gpkvs would write the root without it."""
    old, _ = format4(FINAL_DRAFT, tmp_path)
    change_root(old, BEHIND_FIELDS, b"\1")
    before = snapshot(old)
    for refuse in (gpkvs.open, check, lambda path: copy(path, tmp_path / "new")):
        with pytest.raises(FormatError, match=r"fields that this gpkvs does not know: a newer gpkvs made it"):
            refuse(old)
    assert {name: found for name, found in snapshot(old).items() if name != "LOCK"} == before


def test_an_unknown_draft_is_refused_untouched(tmp_path: Path) -> None:
    old, _ = format4(FINAL_DRAFT, tmp_path)
    change_root(old, DRAFT_AT, struct.pack("<I", DRAFTS[-1] + 1))
    before = snapshot(old)
    for refuse in (gpkvs.open, check, lambda path: copy(path, tmp_path / "new")):
        with pytest.raises(FormatError, match=r"draft 4 of format version 4.* opens the final one: a newer gpkvs made"):
            refuse(old)
    assert {name: found for name, found in snapshot(old).items() if name != "LOCK"} == before


@pytest.mark.parametrize("number", [FINAL_DRAFT, *DRAFTS])
def test_what_an_older_gpkvs_sees(tmp_path: Path, number: int) -> None:
    """It looks at version and draft alone, before the checksum: they are in the same place in all formats."""
    old, _ = format4(number, tmp_path)
    assert struct.unpack_from("<8sI216xI", (old / "root").read_bytes()) == (b"GPKVSRT\0", 4, number)


def test_a_key_that_format_4_has_no_place_for(tmp_path: Path) -> None:
    limits = Limits(key_bytes_max=100_000)
    with gpkvs.open(tmp_path / "old", store_format="3", limits=limits, **SIZES) as store:
        store.set(b"k" * 65_480, b"as long as can be")
    copy(tmp_path / "old", tmp_path / "fits", store_format="4")
    with gpkvs.open(tmp_path / "fits", limits=limits) as store:
        assert store.limits.key_bytes_max == 65_480
        assert store.get(b"k" * 65_480) == b"as long as can be"
        with pytest.raises(InvalidArgumentError, match="65,480"):
            store.set(b"k" * 65_481, b"")
    with gpkvs.open(tmp_path / "old", limits=limits) as store:
        store.set(b"k" * 65_481, b"too long")
    with pytest.raises(InvalidArgumentError, match=r"more than 65,480 bytes.* --format 3"):
        copy(tmp_path / "old", tmp_path / "new", store_format="4")
    assert not (tmp_path / "new").exists()


def test_a_value_that_format_3_has_no_place_for(tmp_path: Path) -> None:
    longest = (32 << 20) - 32 - len(b"key")
    with gpkvs.open(tmp_path / "old", store_format="4", index_bytes=64 << 10) as store:
        store.set(b"key", bytes(longest))
    copy(tmp_path / "old", tmp_path / "fits", store_format="3")
    with gpkvs.open(tmp_path / "fits") as store:
        assert store.get(b"key") == bytes(longest)
    with gpkvs.open(tmp_path / "old") as store:
        store.set(b"key", bytes(longest + 1))
    with pytest.raises(InvalidArgumentError, match=r"a record of 33,554,448 bytes.* takes up to 33,554,432: delete"):
        copy(tmp_path / "old", tmp_path / "new", store_format="3")
    assert not (tmp_path / "new").exists()


@pytest.mark.undo
@pytest.mark.parametrize("first", ["3", "4"])
@pytest.mark.parametrize("offset", range(0, 40, 3))
def test_a_damaged_record_is_not_converted(tmp_path: Path, first: FormatName, offset: int) -> None:
    """Its header may say any length: nothing outside of it is read, and nothing is copied."""
    with gpkvs.open(tmp_path / "old", store_format=first, durability="process", **SIZES) as store:
        store.execute(Batch.of([(Op.SET, b"key%d" % i, bytes(50)) for i in range(100)]))
        words = store._files.indexes[0].region.words(0, store.info().tables[0].slots * 4).reshape(-1, 4)
        references = words[words[:, 3] != 0, 2]
        last = int(references[np.argmax(reference_offset(references))])
        assert reference_length(last)
        at = reference_offset(last) * UNIT_BYTES
    flip(tmp_path / "old" / "heap", at + offset, 0xFF)
    with pytest.raises(CorruptStoreError, match="slot "):
        copy(tmp_path / "old", tmp_path / "new", store_format="4" if first == "3" else "3")
    assert not (tmp_path / "new").exists()
