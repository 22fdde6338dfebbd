"""The columns that the phases of one table hand on to each other.

Columns live where the backend's kernels run, in its array module (`Backend.xp`).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from gpkvs.backends.base import Processor
from gpkvs.batch import U8, U32, U64, Batch, Op, RequestResult, offsets_of
from gpkvs.engine.device.batch_plan import BatchPlan
from gpkvs.engine.seam.write_set import FILLED_WORDS


@dataclass(frozen=True)
class Seen:
    """What each operation sees."""

    status: U8
    versions: U64  # empty in a u64 table
    source_word: U64  # what the table holds: a record's reference, or a number; 0 if a GET sees none of it
    source_op: U32  # the SET of this batch that a GET sees, or NO_OP; empty if the batch only reads


_NO_COLUMN = np.empty(0, np.uint64)
NOTHING_SEEN = Seen(np.empty(0, np.uint8), _NO_COLUMN, _NO_COLUMN, np.empty(0, np.uint32))


@dataclass(frozen=True)
class Placed:
    """How many chains change a slot, and how many of them are new keys."""

    changes: int
    new_keys: int


@dataclass(frozen=True)
class Records:
    """The records that one table appends to the heap; the columns lie on the host."""

    op: U32  # the SET of each, in arrival order
    reference: U64
    units: int  # what all of them take
    filled_segment: U64  # what they take of each segment of the heap, in `FILLED_WORDS` words

    @property
    def segments(self) -> list[int]:
        """The segments that they go to."""
        numbers: list[int] = self.filled_segment[::FILLED_WORDS].tolist()
        return numbers

    def __len__(self) -> int:
        return len(self.op)


NO_RECORDS = Records(np.empty(0, np.uint32), _NO_COLUMN, 0, _NO_COLUMN)


@dataclass(frozen=True)
class SlotChanges:
    """The slots that change: those of the chains, then those that displaced occupants move to."""

    slot: U64
    contents: U64  # (slots, words of a slot)
    digest: U64  # gets that of each slot's entry in the log

    def __len__(self) -> int:
        return len(self.slot)


class Plan:
    """A transaction, phase by phase.

    Parameters
    ----------
    place
        Whose kernels will read the columns.
    batch
        Its operations.
    first_sequence
        The version of its first operation.
    now
        The time, or 0, as `PhasePlanner.plan` says.
    """

    seen: Seen = NOTHING_SEEN  # stays so in a batch of SETs only
    missed: int  # keys that a batch of GETs alone did not find, on a u64 table
    launched: BatchPlan  # of a batch that writes,
    room: U8  # the memory of its columns,
    changing: U64  # that of the slots that change,
    found_values: U64  # and the values that GETs found on a u64 table, with room for all
    get_lengths: U32 | None = None  # bytes of each GET's value, once they are known (`Phases.lengths`)
    result_bytes: int  # of the values of all GETs
    placed: Placed
    put_op: U32  # the SETs whose records are kept, in arrival order
    records: Records  # their new records
    changes: SlotChanges
    result: RequestResult
    _fetched_ops: Callable[[], U8] | None = None

    def __init__(self, place: Processor, batch: Batch, first_sequence: int, now: int) -> None:
        self._backend = place
        self.batch = batch
        self.first_sequence = first_sequence
        self.now = now

    def fetch(self) -> None:
        """Bring keys where kernels run, once; kinds and values begin to come, and are there when they are asked for."""
        if "keys" in self.__dict__:
            return
        keys = self._backend.upload_later(self.batch.keys)
        if not self.batch.has_only_sets:
            self._fetched_ops = self._backend.upload_later(self.batch.ops)
        self.fetch_values()
        self.keys = keys()

    def fetch_values(self) -> None:
        """Begin to bring values where kernels run."""
        self._fetched = self._backend.upload_later(self.batch.values)

    @cached_property
    def ops(self) -> U8:
        """`Op` of every operation."""
        return self._fetched_ops() if self._fetched_ops else self._backend.upload(self.batch.ops)

    @cached_property
    def keys(self) -> U8:
        """All keys, one after the other."""
        return self._backend.upload(self.batch.keys)

    @cached_property
    def values(self) -> U8:
        """The values of the SETs, one after the other; after `fetch` or `fetch_values`."""
        return self._fetched()

    @property
    def gets(self) -> int:
        """How many GETs there are."""
        return self.batch.gets

    @cached_property
    def get_op(self) -> U32:
        """The GETs, in order."""
        xp = self._backend.xp
        if not self.batch.has_writes:
            numbers: U32 = xp.arange(len(self.batch), dtype=np.uint32)
        elif self.batch.has_reads:
            numbers = xp.flatnonzero(self.ops == Op.GET.value).astype(np.uint32)
        else:
            numbers = xp.empty(0, np.uint32)
        return numbers

    @cached_property
    def host_key_lengths(self) -> U32:
        """Of every operation, on the host, written out even if they are one number."""
        return self._backend.download(self.key_lengths)

    @cached_property
    def host_value_lengths(self) -> U32:
        """Of every operation, on the host, written out."""
        return self._backend.download(self.value_lengths)

    @cached_property
    def key_lengths(self) -> U32:
        """Of every operation."""
        return self._backend.upload(self.batch.key_lengths)

    @cached_property
    def key_offsets(self) -> U64:
        """Of every operation."""
        return offsets_of(self.key_lengths)

    @cached_property
    def value_lengths(self) -> U32:
        """Of every operation; 0 but for SETs."""
        lengths = self._backend.upload(self.batch.value_lengths)
        if len(lengths) == len(self.batch):
            return lengths
        all_lengths: U32 = self._backend.xp.zeros(len(self.batch), np.uint32)
        all_lengths[self.ops == Op.SET.value] = lengths
        return all_lengths

    @cached_property
    def value_offsets(self) -> U64:
        """Of every operation."""
        return offsets_of(self.value_lengths)

    @property
    def parts(self) -> Sequence[Plan]:
        """What several processors plan of it, each its own; else this plan."""
        return (self,)

    @property
    def changed_chains(self) -> int:
        """How many chains change a slot."""
        return sum(part.placed.changes for part in self.parts)

    @property
    def new_keys(self) -> int:
        """How many keys the table gains."""
        return sum(part.placed.new_keys for part in self.parts)

    @property
    def slots(self) -> int:
        """How many slots change."""
        return sum(len(part.changes) for part in self.parts)

    @property
    def has_sets(self) -> bool:
        """Whether versions are given."""
        return len(self.batch.value_lengths) > 0
