"""What the native planner (``kernels/plan/native_planner.hpp``) works with: columns, the heap, what it planned last.

Its phases are those of `gpkvs.engine.device.phases`, the kernels are the same, and so are the bytes that follow. Only
Python is missing between the kernels: it takes fifty times what they take for one operation, and as much for thousands.
"""

from __future__ import annotations

import ctypes
from bisect import bisect_right
from functools import cache
from itertools import accumulate
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from gpkvs.backends.base import Backend
from gpkvs.backends.cpu.backend import address_of
from gpkvs.backends.fields import Field, fields_of
from gpkvs.batch import U8, U64, Batch
from gpkvs.engine.seam.capacity import LackedRoom, request_of_op
from gpkvs.engine.seam.write_set import FILLED_WORDS, TableWrites
from gpkvs.engine.state.heap import Heap, record_units
from gpkvs.engine.state.table import Table
from gpkvs.media.files import StoreFiles
from gpkvs.media.layout import LAYOUTS, SlotLayout
from gpkvs.native import library
from gpkvs.pm.mapping import map_memory
from gpkvs.process import failpoint

OPS_MAX = 65_536  # of a batch that a server gathers, or a request of Python's objects
_KEPT_BYTES = 128 << 20  # as far as the columns of a larger batch take more, the system may have it after the batch
_ALIGNMENT = 64  # bytes: a cache line

_OPS_MIN = 256  # for which there are columns from the first
# Columns with more than one element an operation: a changed slot may displace another one.
_ELEMENTS = {"changed_slot": 2, "contents": 2, "digest": 2}
_HAVE_END = {"chain_start", "block_first"}  # one element more
# Only tables with records need these.
_OF_RECORDS = {"old_meta", "reference", "freed_reference", "versions", "put_op", "put_reference"}
# What plans batches of a layout.
_LISTS = {"bytes": library.gpkvs_planner_bytes_fields, "u64": library.gpkvs_planner_u64_fields}
# The columns that the committer reads.
_OF_WRITES = (
    *("changed_slot", "contents", "digest", "put_op", "put_reference", "key_offsets", "key_lengths"),
    *("value_offsets", "value_lengths", "freed_reference", "filled_segment"),
)


class _Column(NamedTuple):
    """A column of so many elements an operation, and perhaps one more."""

    name: str
    dtype: np.dtype[Any]
    elements: int
    more: bool


@cache
def _columns_of(layout: SlotLayout) -> tuple[_Column, ...]:
    fields = fields_of(_LISTS[layout.name]())
    first = next(at for at, field in enumerate(fields) if field.name == "ops")
    return tuple(_column(field, layout) for field in fields[first:] if field.name != "filled_segment")


def _column(field: Field, layout: SlotLayout) -> _Column:
    elements = _ELEMENTS.get(field.name, 1) * (layout.slot_bytes // 8 if field.name == "contents" else 1)
    if field.name in _OF_RECORDS and not layout.has_records:
        elements = 0
    return _Column(field.name, np.dtype(field.dtype or np.uint64), elements, field.name in _HAVE_END)


class NativePlanner:
    """Plans batches of the host, for the native engine.

    Parameters
    ----------
    backend, files, tables, heap
        Of the store; the host's threads plan.
    result_bytes_max, batch_result_bytes_max
        Values that one request, and one transaction, may read.
    """

    def __init__(
        self,
        backend: Backend,
        files: StoreFiles,
        tables: dict[int, Table],
        heap: Heap,
        result_bytes_max: int,
        batch_result_bytes_max: int,
    ) -> None:
        self._tables = tables
        self._heap = heap
        self.result_bytes_max = result_bytes_max
        block: U8 = np.empty(_KEPT_BYTES, np.uint8)  # what nobody touches takes no memory
        self._of_layout = {
            name: _LayoutPlanner(files, layout, backend, heap, batch_result_bytes_max, block)
            for name, layout in LAYOUTS.items()
        }

    @property
    def kept_bytes(self) -> int:
        """The memory that is kept for the columns of the next batch, of whichever layout."""
        return max(planner.kept_bytes for planner in self._of_layout.values())

    def take_over_heap(self) -> None:
        """Take note that the heap has grown: where it lies in memory, and its segments."""
        for planner in self._of_layout.values():
            planner.take_over_heap()

    def struct_of(self, layout: str) -> tuple[int, int]:
        """Return the address of what plans batches of a layout, and the operations that it has columns for."""
        planner = self._of_layout[layout]
        return planner.address, planner.ops_max

    def planned_last(self, batch: Batch) -> tuple[Table, int]:
        """Return the table of a batch that was planned last, perhaps in vain, and how many new keys were met."""
        table = self._tables[batch.table]
        writes = self._of_layout[table.index.layout.name].writes
        writes.read_counters()
        return table, writes.new_keys

    def lacks_room(self, batch: Batch) -> LackedRoom:
        """Return what a batch lacks whose records found no room when it was planned last, or its first requests."""
        table = self._tables[batch.table]
        op, units = self._of_layout[table.index.layout.name].kept_records()
        return LackedRoom.of(self._heap, len(batch.request_ops), request_of_op(batch)[op], units)

    def layout_of(self, batch: Batch) -> str:
        """Return the layout of the table of a batch."""
        return self._tables[batch.table].entry.layout

    def knows_table(self, batch: Batch) -> bool:
        """Whether the table of a batch is there."""
        return batch.table in self._tables

    def have_columns(self, batch: Batch) -> bool:
        """Have columns for a batch, and not many more; return whether its table is there."""
        table = self._tables.get(batch.table)
        if table is None:
            return False
        self._of_layout[table.index.layout.name].fit_columns(len(batch))
        return True


class _LayoutPlanner:
    """Plans batches on tables of one layout; what it holds is of the last one planned."""

    def __init__(
        self, files: StoreFiles, layout: SlotLayout, backend: Backend, heap: Heap, result_bytes_max: int, block: U8
    ) -> None:
        self._files = files
        self._heap = heap
        self._has_records = layout.has_records
        self._fields = fields_of(_LISTS[layout.name]())
        self._words = (ctypes.c_uint64 * len(self._fields))()
        self.address = ctypes.addressof(self._words)
        self._at = {field.name: at for at, field in enumerate(self._fields)}
        self.writes = TableWrites(files, backend, heap)
        hash_key0, hash_key1 = files.root.hash_keys
        self._set(
            pool=backend.host_threads,
            failpoint=failpoint.address(),
            hash_key0=hash_key0,
            hash_key1=hash_key1,
            segment_units=files.segment_units,
            result_bytes_max=result_bytes_max,
            writes=self.writes.address,
        )
        self.take_over_heap()
        # A batch fills each segment once at most. What nobody touches takes no memory.
        segments = heap.space_bytes // files.root.segment_bytes if layout.has_records else 0
        self._filled: U64 = np.empty(FILLED_WORDS * (segments + 1), np.uint64)
        self._block = block
        self._of_ops = _columns_of(layout)
        of_an_operation = sum(column.elements * column.dtype.itemsize for column in self._of_ops)
        self.ops_kept = (len(block) - 2 * _ALIGNMENT * len(self._of_ops)) // of_an_operation
        self._set(ops_kept=self.ops_kept)
        self._make_columns(_OPS_MIN)

    def take_over_heap(self) -> None:
        heap = self._heap
        address, live_units = self._files.heap.address, address_of(heap.live_units)
        self._set(
            heap=address,
            heap_bytes=heap.bytes,
            record_format=heap.record_format,
            segments=heap.segments,
            live_units=live_units,
            heap_state=address_of(heap.state),
        )
        self.writes.set(heap=address, segments=heap.segments)
        if heap.blobs and self._has_records:
            self._set(blob_plan=heap.blobs.address)
            self.writes.set(blob_plan=heap.blobs.address)

    def _set(self, **words: int) -> None:
        for name, word in words.items():
            self._words[self._at[name]] = word

    def fit_columns(self, count: int) -> None:
        """Have columns for so many operations, and none outside the block that they do not need."""
        if count <= self.ops_kept < self.ops_max:
            self._make_columns(self.ops_kept)
        if count > self.ops_max:
            self._make_columns(max(count, min(2 * self.ops_max, self.ops_kept)))

    def _make_columns(self, ops_max: int) -> None:
        """Make the columns that the phases hand on, for so many operations: all of them, or none.

        They lie in the block that is kept, and what it has no room for in memory of this batch alone.
        """
        sizes = [(ops_max + column.more) * column.elements * column.dtype.itemsize for column in self._of_ops]
        ends = list(accumulate(-(-size // _ALIGNMENT) * _ALIGNMENT for size in sizes))
        in_block = bisect_right(ends, len(self._block))
        first_outside = ends[in_block - 1] if in_block else 0
        outside: U8 = map_memory(ends[-1] - first_outside) if ends[-1] > first_outside else self._block[:0]
        columns: dict[str, NDArray[Any]] = {"filled_segment": self._filled}
        for column, first, size in zip(self._of_ops, [0, *ends], sizes, strict=False):
            room = self._block[first:] if first < first_outside else outside[first - first_outside :]
            columns[column.name] = room[:size].view(column.dtype)
        addresses = {name: address_of(column) for name, column in columns.items()}
        of_writes = {name: addresses.get(name) or addresses[f"own_{name}"] for name in _OF_WRITES}
        # The old columns are freed last: until then, all addresses are of memory that is there.
        self.ops_max = 0
        self._set(ops_room=0)
        self._set(**addresses, outside=address_of(outside), outside_bytes=len(outside))
        self.writes.set(**of_writes)
        self._columns, self.kept_bytes = columns, first_outside
        self._set(ops_room=ops_max)
        self.ops_max = ops_max  # last: after an interrupt the columns are made again

    def kept_records(self) -> tuple[NDArray[np.intp], U64]:
        """Return the operations of the last batch that leave a record, and its units at most, also without room."""
        columns = self._columns
        op = np.flatnonzero(columns["reference"][: self._words[0]])
        with_expiries = np.ones(len(op), np.uint64)  # they may have some
        lengths = columns["key_lengths"][op], columns["value_lengths"][op]
        return op, record_units(self._heap.record_format, *lengths, with_expiries)
