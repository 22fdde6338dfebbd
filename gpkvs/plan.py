"""What a transaction is going to do to one table: the columns that its phases hand on to each other."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from gpkvs.batch import U8, U32, U64, Batch, Op, RequestResult


@dataclass(frozen=True)
class Chains:
    """All operations of one key are a chain; chains are sorted by block and bucket."""

    order: U32  # the operation at each sorted position
    chain_of: U32  # of each position
    start: U32  # of each chain, and the end
    last_write: U32
    fingerprint0: U64
    fingerprint1: U64
    block: U32
    slot: U64  # as found; NO_SLOT if the key is not there
    old_word: U64  # the record's reference; in a u64 table the value
    old_meta: U64

    def __len__(self) -> int:
        return len(self.slot)


@dataclass(frozen=True)
class Folded:
    """What each operation sees (by operation) and what each chain leaves (by chain)."""

    status: U8
    versions: U64
    source_word: U64
    source_op: U32
    change: U8
    final_op: U32


@dataclass(frozen=True)
class Placed:
    """The chains that change a slot, and where."""

    chain: U32
    slot: U64  # of every chain
    moved_to: U64  # of each changing chain: where the occupant of its slot goes; NO_SLOT if there is none


@dataclass(frozen=True)
class Changes:
    """The slots that change: those of the chains, then those that displaced occupants move to."""

    slot: U64
    contents: U64  # (slots, words of a slot)

    def __len__(self) -> int:
        return len(self.slot)


class Plan:
    """One table's share of a transaction, phase by phase.

    Parameters
    ----------
    batch
        The operations on this table.
    numbers : (r,) int64
        The number of each of its requests in the whole batch.
    first_sequence
        The version of its first operation.
    """

    chains: Chains
    folded: Folded
    get_op: U32  # the GETs, in order
    get_lengths: U32  # bytes of each GET's value
    placed: Placed
    put_op: U32  # the SETs whose records are kept, in arrival order
    reference: U64  # of every operation's new record; 0 where there is none
    changes: Changes
    result: RequestResult

    def __init__(self, batch: Batch, numbers: NDArray[np.int64], first_sequence: int) -> None:
        self.batch = batch
        self.numbers = numbers
        self.first_sequence = first_sequence
        self.value_lengths = np.zeros(len(batch), np.uint32)  # of every operation; 0 but for SETs
        self.value_lengths[batch.ops == Op.SET] = batch.value_lengths
        self.key_offsets = offsets_of(batch.key_lengths)
        self.value_offsets = offsets_of(self.value_lengths)

    @property
    def has_sets(self) -> bool:
        """Whether versions are given."""
        return len(self.batch.value_lengths) > 0


def offsets_of(lengths: U32) -> U64:
    """Return where each of the concatenated byte strings begins."""
    ends: U64 = np.cumsum(lengths, dtype=np.uint64)
    return ends - lengths
