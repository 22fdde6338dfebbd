"""Scripts for narrow windows, which lives at random do not meet: one life or two, and the crash in between."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial

from gpkvs.recovery.proof.diskfail import scripts
from gpkvs.recovery.proof.diskfail.life import Shape


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
    first: scripts.Script
    crash: scripts.Crash = lambda disk: disk.everything()
    second: scripts.Script | None = None
    is_copied: bool = False
    shape: Shape = scripts.SHAPE


SCHEDULES = (
    Schedule("told-too-early", "a flush is held, and callers wait for it", scripts.told_too_early),
    Schedule("followed-too-early", "a flush is held, and a follower wants to be told", scripts.followed_too_early),
    Schedule("gone-too-early", "the flush of a removal of an expired key is held", scripts.gone_too_early),
    Schedule(
        "space-of-uncovered",
        "a durable batch freed a record that a frame names which is durable and not covered; space is wanted",
        scripts.space_of_uncovered,
    ),
    Schedule(
        "space-at-opening",
        "the same, after a kill: the opening counts the space as free",
        scripts.leave_uncovered,
        second=scripts.use_at_once,
    ),
    Schedule(
        "cover-too-much",
        "a batch that lacks space appends an empty frame while the frame before it is not durable",
        scripts.cover_too_much,
    ),
    Schedule(
        "drop-in-flight",
        "a table is dropped while a batch that changes it and another table is not durable",
        scripts.drop_in_flight,
        shape=scripts.LARGER,
    ),
    Schedule(
        "space-of-dropped",
        "a table was dropped while no frame covers the batches that named it; space is wanted",
        scripts.space_of_dropped,
        shape=scripts.LARGER,
    ),
    Schedule(
        "blob-over-another",
        "large values are written, one over the other, and deleted",
        scripts.blob_over_another,
        shape=scripts.WITH_BLOBS,
    ),
    Schedule(
        "blob-not-flushed",
        "the flush of a blob is held, and a caller waits for it",
        scripts.blob_not_flushed,
        shape=scripts.WITH_BLOBS,
    ),
    Schedule(
        "space-of-uncovered-blob",
        "a durable batch freed a blob that a frame names which is durable and not covered; pages are wanted",
        scripts.space_of_uncovered_blob,
        shape=scripts.WITH_BLOBS,
    ),
    Schedule(
        "space-of-blob-in-flight",
        "a batch that frees a blob is not durable; pages are wanted",
        scripts.space_of_blob_in_flight,
        shape=scripts.WITH_BLOBS,
    ),
    Schedule(
        "blob-kept",
        "a key with a large value gets an expiry, twice, and is deleted",
        scripts.blob_kept,
        shape=scripts.WITH_BLOBS,
    ),
    Schedule(
        "blob-kept-before-its-flush",
        "the flush of a blob is held, and a caller waits for the expiry of its key",
        scripts.blob_kept_before_its_flush,
        shape=scripts.WITH_BLOBS,
    ),
    Schedule(
        "space-of-kept-blob",
        "a batch that keeps a blob is not durable, then not covered; pages are wanted",
        scripts.space_of_kept_blob,
        shape=scripts.WITH_BLOBS,
    ),
    Schedule(
        "killed-before-blob-flush",
        "a kill left a blob that is not durable, and its frame; the opening finds both in the cache",
        scripts.killed_before_blob_flush,
        crash=lambda disk: None,
        second=scripts.opening,
        shape=scripts.WITH_BLOBS,
    ),
    Schedule(
        "stored-by-halves",
        "a batch has stored half of its slots, and a checkpoint copies them",
        scripts.stored_by_halves,
    ),
    *(
        Schedule(
            f"journal-{point}",
            f"a checkpoint stands at {point}, and the journal fills up",
            partial(scripts.journal_while, point),
        )
        for point in ("mid_checkpoint", "before_checkpoint_sync", "before_checkpoint_root", "between_roots")
    ),
    Schedule("more-than-fits", "batches want room in a full journal", scripts.more_than_fits),
    Schedule(
        "frames-of-two-lives",
        "no checkpoint comes, and the journal fills up",
        scripts.leave_frames,
        second=scripts.go_on_filling,
    ),
    Schedule(
        "opening-with-full-journal",
        "an opening writes a checkpoint",
        scripts.leave_full_journal,
        second=scripts.opening,
    ),
    Schedule(
        "heap-grows",
        "the heap's file is longer, the roots say so, and records go there",
        scripts.heap_grows,
        shape=scripts.GROWING,
    ),
    Schedule(
        "journal-grows",
        "space of the heap is given to the journal, written, put into the ring and used",
        scripts.journal_grows,
    ),
    Schedule(
        "root-while-used-again", "a root is stored that names a place in reused space", scripts.root_while_used_again
    ),
    Schedule("growth", "the last block of a table has moved, and the flush of that is held", scripts.grow_twice),
    Schedule("two-checkpoints", "both root copies are written, twice", scripts.two_checkpoints),
    Schedule(
        "closed",
        "a close writes a checkpoint; the next opening replays nothing",
        scripts.closing,
        second=scripts.opening,
    ),
    Schedule(
        "second-root-torn",
        "a crash tore the root copy that was written last; the opening writes both",
        scripts.second_root_under_way,
        crash=scripts.with_torn_roots,
        second=scripts.opening,
    ),
    Schedule(
        "killed-between-roots",
        "a kill left a root copy that is not durable; the opening writes the other one",
        scripts.killed_between_roots,
        crash=lambda disk: None,
        second=scripts.opening,
    ),
    Schedule(
        "copied",
        "the files were copied, and nobody flushed the copy",
        scripts.checkpointed,
        second=scripts.opened,
        is_copied=True,
    ),
    Schedule(
        "frame-lost-before-another",
        "of two frames in one flush the first is lost; the next life writes one of its size in its place",
        scripts.two_in_one_flush,
        crash=scripts.without_first_frame,
        second=scripts.opening,
    ),
    Schedule(
        "frame-torn-before-another",
        "of two frames in one flush the first lost some entries",
        scripts.wide_and_next_in_one_flush,
    ),
    Schedule(
        "empty-frame-again",
        "the same; the lost one and the new one are both the empty frame of one epoch",
        scripts.empty_and_next_in_one_flush,
        crash=scripts.without_first_frame,
        second=scripts.opening,
    ),
)
