"""Records that are longer than a segment: they have neighbouring segments of their own, beside all other records."""

from __future__ import annotations

import os
import random
from itertools import product
from pathlib import Path

import numpy as np
import pytest

import gpkvs
from gpkvs.batch import Batch, Op
from gpkvs.config import CommitName
from gpkvs.engine.space.compaction import Compactor
from gpkvs.engine.space.neighbours import Step, next_step
from gpkvs.engine.state.heap import Heap, Run, SegmentCounts, Tail, charged_units_max, run_of
from gpkvs.errors import CorruptRecordError, NoSpaceError
from gpkvs.media import directory
from gpkvs.media.layout import (
    RECORD_HEADER_BYTES,
    REFERENCE_LENGTH_BITS,
    UNIT_BYTES,
    reference_length,
    reference_offset,
)
from gpkvs.recovery.copy.records import pack
from gpkvs.recovery.startup.check import check
from tests.conftest import assert_clean
from tests.engine.heap_driver import SEGMENT_BYTES, SEGMENT_UNITS, HeapDriver, ValueBytes
from tests.engine.space.test_compaction import record_offsets, rng, run_lives, write_to_heap

__all__ = ["rng"]  # a fixture
pytestmark = pytest.mark.format3

KEY_BYTES_MAX = 4096
COMMITS: tuple[CommitName, ...] = ("undo", "journal")
_ALL_HEAPS = "GPKVS_ALL_HEAPS" in os.environ  # minutes: `make nightly` does
HEAPS = list(product((8, 16, 33, 64, 100, 128, 512), COMMITS)) if _ALL_HEAPS else [(36, "undo"), (100, "journal")]


def longest(segments: int) -> int:
    """Return the length of the longest value of a heap."""
    share = 1 << max(segments // 16, 1).bit_length() - 1
    return share * SEGMENT_BYTES - RECORD_HEADER_BYTES - KEY_BYTES_MAX


def value_of(segments: float) -> bytes:
    """Return a value whose record, with a key of eight bytes, takes so many segments, to the byte."""
    return random.Random(segments).randbytes(int(segments * SEGMENT_BYTES) - RECORD_HEADER_BYTES - 8)


def mixes(segments: int) -> dict[str, ValueBytes]:
    """Return ways to choose the length of a value."""
    most = longest(segments)
    return {
        "one in ten": lambda rng: rng.randrange(8, SEGMENT_BYTES // 5 if rng.random() < 0.9 else most),
        "all the longest": lambda _: most,
        "any": lambda rng: rng.randrange(8, most),
        "each order": lambda rng: int(8 * (most / 8) ** rng.random()),
        "wasteful": lambda rng: min(most, rng.choice([5000, *(int(SEGMENT_BYTES * by) for by in (0.51, 1.1, 2, 9))])),
    }


@pytest.mark.parametrize("values", mixes(100))
@pytest.mark.parametrize(("segments", "commit"), HEAPS)
def test_any_length_is_accepted(
    tmp_path: Path,
    segments: int,
    commit: CommitName,
    values: str,
    rng: random.Random,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Any write is accepted below the limit, which is met again and again; the driver compares."""
    monkeypatch.setattr(directory, "_SEGMENT_SHARE", 1 << 20)  # the smallest segments
    churn(HeapDriver(tmp_path / "store", segments, rng, commit=commit), mixes(segments)[values], 0.3)


def churn(driver: HeapDriver, value_bytes: ValueBytes, heaps: float) -> None:
    """Write, delete and fill up a heap, so many times its size in all."""
    rng, segments = driver.rng, driver.heap.segments
    driver.fill(value_bytes)
    for number in range(6):
        driver.churn(value_bytes, heaps / 6)
        if number % 2:
            for key in rng.sample(sorted(driver.expected), len(driver.expected) // 3):
                driver.delete(key)
        refusals = 0
        while refusals < 5:
            key = b"new%06d" % rng.randrange(1_000_000)
            refusals += not driver.write(key, rng.randbytes(value_bytes(rng)))
        assert driver.heap.kept_run.segments() == run_of(segments, SEGMENT_UNITS)
    driver.check()
    driver.store.close()


@pytest.mark.parametrize("commit", COMMITS)
def test_kills_lose_nothing_and_wedge_nothing(tmp_path: Path, commit: str, rng: random.Random) -> None:
    assert int(run_lives(tmp_path, 40, commit, rng.randrange(1 << 30), 5)) >= 2


@pytest.mark.parametrize("commit", COMMITS)
def test_a_batch_with_records_of_all_lengths(tmp_path: Path, commit: CommitName) -> None:
    """An opening counts the same; nothing is counted when all of it is gone."""
    path = tmp_path / "store"
    values = {b"key%05d" % i: value_of(by) for i, by in enumerate((0.1, 1.5, 1, 2, 0.6, 3.2, 1 + 1 / 4096, 3.9, 1))}
    with gpkvs.open(path, backend="cpu", heap_bytes=100 * SEGMENT_BYTES, commit=commit) as store:
        store.create_table("other")
        batch = Batch.concatenate([Batch.of([(Op.SET, key, value)]) for key, value in values.items()])
        for table in ("default", "other"):
            result = store.execute_requests(batch.on_table(store.table(table).id))
            assert result.requests == len(values)
            assert not result.rejected
        before = counted(store)
        require_values(store, values)
    assert_clean(path)
    with gpkvs.open(path, backend="cpu") as store:
        assert counted(store) == before
        require_values(store, values)
        for key in values:
            for table in ("default", "other"):
                store.delete(key, table=table)
        store._engine.committer.release_waiting()
        assert not any(map(any, counted(store)))
        assert not store._engine.heap.charged


def counted(store: gpkvs.Store) -> tuple[list[int], list[int]]:
    heap = store._engine.heap
    present = ~heap.is_absent  # a journal that grows has the others
    return heap.live_units[present].tolist(), heap.charged_units[present].tolist()


def require_values(store: gpkvs.Store, values: dict[bytes, bytes]) -> None:
    for table in ("default", "other"):
        assert {key: store.get(key, table=table) for key in values} == values


def test_an_opening_counts_every_segment(store_path: Path) -> None:
    with gpkvs.open(store_path, backend="cpu", heap_bytes=64 * SEGMENT_BYTES) as store:
        store.set(b"key00000", value_of(2.5))
        units = store._engine.heap.live_units[-3:].tolist()
        assert units == [SEGMENT_UNITS, SEGMENT_UNITS, SEGMENT_UNITS // 2]
    with gpkvs.open(store_path, backend="cpu") as store:
        heap = store._engine.heap
        assert heap.live_units[-3:].tolist() == units
        assert heap.charged_units[-3:].tolist() == [SEGMENT_UNITS] * 3
        assert heap.charged == 3 * SEGMENT_UNITS
        store.set(b"key00001", value_of(3.9))
        assert store.get(b"key00000") == value_of(2.5)


def test_a_long_record_takes_nothing_that_its_batch_has_taken(
    store_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What the batch has filled is not counted as live yet."""
    small = value_of(0.999)
    with gpkvs.open(store_path, backend="cpu", heap_bytes=32 * SEGMENT_BYTES) as store:
        heap = store._engine.heap
        monkeypatch.setattr(Compactor, "step", lambda *_, **__: False)
        monkeypatch.setattr(Compactor, "make_run", lambda *_: False)
        monkeypatch.setattr(Heap, "_limit", lambda _: None)
        heap.state[[0, 3, 6]] = 0, 1 << 40, 0  # no reserve, no limit of the charge, no run
        for number in range(32):
            store.set(b"key%05d" % number, small)
        assert heap.free_segments == 0
        for number in (*range(1, 21), 22, 24):
            store.delete(b"key%05d" % number)
        store._engine.committer.release_waiting()
        batch = [(Op.SET, b"new%05d" % number, small) for number in range(20)]  # segments 1 to 20: 22 and 24 are left
        with pytest.raises(NoSpaceError, match="heap full"):
            store.execute(Batch.of([*batch, (Op.SET, b"long0000", value_of(1.9))]))
        store.execute(Batch.of([*batch[:18], (Op.SET, b"long0000", value_of(1.9))]))
        assert store.get(b"long0000") == value_of(1.9)
        for number in range(18):
            assert store.get(b"new%05d" % number) == small


def test_the_promise_names_what_is_kept_for_long_records() -> None:
    """0.85 of the heap without reserve, run and tails."""
    assert charged_units_max(100 * SEGMENT_UNITS, SEGMENT_UNITS) == int(0.85 * (100 - 8 - 6 - 2) * SEGMENT_UNITS)
    assert charged_units_max(31 * SEGMENT_UNITS, SEGMENT_UNITS) == int(0.85 * (31 - 3 - 2) * SEGMENT_UNITS)


def test_records_in_the_way_move(tmp_path: Path, rng: random.Random, monkeypatch: pytest.MonkeyPatch) -> None:
    """They go elsewhere: nothing comes into the segments that are to be free."""
    driver = HeapDriver(tmp_path / "store", 40, rng)
    compactor, heap, cleared = driver.store._engine.free_space.compactor, driver.heap, []
    clear = Compactor._clear

    def clear_and_look(compactor: Compactor, step: Step) -> bool:
        before = heap.live_units.copy()
        is_empty = clear(compactor, step)
        barred = slice(*step.barred)
        assert (heap.live_units[barred] <= before[barred]).all()
        assert not heap.charged_units[step.victim]
        cleared.append(step.victim)
        return is_empty

    monkeypatch.setattr(Compactor, "_clear", clear_and_look)
    driver.fill(lambda rng: rng.randrange(3000, 9000))
    for number, key in enumerate(sorted(driver.expected)):
        if number % 3:  # of half of them, one choice of lengths in a thousand leaves too little room
            driver.delete(key)
    driver.store._engine.committer.release_waiting()
    free = max(map(Run.segments, heap.free_runs()))
    assert compactor.make_run(free + 2)
    assert len(cleared) >= 2
    assert heap.has_run(free + 2)
    driver.check()
    driver.store.close()


def heap_of(picture: str, run: int) -> Heap:
    """Return a heap: `.` free, `t` the tail, `s` half full, `x` absent, digits the parts of long records."""
    size = len(picture)
    counts = SegmentCounts.of(size)
    for segment, kind in enumerate(picture):
        if kind in "ts":
            counts.live[segment] = counts.charged[segment] = counts.ends[segment] = SEGMENT_UNITS // 2
        elif kind.isdigit():
            counts.live[segment] = counts.charged[segment] = SEGMENT_UNITS
            counts.ends[segment] = SEGMENT_UNITS + 1 + int(kind)
    heap = Heap(SEGMENT_BYTES, Tail(picture.index("t"), SEGMENT_UNITS // 2), counts)
    heap.leave(np.flatnonzero([kind == "x" for kind in picture]))
    heap.state[6] = run
    return heap


@pytest.mark.parametrize(
    ("picture", "run", "segments", "expected"),
    [
        pytest.param("t....ss.s..", 2, 3, Run(7, 10), id="the-emptiest-window"),
        pytest.param("t...xs01s01ss01x", 3, 2, None, id="no-room-elsewhere"),
        pytest.param("t.....01.01x", 3, 3, Run(1, 9), id="a-run-passes-a-long-record"),
        pytest.param("t.....01.01x", 5, 2, None, id="nothing-is-gained"),
    ],
)
def test_the_way_to_neighbours(picture: str, run: int, segments: int, expected: Run | None) -> None:
    step = next_step(heap_of(picture, run), segments, set())
    assert (step.barred if step else None) == expected


def test_a_run_passes_no_record_that_is_longer() -> None:
    """It would be moved over itself."""
    assert next_step(heap_of("t..012.012.x", 2), 2, set()) is None
    step = next_step(heap_of("t...012.012.x", 3), 1, set())
    assert step
    assert (step.victim, step.long_to) == (4, 1)


def test_a_record_moves_by_its_reference_whatever_its_header_says(tmp_path: Path, rng: random.Random) -> None:
    """Rot in the header of a long record hides it from the walk; the sweep finds it."""
    driver = HeapDriver(tmp_path / "store", 64, rng)
    for number in range(3):
        driver.write(b"long%d" % number, value_of(1.5))
    before = record_offsets(driver, [b"long1"])[b"long1"]
    write_to_heap(driver, before + 24, b"\xff" * 4)
    compactor, heap = driver.store._engine.free_space.compactor, driver.heap
    compactor._long_to = 10
    compactor.empty(before // SEGMENT_BYTES)
    assert record_offsets(driver, [b"long1"])[b"long1"] == 10 * SEGMENT_BYTES
    assert heap.charged == int(heap.charged_units.sum()) == 6 * SEGMENT_UNITS
    with pytest.raises(CorruptRecordError):
        driver.store.get(b"long1")
    assert driver.store.get(b"long0") == driver.store.get(b"long2") == value_of(1.5)
    driver.store.close()
    assert [violation.invariant for violation in check(tmp_path / "store").violations] == ["record-checksum"]


@pytest.mark.parametrize("commit", COMMITS)
def test_a_store_with_segments_of_a_sixteenth(tmp_path: Path, commit: CommitName, rng: random.Random) -> None:
    """Earlier versions made them: there a record lies in one segment."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(directory, "_SEGMENT_SHARE", 16)
        path, expected = tmp_path / "store", {}
        with gpkvs.open(path, backend="cpu", heap_bytes=48 * SEGMENT_BYTES, commit=commit) as store:
            assert store._files.root.segment_bytes == 2 * SEGMENT_BYTES
    with gpkvs.open(path, backend="cpu") as store:
        assert store.limits.value_bytes_max == longest(48)
        for number in range(200):
            key, value = b"key%d" % rng.randrange(8), rng.randbytes(rng.randrange(8, longest(48)))
            expected[key] = value
            store.set(key, value)
            assert number or store._engine.heap.run == 0
    with gpkvs.open(path, backend="cpu") as store:
        assert {key: store.get(key) for key in expected} == expected
    assert_clean(path)


def test_a_copy_packs_long_records() -> None:
    """Each begins a segment and has it for itself."""
    units = np.array([10, SEGMENT_UNITS + 1, 5, SEGMENT_UNITS, 2 * SEGMENT_UNITS, 7], np.uint64)
    offset, end = pack(units, 0, SEGMENT_UNITS)
    assert (offset // SEGMENT_UNITS).tolist() == [0, 1, 3, 4, 5, 7]
    assert (offset % SEGMENT_UNITS).tolist() == [0] * 6
    assert end == 7 * SEGMENT_UNITS + 7
    assert pack(units[:2], 0, SEGMENT_UNITS)[1] == 3 * SEGMENT_UNITS  # nothing goes behind it
    assert int(units.sum()) * UNIT_BYTES < end * UNIT_BYTES


def test_check_finds_a_record_in_the_segments_of_a_long_one(tmp_path: Path) -> None:
    """Its bytes are nobody's, but the segment is the long record's to its end."""
    path = tmp_path / "store"
    with gpkvs.open(path, heap_bytes=40 * SEGMENT_BYTES, index_bytes=64 << 10, commit="undo") as store:
        store.set(b"long", value_of(1.5))
        store.set(b"small", b"value")
        words = store._files.indexes[0].region.words(0, store._files.indexes[0].slots * 4).reshape(-1, 4)
        slot_of = {int(reference_length(words[slot, 2])): slot for slot in np.flatnonzero(words[:, 3]).tolist()}
        small, long = min(slot_of), max(slot_of)
        reference = int(words[slot_of[small], 2])
        place = int(reference_offset(words[slot_of[long], 2])) + long
        del words
    assert_clean(path)
    heap, index = bytearray((path / "heap").read_bytes()), bytearray((path / "index-0-0").read_bytes())
    begin = (reference >> REFERENCE_LENGTH_BITS) * UNIT_BYTES
    heap[place * UNIT_BYTES : (place + small) * UNIT_BYTES] = heap[begin : begin + small * UNIT_BYTES]
    at = slot_of[small] * 32 + 16
    index[at : at + 8] = (place << REFERENCE_LENGTH_BITS | small).to_bytes(8, "little")
    (path / "heap").write_bytes(heap)
    (path / "index-0-0").write_bytes(index)
    assert [violation.invariant for violation in check(path).violations] == ["record-overlap"]
