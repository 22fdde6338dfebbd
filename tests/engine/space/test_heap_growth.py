"""The heap grows while it is used: nothing is lost, nothing is refused, and a crash in between is nothing."""

from __future__ import annotations

import errno
import logging
import os
import random
import re
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

import gpkvs
from gpkvs.batch import Batch, Op, Status
from gpkvs.config import HEAP_BYTES_MAX, CommitName
from gpkvs.engine.host.native_planner import OPS_MAX
from gpkvs.engine.space import given_space, heap_growth
from gpkvs.engine.space.heap_growth import prefers_growth
from gpkvs.engine.state.heap import SMALL_HEAP_BYTES, Heap, SegmentCounts, Tail
from gpkvs.errors import CorruptStoreError, InvalidArgumentError, NoSpaceError
from gpkvs.media.layout import HEAP_UNITS_MAX, UNIT_BYTES, reference_length, reference_offset
from gpkvs.media.root_copies import RootCopies
from gpkvs.process import failpoint
from tests.conftest import assert_clean

KIB, MIB = 1 << 10, 1 << 20
SMALL = {"index_bytes": 256 * KIB, "heap_bytes": 128 * KIB, "log_bytes": 1 * MIB, "journal_bytes": 4 * MIB}


@pytest.fixture(autouse=True)
def _short_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    has_short_steps(monkeypatch, 64 * KIB)


def has_short_steps(monkeypatch: pytest.MonkeyPatch, least: int) -> None:
    """Have a heap grow by half of itself, from so many bytes to 512 KiB."""
    pace = heap_growth.ON_DISK._replace(step_bytes_min=least, step_bytes_max=512 * KIB)
    monkeypatch.setattr(heap_growth, "pace_of", lambda *_: pace)


def opened(path: Path, host_ops_max: int, **settings: object) -> gpkvs.Store:
    """Open a store with either planner; without flushes, which take most of the time."""
    store = gpkvs.open(path, backend="cpu", durability="process", **settings)  # type: ignore[arg-type]
    store._backend.host_ops_max = host_ops_max
    return store


def sets_of(numbers: range) -> Batch:
    return Batch.of([(Op.SET, b"%d" % number, bytes(4000)) for number in numbers])


def file_of(store: gpkvs.Store) -> tuple[Path, int]:
    """Return the heap's file, and where the heap begins in it."""
    return store._files.heap.path, store._files.root.journal_bytes


def require_heap_end(store: gpkvs.Store) -> None:
    """Fail unless the file, both root copies, the mapping and the engine agree where the heap ends; all is in it."""
    files, heap = store._files, store._engine.heap
    path, offset = file_of(store)
    assert files.root.heap_bytes == heap.bytes == files.heap.bytes
    assert path.stat().st_size >= offset + heap.bytes
    assert len(heap.live_units) == -(-heap.bytes // files.root.segment_bytes)
    copies = RootCopies.read(files.root_region).copies
    assert [copy.heap_bytes for copy in copies] == [heap.bytes] * 2  # type: ignore[union-attr]
    assert heap.tail.segment * heap.segment_units + heap.tail.units <= heap.bytes // UNIT_BYTES
    for index in files.indexes.values():
        if index.has_records:
            slots = index.region.words(0, index.entry.slots * 4).reshape(-1, 4)
            used = slots[slots[:, 3] != 0, 2]
            ends = reference_offset(used) + reference_length(used)
            assert not len(ends) or int(ends.max()) * UNIT_BYTES <= heap.bytes


def test_any_batches_while_it_grows(tmp_path: Path, commit: CommitName, host_ops_max: int) -> None:
    """Random batches against a dictionary, with records longer than a segment and openings in between."""
    seed = random.randrange(1 << 32)
    print("seed", seed)
    choose = random.Random(seed)
    path, expected = tmp_path / "store", dict[bytes, bytes]()
    settings = {**SMALL, "heap_bytes": 1152 * KIB, "heap_bytes_max": 32 * MIB, "commit": commit}
    sizes = set()
    store = opened(path, host_ops_max, **settings)
    assert store._files.root.segment_bytes == 256 * KIB
    assert store.info().heap_bytes % (256 * KIB), "it ends within a segment"
    for _ in range(80):
        operations: list[tuple[Op, bytes] | tuple[Op, bytes, bytes]] = []
        for _ in range(choose.randint(1, 20)):
            key = b"%d" % choose.randrange(300)
            if choose.random() < 0.15:
                operations.append((Op.DELETE, key))
                expected.pop(key, None)
            else:
                value = choose.randbytes(1) * choose.choices((0, 100, 3000, 60_000, 600_000), (3, 3, 3, 3, 0.1))[0]
                operations.append((Op.SET, key, value))
                expected[key] = value
        store.execute(Batch.of(operations))
        require_heap_end(store)
        sizes.add(store.info().heap_bytes)
        if choose.random() < 0.1:
            store.close()
            store = opened(path, host_ops_max)
            require_heap_end(store)
    assert len(sizes) > 5, "it hardly grew"
    for number in range(300):
        assert store.get(b"%d" % number) == expected.get(b"%d" % number)
    store.close()
    with gpkvs.open(path) as store:
        assert {key: store.get(key) for key in expected} == expected
    assert_clean(path)


def test_a_record_that_only_a_larger_heap_takes(store_path: Path, commit: CommitName, host_ops_max: int) -> None:
    with opened(store_path, host_ops_max, **SMALL, heap_bytes_max=64 * MIB, commit=commit) as store:
        assert store.limits.value_bytes_max > 3 * MIB
        value = bytes(range(256)) * 12_000
        assert len(value) > store.info().heap_bytes
        store.set(b"large", value)
        store.execute(Batch.of([(Op.SET, b"%d" % i, value[:40_000]) for i in range(200)]))
        assert store.get(b"large") == value
        assert store.get(b"199") == value[:40_000]
        require_heap_end(store)


def test_it_stops_at_its_largest_size(store_path: Path, commit: CommitName, host_ops_max: int) -> None:
    with opened(store_path, host_ops_max, **SMALL, heap_bytes_max=1 * MIB, commit=commit) as store:
        stored = 0
        while not (refused := store.execute_requests(sets_of(range(stored, stored + 5)))).rejected:
            stored += 5
        refusal = refused.rejected[0]
        assert isinstance(refusal, NoSpaceError)
        assert refusal.resource == "heap"
        assert re.search(r"as large as it may be.*--heap-bytes-max", str(refusal))
        info = store.info()
        assert info.heap_bytes == info.heap_bytes_max == 1 * MIB
        assert stored >= 160  # 0.85 of what reserve and tails leave of 16 segments
        assert not info.heap_growth_waits
        require_heap_end(store)
    with opened(store_path, host_ops_max, heap_bytes_max=2 * MIB) as store:  # a later start allows more
        store.execute(sets_of(range(stored, stored + 100)))
        assert store.info().heap_bytes > 1 * MIB
        assert all(store.get(b"%d" % number) == bytes(4000) for number in range(stored + 100))
        require_heap_end(store)


def test_one_size_alone_is_fixed(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """As in stores that were made before: their roots say 0 for the largest size."""
    path = tmp_path / "store"
    with gpkvs.open(path, **SMALL) as store:  # type: ignore[arg-type]
        assert store.info().heap_bytes == store.info().heap_bytes_max == 128 * KIB
        store._files.roots.change(heap_bytes_max=0)
    with gpkvs.open(path) as store:
        assert store.info().heap_bytes_max == 128 * KIB
        with pytest.raises(NoSpaceError, match="as large as it may be"):
            store.execute(sets_of(range(100)))
    with gpkvs.open(path, heap_bytes_max=8 * MIB) as store:
        for number in range(100):
            store.set(b"%d" % number, bytes(4000))
        grown = store.info().heap_bytes
        assert grown > 128 * KIB
    with gpkvs.open(path, heap_bytes_max=HEAP_BYTES_MAX) as store:
        assert store.info().heap_bytes_max == 64 << 30  # with segments of 64 KiB
    caplog.set_level(logging.WARNING)
    with gpkvs.open(path, heap_bytes_max=128 * KIB) as store:
        assert store.info().heap_bytes == store.info().heap_bytes_max == grown
    assert f"the heap has {grown} bytes, and its file does not become shorter" in caplog.text
    assert_clean(path)


def test_largest_size_that_the_format_holds() -> None:
    assert HEAP_BYTES_MAX == HEAP_UNITS_MAX * UNIT_BYTES


def test_sizes_that_cannot_be_are_refused(tmp_path: Path) -> None:
    for sizes in ({"heap_bytes": 2 * MIB, "heap_bytes_max": 1 * MIB}, {"heap_bytes_max": HEAP_BYTES_MAX + 1}):
        with pytest.raises(InvalidArgumentError):
            gpkvs.open(tmp_path / "store", **sizes)  # type: ignore[arg-type]


_LIFE = """
import sys
import gpkvs
from gpkvs.engine.space import given_space
from gpkvs.engine.space import heap_growth
heap_growth.pace_of = lambda *_: heap_growth.Pace(2, 64 << 10, 64 << 10, 4, 64 << 20)
with gpkvs.open(sys.argv[1], index_bytes=1 << 18, heap_bytes=128 << 10, heap_bytes_max=16 << 20, log_bytes=1 << 20,
                journal_bytes=4 << 20, commit=sys.argv[2], durability="process") as store:
    for number in range(int(sys.argv[3]), 600):
        store.set(b"%d" % number, b"%d" % number * 1000)
        print(number, flush=True)
"""


def test_killed_again_and_again_while_it_grows(tmp_path: Path, commit: CommitName) -> None:
    path, acknowledged = tmp_path / "store", -1
    for point in (*failpoint.HEAP_GROWTH, "between_roots:3"):  # the opening passes the last one too
        environment = {**os.environ, failpoint.VARIABLE: point}
        arguments = [sys.executable, "-c", _LIFE, str(path), commit, str(acknowledged + 1)]
        life = subprocess.run(arguments, env=environment, capture_output=True, text=True, check=False)
        assert life.returncode == -9, life.stderr
        acknowledged = max([acknowledged, *map(int, life.stdout.split())])
        with gpkvs.open(path) as store:
            require_heap_end(store)
            for number in range(acknowledged + 1):
                assert store.get(b"%d" % number) == b"%d" % number * 1000
    assert_clean(path)
    assert acknowledged > 30


def test_a_file_that_is_shorter_than_the_root_says_is_refused(tmp_path: Path, commit: CommitName) -> None:
    path = tmp_path / "store"
    with gpkvs.open(path, **SMALL, heap_bytes_max=16 * MIB, commit=commit) as store:  # type: ignore[arg-type]
        for number in range(100):
            store.set(b"%d" % number, bytes(4000))
        file, size = file_of(store)[0], sum((file_of(store)[1], store.info().heap_bytes))
    os.truncate(file, size + 12_345)  # what a crash leaves behind
    with gpkvs.open(path) as store:
        assert store.get(b"99") == bytes(4000)
        for number in range(100, 300):
            store.set(b"%d" % number, bytes(4000))
        require_heap_end(store)
        size = sum((file_of(store)[1], store.info().heap_bytes))
    assert_clean(path)
    os.truncate(file, size - 4096)
    with pytest.raises(CorruptStoreError, match="file-size"):
        gpkvs.open(path)


def test_free_bytes_of_a_heap_that_ends_inside_a_segment() -> None:
    heap = Heap(1600, Tail(0, 0), SegmentCounts.of(3), size=2 * 1600 + 160)
    heap.allow(10 * 1600)
    address = heap.live_units.ctypes.data
    assert heap.free_units == 210
    assert [heap.end_of(segment) for segment in range(3)] == [100, 100, 10]
    heap.live_units[0] = 5
    heap.tail = Tail(0, 60)
    assert heap.free_units == 40 + 110
    heap.live_units[2] = 1
    heap.tail = Tail(2, 4)
    assert heap.free_units == 6 + 100
    heap.grow(4 * 1600 + 16)
    assert heap.free_units == 96 + 100 + 100 + 1
    assert heap.live_units.ctypes.data == address
    assert heap.live_units.tolist() == [5, 0, 1, 0, 0]


def test_space_that_waits_while_the_heap_grows() -> None:
    heap = Heap(1600, Tail(0, 0), SegmentCounts.of(2))
    heap.live_units[:] = 100
    heap.allow(8000)
    heap.release_later(5, np.array([10, 20], np.uint64))
    heap.grow(3 * 1600)
    heap.live_units[2] = 50
    heap.release_later(5, np.array([1, 0, 7], np.uint64))
    heap.release_later(6, np.array([1, 0], np.uint64))
    assert heap.live_bytes == (250 - 39) * UNIT_BYTES
    assert heap.release_covered(5)
    assert heap.live_units.tolist() == [89, 80, 43]
    assert heap.release_covered(6)
    assert heap.live_units.tolist() == [88, 80, 43]


@pytest.mark.parametrize(
    ("charged", "most", "segments", "expected"),
    [(83, 100, 100, True), (82, 100, 100, False), (0, 100, 7, True), (0, 100, 8, False)],
)
def test_when_a_heap_had_better_grow(charged: int, most: int, segments: int, expected: bool) -> None:
    assert prefers_growth(charged, most, segments, SMALL_HEAP_BYTES // UNIT_BYTES // 8) is expected


@pytest.mark.parametrize(("charged", "expected"), [(48, True), (47, False)])
def test_a_small_heap_grows_earlier(charged: int, expected: bool) -> None:
    segment_units = SMALL_HEAP_BYTES // UNIT_BYTES // 8
    assert prefers_growth(charged, 100, 8, segment_units - 1) is expected
    assert not prefers_growth(charged, 100, 8, segment_units)


def test_space_is_there_ahead_of_the_records(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A batch that finds no room has to wait for the disk: as long as records come slowly, none does."""
    asked: Iterator[int] = iter(())
    with opened(tmp_path / "store", OPS_MAX, **SMALL, heap_bytes_max=64 * MIB) as store:
        monkeypatch.setattr(store._engine._heap_growth, "make_room", lambda needed: next(asked))
        for number in range(300):
            store.set(b"%d" % number, bytes(8000))
            helper = store._engine._heap_growth._helper
            if helper:
                helper.join()
        assert store.info().heap_bytes > 2 * MIB
        result = store.execute(Batch.of([(Op.GET, b"299")]))
        assert result.status.tolist() == [Status.OK]


@pytest.mark.parametrize("who", ["helper", "batch"])
def test_a_refused_step_is_tried_again(store_path: Path, monkeypatch: pytest.MonkeyPatch, who: str) -> None:
    extend_file, asked = heap_growth.extend_file, list[int]()

    def refuse(path: Path, size: int, longer: int, pause: object) -> None:
        asked.append(longer - size)
        raise OSError(errno.EDQUOT, "Disk quota exceeded")

    monkeypatch.setattr(heap_growth, "_RETRY_SECONDS", 0.2)
    monkeypatch.setattr(heap_growth, "_REFUSED_STEP_BYTES_MIN", 128 * KIB)
    has_short_steps(monkeypatch, 512 * KIB)
    if who == "batch":
        monkeypatch.setattr(heap_growth.HeapGrowth, "_begin_ahead", lambda self: None)
    with opened(store_path, OPS_MAX, **SMALL, heap_bytes_max=64 * MIB) as store:
        monkeypatch.setattr(heap_growth, "extend_file", refuse)
        store.execute(sets_of(range(28)))
        with pytest.raises(NoSpaceError, match=r"heap full.*the heap asked for 131,072 bytes more, the disk has"):
            store.execute(sets_of(range(28, 40)))
        assert set(asked) == {512 * KIB, 256 * KIB, 128 * KIB}  # the helper may have begun, too
        assert store.get(b"28") is None
        deadline = time.monotonic() + 60
        while who == "helper" and len(asked) < 9:  # the batch's three, and two rounds of the helper
            assert time.monotonic() < deadline
            time.sleep(0.02)
        monkeypatch.setattr(heap_growth, "extend_file", extend_file)
        if who == "helper":
            while store.info().heap_growth_waits:
                assert time.monotonic() < deadline
                time.sleep(0.02)
        else:
            assert store.info().heap_growth_waits
            time.sleep(0.25)
        store.execute(sets_of(range(28, 40)))
        assert not store.info().heap_growth_waits
        require_heap_end(store)


@pytest.mark.parametrize("who", ["idle", "batches"])
def test_it_waits_no_more_when_keys_were_deleted(
    store_path: Path, monkeypatch: pytest.MonkeyPatch, who: str, commit: CommitName
) -> None:
    """The disk stays full, and nobody needs more of it."""

    def refuse(*_: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(heap_growth, "_RETRY_SECONDS", 0.01)
    monkeypatch.setattr(heap_growth, "_LACK_SECONDS", 0.0)
    monkeypatch.setattr(given_space, "LOOK_SECONDS", 0.0)
    has_short_steps(monkeypatch, 512 * KIB)
    with opened(store_path, OPS_MAX, **SMALL, heap_bytes_max=64 * MIB, commit=commit) as store:
        growth = store._engine._heap_growth

        def look() -> None:
            if who == "idle":
                store.maintain()
            else:
                store.get(b"0")
                store._engine.own_turn.end()

        def fill() -> None:
            for first in range(0, 10_000, 4):
                store.execute(sets_of(range(first, first + 4)))

        monkeypatch.setattr(heap_growth, "extend_file", refuse)
        with pytest.raises(NoSpaceError, match="heap full"):
            fill()
        for _ in range(20):
            look()
            assert store.info().heap_growth_waits, "it still needs more"
        growth._may_end.set()  # as where space was to be given back
        assert growth._helper
        growth._helper.join()
        look()
        assert growth._helper.is_alive(), "it is tried again"
        store.execute(Batch.of([(Op.DELETE, b"%d" % number) for number in range(10_000)]))
        deadline = time.monotonic() + 60
        while store.info().heap_growth_waits:
            assert time.monotonic() < deadline
            look()
        assert not growth._helper.is_alive()
        for _ in range(20):
            look()
            assert not store.info().heap_growth_waits
        with pytest.raises(NoSpaceError, match=r"heap full.*asked for"):
            fill()


@pytest.mark.format3
def test_a_store_of_no_given_size_is_small_and_takes_the_largest_value(tmp_path: Path, commit: CommitName) -> None:
    path = tmp_path / "store"
    with gpkvs.open(path, commit=commit) as store:
        assert sum(file.stat().st_blocks * 512 for file in path.iterdir()) <= 32 * MIB
        assert sum(file.stat().st_size for file in path.iterdir()) <= 32 * MIB
        assert store.info().heap_bytes_max == HEAP_BYTES_MAX
        assert store.limits.value_bytes_max == 16 * MIB
        assert store.limits.key_bytes_max == gpkvs.Limits().key_bytes_max
        value = bytes(range(256)) * (64 * KIB)
        for number in range(3):
            store.set(b"%d" % number * 4096, value)
            assert store.get(b"%d" % number * 4096) == value
        assert store.info().heap_bytes < 128 * MIB
    assert_clean(path)


def test_a_heap_that_is_overwritten_grows_no_further_than_compaction_needs(
    store_path: Path, commit: CommitName, host_ops_max: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It grows while little is overwritten, and is compacted where that frees enough."""
    monkeypatch.setattr(heap_growth, "SMALL_HEAP_BYTES", 0)  # it stands for a large one
    seed = random.randrange(1 << 32)
    print("seed", seed)
    choose = random.Random(seed)
    expected: dict[bytes, bytes] = {}
    settings = {**SMALL, "heap_bytes_max": 16 * MIB, "commit": commit}
    store = opened(store_path, host_ops_max, **settings)
    try:
        assert store._files.root.segment_bytes == 128 * KIB
        for number in range(400):
            keys = [b"%d" % choose.randrange(800) for _ in range(20)]
            values = [choose.randbytes(1) * choose.choice((500, 5000, 9000)) for _ in keys]
            store.execute(Batch.of([(Op.SET, key, value) for key, value in zip(keys, values, strict=True)]))
            expected.update(zip(keys, values, strict=True))
            if number % 100 == 50:
                store.close()
                store = opened(store_path, host_ops_max)
        require_heap_end(store)
        info = store.info()
        assert store._engine.heap.segments >= 8
        written = sum(len(value) for value in expected.values())
        assert info.heap_bytes < 3 * written, "it grew where compaction would have done"
        assert store._engine.heap.moved_units, "nothing was compacted"
        for key, value in expected.items():
            assert store.get(key) == value
    finally:
        store.close()
