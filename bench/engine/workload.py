"""The workload of the engine's benchmark: uniform keys, in batches of columns.

Key number i is mixed(i), a bijection of 64 bits, so that keys are uniform and distinct without a list of them. Every
contender gets the same batches.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

U64 = NDArray[np.uint64]
U8 = NDArray[np.uint8]
Order = Literal["random", "sorted"]

_GOLDEN = np.uint64(0x9E3779B97F4A7C15)
_SECOND_HALF = np.uint64(0x5851F42D4C957F2D)


@dataclass(frozen=True)
class Shape:
    """Sizes of the keys and values of a workload."""

    name: str
    key_bytes: int
    value_bytes: int

    @property
    def is_numbers(self) -> bool:
        """Whether a table of the layout u64 can hold them."""
        return self.key_bytes == self.value_bytes == 8

    @property
    def text(self) -> str:
        """The sizes as people write them."""
        return f"{self.key_bytes} B keys, {self.value_bytes} B values"


SHAPES = {shape.name: shape for shape in (Shape("u64", 8, 8), Shape("bytes", 16, 100))}


@dataclass(frozen=True)
class Columns:
    """Operations on distinct or repeated keys, as columns.

    Parameters
    ----------
    numbers : (n,) uint64
        The first 8 bytes of each key; sorting by them sorts the keys.
    keys : (n, key_bytes) uint8
        Keys whose order as bytes is that of their numbers.
    values : (n, value_bytes) uint8
        A value for each.
    """

    numbers: U64
    keys: U8
    values: U8

    def __len__(self) -> int:
        return len(self.numbers)


@dataclass(frozen=True)
class Workload:
    """Preloaded records, and batches of operations on them.

    Parameters
    ----------
    shape
        Sizes of keys and values.
    records
        How many records are loaded.
    batch
        Operations in a batch.
    seed
        Of the choice of keys.
    """

    shape: Shape
    records: int
    batch: int
    seed: int = 1

    def loads(self, order: Order) -> Iterator[Columns]:
        """Yield all records once, in batches; sorted over all batches, or in an order that looks random."""
        numbers = mixed(np.arange(self.records, dtype=np.uint64))
        if order == "sorted":
            numbers.sort()
        for start in range(0, self.records, self.batch):
            yield self.columns(numbers[start : start + self.batch], 0)

    def batches(self, order: Order, seed: int) -> Iterator[Columns]:
        """Yield batches of keys drawn uniformly from the records, without end."""
        random = np.random.default_rng((self.seed, seed))
        generation = 0
        while True:
            generation += 1
            numbers = mixed(random.integers(0, self.records, self.batch, dtype=np.uint64))
            if order == "sorted":
                numbers.sort()
            yield self.columns(numbers, generation)

    def columns(self, numbers: U64, generation: int) -> Columns:
        """Return the operations on these keys; `generation` makes values of the same key differ, 0 was loaded."""
        keys = _bytes_of(numbers.astype(">u8"))
        if self.shape.key_bytes == 16:
            keys = np.concatenate([keys, _bytes_of(mixed(numbers ^ _SECOND_HALF))], axis=1)
        return Columns(numbers, keys, self._values(numbers, generation))

    def _values(self, numbers: U64, generation: int) -> U8:
        first = mixed(numbers + np.uint64(generation))[:, np.newaxis]
        count = -(-self.shape.value_bytes // 8)
        words = first * np.arange(1, 2 * count, 2, dtype=np.uint64)
        return np.ascontiguousarray(words.view(np.uint8)[:, : self.shape.value_bytes])


def _bytes_of(words: NDArray[Any]) -> U8:
    """Return (n, 8) bytes of n words."""
    return words.view(np.uint8).reshape(len(words), 8)


def mixed(numbers: U64) -> U64:
    """Return a bijection of 64-bit numbers that looks random (the finalizer of SplitMix64)."""
    mix = numbers + _GOLDEN
    mix ^= mix >> np.uint64(30)
    mix *= np.uint64(0xBF58476D1CE4E5B9)
    mix ^= mix >> np.uint64(27)
    mix *= np.uint64(0x94D049BB133111EB)
    mix ^= mix >> np.uint64(31)
    return mix
