"""Request distributions: they draw the records of operations, a block at a time.

The formulas are those of YCSB, so that figures compare: the zipfian one is that of Gray et al., "Quickly generating
billion-record synthetic databases" (SIGMOD 1994).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, Protocol

import numpy as np
from numpy.typing import NDArray

Numbers = NDArray[np.int64]

ZIPFIAN_CONSTANT: Final = 0.99
SCRAMBLED_ITEMS: Final = 10_000_000_000
SCRAMBLED_ZETA: Final = 26.46902820178302  # zeta(SCRAMBLED_ITEMS) for the constant above: too many terms to add here

_FNV_OFFSET: Final = np.uint64(0xCBF29CE484222325)
_FNV_PRIME: Final = np.uint64(1099511628211)


class Generator(Protocol):
    """Draws record numbers."""

    def draw(self, count: int) -> Numbers:
        """Return the next `count` record numbers."""
        ...


def fnv_hash64(numbers: Numbers) -> Numbers:
    """Return YCSB's hash of each number, 0 to 2**63: 64-bit FNV over its 8 bytes, lowest first, without the sign."""
    rest = numbers.astype(np.uint64)
    hashed = np.full(len(numbers), _FNV_OFFSET)
    for _ in range(8):
        hashed = (hashed ^ (rest & np.uint64(0xFF))) * _FNV_PRIME
        rest = rest >> np.uint64(8)
    return np.abs(hashed.view(np.int64))


class Uniform:
    """All records alike: `first` to `first + count - 1`."""

    def __init__(self, rng: np.random.Generator, first: int, count: int) -> None:
        self._rng, self._first, self._count = rng, first, count

    def draw(self, count: int) -> Numbers:
        """Return the next record numbers."""
        return self._rng.integers(self._first, self._first + self._count, count)


class Zipfian:
    """Ranks 0 to `items - 1`, rank 0 the most popular one.

    Parameters
    ----------
    rng
        Source of randomness.
    items
        How many ranks there are; see `resize`.
    zeta
        Sum of ``1 / i**0.99`` for i from 1 to `items`, if it is known.
    """

    def __init__(self, rng: np.random.Generator, items: int, zeta: float | None = None) -> None:
        self._rng = rng
        self._items = 0
        self._zeta = 0.0
        if zeta is None:
            self.resize(items)
        else:
            self._items, self._zeta = items, zeta

    def resize(self, items: int) -> None:
        """Raise the number of ranks; add only the new terms to the sum."""
        block = 1 << 20
        for start in range(self._items + 1, items + 1, block):
            terms = np.arange(start, min(start + block, items + 1), dtype=np.float64)
            self._zeta += float((terms**-ZIPFIAN_CONSTANT).sum())
        self._items = max(self._items, items)

    def draw(self, count: int) -> Numbers:
        """Return the next ranks."""
        theta = ZIPFIAN_CONSTANT
        zeta_of_two = 1 + 0.5**theta
        if self._items < 3:  # the formula below divides by what the third and later ranks weigh
            return (self._rng.random(count) * self._zeta >= 1).astype(np.int64)
        eta = (1 - (2 / self._items) ** (1 - theta)) / (1 - zeta_of_two / self._zeta)
        u = self._rng.random(count)
        ranks = (self._items * (eta * u - eta + 1) ** (1 / (1 - theta))).astype(np.int64)
        ranks[u * self._zeta < zeta_of_two] = 1
        ranks[u * self._zeta < 1] = 0
        drawn: Numbers = np.minimum(ranks, self._items - 1)
        return drawn


class ScrambledZipfian:
    """Zipfian popularity, with the popular records spread over all: the ranks are hashed."""

    def __init__(self, rng: np.random.Generator, first: int, count: int) -> None:
        self._zipfian = Zipfian(rng, SCRAMBLED_ITEMS, SCRAMBLED_ZETA)
        self._first, self._count = first, count

    def draw(self, count: int) -> Numbers:
        """Return the next record numbers."""
        hashed: Numbers = fnv_hash64(self._zipfian.draw(count)) % self._count
        return hashed + self._first


class Latest:
    """Zipfian popularity, the newest record the most popular one.

    Parameters
    ----------
    rng
        Source of randomness.
    records
        Tells how many records there are now.
    """

    def __init__(self, rng: np.random.Generator, records: Callable[[], int]) -> None:
        self._records = records
        self._zipfian = Zipfian(rng, records())

    def draw(self, count: int) -> Numbers:
        """Return the next record numbers."""
        records = self._records()
        self._zipfian.resize(records)
        return records - 1 - self._zipfian.draw(count)
