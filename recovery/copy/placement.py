"""Where the keys of a table may live, for whole columns of fingerprints, in any format.

`kernels/base/probe.cuh` does the same for today's format, one key at a time. Formats 1 and 2 differ in one thing: which
word of the fingerprint chooses the first bucket in the block.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from itertools import count

import numpy as np

from gpkvs.backends.cpu.backend import CpuBackend
from gpkvs.batch import U8, U64
from gpkvs.media.catalog import TableEntry
from gpkvs.media.layout import U64_LAYOUT

_LOW = np.uint64(0xFFFFFFFF)
_HALF = np.uint64(32)


def mul_high(column: U64, factor: int) -> U64:
    """Return the upper 64 bits of each 128-bit product."""
    low, high = np.uint64(factor & int(_LOW)), np.uint64(factor >> 32)
    column_low, column_high = column & _LOW, column >> _HALF
    middle = column_high * low + (column_low * low >> _HALF)
    other = column_low * high + (middle & _LOW)
    product: U64 = column_high * high + (middle >> _HALF) + (other >> _HALF)
    return product


def fingerprints_of_numbers(backend: CpuBackend, numbers: U64, hash_keys: tuple[int, int]) -> tuple[U64, U64]:
    """Return both words of the fingerprint of each key of a u64 table."""
    fingerprint0, fingerprint1 = np.empty(len(numbers), np.uint64), np.empty(len(numbers), np.uint64)
    keys: U8 = np.ascontiguousarray(numbers).view(np.uint8)
    backend.launch(
        "route_u64",
        len(numbers),
        keys=keys,
        hash_key0=hash_keys[0],
        hash_key1=hash_keys[1],
        fingerprint0=fingerprint0,
        fingerprint1=fingerprint1,
    )
    return fingerprint0, fingerprint1


@dataclass(frozen=True)
class Placement:
    """The rule of one format.

    Parameters
    ----------
    first_bucket
        Of both words of the fingerprints and the table: the first candidate, counted from the beginning of the block.
    marks_each_block
        Whether the empty markers of a u64 table are the same in every block. Else only two buckets of the whole table
        have one that is not 0.
    """

    first_bucket: Callable[[U64, U64, TableEntry], U64]
    marks_each_block: bool

    def block(self, fingerprint0: U64, entry: TableEntry) -> U64:
        """Return the block of each key."""
        return mul_high(fingerprint0, entry.blocks)

    def candidates(self, fingerprint0: U64, fingerprint1: U64, entry: TableEntry) -> tuple[U64, U64]:
        """Return the two buckets of each key, counted from the beginning of its block."""
        buckets = np.uint64(entry.slot_layout.block_buckets)
        first = self.first_bucket(fingerprint0, fingerprint1, entry)
        step = np.uint64(1) + fingerprint1 % (buckets - np.uint64(1))
        return first, (first + step) % buckets

    def empty_markers(
        self, backend: CpuBackend, hash_keys: tuple[int, int], entry: TableEntry, first: int, last: int
    ) -> U64:
        """Return the empty marker of each bucket in the blocks `first` to `last - 1` of a u64 table.

        It is the smallest number that cannot live in the bucket.
        """
        assert entry.slot_layout is U64_LAYOUT
        markers = np.zeros((last - first, U64_LAYOUT.block_buckets), np.uint64)
        for number in count():
            words = fingerprints_of_numbers(backend, np.array([number], np.uint64), hash_keys)
            block = int(self.block(words[0], entry)[0])
            blocks = slice(None) if self.marks_each_block else slice(max(block - first, 0), max(block + 1 - first, 0))
            buckets = np.array([bucket[0] for bucket in self.candidates(*words, entry)], np.int64)
            lives_here = np.zeros(markers.shape, np.bool_)
            lives_here[blocks, buckets] = True
            taken = lives_here & (markers == number)
            if not taken.any():
                return markers.ravel()
            markers[taken] = number + 1
        raise AssertionError


def _by_second_word(_: U64, fingerprint1: U64, entry: TableEntry) -> U64:
    return mul_high(fingerprint1, entry.slot_layout.block_buckets)


PLACEMENT = Placement(_by_second_word, marks_each_block=True)  # of today's format
