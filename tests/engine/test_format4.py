"""Records of format 4: the bytes that docs/format.md says, whatever a record's length, with an expiry and without."""

from __future__ import annotations

import random
import struct
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

import gpkvs
from gpkvs.batch import Batch, Op
from gpkvs.config import CommitName
from gpkvs.errors import CorruptRecordError, InvalidArgumentError
from gpkvs.media.layout import UNIT_BYTES, reference_length, reference_offset
from gpkvs.native import crc32c
from tests.conftest import SMALL
from tests.engine.heap_driver import SEGMENT_BYTES
from tests.engine.tables.test_scan import heap_of

DAY = 86_400


@pytest.fixture(params=["undo", "journal"])
def commit(request: pytest.FixtureRequest) -> CommitName:
    name: CommitName = request.param
    return name


@pytest.fixture
def store(store_path: Path, commit: CommitName) -> Iterator[gpkvs.Store]:
    with gpkvs.open(store_path, store_format="4", commit=commit, durability="process", **SMALL) as opened:
        yield opened


def references_of(store: gpkvs.Store) -> list[int]:
    slots = store._files.indexes[0].region.words(0, store.info().tables[0].slots * 4).reshape(-1, 4)
    return [int(slot[2]) for slot in slots if slot[3]]


def records_of(store: gpkvs.Store) -> dict[bytes, tuple[bytes, int, int]]:
    """Read value, version and expiry of all records as docs/format.md has them; fail where a byte is another one."""
    files = store._files
    table = store.info().tables[0]
    slots = files.indexes[0].region.words(0, table.slots * 4).reshape(-1, 4)
    found = {}
    for slot in slots[slots[:, 3] != 0].tolist():
        at, size = reference_offset(slot[2]) * UNIT_BYTES, reference_length(slot[2]) * UNIT_BYTES
        data = files.heap.read(at, size)
        crc, table_id, key_bytes = struct.unpack_from("<IIH", data)
        units, flags, zero, version = int.from_bytes(data[10:13], "little"), data[13], data[14:16], data[16:24]
        assert crc == crc32c(struct.pack("<Q", table_id) + data[8:])
        assert (table_id, units * UNIT_BYTES, zero) == (0, size, b"\0\0")
        expires, padding = flags & 15, flags >> 4
        assert expires == (slot[3] >> 60 == 2)
        header = 32 if expires else 24
        assert data[size - padding :] == bytes(padding)
        key, value = data[header : header + key_bytes], data[header + key_bytes : size - padding]
        expiry = int.from_bytes(data[24:32], "little") if expires else 0
        found[key] = value, int.from_bytes(version, "little"), expiry
        assert size == -(-(header + len(key) + len(value)) // UNIT_BYTES) * UNIT_BYTES
    return found


def test_each_length(store: gpkvs.Store) -> None:
    expected = {}
    for length in range(70):
        for expires in (False, True):
            key = b"k" * (1 + length % 19) + b"%d %d" % (length, expires)
            value = bytes(range(length))
            version = store.set(key, value, **({"ttl": DAY} if expires else {}))
            expected[key] = value, version, expires
    found = records_of(store)
    assert {key: (value, version, expiry > 0) for key, (value, version, expiry) in found.items()} == expected
    for key, (value, version, expires) in expected.items():
        assert store.get_with_version(key) == (value, version)
        assert (store.ttl(key) or 0) <= DAY if expires else store.ttl(key) == float("inf")


@pytest.mark.parametrize("is_large", [False, True])
def test_an_expiry_comes_and_goes(store: gpkvs.Store, is_large: bool) -> None:
    """The record is eight bytes longer with it."""
    lengths = range(0, 40, 3)
    pad = bytes(300) if is_large else b""
    for length in lengths:
        store.set(b"%d" % length, pad + bytes(length))
    live = store.info().heap_live_bytes
    for _ in range(2):
        for length in lengths:
            store.expire(b"%d" % length, DAY)
        assert all(expiry for _, _, expiry in records_of(store).values())
        assert store.info().heap_live_bytes > live
        for length in lengths:
            store.expire(b"%d" % length, None)
        assert not any(expiry for _, _, expiry in records_of(store).values())
        assert store.info().heap_live_bytes == live
    assert [store.get(b"%d" % length) for length in lengths] == [pad + bytes(length) for length in lengths]


def test_numbers_and_appends_keep_the_expiry(store: gpkvs.Store) -> None:
    store.set(b"n", b"9", ttl=DAY)
    for number in range(10, 120):
        assert store.incr(b"n") == number
    store.set(b"a", b"", ttl=DAY)
    text = b""
    for number in range(60):
        store.append(b"a", b"%d" % number)
        text += b"%d" % number
    found = records_of(store)
    assert (found[b"n"][0], found[b"a"][0]) == (b"119", text)
    assert found[b"n"][2]
    assert found[b"a"][2]


@pytest.mark.undo  # a journal's heap is not mapped to be written
def test_rot_in_the_header_is_found(store_path: Path) -> None:
    seed = random.randrange(1 << 32)
    print(f"{seed=}")
    rng, keys = random.Random(seed), [b"key%02d" % i for i in range(48)]
    with gpkvs.open(store_path, store_format="4", commit="undo", durability="process", **SMALL) as store:
        store.execute(Batch.of([(Op.SET, key, b"v" * 40) for key in keys]))
        heap, before = heap_of(store), {}
        for number, reference in enumerate(references_of(store)[:32]):
            at = reference_offset(reference) * UNIT_BYTES + number % 24
            before[at] = int(heap[at])
            heap[at] ^= 1 << rng.randrange(8)
        damaged = 0
        for key in keys:
            try:
                assert store.get(key) == b"v" * 40
            except CorruptRecordError:
                damaged += 1
        assert damaged == len(before)
        for at, byte in before.items():
            heap[at] = byte


@pytest.mark.undo
def test_a_header_of_zeros_is_walked_past(store_path: Path) -> None:
    """Compaction walks a segment from header to header; what rot hides is found by the index."""
    sizes = {**SMALL, "heap_bytes": 20 * SEGMENT_BYTES}
    with gpkvs.open(store_path, store_format="4", commit="undo", durability="process", **sizes) as store:
        assert store._files.root.segment_bytes == SEGMENT_BYTES
        keys = [b"key%04d" % i for i in range(1000)]
        store.execute(Batch.of([(Op.SET, key, b"v" * 200) for key in keys]))
        heap = heap_of(store)
        at = reference_offset(sorted(references_of(store))[7]) * UNIT_BYTES  # in segment 0
        header = bytes(heap[at : at + 24])
        heap[at : at + 24] = 0
        moved = store.info().heap_moved_bytes
        store._engine.free_space.compactor.empty(0)
        assert store.info().heap_moved_bytes - moved > SEGMENT_BYTES // 2
        damaged = []
        for key in keys:
            try:
                assert store.get(key) == b"v" * 200
            except CorruptRecordError:
                damaged.append(key)
        assert len(damaged) == 1
        offsets = [reference_offset(reference) * UNIT_BYTES for reference in references_of(store)]
        (at,) = [offset for offset in offsets if not heap[offset : offset + 24].any()]
        heap[at : at + 24] = np.frombuffer(header, np.uint8)


def test_a_longer_key_than_there_is_place_for(store: gpkvs.Store) -> None:
    assert store.limits.key_bytes_max <= 65_535
    with pytest.raises(InvalidArgumentError):
        store.set(b"k" * 65_536, b"")


@pytest.mark.undo
def test_a_store_keeps_its_format(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    for first, other in (("3", "4"), ("4", "3")):
        path = tmp_path / first
        gpkvs.open(path, store_format=first, **SMALL).close()  # type: ignore[arg-type]
        with gpkvs.open(path, store_format=other) as opened:  # type: ignore[arg-type]
            assert opened.info().store_format.startswith(first)
        assert f"format={other} has no effect" in caplog.text
        caplog.clear()
        gpkvs.open(path, store_format=first).close()  # type: ignore[arg-type]
        assert "no effect" not in caplog.text
