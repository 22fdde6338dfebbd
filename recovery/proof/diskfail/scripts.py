"""What scripts do in a life: what is held where, and what runs meanwhile (`schedules`).

Heaps have seven segments, too few to be compacted, and a large record fills most of one. So a script knows where the
next record goes: into the next segment in which nothing is live.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from random import Random

from gpkvs.batch import Op
from gpkvs.media import journal
from gpkvs.media.directory import BLOBS_FILE, ROOT_FILE
from gpkvs.media.layout import BYTES_LAYOUT, PAGE_BYTES, U64_LAYOUT
from gpkvs.recovery.proof.diskfail.disk import Choice, Disk, Write
from gpkvs.recovery.proof.diskfail.expected import TableName
from gpkvs.recovery.proof.diskfail.life import KEYS, LifeError, Request, Shape
from gpkvs.recovery.proof.diskfail.stage import DEFAULT, LARGE_BYTES, Stage
from gpkvs.recovery.proof.model import Asked

_KIB = 1 << 10
_SEGMENTS = 7
SHAPE = replace(
    Shape.of(Random(0)), index_bytes=64 * _KIB, heap_bytes=_SEGMENTS * 64 * _KIB, heap_bytes_max=0, delay_us=0
)
_BLOB = 70_000
_FRAME_PAGES_MAX = 10  # of a batch that changes each key of a table of numbers, and of one behind it
GROWING = replace(SHAPE, heap_bytes=128 * _KIB, heap_bytes_max=_SEGMENTS * 64 * _KIB)
LARGER = replace(SHAPE, heap_bytes=16 * 64 * _KIB)
WITH_BLOBS = replace(LARGER, store_format="4")

Script = Callable[[Stage], None]
Crash = Callable[[Disk], Choice | None]  # what a crash keeps; None: it is a kill, and the power may fail later


def _fill(stage: Stage, *free: int) -> None:
    """Fill each segment of the heap with a large record, of the key with its number, then free some segments."""
    for segment in range(_SEGMENTS):
        stage.run(stage.sets(segment, value_bytes=LARGE_BYTES))
    if free:
        stage.run(stage.deletes(*free))
        stage.cover()
        stage.run(stage.sets(100))  # frees what is covered


def _two_uncovered(stage: Stage) -> None:
    """Leave two durable frames that no frame covers: the record of the first, in segment 1, is dead by the second."""
    _fill(stage, 1, 2)
    stage.hold()
    sent = [stage.execute(stage.sets(1, value_bytes=LARGE_BYTES)) for _ in range(2)]
    stage.release()
    for each in sent:
        stage.life.wait(each)


# W1: who is told of what is not durable.


def told_too_early(stage: Stage) -> None:
    """Have callers wait for a write, a batch that changes nothing in the end, and a read of the write."""
    stage.open()
    stage.run(stage.sets(1))
    stage.hold()
    nothing: Request = (DEFAULT, [*stage.sets(3)[1], *stage.deletes(3)[1]])
    reads: Request = (DEFAULT, [(Op.GET, KEYS[DEFAULT.layout][2])])
    sent = [stage.execute(request) for request in (nothing, stage.sets(2), reads)]
    for each in reversed(sent):
        told = stage.start(partial(stage.life.wait, each))
    stage.attempt(told.result)
    stage.look()
    stage.release()
    for each in sent:
        stage.life.wait(each)


def followed_too_early(stage: Stage) -> None:
    """Have a follower be told of writes whose flush is held, and of those before and behind them."""
    stage.open()
    following = stage.life.follow()
    stage.run(stage.sets(1))
    stage.hold()
    sent = [stage.execute(request) for request in (stage.sets(2), stage.deletes(1), stage.sets(1, 3))]
    stage.wait_held()
    told = stage.attempt(partial(stage.life.hear, following))
    stage.look()
    stage.let_through()  # it covers the first ones
    stage.attempt(partial(stage.life.hear, following))
    stage.look()
    stage.release()
    for each in sent:
        stage.life.wait(each)
    told.result()
    stage.life.hear(following)
    stage.look()
    following.close()


# E2: who is told that a key is gone which had expired.


def gone_too_early(stage: Stage) -> None:
    """Have a caller ask for a key that has expired, while its removal is not durable; ask again after a crash."""
    stage.open()
    key = KEYS[DEFAULT.layout][1]
    stage.run((DEFAULT, [Asked(Op.SET, key, b"expires", expiry=stage.life.now + 10)]), stage.sets(2))
    stage.life.now += 10
    stage.hold()
    sent = stage.execute((DEFAULT, [(Op.GET, key)]))
    stage.attempt(partial(stage.life.wait, sent))
    stage.look()
    stage.release()
    stage.life.wait(sent)
    stage.look()


# W6, W4: who uses the space of a dead record that an uncovered frame names.


def space_of_uncovered(stage: Stage) -> None:
    """Want space while a dead record is named by a frame that is durable and not covered."""
    stage.open()
    _two_uncovered(stage)
    stage.hold()
    small = stage.execute(stage.sets(101))  # its frame would cover them, and is not durable
    stage.wait_held()
    stage.watch()
    large = stage.attempt(lambda: stage.run(stage.sets(2, value_bytes=LARGE_BYTES)))
    stage.look()
    stage.release()
    large.result()
    stage.ignore()
    stage.life.wait(small)


def leave_uncovered(stage: Stage) -> None:
    """Leave a durable frame that no frame covers, whose record is dead."""
    stage.open()
    _two_uncovered(stage)
    stage.crash()


def use_at_once(stage: Stage) -> None:
    """Use what the opening found free, before any frame of this life is durable, if that can be."""
    stage.stop_at("before_first_frame")
    opening = stage.start(stage.open)
    if stage.wait_stopped(opening):
        stage.hold()
    stage.go_on()
    stage.attempt(opening.result)
    if opening.done():  # else the opening waits for its first frame
        sent = stage.execute(stage.sets(2, value_bytes=LARGE_BYTES))
    else:
        stage.let_through()
        opening.result()
        sent = stage.execute(stage.sets(2, value_bytes=LARGE_BYTES))
    stage.wait_held()
    stage.look()
    stage.watch()
    stage.release()
    stage.life.wait(sent)
    stage.ignore()


def cover_too_much(stage: Stage) -> None:
    """Have a batch that lacks space append an empty frame while the frame before is not durable."""
    stage.open()
    _fill(stage)
    stage.run(stage.deletes(3))  # durable, and not covered
    stage.hold()
    sent = [stage.execute(stage.sets(101))]
    stage.wait_held()
    sent.append(stage.execute(stage.sets(102)))  # its frame waits for the flush
    large = stage.attempt(lambda: stage.run(stage.sets(103, value_bytes=LARGE_BYTES)))  # so does the empty one
    stage.let_through()
    stage.wait_held(2)
    stage.look()
    stage.release()
    stage.watch()
    large.result()
    stage.ignore()
    for each in sent:
        stage.life.wait(each)


def drop_in_flight(stage: Stage) -> None:
    """Drop a table while the newest batch changes it, one before changes another table, and neither is durable."""
    stage.open()
    table = stage.life.create(Random(1), BYTES_LAYOUT.name)
    stage.run(stage.sets(1))
    stage.run(stage.sets(1, table=table))
    stage.hold()
    sent = [stage.execute(stage.sets(1, value_bytes=LARGE_BYTES)), stage.execute(stage.sets(2, table=table))]
    stage.wait_held()
    stage.watch()
    dropped = stage.attempt(lambda: stage.life.drop(table))
    stage.look()
    stage.release()
    dropped.result()
    stage.ignore()
    for each in sent:
        stage.life.wait(each)


def space_of_dropped(stage: Stage) -> None:
    """Use the space of a dropped table while no frame covers the batches that named it."""
    stage.open()
    table = stage.life.create(Random(1), BYTES_LAYOUT.name)
    for segment in range(16):
        if segment not in (1, 2):
            stage.run(stage.sets(segment, value_bytes=LARGE_BYTES))
        else:  # the segments with the records of the table
            stage.run(stage.sets(segment, value_bytes=LARGE_BYTES, table=table))
            stage.run(stage.sets(100 + segment))
    stage.hold()
    both = [stage.execute(stage.sets(50)), stage.execute(stage.sets(51, table=table))]
    stage.release()
    for each in both:
        stage.life.wait(each)
    stage.life.drop(table)
    stage.hold()
    sent = stage.execute(stage.sets(104))
    stage.wait_held()
    stage.watch()
    large = stage.attempt(lambda: stage.run(stage.sets(60, value_bytes=LARGE_BYTES)))
    stage.look()
    stage.release()
    large.result()
    stage.ignore()
    stage.life.wait(sent)


# Blobs: they are durable before a frame is called so, and their pages are used again as W6 says.


def _with_free_blob(stage: Stage) -> None:
    """Open a store in which key 1 has a blob, and as many pages are free: the file need not get longer."""
    stage.open()
    stage.run(stage.sets(1, value_bytes=_BLOB))
    stage.run(stage.sets(3, value_bytes=_BLOB))
    stage.run(stage.deletes(3))
    stage.cover()
    stage.run(stage.sets(101))  # frees what is covered


def blob_over_another(stage: Stage) -> None:
    """Set a key that has a blob to another one, longer and shorter, and delete it; everything is watched."""
    stage.open()
    stage.run(stage.sets(1, value_bytes=_BLOB))
    stage.watch()
    stage.run(stage.sets(1, value_bytes=_BLOB + PAGE_BYTES))  # the file gets longer
    stage.run(stage.sets(1))
    stage.run(stage.deletes(1))
    stage.ignore()


def blob_not_flushed(stage: Stage) -> None:
    """Have a caller wait for a large value while the flush of its blob is held."""
    _with_free_blob(stage)
    stage.hold(BLOBS_FILE)
    sent = stage.execute(stage.sets(1, value_bytes=_BLOB))
    told = stage.attempt(partial(stage.life.wait, sent))
    stage.look()
    stage.release()
    told.result()
    stage.look()


def space_of_uncovered_blob(stage: Stage) -> None:
    """Want pages while two batches of one key are durable and not covered: the blob of the first one is dead."""
    stage.open()
    stage.hold()
    sent = [stage.execute(stage.sets(1, value_bytes=_BLOB)) for _ in range(2)]
    stage.release()
    for each in sent:
        stage.life.wait(each)
    stage.hold()
    small = stage.execute(stage.sets(101))  # its frame would cover them, and is not durable
    stage.wait_held()
    stage.watch()
    large = stage.attempt(lambda: stage.run(stage.sets(2, value_bytes=_BLOB)))
    stage.look()
    stage.release()
    large.result()
    stage.ignore()
    stage.life.wait(small)


def space_of_blob_in_flight(stage: Stage) -> None:
    """Want pages while the batch that frees a blob is not durable."""
    _with_free_blob(stage)
    stage.hold()
    sent = stage.execute(stage.sets(1, value_bytes=_BLOB))
    stage.wait_held()
    stage.watch()
    large = stage.attempt(lambda: stage.run(stage.sets(2, value_bytes=_BLOB)))
    stage.look()
    stage.release()
    large.result()
    stage.ignore()
    stage.life.wait(sent)


def blob_kept(stage: Stage) -> None:
    """Give a key with a blob an expiry, write another blob, give it one again, and delete it; everything is watched."""
    stage.open()
    stage.run(stage.sets(1, value_bytes=_BLOB))
    stage.watch()
    stage.run(stage.expires(1))
    stage.run(stage.sets(2, value_bytes=_BLOB))
    stage.run(stage.expires(1))
    stage.run(stage.deletes(1))
    stage.run(stage.sets(3, value_bytes=_BLOB))
    stage.ignore()


def blob_kept_before_its_flush(stage: Stage) -> None:
    """Have a caller wait for the expiry of a key while the flush of its blob is held."""
    _with_free_blob(stage)
    stage.hold(BLOBS_FILE)
    sent = [stage.execute(request) for request in (stage.sets(1, value_bytes=_BLOB), stage.expires(1))]
    told = stage.attempt(partial(stage.life.wait, sent[1]))
    stage.look()
    stage.release()
    told.result()
    stage.look()
    stage.life.wait(sent[0])


def space_of_kept_blob(stage: Stage) -> None:
    """Want pages while the batch that keeps a blob is not durable, and again while it is not covered."""
    _with_free_blob(stage)
    stage.hold()
    sent = stage.execute(stage.expires(1))
    stage.wait_held()
    stage.watch()
    large = stage.attempt(lambda: stage.run(stage.sets(2, value_bytes=_BLOB), stage.sets(4, value_bytes=_BLOB)))
    stage.look()
    stage.release()
    large.result()
    stage.run(stage.sets(1, value_bytes=_BLOB))
    stage.ignore()
    stage.life.wait(sent)


def killed_before_blob_flush(stage: Stage) -> None:
    """Crash while a large value and its frame are written, and the flush of the blob is held."""
    _with_free_blob(stage)
    stage.hold(BLOBS_FILE)
    stage.execute(stage.sets(1, value_bytes=_BLOB))
    stage.wait_held()
    stage.crash()
    stage.release()


# W2: what a checkpoint shows of a batch whose slots are being stored.


def stored_by_halves(stage: Stage) -> None:
    """Write checkpoints while a batch has stored half of its slots: its frame is on its way, or it is durable."""
    stage.open()
    keys = range(len(KEYS[DEFAULT.layout]))
    stage.run(stage.sets(*keys))
    stage.checkpoint()
    for is_on_its_way in (True, False):
        if is_on_its_way:
            stage.hold()
        stage.stop_at("mid_apply")
        storing = stage.start(lambda: stage.run(stage.sets(*keys)))
        if not stage.wait_stopped(storing):
            raise LifeError("no batch has stored half of its slots")
        writing = stage.attempt(stage.checkpoint)
        stage.look()
        stage.release()
        writing.result()
        stage.look()
        stage.go_on()
        storing.result()
        stage.checkpoint()  # it has the other half
        stage.look()


# W3: who uses the journal while a checkpoint ends.


def _fill_journal(stage: Stage, table: TableName, batches: int) -> None:
    """Run batches whose frames have some pages each, as long as the journal surely has room for the next."""
    for _ in range(batches):
        if stage.journal.used_pages + _FRAME_PAGES_MAX > stage.journal.ring.capacity:
            return
        begin = stage.journal.last.position
        _run_wide(stage, table)
        assert stage.journal.last.position <= begin + _FRAME_PAGES_MAX


def _run_wide(stage: Stage, table: TableName) -> None:
    stage.run(stage.sets(*range(len(KEYS[table.layout])), table=table))
    stage.run(stage.sets(1))


def more_than_fits(stage: Stage) -> None:
    """Run batches for which the journal has no room; then write the checkpoint that makes some."""
    stage.open()
    table = stage.life.create(Random(1), U64_LAYOUT.name)
    _fill_journal(stage, table, 45)

    def run_more() -> None:
        for _ in range(8):
            _run_wide(stage, table)

    more = stage.attempt(run_more)
    stage.look()
    stage.checkpoint()
    more.result()
    stage.look()


def journal_while(point: str, stage: Stage) -> None:
    """Fill the journal while a checkpoint stands at a point, as far as the store lets it be filled."""
    stage.open()
    table = stage.life.create(Random(1), U64_LAYOUT.name)
    _fill_journal(stage, table, 5)
    stage.checkpoint()  # so that the ring is used from somewhere in the middle of a segment
    _fill_journal(stage, table, 20)
    stage.stop_at(point)
    writing = stage.start(stage.checkpoint)
    if stage.wait_stopped(writing):
        _fill_journal(stage, table, 45)  # more than the ring holds
    stage.look()
    stage.go_on()
    writing.result()
    stage.look()
    _fill_journal(stage, table, 1)
    stage.look()


def leave_full_journal(stage: Stage) -> None:
    """Fill the journal, so that the next opening writes a checkpoint before its first frame."""
    stage.open()
    table = stage.life.create(Random(1), U64_LAYOUT.name)
    _fill_journal(stage, table, 15)
    stage.checkpoint()
    _fill_journal(stage, table, 45)
    stage.crash()


def leave_frames(stage: Stage) -> None:
    """Leave frames that only the journal has."""
    stage.open()
    _fill_journal(stage, stage.life.create(Random(1), U64_LAYOUT.name), 20)
    stage.crash()


def go_on_filling(stage: Stage) -> None:
    """Fill the journal behind the frames of the life before, which a replay still needs."""
    stage.open()
    _fill_journal(stage, next(table for table in stage.tables if table.layout == U64_LAYOUT.name), 45)
    stage.look()


def root_while_used_again(stage: Stage) -> None:
    """Store a root when the whole journal was used again since the copies were made."""
    stage.open()
    table = stage.life.create(Random(1), U64_LAYOUT.name)
    for _ in range(3):
        _fill_journal(stage, table, 20)
        stage.checkpoint()
    _fill_journal(stage, table, 3)
    stage.watch()
    stage.checkpoint()
    stage.ignore()


# The heap grows.


def heap_grows(stage: Stage) -> None:
    """Have records come that the heap has no room for; everything is watched."""
    stage.open()
    stage.watch()
    for key in range(4):
        stage.run(stage.sets(key, value_bytes=LARGE_BYTES))
    stage.ignore()


def journal_grows(stage: Stage) -> None:
    """Have the ring grow while it is full, and what is in use goes over its end; then go round in the larger one."""
    stage.open()
    assert stage.store
    engine, table = stage.store._engine, stage.life.create(Random(1), U64_LAYOUT.name)
    _fill_journal(stage, table, 12)
    stage.checkpoint()
    _fill_journal(stage, table, 45)
    while stage.journal.used_pages < stage.journal.ring.capacity:
        stage.run(stage.sets(1))
    assert engine._journal_growth
    for segments in (2, 1):
        stage.watch()
        assert not engine._heap_growth.extend_for_journal(segments)
        assert engine._journal_growth._finish_unused()
        stage.ignore()
        _fill_journal(stage, table, 2)
        stage.look()
    for number in range(_SEGMENTS + 2):  # a small record stays in each segment: in the end, the heap has no free one
        stage.checkpoint()
        _fill_journal(stage, table, 2)
        stage.run(stage.sets(number % 2, value_bytes=LARGE_BYTES), stage.sets(50 + number))
        stage.look()


# W7, W5: a table that grows.


def grow_twice(stage: Stage) -> None:
    """Have a table grow twice, with batches and checkpoints between the steps; the last step waits for its flush."""
    stage.open()
    stage.run(stage.sets(*range(100)))
    assert stage.store
    growing, table = stage.store._engine.growth, stage.store._engine.tables[DEFAULT.id]
    for _ in range(2):
        assert growing.is_reserved(table, waits=True)
        growing.begin(table)
        stage.run(stage.sets(1))
        while table.index.unmoved > 1:
            growing.move_to(table, table.index.unmoved - 1)
            stage.run(stage.sets(2, 3))
            stage.look()
            stage.checkpoint()
            stage.look()
        stage.hold()
        growing.move_to(table, 0)
        finishing = stage.attempt(lambda: growing.finish(table))
        stage.look()
        stage.release()
        finishing.result()
        stage.run(stage.sets(4))
        stage.look()
        stage.checkpoint()


# The roots.


def two_checkpoints(stage: Stage) -> None:
    """Write two checkpoints."""
    stage.open()
    stage.watch()
    for _ in range(2):
        stage.run(stage.sets(1, 2, 3))
        stage.checkpoint()
    stage.ignore()


def closing(stage: Stage) -> None:
    """Close the store, whose journal has batches: the close writes a checkpoint, and then nothing is left to replay."""
    stage.open()
    stage.run(stage.sets(1, 2, 3))
    stage.run(stage.deletes(2))
    stage.run(stage.sets(4, value_bytes=LARGE_BYTES))
    stage.watch()
    stage.close()
    stage.ignore()
    stage.crash()


def second_root_under_way(stage: Stage) -> None:
    """Crash while the second root copy is on its way."""
    stage.open()
    stage.run(stage.sets(1, 2, 3))
    stage.hold(ROOT_FILE)
    writing = stage.start(stage.checkpoint)
    stage.wait_held()
    stage.let_through()
    stage.wait_held(2)
    stage.crash()
    stage.release()
    writing.result()


def with_torn_roots(disk: Disk) -> Choice:
    """Keep all, and tear what was stored of the root."""
    return disk.systematic()[-1]


def killed_between_roots(stage: Stage) -> None:
    """Crash while the first root copy is on its way."""
    stage.open()
    stage.run(stage.sets(1, 2, 3))
    stage.hold(ROOT_FILE)
    writing = stage.start(stage.checkpoint)
    stage.wait_held()
    stage.crash()
    stage.release()
    writing.result()


def opening(stage: Stage) -> None:
    """Open the store; all of it is watched."""
    stage.watch()
    stage.open()
    stage.run(stage.sets(5))
    stage.ignore()


def opened(stage: Stage) -> None:
    """Open the store, and watch what it does then."""
    stage.open()
    stage.watch()
    stage.run(stage.sets(5))
    stage.ignore()


def checkpointed(stage: Stage) -> None:
    """Leave a checkpoint, and frames after it."""
    stage.open()
    stage.run(stage.sets(*range(100)))
    stage.checkpoint()
    stage.run(stage.sets(*range(20)))
    stage.crash()


# Frames that an earlier life left beyond the end of the chain.


def two_in_one_flush(stage: Stage) -> None:
    """Crash while two frames wait for one flush."""
    stage.open()
    stage.run(stage.sets(1))
    stage.hold()
    stage.execute(stage.sets(2))
    stage.wait_held()
    stage.execute(stage.sets(3))
    stage.execute(stage.sets(4))
    stage.let_through()
    stage.wait_held(2)
    stage.look()
    stage.crash()


def wide_and_next_in_one_flush(stage: Stage) -> None:
    """Have a frame of many pages and another one wait for one flush."""
    stage.open()
    table = stage.life.create(Random(1), U64_LAYOUT.name)
    stage.run(stage.sets(1))
    stage.hold()
    stage.execute(stage.sets(2))
    stage.wait_held()
    stage.execute(stage.sets(*range(len(KEYS[table.layout])), table=table))
    stage.execute(stage.sets(3))
    stage.let_through()
    stage.wait_held(2)
    stage.look()


def empty_and_next_in_one_flush(stage: Stage) -> None:
    """Give the writer an empty frame and the next one at once: what it does if it is slow to wake up."""
    stage.open()
    stage.run(stage.sets(1))
    append = getattr(journal, "frames_append")  # noqa: B009 - a function that it imports

    def unheard(frames: int, descriptor: bytes, records_digest: int, durable_upto: int) -> None:
        packed = ctypes.create_string_buffer(descriptor, len(descriptor))
        stage.call_unheard(append, frames, ctypes.addressof(packed), records_digest, durable_upto)

    stage.hold()
    setattr(journal, "frames_append", unheard)  # noqa: B010 - a function of a module
    try:
        if not stage.committer.cover():
            raise LifeError("there was no need for an empty frame")
    finally:
        setattr(journal, "frames_append", append)  # noqa: B010
    stage.execute(stage.sets(2))
    stage.wait_held()
    stage.crash()


def without_first_frame(disk: Disk) -> Choice:
    """Lose the first of two frames that wait for one flush, and nothing else."""
    frames = [
        number
        for number, unit in enumerate(disk.pending)
        if isinstance(unit, Write) and len(unit.data) == PAGE_BYTES and unit.data[:7].tobytes() == b"GPKVSBL"
    ]
    assert len(frames) == 2
    choice = disk.everything()
    choice[frames[0]][:] = False
    return choice
