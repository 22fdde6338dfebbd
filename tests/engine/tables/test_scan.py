"""A scan returns every key that is there throughout exactly once, with its value, whatever happens between pieces."""

from __future__ import annotations

import dataclasses
import os
import random
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import gpkvs
from gpkvs.batch import Batch, Op
from gpkvs.config import CommitName
from gpkvs.engine.seam import counted_time, traffic
from gpkvs.engine.tables import scan
from gpkvs.errors import InvalidArgumentError, StoreClosedError, UnknownTableError
from gpkvs.media.layout import UNIT_BYTES, reference_offset
from gpkvs.scan import ScanPiece
from tests.conftest import SMALL, assert_clean
from tests.engine.tables.test_growth import Grown
from tests.record_header import HEADER_BYTES, LENGTHS_AT, VERSION_AT

Options = dict[str, Any]
BOTH = pytest.mark.parametrize("layout", ["bytes", "u64"])


def pieces_of(store: gpkvs.Store, table: str = "default", prefix: bytes = b"", **options: Any) -> list[ScanPiece]:
    """Scan a table that nobody changes."""
    pieces = [store.scan_step(table, b"", prefix, **options)]
    while pieces[-1].cursor:
        pieces.append(store.scan_step(table, pieces[-1].cursor, prefix, **options))
    return pieces


def scanned(store: gpkvs.Store, table: str = "default", **options: Any) -> dict[bytes, bytes]:
    """Return what a scan returns, of which nothing may come twice."""
    pairs = [pair for piece in pieces_of(store, table, **options) for pair in piece.pairs()]
    found = dict(pairs)
    assert len(found) == len(pairs), "a key came twice"
    return found


@BOTH
@pytest.mark.parametrize("blocks", [1, 3])
def test_whatever_happens_between_pieces(tmp_path: Path, layout: str, commit: CommitName, blocks: int) -> None:
    """Growth by any steps, restarts, and other keys that come and go."""
    seed = int(os.environ.get("SEED", int.from_bytes(os.urandom(4))))
    print(f"SEED={seed}")
    rng = random.Random(seed)
    grown = Grown(tmp_path / "store", layout, blocks, commit=commit)
    keys = [bytes(8), b"\1" + bytes(7), *(rng.randbytes(8) for _ in range(800 * blocks))]
    stays, goes = keys[: len(keys) // 2], keys[len(keys) // 2 :]
    grown.run([(Op.SET, key, rng.randbytes(8)) for key in keys])
    for _ in range(4):
        found: list[bytes] = []
        seen: dict[bytes, set[bytes]] = {key: {grown.held[key]} for key in stays}
        cursor, keys_only = b"", rng.random() < 0.3
        while True:
            piece = grown.store.scan_step("t", cursor, keys_only=keys_only, keys_max=rng.choice([1, 30, 300, 5000]))
            assert not piece.damaged
            held = dict(grown.held)
            assert set(piece.key_list()) <= held.keys()
            if not keys_only:
                assert all(held[key] == value for key, value in piece.pairs())
            found += piece.key_list()
            cursor = piece.cursor
            if not cursor:
                break
            if rng.random() < 0.3:
                batch: list[Any] = [(Op.SET, key, rng.randbytes(8)) for key in rng.sample(stays, 5)]
                batch += [
                    (Op.SET, key, rng.randbytes(8)) if rng.random() < 0.5 else (Op.DELETE, key)
                    for key in rng.sample(goes, 20)
                ]
                grown.run(batch)
            if rng.random() < 0.2 and grown.index.blocks < 8 * blocks:
                grown.step(rng)
            if rng.random() < 0.02:
                grown.reopen()
        assert len(found) == len(set(found)), "a key came twice"
        assert seen.keys() <= set(found), "a key that was there throughout is missing"
    grown.store.close()
    assert_clean(grown.path)


@BOTH
def test_each_step_has_the_fingerprints_of_its_part(tmp_path: Path, layout: str) -> None:
    """S1 itself, in a table of which half of the blocks have moved: no key before its cursor, none left out."""
    grown = Grown(tmp_path / "store", layout, 4)
    rng = random.Random(5)
    grown.run([(Op.SET, rng.randbytes(8), rng.randbytes(8)) for _ in range(3000)])
    growing, table = grown.store._engine.growth, grown.store._engine.tables[1]
    with grown.store._mutex, growing._waiting(table):
        growing.is_reserved(table, waits=True)
        growing.begin(table)
        growing._advance(table, 2)
    assert (table.index.blocks, table.index.unmoved) == (4, 2)
    root = grown.store._files.root
    cuts = [0, *sorted(rng.getrandbits(64) for _ in range(20)), 1 << 62, 1 << 63]
    whole = pieces_of(grown.store, "t", keys_max=100)
    order = [key for piece in whole for key in piece.key_list()]
    assert len(order) == 3000
    assert set(order) == grown.held.keys()
    ends = [scan.unpack_cursor(piece.cursor, root.store_id, 1) for piece in whole[:-1]]
    assert all(low < high for low, high in pairwise(ends))
    for begin in cuts:  # any fingerprint is a cursor: what is behind it comes in the same order
        rest, cursor = [], scan.pack_cursor(root.store_id, 1, begin)
        while cursor:
            piece = grown.store.scan_step("t", cursor, keys_max=997)
            rest += piece.key_list()
            cursor = piece.cursor
        assert rest == order[len(order) - len(rest) :]
    grown.store.close()


def test_compaction_between_pieces(store_path: Path, commit: CommitName) -> None:
    with gpkvs.open(store_path, **{**SMALL, "heap_bytes": 8 << 20}, heap_bytes_max=8 << 20, commit=commit) as store:
        rng = random.Random(11)
        held = {b"key%d" % n: rng.randbytes(rng.randrange(2000)) for n in range(2000)}
        store.execute(Batch.of([(Op.SET, key, value) for key, value in held.items()]))
        moved, found, cursor = store.info().heap_moved_bytes, {}, b""
        while True:
            piece = store.scan_step(cursor=cursor, keys_max=200)
            found.update(piece.pairs())
            cursor = piece.cursor
            if not cursor:
                break
            store.execute(Batch.of([(Op.SET, b"other%d" % n, rng.randbytes(5000)) for n in range(100)]))
            while store.maintain():
                pass
        assert store.info().heap_moved_bytes > moved, "nothing was moved: the test sees nothing"
        assert {key: value for key, value in found.items() if not key.startswith(b"other")} == held


def test_lengths_versions_and_order_of_results(store: gpkvs.Store) -> None:
    rng = random.Random(3)
    held = {
        rng.randbytes(rng.choice([1, 7, 8, 30, 4096])): rng.randbytes(rng.choice([0, 1, 9, 3000])) for _ in range(500)
    }
    versions = {key: store.set(key, value) for key, value in held.items()}
    pieces = pieces_of(store, bytes_max=50_000)
    assert len(pieces) > 5
    got = {
        key: (value, version)
        for p in pieces
        for (key, value), version in zip(p.pairs(), p.versions.tolist(), strict=True)
    }
    assert got == {key: (value, versions[key]) for key, value in held.items()}
    for piece in pieces:
        assert len(piece) == 1 or len(piece.keys) + len(piece.values) <= 50_000
        assert len(piece.expiries) == 0
        assert piece.expiry_list() == [0] * len(piece)
    keys_only = pieces_of(store, keys_only=True, keys_max=7)
    assert {key for piece in keys_only for key in piece.key_list()} == held.keys()
    assert all(len(piece) <= 7 and len(piece.values) == len(piece.value_lengths) == 0 for piece in keys_only)
    assert {v for piece in keys_only for v in piece.versions.tolist()} == set(versions.values())


def test_a_value_larger_than_a_piece_comes_alone(store: gpkvs.Store) -> None:
    held = {b"key%d" % n: bytes([n]) * (300_000 if n % 3 else 10) for n in range(12)}
    for key, value in held.items():
        store.set(key, value)
    pieces = pieces_of(store, bytes_max=1000)
    assert dict(pair for piece in pieces for pair in piece.pairs()) == held
    assert all(len(piece) <= 1 or len(piece.values) <= 1000 for piece in pieces)


def test_a_prefix(store: gpkvs.Store) -> None:
    rng = random.Random(8)
    held = {rng.choice([b"user:", b"use", b"", b"item:"]) + b"%d" % n: rng.randbytes(100) for n in range(3000)}
    store.execute(Batch.of([(Op.SET, key, value) for key, value in held.items()]))
    for prefix in (b"user:", b"use", b"u", b"item:7", b"nobody", b"x" * 5000):
        expected = {key: value for key, value in held.items() if key.startswith(prefix)}
        assert scanned(store, prefix=prefix, keys_max=rng.choice([10, 300, 9999])) == expected
        assert scanned(store, prefix=prefix, bytes_max=rng.choice([1, 1000])) == expected
    # It looks at more than it may return: as many as a slow machine's step takes, and no fewer than 64.
    assert len(pieces_of(store, prefix=b"nobody", keys_max=1)) <= 3000 // 64 + 1
    assert max(map(len, pieces_of(store, prefix=b"use", keys_max=7))) == 7


@BOTH
def test_an_empty_table_and_one_that_is_mostly_empty(store: gpkvs.Store, layout: str) -> None:
    store.create_table("t", layout=layout, index_bytes=20 << 20)
    assert scanned(store, "t") == {}
    store.execute(Batch.of([(Op.SET, bytes(7) + b"\7", bytes(8))]), table="t")
    pieces = pieces_of(store, "t")
    assert [pair for piece in pieces for pair in piece.pairs()] == [(bytes(7) + b"\7", bytes(8))]
    assert len(pieces) > 1, "one step looked at all of a large index"


def test_records_and_pieces_are_durable_when_they_are_returned(
    store_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With a journal, what shows a batch waits for the flush of that batch."""
    with gpkvs.open(store_path, **SMALL, commit="journal") as store:
        committer, waited = store._engine.committer, [0]
        wait = committer.wait
        monkeypatch.setattr(committer, "wait", lambda gate: waited.append(gate) or wait(gate))  # type: ignore[func-returns-value]
        for number, look in enumerate((lambda: len(store.scan_step()), store.records)):
            batch = Batch.of([(Op.SET, b"key%d" % number, b"value")])
            begun = store.begin_requests(batch.on_table(store.table("default").id))
            assert max(waited) < begun.gate
            assert look() == number + 1
            assert max(waited) >= begun.gate


@pytest.mark.parametrize("cursor", [b"x", b"\1" * 28, b"\1" * 30, b"\2" + b"\1" * 28, bytes(29)])
def test_bytes_that_are_no_cursor(store: gpkvs.Store, cursor: bytes) -> None:
    with pytest.raises(InvalidArgumentError, match="cursor: these bytes are no cursor of a scan"):
        store.scan_step(cursor=cursor)


def test_cursors_of_other_tables_and_stores(store: gpkvs.Store, tmp_path: Path) -> None:
    rng = random.Random(1)
    batch = Batch.of([(Op.SET, rng.randbytes(8), rng.randbytes(8)) for _ in range(100)])
    for name in ("t", "other"):
        store.create_table(name, index_bytes=1 << 16)
        store.execute(batch, table=name)
    cursor = store.scan_step("t", keys_max=10).cursor
    assert len(store.scan_step("t", cursor, keys_max=10)) == 10
    with pytest.raises(InvalidArgumentError, match="cursor: it is of another table"):
        store.scan_step("other", cursor)
    store.drop_table("t")
    with pytest.raises(UnknownTableError):
        store.scan_step("t", cursor)
    store.create_table("t", index_bytes=1 << 16)
    with pytest.raises(InvalidArgumentError, match="cursor: it is of another table, or of one that was dropped"):
        store.scan_step("t", cursor)
    cursor = store.scan_step("other", keys_max=10).cursor
    with gpkvs.open(tmp_path / "second", **SMALL) as second:
        for name in ("t", "other"):
            second.create_table(name, index_bytes=1 << 16)
        with pytest.raises(InvalidArgumentError, match="cursor: it is of another store"):
            second.scan_step("other", cursor)


def test_wrong_arguments(store: gpkvs.Store) -> None:
    store.create_table("n", layout="u64", index_bytes=1 << 16)
    with pytest.raises(InvalidArgumentError, match="prefix: a table of the layout u64 has no prefixes"):
        store.scan_step("n", prefix=b"1")
    with pytest.raises(InvalidArgumentError, match="keys_max: it must be at least 1"):
        store.scan_step(keys_max=0)
    with pytest.raises(InvalidArgumentError, match="bytes_max: it must be at least 1"):
        store.scan_step(bytes_max=0)
    store.close()
    with pytest.raises(StoreClosedError):
        store.scan_step()


def slot_words(store: gpkvs.Store, key: bytes) -> tuple[Any, int]:
    """Return the words of a table's index, and where those of a key's slot begin."""
    index = store._engine.tables[0].index
    words = np.ctypeslib.as_array(
        (np.ctypeslib.ctypes.c_uint64 * (index.region.bytes // 8)).from_address(index.region.address)
    )
    version = int(store.execute(Batch.of([(Op.GET, key)])).versions[0])
    rows = words.reshape(-1, 4)
    return words, 4 * int(np.flatnonzero((rows[:, 3] & np.uint64((1 << 60) - 1)) == version)[0])


def heap_of(store: gpkvs.Store) -> Any:
    heap = store._files.heap
    return np.ctypeslib.as_array((np.ctypeslib.ctypes.c_uint8 * heap.bytes).from_address(heap.address))


@pytest.mark.undo  # the bytes on media are those that are read
def test_damaged_records_are_counted_and_not_returned(tmp_path: Path) -> None:
    with gpkvs.open(tmp_path / "store", **SMALL) as store:
        held = {b"key%03d" % n: b"value of %d" % n for n in range(120)}
        for key, value in held.items():
            store.set(key, value)
        heap = heap_of(store)

        def record_of(key: bytes) -> int:
            words, at = slot_words(store, key)
            return reference_offset(int(words[at + 2])) * UNIT_BYTES

        heap[record_of(b"key007") + HEADER_BYTES + 6 + 2] ^= 4  # its value
        assert sum(piece.damaged for piece in pieces_of(store, keys_only=True)) == 0
        broken = (b"key010", b"key020", b"key030", b"key040", b"key050")
        for offset, key in zip((HEADER_BYTES + 3, 4, VERSION_AT, *LENGTHS_AT), broken, strict=True):
            heap[record_of(key) + offset] ^= 0x15  # its key, table, version, lengths
        words, at = slot_words(store, b"key060")
        words[at + 1] ^= np.uint64(1 << 63)  # its second fingerprint: another bucket
        words, at = slot_words(store, b"key070")
        words[at + 2] = np.uint64((1 << 64) - 1)  # a reference that leaves the heap
        words, at = slot_words(store, b"key080")
        words[at] ^= np.uint64(1 << 63)  # another block
        lost = {b"key%03d" % n for n in (10, 20, 30, 40, 50, 60, 70, 80)}
        for keys_max in (1, 50, 9999):
            pieces = pieces_of(store, keys_only=True, keys_max=keys_max)
            assert {key for piece in pieces for key in piece.key_list()} == held.keys() - lost
            assert sum(piece.damaged for piece in pieces) == len(lost)
            for bytes_max in (1, 100, 1 << 20):
                pieces = pieces_of(store, keys_max=keys_max, bytes_max=bytes_max)
                expected = {key: value for key, value in held.items() if key not in {*lost, b"key007"}}
                assert dict(pair for piece in pieces for pair in piece.pairs()) == expected
                assert sum(piece.damaged for piece in pieces) == len(lost) + 1
        assert sum(piece.damaged for piece in pieces_of(store, prefix=b"key1")) == len(lost)


@pytest.mark.undo
def test_damaged_slots_of_numbers_are_counted_and_not_returned(tmp_path: Path) -> None:
    with gpkvs.open(tmp_path / "store", **SMALL) as store:
        store.create_table("n", layout="u64", index_bytes=1 << 18)
        numbers = np.arange(1000, 2000, dtype=np.uint64)
        store.set_many(numbers, numbers, table="n")
        region = store._engine.tables[1].index.region
        words = np.ctypeslib.as_array(
            (np.ctypeslib.ctypes.c_uint64 * (region.bytes // 8)).from_address(region.address)
        ).reshape(-1, 2)
        slot = np.flatnonzero(words[:, 0] == 1234)[0]
        # A key that belongs in this bucket is no damage: one number in about a thousand.
        for stranger in range(0xDEADBEEFDEADBEEF, 0xDEADBEEFDEADBEEF + 100):
            words[slot, 0] = stranger
            if store.get(stranger.to_bytes(8, "little"), table="n") is None:
                break
        pieces = pieces_of(store, "n", keys_max=100)
        found = np.concatenate([piece.keys.view(np.uint64) for piece in pieces])
        assert sorted(found.tolist()) == [number for number in range(1000, 2000) if number != 1234]
        assert sum(piece.damaged for piece in pieces) == 1


def expiring(pairs: dict[bytes, int]) -> Batch:
    """Return SETs of keys with their expiries."""
    batch = Batch.of([(Op.SET, key, key) for key in pairs])
    return dataclasses.replace(batch, expiries=np.array(list(pairs.values()), np.uint64))


def test_expired_keys_are_removed_before_a_piece_is_seen(
    store_path: Path, commit: CommitName, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The clock goes on, then back: what a scan left out never comes back, also after an opening."""
    clock = [10**12]
    monkeypatch.setattr(counted_time, "MACHINE", counted_time.clocks_set_by(lambda: clock[0]))
    expiries = {b"key%03d" % n: [0, 10**12 + 1000, 10**12 + 5000][n % 3] for n in range(900)}
    with gpkvs.open(store_path, **SMALL, commit=commit) as store:
        store.execute(expiring(expiries))
        pieces = pieces_of(store, keys_only=True, keys_max=100)
        assert {k: e for p in pieces for k, e in zip(p.key_list(), p.expiry_list(), strict=True)} == expiries
        clock[0] += 2000
        left = {key: expiry for key, expiry in expiries.items() if expiry != 10**12 + 1000}
        gone = set(expiries) - set(left)
        pieces = pieces_of(store, keys_max=70)
        assert {k: e for p in pieces for k, e in zip(p.key_list(), p.expiry_list(), strict=True)} == left
        assert store.info().tables[0].records == len(left)
        assert scanned(store, prefix=b"key00", keys_max=3) == {key: key for key in left if key.startswith(b"key00")}
        clock[0] -= 10**6
        assert not gone & scanned(store).keys()
    clock[0] -= 10**6
    with gpkvs.open(store_path) as store:
        assert scanned(store) == dict(zip(left, left, strict=True))
        clock[0] = 10**13
        assert scanned(store).keys() == {key for key, expiry in expiries.items() if not expiry}


@pytest.mark.undo
def test_a_record_that_only_looks_expired_is_damaged_and_stays(
    tmp_path: Path, by_phases: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = [10**12]
    monkeypatch.setattr(counted_time, "MACHINE", counted_time.clocks_set_by(lambda: clock[0]))
    with gpkvs.open(tmp_path / "store", **SMALL) as store:
        store.execute(expiring({b"key%03d" % n: 10**12 + 10**6 for n in range(100)}))
        words, at = slot_words(store, b"key042")
        heap = heap_of(store)
        offset = reference_offset(int(words[at + 2])) * UNIT_BYTES
        heap[offset + 16 : offset + 24].view(np.uint64)[0] = 5  # its expiry
        for keys_only in (True, False):
            pieces = pieces_of(store, keys_only=keys_only)
            assert sum(map(len, pieces)) == 99
            assert sum(piece.damaged for piece in pieces) == 1
        assert store.records() == 100


def test_where_a_part_is_cut() -> None:
    fingerprints = np.array([1, 1, 1, 5, 5, 9], np.uint64)
    weights = np.array([10, 10, 10, 10, 0, 10], np.uint64)
    for keys_max, count in ((1, 3), (2, 3), (3, 3), (4, 5), (5, 5), (6, 6), (7, 6)):
        assert scan.cut(fingerprints, keys_max, None, 0) == count
    for bytes_max, count in ((1, 3), (30, 3), (39, 3), (40, 5), (50, 6)):
        assert scan.cut(fingerprints, 99, weights, bytes_max) == count
    assert scan.cut(fingerprints[:0], 5, weights[:0], 1) == 0


def test_a_step_is_small_while_others_use_the_store(store: gpkvs.Store, monkeypatch: pytest.MonkeyPatch) -> None:
    """Batches that ran a moment ago count, and the scan's own steps do not."""
    clock = [100.0]
    monkeypatch.setattr(traffic, "monotonic", lambda: clock[0])
    monkeypatch.setattr(scan, "_KEYS_IN_USE", 10)
    monkeypatch.setattr(store._engine._scanner, "_adapt", lambda *_, **__: None)  # on a slow machine steps become small
    store.execute(Batch.of([(Op.SET, b"%d" % n, b"") for n in range(300)]))
    assert len(store.scan_step()) <= 10
    clock[0] += 1
    assert len(store.scan_step()) == 300
    store.get(b"1")
    for look in (store.scan_step, lambda: store.scan_step(prefix=b"1"), lambda: store.scan_step(keys_only=True)):
        assert len(look()) <= 10
    clock[0] += 1
    assert len(store.scan_step()) == 300
    store.execute(Batch.of([(Op.SET, b"%d" % n, bytes(1000)) for n in range(300)]))
    monkeypatch.setattr(scan, "_KEYS_IN_USE", 300)
    monkeypatch.setattr(scan, "_BYTES_IN_USE", 10_000)
    assert len(store.scan_step()) < 10
    clock[0] += 1
    assert len(store.scan_step()) == 300


def test_the_size_of_a_step_follows_its_time(store: gpkvs.Store, monkeypatch: pytest.MonkeyPatch) -> None:
    scanner, clock = store._engine._scanner, [0.0]
    monkeypatch.setattr(traffic.Traffic, "is_lately", lambda _: False)
    monkeypatch.setattr(scan, "perf_counter", lambda: clock.append(clock[-1] + seconds) or clock[-1])  # type: ignore[func-returns-value]
    store.execute(Batch.of([(Op.SET, b"%d" % n, b"") for n in range(3000)]))
    seconds, before = 1.0, scanner._keys_max
    assert len(store.scan_step(keys_max=1 << 20)) == 3000
    assert scanner._keys_max == before // 2
    for _ in range(20):
        store.scan_step()
    assert scanner._keys_max == scan._KEYS_MIN
    seconds, cursor = 0.0001, b""
    for _ in range(100):  # steps of some blocks bring a few keys less than a step may have, and say nothing
        if scanner._keys_max == 16 * scan._KEYS_MIN:
            break
        cursor = store.scan_step(cursor=cursor).cursor
    assert scanner._keys_max == 16 * scan._KEYS_MIN
