"""What one table stores in a transaction, in the steps in which the engine asks for it."""

from __future__ import annotations

from typing import Protocol

import numpy as np

from gpkvs.backends.base import Backend
from gpkvs.engine.plan import Plan
from gpkvs.engine.table import Table
from gpkvs.media.catalog import TableEntry
from gpkvs.media.files import StoreFiles
from gpkvs.pm.region import Region


class Writes(Protocol):
    """The planned writes of one table; whatever could fail for want of room was found when they were planned.

    Attributes
    ----------
    entry, index
        The table's catalogue entry and its mapped index.
    operations
        Of the table's part of the batch, reads too: each has a version.
    slots, records
        How many slots change, and how many records are new.
    gained
        How many keys the table will have more, or fewer.
    user_bytes
        What users asked to write.
    heap_units
        What the new records take, in units of 16 bytes.
    """

    entry: TableEntry
    index: Region
    operations: int
    slots: int
    records: int
    gained: int
    user_bytes: int
    heap_units: int

    def store_records(self, first: int, last: int, /) -> None:
        """Store the new records `first` to `last - 1` to the heap."""

    def store_log(self, epoch: int, address: int, first: int, last: int, /) -> None:
        """Store the undo entries `first` to `last - 1` of the run that begins at an address."""

    def log_digest(self) -> int:
        """Return the sum of the digests of all entries."""

    def apply(self, first: int, last: int, /) -> None:
        """Store the changed slots `first` to `last - 1` in place."""


class PlannedWrites:
    """The writes of a plan, kernel by kernel (`Writes`)."""

    def __init__(self, backend: Backend, files: StoreFiles, table: Table, plan: Plan) -> None:
        self._backend = backend
        self._heap = files.heap
        self._table = table
        self._plan = plan
        self.entry = table.entry
        self.index = table.index
        self.operations = len(plan.batch)
        self.slots = len(plan.changes)
        self.records = len(plan.put_op)
        self.gained = table.gained(plan)
        self.user_bytes = plan.batch.write_bytes
        self.heap_units = plan.put_units
        self._digest = backend.scratch(self.slots, np.uint64)

    def store_records(self, first: int, last: int) -> None:
        """See `Writes.store_records`."""
        plan = self._plan
        self._backend.launch(
            "record",
            last - first,
            put_op=plan.put_op[first:last],
            reference=plan.put_reference[first:last],
            keys=plan.batch.keys,
            key_offsets=plan.key_offsets,
            key_lengths=plan.host_key_lengths,
            values=plan.batch.values,
            value_offsets=plan.value_offsets,
            value_lengths=plan.value_lengths,
            first_sequence=plan.first_sequence,
            table_id=self.entry.id,
            heap=self._heap.address,
        )

    def store_log(self, epoch: int, address: int, first: int, last: int) -> None:
        """See `Writes.store_log`."""
        self._table.log(self._plan, epoch, address, self._digest, first, last)

    def log_digest(self) -> int:
        """See `Writes.log_digest`."""
        return self._backend.total(self._digest)

    def apply(self, first: int, last: int) -> None:
        """See `Writes.apply`."""
        self._table.apply(self._plan, first, last)
