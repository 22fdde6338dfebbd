"""Random values under numbered keys. Nothing can compress them."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from gpkvs.bench.peers.contender import BenchError
from gpkvs.bench.values.value_store import ValueStore
from gpkvs.config import KIB, MIB

KEY_BYTES = 16


@dataclass(frozen=True)
class Payload:
    """What stores hold: as many values as there are keys.

    Parameters
    ----------
    values
        A value for each key.
    """

    values: list[bytes]

    @staticmethod
    def of_sizes(sizes: list[int]) -> Payload:
        """Return random values of these sizes."""
        random = np.random.default_rng(1)
        return Payload([random.bytes(size) for size in sizes])

    def __len__(self) -> int:
        return len(self.values)

    @property
    def live_bytes(self) -> int:
        """The bytes of all keys and values."""
        return sum(map(len, self.values)) + KEY_BYTES * len(self)

    def value(self, number: int, generation: int) -> bytes:
        """Return a value for a key; generation 0 is loaded. Each generation has all values, under other keys."""
        return self.values[(number + generation) % len(self)]

    def order(self, seed: int) -> list[int]:
        """Return the numbers of all keys in random order."""
        return np.random.default_rng(seed).permutation(len(self)).tolist()  # type: ignore[no-any-return]

    def load(self, store: ValueStore) -> None:
        """Store all values, then compare each with what the store returns.

        Raises
        ------
        BenchError
            If it returns something else: a store that loses or mixes up values is not worth timing.
        """
        for number in range(len(self)):
            store.set_one(key_of(number), self.value(number, 0))
        for number in range(len(self)):
            if store.get_one(key_of(number)) != self.value(number, 0):
                raise BenchError(f"{store.name} does not return the values that were stored in it")
        store.settle()


def key_of(number: int) -> bytes:
    """Return the key with a number."""
    return b"value:%010d" % number


def size_text(size: int) -> str:
    """Write a size as people do."""
    return f"{round(size / MIB, 1):,g} MiB" if size >= MIB else f"{round(size / KIB, 1):g} KiB"


def equal_sizes(size: int, total: int) -> list[int]:
    """Return the sizes of values that take a total together, but three of them at least."""
    return [size] * max(total // size, 3)


def mixed_sizes(least: int, most: int, total: int) -> list[int]:
    """Return sizes between two, each doubling as likely as the next, of values that take a total together."""
    return list(_until(total, least, most))


def _until(total: int, least: int, most: int) -> Iterator[int]:
    random = np.random.default_rng(2)
    while total > 0:
        size = int(least * (most / least) ** random.random())
        yield size
        total -= size
