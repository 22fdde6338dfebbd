"""gpkvs itself as a contender: embedded in the same process as its peers, without a network."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gpkvs.batch import Batch, Op
from gpkvs.bench.engine.workload import Columns, Shape, Workload
from gpkvs.bench.peers.contender import Promise, wait_until_tidy
from gpkvs.config import JOURNAL_BYTES_USUAL, MIB, StoreConfig
from gpkvs.engine.commit.checkpoint import BEGIN_SHARE
from gpkvs.info import JournalInfo, package_version
from gpkvs.media.layout import SHORT_RECORD_HEADER_BYTES, UNIT_BYTES
from gpkvs.store import Store

TABLE = "numbers"
LOAD_FACTOR = 0.7
_SLOT_BYTES = {True: 16, False: 32}
_LOG_BYTES_PER_CHANGE = 64  # 48, and room
_BLOCK_BYTES = 1 << 16
_LIVE_SHARE_MAX = 0.6  # of a heap that does not grow: compaction keeps the rest


def index_bytes(shape: Shape, records: int) -> int:
    """Return the size of an index that `records` fill to `LOAD_FACTOR`."""
    slots = records / LOAD_FACTOR
    blocks = int(slots * _SLOT_BYTES[shape.is_numbers]) // _BLOCK_BYTES + 1
    return max(blocks * _BLOCK_BYTES, MIB)


def heap_bytes(shape: Shape, records: int, sets_max: int) -> int:
    """Return the size of a heap of records that are overwritten so often, without compaction."""
    record = SHORT_RECORD_HEADER_BYTES + shape.key_bytes + shape.value_bytes
    units = -(-record // UNIT_BYTES)
    appended = 1.1 * (records + sets_max)
    return int(max(appended, records / _LIVE_SHARE_MAX) * units * UNIT_BYTES) + 64 * MIB


def usual_journal_bytes(index: int) -> int:
    """Return the size of the journal that a store of the usual sizes has with an index of this size.

    The benchmark's stores have small default tables and heaps, from which the store would choose a smaller one.
    """
    return max(index // 2, JOURNAL_BYTES_USUAL)


class EmbeddedGpkvs:
    """A store of gpkvs.

    Parameters
    ----------
    directory
        An empty directory.
    workload
        The records that it will hold.
    promise
        The persistence domain that the directory gives (`require_promise`).
    sets_max
        How many SETs come after loading, at most; space is reserved for all of them.
    index, heap, journal
        Sizes; 0 for an index that the records fill to `LOAD_FACTOR`, for a heap with room for all SETs, and for a
        journal of the usual size.
    grows
        Whether the heap begins small instead, and grows as it needs to.
    """

    name = "gpkvs"

    def __init__(
        self,
        directory: Path,
        workload: Workload,
        promise: Promise,
        sets_max: int,
        *,
        index: int = 0,
        heap: int = 0,
        journal: int = 0,
        grows: bool = False,
    ) -> None:
        self.version = package_version()
        self._shape = shape = workload.shape
        index = index or index_bytes(shape, workload.records)
        heap = heap or (0 if shape.is_numbers else heap_bytes(shape, workload.records, sets_max))
        config = StoreConfig(
            index_bytes=MIB if shape.is_numbers else index,
            heap_bytes=None if grows else heap or 64 * MIB,
            log_bytes=max(16 * MIB, workload.batch * _LOG_BYTES_PER_CHANGE),
            journal_bytes=journal or usual_journal_bytes(index),
        )
        self.store = Store(directory, config)
        if shape.is_numbers:
            self.store.create_table(TABLE, layout="u64", index_bytes=index)
        commit = self.store.info().commit
        self.settings = f"domain {promise}, commit {commit}, layout {shape.name}, load factor {LOAD_FACTOR}"

    def load(self, workload: Workload) -> None:
        """Store all records."""
        for columns in workload.loads("random"):
            self.set(self.prepare_set(columns))

    def prepare_set(self, columns: Columns) -> Any:
        """Return the columns in the store's types."""
        if self._shape.is_numbers:
            return columns.numbers, columns.values.view(np.uint64).reshape(-1)
        return batch_of(Op.SET, columns)

    def set(self, prepared: Any) -> None:
        """Store a batch as one transaction."""
        if self._shape.is_numbers:
            keys, values = prepared
            self.store.set_many(keys, values, table=TABLE)
        else:
            self.store.execute(prepared)

    def prepare_get(self, columns: Columns) -> Any:
        """Return the columns in the store's types."""
        return columns.numbers if self._shape.is_numbers else batch_of(Op.GET, columns)

    def get(self, prepared: Any) -> NDArray[Any]:
        """Read a batch into columns."""
        if self._shape.is_numbers:
            values: NDArray[Any] = self.store.get_many(prepared, table=TABLE)[0]
            return values
        return self.store.execute(prepared).values

    def values(self, result: NDArray[Any]) -> bytes:
        """Return the column of values."""
        return result.tobytes()

    def set_one(self, key: bytes, value: bytes) -> None:
        """Store one record as one transaction."""
        self.store.set(key, value)

    def get_one(self, key: bytes) -> bytes | None:
        """Read one record."""
        return self.store.get(key)

    def increment_one(self, key: bytes) -> None:
        """Add one to a number as text, as one transaction."""
        self.store.incr(key)

    def journal(self) -> JournalInfo | None:
        """Return what the journal says about itself now; None without one."""
        return self.store.info().journal

    def is_tidying(self) -> bool:
        """Whether a checkpoint runs: one does while so much of the journal is in use."""
        journal = self.journal()
        return journal is not None and journal.used_bytes >= BEGIN_SHARE * journal.capacity_bytes

    def settle(self) -> None:
        """Return when no checkpoint runs."""
        wait_until_tidy(self)

    def close(self) -> None:
        """Close the store."""
        self.store.close()


def batch_of(op: Op, columns: Columns) -> Batch:
    """Return one request of a `bytes` table."""
    count, is_set = len(columns), op is Op.SET
    return Batch(
        ops=np.full(count, op, np.uint8),
        keys=columns.keys.reshape(-1),
        key_lengths=np.full(count, columns.keys.shape[1], np.uint32),
        values=columns.values.reshape(-1) if is_set else np.empty(0, np.uint8),
        value_lengths=np.full(count if is_set else 0, columns.values.shape[1], np.uint32),
    )
