"""The journal grows while it is used: by extents of the heap's space, in any state of the ring."""

from __future__ import annotations

import errno
import os
import random
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

import gpkvs
from gpkvs.batch import Batch, Op, Status
from gpkvs.engine.commit import journal_growth
from gpkvs.engine.commit.journal_committer import JournalCommitter
from gpkvs.engine.commit.journal_growth import JournalGrowth
from gpkvs.engine.host.native_planner import OPS_MAX
from gpkvs.engine.space import heap_growth
from gpkvs.engine.state.heap import Heap
from gpkvs.errors import CorruptStoreError, InvalidArgumentError, NoSpaceError
from gpkvs.media.journal import Ring
from gpkvs.media.layout import EXTENTS_MAX, NO_SERIAL, ROOT_OFFSETS, Extent, Root
from gpkvs.media.root_copies import RootCopies
from gpkvs.process import failpoint
from gpkvs.recovery.copy.copy import CopySizes, copy_store
from gpkvs.recovery.startup.check import check
from tests.conftest import assert_clean

KIB, MIB = 1 << 10, 1 << 20
# Segments of 64 KiB, those of the journal too.
SMALL = {"index_bytes": 256 * KIB, "heap_bytes": 192 * KIB, "heap_bytes_max": 1 * MIB, "journal_bytes": 1 * MIB}


def opened(path: Path, host_ops_max: int = OPS_MAX, **settings: object) -> gpkvs.Store:
    """Open a store with a journal; without flushes, which take most of the time."""
    settings = {"journal_bytes_max": 16 * MIB, **settings}
    store = gpkvs.open(path, durability="process", commit="journal", **settings)  # type: ignore[arg-type]
    store._backend.host_ops_max = host_ops_max
    return store


def growth_of(store: gpkvs.Store) -> JournalGrowth:
    growth = store._engine._journal_growth
    assert growth
    return growth


def sets_of(count: int, value: bytes = b"v") -> Batch:
    return Batch.of([(Op.SET, b"k%d" % number, value) for number in range(count)])


def require_extents(store: gpkvs.Store) -> None:
    """Fail unless file, root copies, ring, heap and engine agree what is the journal's."""
    files, heap, committer = store._files, store._engine.heap, store._engine.committer
    root = files.root
    assert isinstance(committer, JournalCommitter)
    copies = RootCopies.read(files.root_region).copies
    assert [copy.journal_extents for copy in copies] == [root.journal_extents] * 2  # type: ignore[union-attr]
    assert files.heap.path.stat().st_size >= root.journal_bytes + root.heap_bytes
    in_use = sum(extent.segments for extent in root.journal_extents if extent.serial != NO_SERIAL)
    ring = committer.journal.ring
    assert ring.segments * ring.segment_bytes == root.journal_bytes + in_use * root.segment_bytes
    assert len(set(ring.places.tolist())) == ring.segments
    assert np.flatnonzero(heap.is_absent).tolist() == files.journal_segments.tolist()
    assert store.info().journal_bytes == root.journal_bytes + len(files.journal_segments) * root.segment_bytes
    assert store.info().heap_bytes == heap.present_bytes


def test_any_batches_while_it_grows(tmp_path: Path, host_ops_max: int) -> None:
    """Random batches against a dictionary, with growth in parts, checkpoints, wraps and openings in between."""
    seed = random.randrange(1 << 32)
    print("seed", seed)
    choose = random.Random(seed)
    path, expected = tmp_path / "store", dict[bytes, bytes]()
    store = opened(path, host_ops_max, **SMALL)
    openings = number = 0
    rounds = 0.0
    # As many batches as two rounds of the ring and two extents take, for any seed: chance alone chooses.
    while number < 110 or rounds <= 2 or len(store._files.root.journal_extents) < 2:
        number += 1
        keys = [b"%d" % choose.randrange(2000) for _ in range(choose.choice((1, 30, 1500)))]
        value = b"%d" % number
        store.execute(Batch.of([(Op.SET, key, value) for key in keys]))
        expected.update(dict.fromkeys(keys, value))
        act = choose.random()
        growth = growth_of(store)
        if act < 0.06 and len(store._files.root.journal_extents) < EXTENTS_MAX:
            assert not store._engine._heap_growth.extend_for_journal(choose.randint(1, 12))
            if choose.random() < 0.7:  # else a step of a later batch goes on
                assert growth._finish_unused()
        elif act < 0.16:
            store.close()
            store = opened(path, host_ops_max)
            openings += 1
        elif act < 0.3:
            store._engine.committer.checkpointer.write(paced=False)  # type: ignore[attr-defined]
        if act < 0.3:
            require_extents(store)
        journal = growth._committer.journal
        rounds = journal.last.position / (15 * journal.ring.segment_pages)
    assert number < 400
    assert openings
    store.close()
    assert_clean(path)
    with opened(path) as store:
        require_extents(store)
        assert {key: store.get(key) for key in expected} == expected


def test_a_request_that_the_journal_has_no_room_for(store_path: Path, host_ops_max: int) -> None:
    with opened(store_path, host_ops_max, **{**SMALL, "index_bytes": 2 * MIB, "heap_bytes_max": 8 * MIB}) as store:
        has = store._files.log_entries_max
        store.execute(sets_of(has))
        several = Batch.concatenate([sets_of(has // 2)] * 4)
        assert store.execute_requests(several).requests == 2  # the others get a frame of their own
        assert store.info().journal_bytes == 1 * MIB
        store.execute(sets_of(has + 1))
        size = store.info().journal_bytes
        assert size >= 2 * MIB  # twice of what it was
        require_extents(store)
        store.execute(sets_of(4 * has, b"again"))
        assert store._files.log_entries_max >= 4 * has
        store.execute(sets_of(4 * has, b"third"))
        require_extents(store)
        most = store.limits.request_ops_max
        assert 16 * MIB // 48 // 5 < most < 16 * MIB // 48 // 4
        with pytest.raises(InvalidArgumentError, match="request_ops_max"):
            store.execute(sets_of(most + 1))
    with opened(store_path, host_ops_max) as store:
        require_extents(store)
        assert store.get(b"k%d" % (4 * has - 1)) == b"third"


def test_a_store_of_no_given_size_takes_a_large_request(store_path: Path) -> None:
    """On a disk; by then no index is large."""
    with gpkvs.open(store_path, durability="msync", commit="journal") as store:
        assert store.limits.request_ops_max == 1 << 20
        store.create_table("numbers", layout="u64", index_bytes=16 * MIB)
        numbers = np.arange(400_000, dtype=np.uint64)
        store.set_many(numbers, numbers + 1, table="numbers")
        assert store.info().journal_bytes > 400_000 * 32 * 4
        require_extents(store)
    with gpkvs.open(store_path) as store:
        assert (store.get_many(numbers, table="numbers")[0] == numbers + 1).all()
        require_extents(store)


def test_a_journal_of_one_size_is_fixed(store_path: Path) -> None:
    with opened(store_path, **SMALL, journal_bytes_max=None) as store:
        assert store.limits.request_ops_max == store._files.log_entries_max
        store.create_table("large", index_bytes=8 * MIB)
        store.set(b"k", b"v")
        assert store.info().journal_bytes == 1 * MIB
        assert growth_of(store)._helper is None


@pytest.mark.parametrize("most", [2 * MIB, 16 * MIB])
def test_it_follows_the_indexes(store_path: Path, most: int) -> None:
    deadline = time.monotonic() + 60
    with opened(store_path, **SMALL, journal_bytes_max=most) as store:
        store.create_table("large", index_bytes=8 * MIB)
        wanted = min(most, 4 * MIB + 128 * KIB)
        while store.info().journal.capacity_bytes < wanted * 0.9:  # type: ignore[union-attr]
            assert time.monotonic() < deadline
            store.set(b"k", b"v")
            time.sleep(0.005)
        store.set(b"k", b"v")
        require_extents(store)
        assert wanted <= store.info().journal_bytes < wanted + 64 * KIB
        assert growth_of(store)._helper is None


def test_a_disk_that_refuses(store_path: Path, monkeypatch: pytest.MonkeyPatch, host_ops_max: int) -> None:
    def refuse(*_: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    with opened(store_path, host_ops_max, **{**SMALL, "heap_bytes_max": 8 * MIB}) as store:
        has = store._files.log_entries_max
        store.set(b"before", b"v")
        with monkeypatch.context() as patch:
            patch.setattr(heap_growth, "extend_file", refuse)
            with pytest.raises(NoSpaceError, match=r"log full: .*make room.*the journal asked for .* the disk has"):
                store.execute(sets_of(has + 1))
            reads = store.execute(Batch.of([(Op.GET, b"before")] * (has + 1)))
            assert reads.status.tolist() == [Status.OK] * (has + 1)
            store.delete(b"before")
        monkeypatch.setattr(journal_growth, "_RETRY_SECONDS", 0)
        store.execute(sets_of(has + 1, b"w"))
        assert store.get(b"k%d" % has) == b"w"
        require_extents(store)


def test_a_mapping_that_is_refused(store_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(size: int) -> None:
        raise OSError(errno.ENOMEM, "Cannot allocate memory")

    with opened(store_path, **{**SMALL, "heap_bytes_max": 8 * MIB}) as store:
        has = store._files.log_entries_max
        with monkeypatch.context() as patch:
            patch.setattr(store._files.heap, "grow", refuse)
            with pytest.raises(NoSpaceError, match=r"log full: .*cannot be mapped: Cannot allocate memory"):
                store.execute(sets_of(has + 1))
            store.execute(sets_of(100))
        monkeypatch.setattr(journal_growth, "_RETRY_SECONDS", 0)
        store.execute(sets_of(has + 1, b"w"))
        assert store.get(b"k%d" % has) == b"w"
        require_extents(store)


_LIFE = """
import sys
import gpkvs
from gpkvs.batch import Batch, Op
with gpkvs.open(sys.argv[1], index_bytes=1 << 18, heap_bytes=192 << 10, heap_bytes_max=1 << 20, journal_bytes=1 << 20,
                journal_bytes_max=16 << 20, commit="journal", durability="process") as store:
    life = int(sys.argv[2])
    store.set(b"life", b"%d" % life)
    print("acknowledged", flush=True)
    store._engine._heap_growth.extend_for_journal(2)
    assert store._engine._journal_growth._finish_unused()
    store.execute(Batch.of([(Op.SET, b"k%d" % number, b"%d" % life) for number in range(1000)]))
"""
_POINTS = (*failpoint.HEAP_GROWTH, *failpoint.JOURNAL_GROWTH, "between_roots:2", "between_roots:3", "before_apply:2")


def test_killed_again_and_again_while_it_grows(tmp_path: Path) -> None:
    path, certain = tmp_path / "store", -1  # the last life whose write is durable
    for life, point in enumerate(_POINTS):
        environment = {**os.environ, failpoint.VARIABLE: point}
        arguments = [sys.executable, "-c", _LIFE, str(path), str(life)]
        run = subprocess.run(arguments, env=environment, capture_output=True, text=True, check=False)
        assert run.returncode == -9, (point, run.stderr)
        certain = life if run.stdout == "acknowledged\n" else certain
        with opened(path) as store:
            seen = int(store.get(b"life") or b"-1")
            assert seen in (certain, life)
            certain = seen  # it may be durable though it was not acknowledged
            found = {store.get(b"k%d" % number) for number in range(1000)}
            assert len(found) == 1, "a batch is there in part"
            require_extents(store)
            if point in _POINTS[-3:]:  # what was given is used by the next batches
                deadline = time.monotonic() + 60
                while any(extent.serial == NO_SERIAL for extent in store._files.root.journal_extents):
                    assert time.monotonic() < deadline
                    store.set(b"k", b"v")
                    time.sleep(0.005)
                require_extents(store)
    assert certain >= len(_POINTS) // 2
    assert_clean(path)


def test_places_of_segments_in_use_stay() -> None:
    choose = random.Random(5)
    for _ in range(200):
        ring, serial, end = Ring.of_size(4096, 4096 * choose.randint(2, 9)), 0, 1 << 20
        for _ in range(choose.randint(1, 6)):
            serial += choose.randint(0, 20)
            count = choose.randint(1, 5)
            larger = ring.extended(serial, np.arange(end, end + count * 4096, 4096).astype(np.uint64))
            end += count * 4096
            assert len(set(larger.places.tolist())) == ring.segments + count
            assert set(larger.places.tolist()) > set(ring.places.tolist())
            for used in range(serial - ring.segments + 1, serial + 1):
                assert larger.head_offset(used) == ring.head_offset(used)
            ring = larger


def test_extents_that_cannot_be_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "store"
    with opened(path, **SMALL) as store:
        store.execute(sets_of(2000, bytes(50)))
        store._engine._heap_growth.extend_for_journal(2)
        assert growth_of(store)._finish_unused()
        (extent,) = store._files.root.journal_extents
        wrong = [Extent(extent.first_segment, 99), extent._replace(first_segment=extent.first_segment + 1)]
        holding = store._engine.heap.tail.segment - 1
        assert store._engine.heap.live_units[holding]
    for given in [(wrong[0],), (wrong[1],), (extent, extent)]:
        _change_extents(path, given)
        assert [violation.invariant for violation in check(path).violations] == ["journal-extent"]
        with pytest.raises(CorruptStoreError, match="cannot be the journal's") as refused:
            opened(path)
        assert refused.value.invariant == "journal-extent"
    _change_extents(path, (Extent(holding, 1), extent))
    assert {violation.invariant for violation in check(path).violations} == {"journal-extent"}
    _change_extents(path, (extent,))
    assert_clean(path)


def _change_extents(path: Path, extents: tuple[Extent, ...]) -> None:
    """Say in both root copies what is the journal's."""
    data = bytearray((path / "root").read_bytes())
    root = Root.unpack(bytes(data[:512]))
    for at in ROOT_OFFSETS:
        data[at : at + 512] = replace(root, journal_extents=extents).pack()
    (path / "root").write_bytes(data)


def test_records_never_go_to_an_extent(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """`check` sees a heap that is not told what is the journal's."""
    path = tmp_path / "store"
    monkeypatch.setattr(Heap, "leave", lambda self, segments, **_: None)
    with opened(path, **SMALL) as store:
        store._engine._heap_growth.extend_for_journal(4)
        assert growth_of(store)._finish_unused()
        store.execute(Batch.of([(Op.SET, b"%d" % number, bytes(5000)) for number in range(60)]))
    # The tail of the checkpoint lies there, and so do records.
    assert {violation.invariant for violation in check(path).violations} == {"journal", "journal-extent"}


def test_a_slot_that_rots_into_an_extent_costs_its_key_alone(tmp_path: Path) -> None:
    path = tmp_path / "store"
    with opened(path, **SMALL) as store:
        store.execute(sets_of(100))
        store._engine._heap_growth.extend_for_journal(2)
        assert growth_of(store)._finish_unused()
        place = int(store._files.journal_segments[0]) * store._files.segment_units
        store._engine.committer.checkpointer.write(paced=False)  # type: ignore[attr-defined]
        store._engine.committer.checkpointer.write(paced=False)  # type: ignore[attr-defined]
        slots = store._files.indexes[0].region.words(0, store._files.indexes[0].slots * 4).reshape(-1, 4).copy()
    slot = int(np.flatnonzero(slots[:, 3])[0])
    slots[slot, 2] = np.uint64(place << 24 | 3)
    slots.tofile(path / "index-0-0")
    with opened(path) as store:
        results = store.execute(Batch.of([(Op.GET, b"k%d" % number) for number in range(100)]))
        assert results.status.tolist().count(Status.CORRUPT) == 1
        store.execute(Batch.of([(Op.DELETE, b"k%d" % number) for number in range(100)]))
        store._engine.settle()
        store._engine.committer.release_waiting()
        assert store._engine.heap.live_bytes == 0
        require_extents(store)
    assert_clean(path)


def test_a_copy_has_a_journal_as_large(tmp_path: Path) -> None:
    old, new = tmp_path / "old", tmp_path / "new"
    with opened(old, **SMALL) as store:
        store.execute(sets_of(500))
        store._engine._heap_growth.extend_for_journal(4)
        assert growth_of(store)._finish_unused()
        store.execute(sets_of(700))
        heap_bytes_max = store.info().heap_bytes_max
    copy_store(old, new, CopySizes(), lambda step, share: None, commit="journal")
    with gpkvs.open(new) as store:
        assert store.get(b"k699") == b"v"
        assert not store._files.root.journal_extents
        assert store.info().journal_bytes == 1 * MIB + 4 * 64 * KIB
        assert store.info().heap_bytes_max == heap_bytes_max
    assert_clean(new)


def test_the_limit_of_a_value_does_not_count_the_journal(tmp_path: Path) -> None:
    """A record of more segments than are kept free in a row could find no room in the end."""
    settings = {**SMALL, "heap_bytes": 8 * MIB, "heap_bytes_max": 8 * MIB}
    with opened(tmp_path / "store", **settings) as store:
        limit = store.limits.value_bytes_max
        store.execute(sets_of(60_000, b""))
        assert len(store._files.journal_segments) * store._files.root.segment_bytes > 4 * MIB
    with opened(tmp_path / "store") as store:
        assert store.limits.value_bytes_max == limit


def test_a_batch_does_not_wait_for_a_thread_that_waits_for_the_disk(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(journal_growth, "disk_free_bytes", lambda path: 0)
    with opened(tmp_path / "store", **{**SMALL, "index_bytes": 8 * MIB, "heap_bytes_max": 8 * MIB}) as store:
        store.set(b"key", b"value")
        helper = growth_of(store)._helper
        assert helper
        began = time.monotonic()
        store.execute(sets_of(20_000, b""))
        assert time.monotonic() - began < journal_growth._AHEAD_RETRY_SECONDS / 2
        assert store._files.log_entries_max >= 20_000
        require_extents(store)


def test_it_becomes_half_of_any_indexes(tmp_path: Path) -> None:
    """Also of those whose half is no multiple of a segment."""
    with opened(tmp_path / "store", **SMALL, journal_bytes_max=2 * MIB) as store:
        growth = growth_of(store)
        growth._follows_index = True
        for wanted in (3 * MIB, 3 * MIB + 1, 3 * MIB + 70_000):
            segments = growth._segments_for(wanted, wanted)
            assert store._files.root.journal_bytes_all + segments * 64 * KIB >= wanted
