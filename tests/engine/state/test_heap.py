"""Where either planner puts a batch's records: over nothing that a crash could bring back, and into all of the heap."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

import gpkvs
from gpkvs.batch import Batch, Op
from gpkvs.engine.host.native_planner import OPS_MAX
from gpkvs.engine.space.compaction import Compactor
from gpkvs.engine.state.heap import Heap, SegmentCounts, Tail
from gpkvs.errors import NoSpaceError
from gpkvs.media.layout import UNIT_BYTES
from tests.record_header import HEADER_BYTES

SEGMENTS = 8
NO_SEGMENT = (1 << 64) - 1
SEGMENT_BYTES = 64 << 10
TINY = {"index_bytes": 64 << 10, "heap_bytes": SEGMENTS * SEGMENT_BYTES, "log_bytes": 256 << 10}

Operation = tuple[Op, bytes] | tuple[Op, bytes, bytes]


@pytest.fixture(params=[OPS_MAX, 0], ids=["at-once", "by-phases"])
def tiny(request: pytest.FixtureRequest, store_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[gpkvs.Store]:
    """Return a store of eight segments, with either planner; users may fill them all, and nothing is compacted."""
    with gpkvs.open(store_path, backend="cpu", **TINY) as store:
        assert store._files.root.segment_bytes == SEGMENT_BYTES
        monkeypatch.setattr(store._backend, "host_ops_max", request.param)
        monkeypatch.setattr(Compactor, "step", lambda *_, **__: False)
        store._engine.heap.state[:4] = 0, NO_SEGMENT, 0, 1 << 40  # no reserve, no limit of the charge
        yield store


def run(store: gpkvs.Store, operations: list[Operation]) -> None:
    store.execute(Batch.of(operations))


def value_of(share: int) -> bytes:
    """Return a value whose record, with a key of eight bytes, takes such a part of a segment, to the byte."""
    return bytes(SEGMENT_BYTES // share - HEADER_BYTES - 8)


def held_units(store: gpkvs.Store) -> set[int]:
    """Return every unit of the heap that a slot refers to."""
    slots = store._files.indexes[0].region.words(0, store.info().tables[0].slots * 4).reshape(-1, 4)
    references = slots[slots[:, 3] != 0, 2].tolist()
    return {unit for reference in references for unit in range(reference >> 24, (reference >> 24) + reference % 2**24)}


def held_segments(store: gpkvs.Store) -> set[int]:
    return {unit * UNIT_BYTES // SEGMENT_BYTES for unit in held_units(store)}


def keys(prefix: bytes, count: int) -> list[bytes]:
    return [prefix + b"%05d" % i for i in range(count)]


@pytest.mark.undo
@pytest.mark.parametrize("freed_by", [Op.SET, Op.DELETE], ids=["overwritten", "deleted"])
def test_a_batch_stores_over_nothing_in_the_tail_segment_that_it_frees(tiny: gpkvs.Store, freed_by: Op) -> None:
    """I7: until the batch is durable, a crash brings back what it frees."""
    run(tiny, [(Op.SET, key, b"before") for key in keys(b"old", 20)])
    before = held_units(tiny)
    kept = keys(b"old", 20) if freed_by is Op.SET else keys(b"new", 20)
    removed: list[Operation] = [] if freed_by is Op.SET else [(Op.DELETE, key) for key in keys(b"old", 20)]
    run(tiny, [*removed, *[(Op.SET, key, b"after") for key in kept]])
    assert len(held_segments(tiny)) == 1, "the batch did not empty the segment that it appends to"
    assert not before & held_units(tiny)
    # From the next batch on, it may.
    run(tiny, [(Op.DELETE, key) for key in kept])
    run(tiny, [(Op.SET, key, b"again") for key in keys(b"old", 20)])
    assert held_units(tiny) == before


@pytest.mark.parametrize("emptied", [0, 3, SEGMENTS - 1])
def test_a_batch_stores_into_no_segment_that_it_empties(tiny: gpkvs.Store, emptied: int) -> None:
    """I7: also where that is the only one with room."""
    names = keys(b"key", 2 * SEGMENTS)
    for key in names:
        run(tiny, [(Op.SET, key, value_of(2))])
    assert held_segments(tiny) == set(range(SEGMENTS))
    freed = names[2 * emptied : 2 * emptied + 2]
    with pytest.raises(NoSpaceError, match="heap full"):
        run(tiny, [*[(Op.DELETE, key) for key in freed], (Op.SET, b"new00000", value_of(2))])
    with pytest.raises(NoSpaceError, match="heap full"):
        run(tiny, [(Op.SET, key, value_of(2)) for key in freed])
    run(tiny, [(Op.DELETE, key) for key in freed])
    assert held_segments(tiny) == set(range(SEGMENTS)) - {emptied}
    run(tiny, [(Op.SET, b"new00000", value_of(2))])
    assert held_segments(tiny) == set(range(SEGMENTS))


def test_a_record_may_end_with_its_segment(tiny: gpkvs.Store) -> None:
    """The heap holds what its size says."""
    names = keys(b"key", 4 * SEGMENTS)
    for first in range(0, len(names), 8):
        run(tiny, [(Op.SET, key, value_of(4)) for key in names[first : first + 8]])
    assert len(held_units(tiny)) * UNIT_BYTES == tiny.info().heap_bytes
    assert tiny.info().heap_free_bytes == 0
    assert all(tiny.get(key) == value_of(4) for key in names)


def test_a_batch_that_fills_the_heap_stops_at_its_own_records(tiny: gpkvs.Store) -> None:
    run(tiny, [(Op.SET, b"first000", b"v")])
    names = keys(b"key", 2 * SEGMENTS)
    with pytest.raises(NoSpaceError, match="heap full"):
        run(tiny, [(Op.SET, key, value_of(2)) for key in names])
    assert held_segments(tiny) == {0}
    run(tiny, [(Op.SET, key, value_of(2)) for key in names[1:]])
    assert all(tiny.get(key) == value_of(2) for key in names[1:])
    assert tiny.get(b"first000") == b"v"


@pytest.mark.undo
def test_free_bytes_are_those_that_records_can_take(tiny: gpkvs.Store) -> None:
    whole = tiny.info().heap_bytes
    assert tiny.info().heap_free_bytes == whole
    run(tiny, [(Op.SET, b"key00000", value_of(4))])
    assert tiny.info().heap_free_bytes == whole - SEGMENT_BYTES // 4
    run(tiny, [(Op.DELETE, b"key00000")])
    assert tiny.info().heap_free_bytes == whole


def test_space_that_waits_is_one_note_for_each_epoch() -> None:
    """A table is dropped in many steps, and no batch may come between: the notes would grow with its index."""
    heap = Heap(SEGMENT_BYTES, Tail(0, 0), SegmentCounts(*np.full((3, 2), 100, np.uint64)))

    def units(*counts: int) -> np.ndarray:
        return np.array(counts, np.uint64)

    for _ in range(10):
        heap.release_later(5, units(1, 2))
    assert len(heap._freed) == 1
    heap.release_later(6, units(0, 7))
    heap.release_later(6, units(4, 0))
    assert len(heap._freed) == 2
    assert heap.freed_epoch == 6
    assert heap.live_bytes == (200 - 30 - 11) * UNIT_BYTES  # of what is counted, but it is not used again yet
    assert heap.live_units.tolist() == [100, 100]
    assert not heap.release_covered(4)
    assert heap.release_covered(5)
    assert heap.live_units.tolist() == [90, 80]
    assert heap.release_covered(6)
    assert heap.live_units.tolist() == [86, 73]
    assert heap.freed_epoch == 0
    assert heap.live_bytes == (86 + 73) * UNIT_BYTES


def test_absent_segments_are_not_free_until_they_are_back() -> None:
    counts = SegmentCounts.of(32)
    heap = Heap(SEGMENT_BYTES, Tail(0, 0), counts)
    whole = heap.free_segments, heap.free_units, heap.emptied_units, heap.reserve, heap.charged_max
    absent = np.arange(20, 26)
    heap.leave(absent)
    assert heap.free_segments == whole[0] - 6
    assert heap.emptied_segments == heap.free_segments
    assert heap.reserve == 3
    assert heap.charged_max < whole[4]
    assert heap.present_bytes == 26 * SEGMENT_BYTES
    assert heap.live_bytes == 0
    assert np.flatnonzero(heap.is_absent).tolist() == absent.tolist()
    heap.take_back(absent)
    assert (heap.free_segments, heap.free_units, heap.emptied_units, heap.reserve, heap.charged_max) == whole
