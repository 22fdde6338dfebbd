"""gpKVS: batches of SETs, and of 95 % GETs and 5 % SETs, as transactions on a GPU or on the host's threads.

The store of this package is that workload: each batch is one transaction whose undo log is persistent memory
(docs/design.md). Each batch of SETs also sets one key that says how many batches are done. The batch is atomic, so this
key is right after any crash, and a run goes on from there; the store itself undoes a batch that a crash cut off.

After GPM (ASPLOS '22), section 4.1 and figure 6.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

import gpkvs
from gpkvs import gpm
from gpkvs.bench.gpm.workload import Workload, main, require_room
from gpkvs.config import DurabilityName, Limits

MARK = np.uint64(0)  # the key that counts batches
SETS_OF_MIXED = 0.05


@dataclass(frozen=True)
class Size:
    """How many operations a batch has, and how many batches there are of each kind."""

    batch: int
    set_batches: int
    mixed_batches: int
    index_bytes: int

    @property
    def keys(self) -> int:
        """How many different keys there are."""
        return self.batch * self.set_batches

    @property
    def log_bytes(self) -> int:
        """An entry of the undo log for each operation."""
        return 64 * self.batch + (4 << 20)

    @property
    def file_bytes(self) -> int:
        """The index, the log, and a heap that numbers do not need."""
        return self.index_bytes + self.log_bytes + (32 << 20)

    @property
    def memory_bytes(self) -> int:
        """On a GPU, the index's mirror; a batch's columns."""
        return self.index_bytes + 200 * self.batch


class Kvs(Workload):
    """See the text above."""

    SIZES: ClassVar = {
        "tiny": Size(100, 3, 2, 1 << 16),
        "small": Size(20_000, 10, 10, 8 << 20),
        "paper": Size(2 << 20, 25, 100, 4 << 30),
    }

    def __init__(
        self, folder: Path, size: Size, place: gpm.Place | str = "cpu", durability: DurabilityName = "auto"
    ) -> None:
        self.size, self.place = size, gpm.find_place(place)
        require_room(folder, size, self.place)
        self.store = gpkvs.open(
            folder / "store",
            backend="cuda" if self.place.is_gpu else "cpu",
            gpus=self.place.name.partition(":")[2] or "auto",
            durability=durability,
            log_bytes=size.log_bytes,
            heap_bytes=8 << 20,
            index_bytes=1 << 20,
            limits=Limits(request_ops_max=size.batch + 1),
        )
        self.store.create_table("numbers", layout="u64", index_bytes=size.index_bytes, exist_ok=True)
        self.table = self.store.table("numbers")

    @property
    def done(self) -> int:
        """How many batches are done, by what the store says."""
        return int(self.table.get_many(np.array([MARK]))[0][0])

    def step(self) -> bool:
        """Run one batch."""
        number = self.done
        if number == self.size.set_batches + self.size.mixed_batches:
            return False
        if number < self.size.set_batches:
            keys = np.arange(number * self.size.batch, (number + 1) * self.size.batch, dtype=np.uint64)
        else:
            keys = np.random.default_rng((6, number)).integers(0, self.size.keys, self.size.batch, np.uint64)
            sets = int(self.size.batch * SETS_OF_MIXED)
            self.table.get_many(key_of(keys[sets:]))
            keys = keys[:sets]
        values = keys + np.uint64(number << 32)
        self.table.set_many(np.append(key_of(keys), MARK), np.append(values, np.uint64(number + 1)))
        return True

    def result(self) -> dict[str, NDArray[Any]]:
        """Return the value of each key."""
        keys = key_of(np.arange(self.size.keys, dtype=np.uint64))
        values, found = self.table.get_many(keys, atomic=False)
        return {"values": values, "found": found}

    def close(self) -> None:
        """Close the store."""
        self.store.close()


def key_of(numbers: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """Return keys that look random: no two are the same, and none is `MARK`."""
    return (numbers + np.uint64(1)) * np.uint64(0x9E3779B97F4A7C15)


if __name__ == "__main__":
    main(Kvs, __doc__)
