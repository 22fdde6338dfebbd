"""Space that the heap does not need goes back to the file system, and is there again before a record goes to it."""

from __future__ import annotations

import errno
import logging
import os
import random
import re
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest

import gpkvs
from gpkvs.batch import Batch, Op
from gpkvs.config import CommitName
from gpkvs.engine.host.native_planner import OPS_MAX
from gpkvs.engine.space import given_space, heap_growth
from gpkvs.engine.space.given_space import FREE_SECONDS, TAKES_BACK_SHARE, SpareSegments, spare_segments
from gpkvs.engine.space.heap_growth import prefers_growth
from gpkvs.engine.state.heap import (
    COMPACTED_SEGMENTS_MIN,
    SMALL_HEAP_BYTES,
    Heap,
    SegmentCounts,
    Tail,
    charged_units_max,
)
from gpkvs.errors import NoSpaceError
from gpkvs.media.file_space import holes, punch
from gpkvs.media.layout import UNIT_BYTES, reference_length, reference_offset
from gpkvs.native import library
from gpkvs.process import failpoint
from tests.conftest import assert_clean

KIB, MIB = 1 << 10, 1 << 20
SEGMENT_BYTES = 64 * KIB
_TMPFS = 0x01021994  # statfs(2)


@pytest.fixture
def _on_a_disk(tmp_path: Path) -> None:
    # On a tmpfs, space that was reserved looks like a hole.
    with (tmp_path / "probe").open("wb") as file:
        if library.gpkvs_filesystem(file.fileno()) == _TMPFS:
            pytest.skip("the directory of temporary files (TMPDIR) is a tmpfs")


def on_a_disk(test: Callable[..., None]) -> Callable[..., None]:
    """Skip a test of holes where temporary files are in memory."""
    return pytest.mark.machine(pytest.mark.usefixtures("_on_a_disk")(test))


class Clock:
    """The clock of what is given back."""

    def __init__(self) -> None:
        self.seconds = 1000.0

    def __call__(self) -> float:
        return self.seconds


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    moved = Clock()
    monkeypatch.setattr(given_space, "now", moved)
    return moved


@pytest.fixture(autouse=True)
def _short_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    pace = heap_growth.ON_DISK._replace(step_bytes_min=128 * KIB, step_bytes_max=512 * KIB)
    monkeypatch.setattr(heap_growth, "pace_of", lambda *_: pace)
    small_ones_are(monkeypatch, 0)  # their heaps stand for large ones


def small_ones_are(monkeypatch: pytest.MonkeyPatch, size: int) -> None:
    """Say below which size a heap keeps more space."""
    for module in (given_space, heap_growth):
        monkeypatch.setattr(module, "SMALL_HEAP_BYTES", size)


def create(path: Path, commit: CommitName) -> None:
    """Make a store whose segments are as small as can be, and whose heap may become much larger."""
    sizes = {"index_bytes": 512 * KIB, "heap_bytes": 128 * KIB, "heap_bytes_max": 1 * MIB, "log_bytes": 1 * MIB}
    gpkvs.open(path, **sizes, journal_bytes=2 * MIB, commit=commit).close()  # type: ignore[arg-type]


def opened(path: Path, host_ops_max: int = OPS_MAX) -> gpkvs.Store:
    store = gpkvs.open(path, backend="cpu", durability="process", heap_bytes_max=64 * MIB)
    store._backend.host_ops_max = host_ops_max
    assert store._files.root.segment_bytes == SEGMENT_BYTES
    return store


def value_of(number: int) -> bytes:
    return b"%d " % number * 400


def fill(store: gpkvs.Store, count: int) -> None:
    for first in range(0, count, 100):
        numbers = range(first, min(first + 100, count))
        store.execute(Batch.of([(Op.SET, b"%d" % number, value_of(number)) for number in numbers]))


def delete(store: gpkvs.Store, numbers: list[int]) -> None:
    for first in range(0, len(numbers), 100):
        store.execute(Batch.of([(Op.DELETE, b"%d" % number) for number in numbers[first : first + 100]]))


def idle(store: gpkvs.Store, clock: Clock, seconds: float) -> None:
    """Let a store be idle, as in a server."""
    for _ in range(-(-int(seconds) // 5)):
        while store.maintain():
            pass
        cover(store)
        clock.seconds += 5
        store.maintain()
        wait_for_helper(store)


def cover(store: gpkvs.Store) -> None:
    """Do what the thread of a journal does a moment after the last batch."""
    store._engine.committer.release_waiting()


def wait_for_helper(store: gpkvs.Store) -> None:
    for thread in (store._engine._heap_growth._giver, store._engine._heap_growth._helper):
        if thread:
            thread.join(60)
            assert not thread.is_alive()


def heap_file_bytes(store: gpkvs.Store) -> int:
    """Return the space that the heap has on the disk."""
    path, offset, size = store._files.heap.path, store._files.root.journal_bytes, store._files.root.heap_bytes
    return size - sum(last - first for first, last in holes(path, offset, size))


def require_no_use_of_holes(store: gpkvs.Store) -> None:
    """Fail unless each segment that may get records has its space: no store meets a hole."""
    files, heap, given = store._files, store._engine.heap, store._engine._heap_growth._given
    offset = files.root.journal_bytes
    for first, last in holes(files.heap.path, offset, heap.bytes):
        for segment in range((first - offset) // SEGMENT_BYTES, -(-(last - offset) // SEGMENT_BYTES)):
            assert heap.is_absent[segment], f"segment {segment} has a hole, and is used"
    assert heap.absent == np.count_nonzero(heap.is_absent) >= len(given.segments)
    assert not heap.is_absent[heap.tail.segment]
    assert not heap.charged_units[heap.is_absent].any()
    for index in files.indexes.values():
        slots = index.region.words(0, index.entry.slots * 4).reshape(-1, 4)
        used = slots[slots[:, 3] != 0, 2]
        assert not heap.is_absent[(reference_offset(used) // np.uint64(heap.segment_units)).astype(np.int64)].any()
        if len(used):
            assert int((reference_offset(used) + reference_length(used)).max()) * UNIT_BYTES <= heap.bytes


@on_a_disk
def test_what_is_deleted_goes_back_and_comes_again(
    store_path: Path, commit: CommitName, host_ops_max: int, clock: Clock
) -> None:
    """The aim: 90 % deleted, 120 s idle, heap file over live at most 1.5 and ten segments."""
    create(store_path, commit)
    count, choose = 3000, random.Random(1)
    with opened(store_path, host_ops_max) as store:
        fill(store, count)
        wait_for_helper(store)
        gone = choose.sample(range(count), count * 9 // 10)
        left = sorted(set(range(count)) - set(gone))
        delete(store, gone)
        idle(store, clock, 5)
        store.get(b"0")  # the heap takes over what a growth that began meanwhile has brought
        before = store.info().heap_bytes
        assert store.info().heap_given_bytes == 0
        idle(store, clock, FREE_SECONDS - 15)
        assert heap_file_bytes(store) == before, "it went back before a minute was over"
        idle(store, clock, 70)
        info = store.info()
        assert info.heap_bytes == before
        assert heap_file_bytes(store) == before - info.heap_given_bytes
        segments = 10 + store._engine.heap.run  # of segments so small, many are kept for long records
        assert heap_file_bytes(store) <= 1.5 * info.heap_live_bytes + segments * SEGMENT_BYTES
        require_no_use_of_holes(store)
        assert all(store.get(b"%d" % number) == value_of(number) for number in left)
        idle(store, clock, 20)  # of a smaller heap, fewer neighbours are kept
        given, stays = store.info().heap_given_bytes, heap_file_bytes(store)
        idle(store, clock, 200)
        assert (store.info().heap_given_bytes, heap_file_bytes(store)) == (given, stays), "it never ends"
    with opened(store_path, host_ops_max) as store:
        require_no_use_of_holes(store)
        assert store.info().heap_given_bytes == given
        assert all(store.get(b"%d" % number) == value_of(number) for number in left)
        fill(store, count)
        wait_for_helper(store)
        require_no_use_of_holes(store)
        assert store.info().heap_bytes < before + given / 4, "the file grew, though it had holes"
        assert store.info().heap_given_bytes < given / 4
        assert all(store.get(b"%d" % number) == value_of(number) for number in range(count))


@on_a_disk
def test_any_batches_while_space_comes_and_goes(
    store_path: Path, commit: CommitName, host_ops_max: int, clock: Clock
) -> None:
    """Random batches against a dictionary, with idle minutes and openings in between."""
    seed = random.randrange(1 << 32)
    print("seed", seed)
    choose = random.Random(seed)
    expected: dict[bytes, bytes] = {}
    create(store_path, commit)
    store, punched = opened(store_path, host_ops_max), 0
    for phase in range(6):
        grows = phase % 3 != 2
        for _ in range(12):
            operations: list[tuple[Op, bytes] | tuple[Op, bytes, bytes]] = []
            for _ in range(40):
                key = b"%d" % choose.randrange(1200)
                if choose.random() < (0.1 if grows else 1.0):
                    operations.append((Op.DELETE, key))
                    expected.pop(key, None)
                else:
                    value = choose.randbytes(1) * choose.choices((0, 100, 3000, 9000, 200_000), (4, 4, 4, 4, 0.1))[0]
                    operations.append((Op.SET, key, value))
                    expected[key] = value
            store.execute(Batch.of(operations))
            clock.seconds += choose.random() * 30
            if choose.random() < 0.3:
                store.maintain()
                require_no_use_of_holes(store)
        idle(store, clock, choose.choice((0, 30, 70, 130)))
        punched = max(punched, store.info().heap_given_bytes)
        require_no_use_of_holes(store)
        if choose.random() < 0.4:
            store.close()
            store = opened(store_path, host_ops_max)
            require_no_use_of_holes(store)
            punched = max(punched, store.info().heap_given_bytes)
    assert punched, "nothing went back"
    assert all(store.get(b"%d" % number) == expected.get(b"%d" % number) for number in range(1200))
    store.close()
    assert_clean(store_path)


_LIFE = """
import sys
import gpkvs
from gpkvs.batch import Batch, Op
from gpkvs.engine.space import given_space
from gpkvs.engine.space import heap_growth
heap_growth.pace_of = lambda *_: heap_growth.Pace(2, 128 << 10, 128 << 10, 4, 64 << 20)
clock = [1000.0]
given_space.now = lambda: clock[0]
value = lambda number: b"%d " % number * 400
with gpkvs.open(sys.argv[1], durability="process", heap_bytes_max=64 << 20) as store:
    for turn in range(3):
        for first in range(0, 800, 50):
            store.execute(Batch.of([(Op.SET, b"%d" % number, value(number)) for number in range(first, first + 50)]))
        print("full", flush=True)
        store.execute(Batch.of([(Op.DELETE, b"%d" % number) for number in range(800) if number % 10]))
        print("few", flush=True)
        for _ in range(30):
            while store.maintain():
                pass
            store._engine.committer.release_waiting()
            clock[0] += 5
            store.maintain()
            # While one thread still extends the file, nothing is given back: on a busy machine that takes its time.
            for thread in (store._engine._heap_growth._helper, store._engine._heap_growth._giver):
                if thread:
                    thread.join()
"""


@on_a_disk
def test_killed_again_and_again_while_space_comes_and_goes(tmp_path: Path, commit: CommitName) -> None:
    path = tmp_path / "store"
    create(path, commit)
    has_given, said = 0, list[str]()
    late_sync = "before_heap_sync:14"  # a life may end before so many
    killed = set()
    for point in (*failpoint.GIVEN_SPACE, late_sync):
        environment = {**os.environ, failpoint.VARIABLE: point}
        life = subprocess.run(
            [sys.executable, "-c", _LIFE, str(path)], env=environment, capture_output=True, text=True, check=False
        )
        assert life.returncode in (0, -9), life.stderr
        if life.returncode or point == late_sync:
            killed.add(point)
        said += life.stdout.split()
        with opened(path) as store:
            require_no_use_of_holes(store)
            has_given = max(has_given, store.info().heap_given_bytes)
            for number in range(0, 800, 10):
                assert store.get(b"%d" % number) == value_of(number)
            for number in range(1, 800, 10):
                assert store.get(b"%d" % number) in (None, value_of(number))
        assert_clean(path)
    assert killed == {*failpoint.GIVEN_SPACE, late_sync}
    assert has_given
    assert said.count("few") >= 3


def test_space_goes_only_when_the_newest_batch_is_durable(
    store_path: Path, commit: CommitName, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else an opening may find the tail in a segment that is a hole."""
    create(store_path, commit)
    done: list[str] = []
    with opened(store_path) as store:
        growth = store._engine._heap_growth
        monkeypatch.setattr(growth, "_wait", lambda gate: done.append(f"waits for {gate}"))
        monkeypatch.setattr(given_space, "punch", lambda *where: done.append("punches"))
        fill(store, 1000)
        delete(store, list(range(950)))
        idle(store, clock, 70)
        gate = store._engine.committer.read_gate()
        monkeypatch.undo()
    assert done[0].startswith("waits for")
    assert done[1] == "punches"
    assert commit == "undo" or int(done[0].split()[-1]) > 0
    assert gate >= 0


def test_no_byte_is_written_where_nearly_all_is_live(store_path: Path, commit: CommitName, clock: Clock) -> None:
    create(store_path, commit)
    with opened(store_path) as store:
        fill(store, 1500)
        delete(store, list(range(0, 1500, 20)))
        wait_for_helper(store)
        while store.maintain():
            pass
        cover(store)
        store._engine.settle()
        heap, root = store._engine.heap, store._files.root
        before = (heap.moved_units, store._engine.committer.read_gate(), root.heap_bytes, root.sequence)
        idle(store, clock, 90)
        root = store._files.root
        assert (heap.moved_units, store._engine.committer.read_gate(), root.heap_bytes, root.sequence) == before
        spare = store.info().heap_given_bytes
        assert spare <= root.heap_bytes - 1.4 * store.info().heap_live_bytes


@on_a_disk
def test_a_size_that_is_asked_for_stays(store_path: Path, clock: Clock, commit: CommitName) -> None:
    with gpkvs.open(
        store_path, index_bytes=512 * KIB, heap_bytes=1 * MIB, journal_bytes=2 * MIB, commit=commit
    ) as store:
        fill(store, 300)
        delete(store, list(range(300)))
        idle(store, clock, 200)
        assert heap_file_bytes(store) == 1 * MIB
        assert not store.info().heap_given_bytes
    with gpkvs.open(store_path) as store:  # this opening asks for nothing
        idle(store, clock, 70)
        assert heap_file_bytes(store) == COMPACTED_SEGMENTS_MIN * SEGMENT_BYTES


def test_a_file_system_that_cannot(
    store_path: Path,
    commit: CommitName,
    clock: Clock,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    def refuse(*where: object) -> None:
        raise OSError(errno.EOPNOTSUPP, "Operation not supported")

    create(store_path, commit)
    monkeypatch.setattr(given_space, "punch", refuse)
    with opened(store_path) as store:
        fill(store, 1500)
        with caplog.at_level(logging.WARNING):
            delete(store, list(range(1400)))
            idle(store, clock, 300)
        assert len([record for record in caplog.records if "not given back" in record.getMessage()]) == 1
        assert not store._engine.heap.absent
        assert heap_file_bytes(store) == store.info().heap_bytes
        assert not store.info().heap_given_bytes
        fill(store, 1500)


@on_a_disk
def test_a_batch_takes_space_back_that_the_thread_has_not(
    store_path: Path, commit: CommitName, host_ops_max: int, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And a disk that refuses is named, and tried again."""
    create(store_path, commit)
    with opened(store_path, host_ops_max) as store:
        fill(store, 2000)
        wait_for_helper(store)
        delete(store, list(range(1900)))
        idle(store, clock, 130)
        given, free = store.info().heap_given_bytes, store.info().heap_free_bytes
        assert given > 10 * SEGMENT_BYTES
        monkeypatch.setattr(heap_growth.HeapGrowth, "_begin_ahead", lambda self: None)
        store.execute(Batch.of([(Op.SET, b"more%d" % i, bytes(8000)) for i in range(free // 8000 + 20)]))
        assert store.info().heap_given_bytes < given
        require_no_use_of_holes(store)

        def refuse(*where: object) -> None:
            raise OSError(errno.ENOSPC, "No space left on device")

        reserve = given_space.reserve
        monkeypatch.setattr(given_space, "reserve", refuse)
        monkeypatch.setattr(heap_growth, "_RETRY_SECONDS", 0.0)
        given = store.info().heap_given_bytes
        refusal, last = None, 0
        while refusal is None:
            try:
                store.set(b"and%d" % last, bytes(8000))
                last += 1
            except NoSpaceError as error:
                refusal = error
        assert re.search(r"the heap asked for [0-9,]+ bytes more, the disk has .* bytes free", str(refusal))
        assert "the disk has" in store.info().heap_growth_waits
        assert store.info().heap_given_bytes == given
        require_no_use_of_holes(store)
        assert store.delete(b"and0")  # what needs no space goes on
        store.set(b"and1", bytes(8000))
        monkeypatch.setattr(given_space, "reserve", reserve)
        for number in range(2, 2 * last):
            store.set(b"and%d" % number, bytes(8000))
        assert not store.info().heap_growth_waits
        require_no_use_of_holes(store)


def test_growth_that_waits_ends_where_space_is_given_back(
    store_path: Path, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else the thread takes again what was given back, for ever."""

    def refuse(*where: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    create(store_path, "undo")
    with opened(store_path) as store:
        extend_file = heap_growth.extend_file
        fill(store, 1000)
        wait_for_helper(store)
        monkeypatch.setattr(heap_growth, "extend_file", refuse)
        with pytest.raises(NoSpaceError):
            fill(store, 5000)
        assert store.info().heap_growth_waits
        delete(store, list(range(5000)))
        for _ in range(20):
            while store.maintain():
                pass
            clock.seconds += 5
            store.maintain()
        wait_for_helper(store)
        clock.seconds += 5
        store.maintain()
        wait_for_helper(store)
        given = store.info().heap_given_bytes
        assert given
        assert not store.info().heap_growth_waits
        monkeypatch.setattr(heap_growth, "extend_file", extend_file)
        idle(store, clock, 100)
        assert store.info().heap_given_bytes >= given


def test_a_sparse_copy_is_filled_before_it_is_used(
    store_path: Path, commit: CommitName, monkeypatch: pytest.MonkeyPatch
) -> None:
    create(store_path, commit)
    with opened(store_path) as store:
        fill(store, 700)
        wait_for_helper(store)
        file, offset, tail = store._files.heap.path, store._files.root.journal_bytes, store._engine.heap.tail
    end = tail.segment * SEGMENT_BYTES + -(-tail.units * UNIT_BYTES // 4096) * 4096
    punch(file, offset + end, (tail.segment + 1) * SEGMENT_BYTES - end)  # the rest of the tail's segment

    def refuse(*where: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as full_disk:
        full_disk.setattr(given_space, "reserve", refuse)
        with pytest.raises(NoSpaceError, match=r"has holes where records or the journal are.*--sparse=never"):
            opened(store_path)
    with opened(store_path) as store:
        require_no_use_of_holes(store)
        assert not store._engine.heap.is_absent[tail.segment]
        fill(store, 1000)
        assert store.get(b"999") == value_of(999)


def test_a_small_heap_keeps_more(monkeypatch: pytest.MonkeyPatch) -> None:
    """So much that it will not grow again at once."""
    small_ones_are(monkeypatch, SMALL_HEAP_BYTES)
    live = np.zeros(60, np.uint64)
    live[:6] = 8192
    heap = Heap(8192 * UNIT_BYTES, Tail(6, 0), SegmentCounts(live, live.copy(), live.copy()))
    spare = spare_segments(heap)
    assert 60 - 6 / 0.4 - 10 < spare < 60 - 6 / 0.4
    heap.leave(np.flatnonzero(heap.live_units == 0)[-spare:])
    assert not prefers_growth(heap.charged, heap.charged_max, heap.present_segments, heap.segment_units)


def heaps() -> Iterator[Heap]:
    """Make heaps whose records are packed, or spread over segments that are half full."""
    for segment_units in (4096, 4 * MIB // UNIT_BYTES):
        for segments in (8, 9, 16, 40, 63, 64, 70, 100, 200, 1000):
            for full in (0, 1, segments // 20, segments // 4, segments // 2, segments * 6 // 10):
                for share in (1.0, 0.51):
                    used = min(int(full / share), segments - 4)
                    live = np.zeros(segments, np.uint64)
                    live[:used] = int(segment_units * share)
                    yield Heap(segment_units * UNIT_BYTES, Tail(used, 0), SegmentCounts(live, live.copy(), live.copy()))


@pytest.mark.parametrize("small_bytes", [0, SMALL_HEAP_BYTES])
def test_what_a_heap_will_not_miss(small_bytes: int, monkeypatch: pytest.MonkeyPatch) -> None:
    small_ones_are(monkeypatch, small_bytes)
    for heap in heaps():
        before = heap.segments
        while spare := spare_segments(heap):
            heap.leave(np.flatnonzero(heap.live_units == 0)[-spare:])
            assert heap.absent < before
        present = before - heap.absent
        assert present >= COMPACTED_SEGMENTS_MIN
        if heap.absent:
            most = int(0.98 * heap.charged_max)
            assert not prefers_growth(heap.charged, most, present, heap.segment_units, TAKES_BACK_SHARE), (
                "taken at once"
            )
            assert heap.free_segments >= heap.reserve + 2
            assert heap.charged_max == charged_units_max(present * heap.segment_units, heap.segment_units, heap.longest)
        packed = heap.charged / heap.segment_units
        used, run = np.count_nonzero(heap.charged_units), 0 if heap.segment_units > 4096 else heap.run
        if used < packed + 1:  # compaction has packed it
            small = min(packed / 0.36 + 12, small_bytes // UNIT_BYTES // heap.segment_units)
            assert present <= max(1.5 * packed + 10 + run, small, COMPACTED_SEGMENTS_MIN), (before, packed)


def test_tails_stay(clock: Clock) -> None:
    heap = Heap(4096 * UNIT_BYTES, Tail(29, 0), SegmentCounts.of(30), size=30 * 4096 * UNIT_BYTES - 4096)
    heap.survivors, heap.tail = 27, Tail(28, 0)
    spare = SpareSegments(heap, 0)
    assert not len(spare.find())
    clock.seconds += FREE_SECONDS - 1
    assert not len(spare.find())
    heap.live_units[20] = 1
    assert not len(spare.find())
    heap.live_units[20] = 0
    clock.seconds += 2
    found = spare.find()
    assert not {20, 27, 28, 29} & set(found.tolist()), "in use a moment ago, tails, and one that is not whole"
    assert found.tolist() == [*range(20), *range(21, 27)][-len(found) :]
    assert len(found) == spare_segments(heap) > 10


@on_a_disk
def test_what_is_about_to_go_back_can_be_had_again(
    store_path: Path, commit: CommitName, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A thread waits for the newest batch before it punches; a heap of the largest size needs the space meanwhile."""
    create(store_path, commit)
    with gpkvs.open(store_path, backend="cpu", durability="process", heap_bytes_max=3 * MIB) as store:
        fill(store, 900)
        delete(store, list(range(850)))
        growth, may_go_on = store._engine._heap_growth, threading.Event()
        wait = growth._wait
        monkeypatch.setattr(growth, "_wait", lambda gate: (may_go_on.wait(60), wait(gate)))
        for _ in range(20):
            while store.maintain():
                pass
            cover(store)
            clock.seconds += 5
            store.maintain()
            if growth._helper:
                growth._helper.join(60)  # it may still make the file longer
        giver = growth._giver
        assert giver
        assert giver.is_alive()
        assert growth.given_bytes
        fill(store, 900)
        may_go_on.set()
        giver.join(60)
        require_no_use_of_holes(store)
        for number in range(900):
            assert store.get(b"%d" % number) == value_of(number)
    assert_clean(store_path)
