"""What a planner decided and a committer stores: columns and counters.

`TableWrites` holds the struct of the same name (``kernels/space/write_set.hpp``): native code can store a table's part
without Python. Its columns lie on the host. Where a GPU planned, the changed slots and their contents stay on the GPU
(`DeviceColumns`). `WriteSet` adds what all tables share.
"""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

from numpy.typing import NDArray

from gpkvs.backends.base import Backend
from gpkvs.backends.cpu.backend import address_of
from gpkvs.backends.fields import KernelFields
from gpkvs.batch import U64, Batch
from gpkvs.engine.state.heap import Heap, SegmentCounts, Tail
from gpkvs.engine.state.table import Held, Table
from gpkvs.media.files import StoreFiles
from gpkvs.media.index import Index
from gpkvs.media.layout import UNIT_BYTES, LogRun, RunKind

FILLED_WORDS: Final = 4  # a segment, units, what they are charged, the end of the last record
_FIELDS: Final = tuple(field.name for field in KernelFields("count_live").fields)
_AT: Final = {name: at for at, name in enumerate(_FIELDS)}
_COUNTERS: Final = (
    *("slots", "records", "new_keys", "removed_keys", "user_bytes", "heap_units"),
    *("new_expiring", "old_expiring"),
)
_LOG_DIGEST, _EPOCH, _LOG, _RECORDS_DIGEST = (_AT[name] for name in ("log_digest", "epoch", "log", "records_digest"))
_CONTENTS = _AT["contents"]
_OF_TABLE: Final = slice(_AT["held"], _AT["index_file"] + 1)
assert _FIELDS[_OF_TABLE] == ("held", "generation", "entry_bytes", "index_file")
assert _FIELDS[: len(_COUNTERS)] == _COUNTERS


@dataclass(frozen=True)
class DeviceColumns:
    """The slots that change, as one GPU planned them."""

    slot: U64
    contents: U64  # (slots, words of a slot)
    digest: U64

    def __len__(self) -> int:
        return len(self.slot)


class TableWrites:
    """One table's part of a write set.

    Parameters
    ----------
    files, backend, heap
        Of the store.

    Attributes
    ----------
    index
        What the slots are stored to.
    operations
        Of the table's part of the batch, reads too: each has a version.
    slots, records
        How many slots change, and how many records are new.
    new_keys, removed_keys
        How many keys the table gains, and loses.
    user_bytes
        What users asked to write.
    heap_units
        What the new records take, in units of 16 bytes.
    new_expiring, old_expiring
        How many records with an expiry it brings, and how many slots with one lose their record.
    device
        The slots, if they are on GPUs: a part for each of `Backend.processors`, or all of the first one's. Those of the
        first part come first. No part, if they are on the host.
    brought
        The same slots on GPUs, where these planned and the host's threads store all: for the mirrors.
    freed
        Where a GPU planned: what each segment of the heap loses; `None` without records.
    changed_slot : (slots,) uint64
        The slots, if they are on the host.
    """

    index: Index
    operations: int
    slots: int
    records: int
    new_keys: int
    removed_keys: int
    user_bytes: int
    heap_units: int
    new_expiring: int
    old_expiring: int
    changed_slot: U64

    def __init__(self, files: StoreFiles, backend: Backend, heap: Heap) -> None:
        self.words = (ctypes.c_uint64 * len(_FIELDS))()
        self.address = ctypes.addressof(self.words)
        self.device: tuple[DeviceColumns, ...] = ()
        self.brought: tuple[DeviceColumns, ...] = ()
        self.freed: SegmentCounts | None = None
        self._columns: dict[str, NDArray[Any]] = {}  # kept as long as native code may read them
        self.set(
            pool=backend.host_threads,
            heap=files.heap.address,
            record_format=heap.record_format,
            segments=heap.segments,
            segment_units=heap.segment_units,
            live_units=address_of(heap.live_units),
            charged_units=address_of(heap.charged_units),
            ends=address_of(heap.ends),
            stamps=address_of(heap.stamps),
            heap_state=address_of(heap.state),
        )

    def set(self, **words: int) -> None:
        """Set fields of the struct: numbers and addresses."""
        for name, word in words.items():
            self.words[_AT[name]] = word

    def keep(self, **columns: NDArray[Any]) -> None:
        """Set fields of the struct to the addresses of columns, which live as long as this."""
        self._columns |= columns
        self.set(**{name: address_of(column) for name, column in columns.items()})

    def read_counters(self) -> None:
        """Take over the counters that native code left in the struct."""
        self.slots, self.records, self.new_keys, self.removed_keys, *others = self.words[: len(_COUNTERS)]
        self.user_bytes, self.heap_units, self.new_expiring, self.old_expiring = others

    def begin_commit(self, table: Table, index_file: int) -> None:
        """Tell a native committer of the table whose part this is, and of the file that its slots are stored to."""
        generation, entry_bytes = table.entry.generation, self.index.layout.entry_bytes
        self.words[_OF_TABLE] = [table.held_address, generation, entry_bytes, index_file]

    def counted_by_host(self) -> Held:
        """Return what the table gains, but for the units that `count_live` counts (kernels/space/write_set.hpp)."""
        freed_units = 0 if self.freed is None else int(self.freed.live.sum())
        return Held(self.new_keys - self.removed_keys, -freed_units, self.new_expiring - self.old_expiring)

    def begin_log(self, epoch: int, address: int) -> None:
        """Say where a run of entries begins, and of which epoch they are."""
        self.words[_EPOCH] = epoch
        self.words[_LOG] = address

    @property
    def contents_address(self) -> int:
        """Where the new contents of the slots are, if they are on the host."""
        return self.words[_CONTENTS]

    @property
    def epoch(self) -> int:
        """The epoch of `begin_log`."""
        return self.words[_EPOCH]

    @property
    def log_digest(self) -> int:
        """The sum of the digests of all entries that the host's threads stored."""
        return self.words[_LOG_DIGEST]

    @property
    def records_digest(self) -> int:
        """The sum of the digests of all records that were written to the file of the heap."""
        return self.words[_RECORDS_DIGEST]


class Volumes(NamedTuple):
    """How many bytes a write set has: of users, and to store."""

    user_bytes: int
    record_bytes: int
    entry_bytes: int
    index_bytes: int


class WriteSet(NamedTuple):
    """What one transaction stores.

    Attributes
    ----------
    tables
        Its parts.
    operations
        Of the batch, reads too.
    runs
        Each part's run of entries, in the undo log or in a frame.
    tail
        Of the heap, after the new records.
    segments
        The segments of the heap that get new records.
    planned
        What it was planned from: a GPU may still read it.
    """

    tables: Sequence[TableWrites]
    operations: int
    runs: tuple[LogRun, ...]
    tail: Tail
    segments: Sequence[int]
    planned: Batch | None = None

    def volumes(self) -> Volumes:
        """Return how much there is to store."""
        user_bytes = heap_units = entry_bytes = index_bytes = 0
        for writes, run in zip(self.tables, self.runs, strict=True):
            layout = writes.index.layout
            user_bytes += writes.user_bytes
            heap_units += writes.heap_units
            entry_bytes += writes.slots * layout.entry_bytes_of(run.kind)
            index_bytes += writes.slots * layout.slot_bytes
        return Volumes(user_bytes, heap_units * UNIT_BYTES, entry_bytes, index_bytes)


def log_runs(tables: Sequence[TableWrites], kind: RunKind) -> tuple[LogRun, ...]:
    """Give each table its run of entries."""
    runs: list[LogRun] = []
    first_word = 0
    for writes in tables:
        entry = writes.index.entry
        entry_bytes = entry.slot_layout.entry_bytes_of(kind)
        runs.append(LogRun(kind, entry.id, entry.generation, entry_bytes, first_word, writes.slots))
        first_word += runs[-1].words
    return tuple(runs)
