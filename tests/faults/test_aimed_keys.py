"""A million keys that a client aims at one bucket of an unkeyed hash: here they lie as random ones do."""

from __future__ import annotations

import zlib
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

import gpkvs
from gpkvs.batch import Batch, Op
from gpkvs.media.layout import U64_LAYOUT

COUNT = 1_000_000
PIECE = 100_000
U64Array = NDArray[np.uint64]


def random_keys() -> U64Array:
    return np.random.default_rng(1).permutation(np.arange(1, 4 * COUNT, dtype=np.uint64))[:COUNT] * np.uint64(
        0x9E3779B9
    )


def one_crc32() -> U64Array:
    """Return numbers whose CRC-32 is one and the same: it is linear, so the last four bytes can undo the first four."""
    effect = [
        zlib.crc32(bytes([0] * i + [1 << bit] + [0] * (7 - i))) ^ zlib.crc32(bytes(8))
        for i in range(8)
        for bit in range(8)
    ]
    # What each of the upper 32 bits must be to cancel each of the lower ones: Gauss-Jordan over two elements.
    rows = [(effect[32 + bit], 1 << bit) for bit in range(32)]
    for bit in range(32):
        pivot = next(i for i in range(bit, 32) if rows[i][0] >> bit & 1)
        rows[bit], rows[pivot] = rows[pivot], rows[bit]
        rows = [
            (row ^ rows[bit][0], who ^ rows[bit][1]) if i != bit and row >> bit & 1 else (row, who)
            for i, (row, who) in enumerate(rows)
        ]
    cancels = [0] * 32
    for low in range(32):
        for bit in range(32):
            if effect[low] >> bit & 1:
                cancels[low] ^= rows[bit][1]
    low = np.arange(1, COUNT + 1, dtype=np.uint64)
    high = np.zeros(COUNT, np.uint64)
    for bit in range(32):
        high ^= np.where(low >> np.uint64(bit) & np.uint64(1), np.uint64(cancels[bit]), np.uint64(0))
    return high << np.uint64(32) | low


def multiples_of_a_table_size() -> U64Array:
    """Return numbers that an identity hash puts in the first bucket of any table of up to 2^32 buckets."""
    return np.arange(1, COUNT + 1, dtype=np.uint64) << np.uint64(32)


def loads(path: Path, keys: U64Array, layout: str) -> NDArray[np.float64]:
    """Store the keys and return the share of buckets that hold 0, 1, ... 8 of them."""
    slots = 2 * COUNT
    slot_bytes = 16 if layout == U64_LAYOUT.name else 32
    with gpkvs.open(path, index_bytes=64 << 10, heap_bytes=256 << 20) as store:
        store.create_table("aimed", layout=layout, index_bytes=slots * slot_bytes)
        for first in range(0, COUNT, PIECE):
            piece = keys[first : first + PIECE]
            if layout == U64_LAYOUT.name:
                store.set_many(piece, piece, table="aimed")
            else:
                batch = Batch(
                    ops=np.full(PIECE, Op.SET, np.uint8),
                    keys=piece.view(np.uint8),
                    key_lengths=np.full(PIECE, 8, np.uint32),
                    values=np.zeros(0, np.uint8),
                    value_lengths=np.zeros(PIECE, np.uint32),
                )
                store.execute(batch, table="aimed")
        # With a journal the file may lag behind; what the kernels see does not.
        region = store._files.indexes[1].region
        words = region.words(0, region.bytes // 8).reshape(-1, 8, slot_bytes // 8).copy()
    used = (words[:, :, -1] != 0).sum(axis=1)  # a value of a number, kind and version of a record: never 0
    assert used.sum() == COUNT
    return np.bincount(used, minlength=9) / len(used)


def test_the_keys_are_aimed_well() -> None:
    keys = one_crc32()
    assert len(np.unique(keys)) == COUNT
    assert len({zlib.crc32(int(key).to_bytes(8, "little")) for key in keys[::1000]}) == 1
    assert not (multiples_of_a_table_size() % np.uint64(1 << 32)).any()


@pytest.mark.parametrize("layout", ["u64", "bytes"])
def test_aimed_keys_load_buckets_as_random_ones_do(tmp_path: Path, layout: str) -> None:
    aims: tuple[Callable[[], U64Array], ...] = (one_crc32, multiples_of_a_table_size)
    random = loads(tmp_path / "random", random_keys(), layout)
    assert random[8] < 0.2
    for aim in aims:
        aimed = loads(tmp_path / aim.__name__, aim(), layout)
        # Shares of buckets, each within 5 % of all buckets, and the mean square of the load within 5 % of itself.
        assert np.abs(aimed - random).max() < 0.05
        squares = np.arange(9) ** 2
        assert abs((aimed @ squares) / (random @ squares) - 1) < 0.05
