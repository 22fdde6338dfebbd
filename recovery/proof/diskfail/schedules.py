"""Scripts for narrow windows, which lives at random do not meet: what is held where, what runs meanwhile, then a crash.

Each is one life or two. Heaps have eight segments, and a large record fills most of one, so that a script knows where
the next record goes: into the next segment in which nothing is live.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from random import Random

from gpkvs.batch import Op
from gpkvs.media.directory import ROOT_FILE
from gpkvs.media.layout import BYTES_LAYOUT, PAGE_BYTES, U64_LAYOUT
from gpkvs.native import library
from gpkvs.recovery.proof.diskfail.disk import Choice, Disk, Write
from gpkvs.recovery.proof.diskfail.expected import TableName
from gpkvs.recovery.proof.diskfail.life import KEYS, LifeError, Request, Shape
from gpkvs.recovery.proof.diskfail.stage import DEFAULT, LARGE_BYTES, Stage

_KIB = 1 << 10
_SEGMENTS = 8
_SHAPE = replace(Shape.of(Random(0)), index_bytes=64 * _KIB, heap_bytes=_SEGMENTS * 64 * _KIB, delay_us=0)
_FRAME_PAGES_MAX = 10  # of a batch that changes each key of a table of numbers
_LARGER = replace(_SHAPE, heap_bytes=16 * 64 * _KIB)

Script = Callable[[Stage], None]
Crash = Callable[[Disk], Choice | None]  # what a crash keeps; None: it is a kill, and the power may fail later


@dataclass(frozen=True)
class Schedule:
    """One script, or two with a crash in between.

    Attributes
    ----------
    window
        What it holds open, for people.
    first
        The only life, or the first one.
    crash
        What its crash keeps, where `Stage.crash` was called.
    second
        The life that begins with that.
    is_copied
        Whether the second life begins with a copy of the files that nobody flushed.
    """

    name: str
    window: str
    first: Script
    crash: Crash = lambda disk: disk.everything()
    second: Script | None = None
    is_copied: bool = False
    shape: Shape = _SHAPE


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


def _told_too_early(stage: Stage) -> None:
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


# W6, W4: who uses the space of a dead record that an uncovered frame names.


def _space_of_uncovered(stage: Stage) -> None:
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


def _leave_uncovered(stage: Stage) -> None:
    stage.open()
    _two_uncovered(stage)
    stage.crash()


def _use_at_once(stage: Stage) -> None:
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


def _cover_too_much(stage: Stage) -> None:
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


def _drop_in_flight(stage: Stage) -> None:
    """Drop a table while the newest batch changes it, and another one, and is not durable."""
    stage.open()
    table = stage.life.create(Random(1), BYTES_LAYOUT.name)
    stage.run(stage.sets(1), stage.sets(1, table=table))
    stage.hold()
    sent = stage.execute(stage.sets(1, value_bytes=LARGE_BYTES), stage.sets(2, table=table))
    stage.wait_held()
    stage.watch()
    dropped = stage.attempt(lambda: stage.life.drop(table))
    stage.look()
    stage.release()
    dropped.result()
    stage.ignore()
    stage.life.wait(sent)


def _space_of_dropped(stage: Stage) -> None:
    """Use the space of a dropped table while no frame covers the batches that named it."""
    stage.open()
    table = stage.life.create(Random(1), BYTES_LAYOUT.name)
    for segment in range(16):
        if segment not in (1, 2):
            stage.run(stage.sets(segment, value_bytes=LARGE_BYTES))
        else:  # the segment with the records of the table; and one whose batch names both tables
            stage.run(stage.sets(segment, value_bytes=LARGE_BYTES, table=table), stage.sets(100 + segment))
    stage.hold()
    both = stage.execute(stage.sets(50), stage.sets(51, table=table))
    stage.release()
    stage.life.wait(both)
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
    stage.run(stage.sets(*range(len(KEYS[table.layout])), table=table), stage.sets(1))


def _more_than_fits(stage: Stage) -> None:
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


def _journal_while(point: str, stage: Stage) -> None:
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


def _leave_full_journal(stage: Stage) -> None:
    """Fill the journal, so that the next opening writes a checkpoint before its first frame."""
    stage.open()
    table = stage.life.create(Random(1), U64_LAYOUT.name)
    _fill_journal(stage, table, 15)
    stage.checkpoint()
    _fill_journal(stage, table, 45)
    stage.crash()


def _leave_frames(stage: Stage) -> None:
    stage.open()
    _fill_journal(stage, stage.life.create(Random(1), U64_LAYOUT.name), 20)
    stage.crash()


def _go_on_filling(stage: Stage) -> None:
    """Fill the journal behind the frames of the life before, which a replay still needs."""
    stage.open()
    _fill_journal(stage, next(table for table in stage.tables if table.layout == U64_LAYOUT.name), 45)
    stage.look()


def _root_while_used_again(stage: Stage) -> None:
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


# The roots.


def _two_checkpoints(stage: Stage) -> None:
    stage.open()
    stage.watch()
    for _ in range(2):
        stage.run(stage.sets(1, 2, 3))
        stage.checkpoint()
    stage.ignore()


def _second_root_under_way(stage: Stage) -> None:
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


def _with_torn_roots(disk: Disk) -> Choice:
    return disk.systematic()[-1]


def _killed_between_roots(stage: Stage) -> None:
    stage.open()
    stage.run(stage.sets(1, 2, 3))
    stage.hold(ROOT_FILE)
    writing = stage.start(stage.checkpoint)
    stage.wait_held()
    stage.crash()
    stage.release()
    writing.result()


def _opening(stage: Stage) -> None:
    stage.watch()
    stage.open()
    stage.run(stage.sets(5))
    stage.ignore()


def _opened(stage: Stage) -> None:
    stage.open()
    stage.watch()
    stage.run(stage.sets(5))
    stage.ignore()


def _checkpointed(stage: Stage) -> None:
    stage.open()
    stage.run(stage.sets(*range(100)))
    stage.checkpoint()
    stage.run(stage.sets(*range(20)))
    stage.crash()


# Frames that an earlier life left beyond the end of the chain.


def _two_in_one_flush(stage: Stage) -> None:
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


def _wide_and_next_in_one_flush(stage: Stage) -> None:
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


def _empty_and_next_in_one_flush(stage: Stage) -> None:
    """Give the writer an empty frame and the next one at once: what it does if it is slow to wake up."""
    stage.open()
    stage.run(stage.sets(1))
    submit = library.gpkvs_journal_submit
    waiting: list[tuple[int, ...]] = []

    def both(*frame: int) -> None:
        waiting.append(frame)
        if len(waiting) == 2:
            stage.call_twice(submit, *waiting)

    stage.hold()
    setattr(library, "gpkvs_journal_submit", both)  # noqa: B010 - a function of a library
    try:
        if not stage.committer.cover():
            raise LifeError("there was no need for an empty frame")
        stage.execute(stage.sets(2))
    finally:
        setattr(library, "gpkvs_journal_submit", submit)  # noqa: B010
    stage.wait_held()
    stage.crash()


def _without_first_frame(disk: Disk) -> Choice:
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


SCHEDULES = (
    Schedule("told-too-early", "a flush is held, and callers wait for it", _told_too_early),
    Schedule(
        "space-of-uncovered",
        "a durable batch freed a record that a frame names which is durable and not covered; space is wanted",
        _space_of_uncovered,
    ),
    Schedule(
        "space-at-opening",
        "the same, after a kill: the opening counts the space as free",
        _leave_uncovered,
        second=_use_at_once,
    ),
    Schedule(
        "cover-too-much",
        "a batch that lacks space appends an empty frame while the frame before it is not durable",
        _cover_too_much,
    ),
    Schedule(
        "drop-in-flight",
        "a table is dropped while a batch that changes it and another table is not durable",
        _drop_in_flight,
        shape=_LARGER,
    ),
    Schedule(
        "space-of-dropped",
        "a table was dropped while no frame covers the batches that named it; space is wanted",
        _space_of_dropped,
        shape=_LARGER,
    ),
    *(
        Schedule(
            f"journal-{point}",
            f"a checkpoint stands at {point}, and the journal fills up",
            partial(_journal_while, point),
        )
        for point in ("mid_checkpoint", "before_checkpoint_sync", "before_checkpoint_root", "between_roots")
    ),
    Schedule("more-than-fits", "batches want room in a full journal", _more_than_fits),
    Schedule(
        "frames-of-two-lives", "no checkpoint comes, and the journal fills up", _leave_frames, second=_go_on_filling
    ),
    Schedule("opening-with-full-journal", "an opening writes a checkpoint", _leave_full_journal, second=_opening),
    Schedule("root-while-used-again", "a root is stored that names a place in reused space", _root_while_used_again),
    Schedule("two-checkpoints", "both root copies are written, twice", _two_checkpoints),
    Schedule(
        "second-root-torn",
        "a crash tore the root copy that was written last; the opening writes both",
        _second_root_under_way,
        crash=_with_torn_roots,
        second=_opening,
    ),
    Schedule(
        "killed-between-roots",
        "a kill left a root copy that is not durable; the opening writes the other one",
        _killed_between_roots,
        crash=lambda disk: None,
        second=_opening,
    ),
    Schedule(
        "copied", "the files were copied, and nobody flushed the copy", _checkpointed, second=_opened, is_copied=True
    ),
    Schedule(
        "frame-lost-before-another",
        "of two frames in one flush the first is lost; the next life writes one of its size in its place",
        _two_in_one_flush,
        crash=_without_first_frame,
        second=_opening,
    ),
    Schedule(
        "frame-torn-before-another",
        "of two frames in one flush the first lost some entries",
        _wide_and_next_in_one_flush,
    ),
    Schedule(
        "empty-frame-again",
        "the same; the lost one and the new one are both the empty frame of one epoch",
        _empty_and_next_in_one_flush,
        crash=_without_first_frame,
        second=_opening,
    ),
)
