"""What a committer must offer: `UndoCommitter` and `JournalCommitter` are committers."""

from __future__ import annotations

from typing import Protocol

from gpkvs.batch import U64
from gpkvs.engine.seam.native_commit import NativeCommit
from gpkvs.engine.seam.write_set import WriteSet
from gpkvs.engine.state.heap import SegmentCounts
from gpkvs.info import JournalInfo
from gpkvs.media.index import Index


class Committer(Protocol):
    """Makes write sets durable; nothing else stores to durable space.

    A gate is a number that rises. What is durable at a gate is durable at all lower ones; 0 is durable from the first.
    """

    @property
    def next_sequence(self) -> int:
        """The version that the next SET may get."""

    @property
    def kept_ms(self) -> int:
        """The time that the last transaction has kept, with which an opening begins; 0 if none has any."""

    def take_time(self, now_ms: int, /) -> None:
        """Have the transactions from here on keep a time, if it is later than the one that they would keep."""

    def keep_time(self, now_ms: int, /) -> None:
        """Make a transaction durable that changes nothing, and keeps a time, which may be earlier than the last one.

        Raises
        ------
        NoMemoryError
            If there is no memory for it; nothing was stored.
        """

    def take_number(self) -> None:
        """Make a transaction durable that changes nothing, and takes a sequence number: a table is about to change.

        So a position in the changes, which is such a number, tells whether somebody knows of all tables.

        Raises
        ------
        NoMemoryError
            If there is no memory for it; nothing was stored.
        """

    def commit(self, write_set: WriteSet, /) -> int:
        """Store a write set, and count it; return the gate of its results.

        A failure ends the process: only recovery may go on.

        Raises
        ------
        NoMemoryError
            If there is no memory for it; nothing was stored.
        """

    def read_gate(self) -> int:
        """Return the gate of what can be read now."""

    def is_durable(self, gate: int, /) -> bool:
        """Whether everything up to a gate is durable."""

    @property
    def durable_gate(self) -> int:
        """The newest gate that is durable; from any thread."""

    def wait(self, gate: int, /) -> None:
        """Return when everything up to a gate is durable."""

    def go_on(self) -> None:
        """Have what was committed become durable though nobody waits for it."""

    def land(self) -> None:
        """Return when no transaction is being stored any more: files, images and flag are as the last one leaves them.

        Who reads what batches store, or changes it in another way than by `commit`, calls it before.
        """

    def begin_turn(self) -> NativeCommit:
        """Return the native committer, ready for all batches of a turn."""

    def blocks_at_once(self, index: Index, /) -> int:
        """Return how many blocks of an index one step of its growth may move; at least one."""

    def move_blocks(self, index: Index, first: int, last: int, /) -> None:
        """Move the blocks `first` to `last - 1` of an index that grows, the last ones that have not moved.

        No block may be moved to the place of one that moves, but for block 0, which moves alone. A failure ends the
        process.

        Raises
        ------
        NoMemoryError
            If there is no memory for it; nothing was stored.
        """

    def release(self, counts: SegmentCounts, blobs: U64, /) -> None:
        """Count records of each segment, and blobs, as no longer live: of a table that was dropped."""

    def release_waiting(self) -> bool:
        """Make space usable that is free but not yet to be used again; return whether there was some."""

    def release_covered(self) -> None:
        """Make of this space usable what is to be used again by now; nothing is stored for it."""

    def journal_info(self) -> JournalInfo | None:
        """Describe the journal as it is now, if there is one."""

    def close(self) -> None:
        """End what runs in the background. Nothing is committed any more."""
