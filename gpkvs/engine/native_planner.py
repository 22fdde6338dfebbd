"""The native planner: one call plans a batch, all phases of it.

The phases are those of `gpkvs.engine.phases`, the kernels are the same (``kernels/native_planner.hpp``), and so are the
bytes that follow. Only Python is missing between the kernels: it takes fifty times what they take for one operation,
and as much as they do for thousands.
"""

from __future__ import annotations

import ctypes
from bisect import bisect_right
from itertools import accumulate
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from gpkvs import failpoint
from gpkvs.backends.base import Backend
from gpkvs.backends.cpu.backend import address_of
from gpkvs.backends.fields import Field, KernelFields
from gpkvs.batch import U8, U64, Batch, BatchPart, BatchResult, RequestResult, constant
from gpkvs.engine.capacity import NoRoomError, request_of_op
from gpkvs.engine.engine_batch import address_of_column
from gpkvs.engine.heap import Heap, Tail, record_units
from gpkvs.engine.left import Left
from gpkvs.engine.plan import FILLED_WORDS, FIRST_REQUEST
from gpkvs.engine.planner import ExpiredKeysError, Planned
from gpkvs.engine.table import Table
from gpkvs.engine.write_set import TableWrites, WriteSet, log_runs
from gpkvs.media.files import StoreFiles
from gpkvs.media.image import Image
from gpkvs.media.layout import LAYOUTS, SlotLayout
from gpkvs.native import native_step
from gpkvs.pm.mapping import map_memory

OPS_MAX = 65_536  # of a batch that Python plans with it, or a server gathers
_KEPT_BYTES = 128 << 20  # as far as the columns of a larger batch take more, the system may have it after the batch
_ALIGNMENT = 64  # bytes: a cache line

# Up to so many operations, and bytes, a call keeps Python's lock: to hand it over takes longer than they do.
_LOCKED_OPS_MAX = 512
_LOCKED_BYTES_MAX = 64 << 10
_OPS_MIN = 256  # for which there are columns from the first
# The first arguments: of a batch and its table.
_OF_BATCH = (
    *("n", "given_ops", "op_step", "keys", "values"),
    *("given_key_lengths", "key_length_step", "given_value_lengths", "value_length_step"),
    *("first_sequence", "table_id", "index", "blocks", "unmoved"),
    *("expiries", "now", "is_located", "found_words"),
)
# Columns with more than one element an operation: a changed slot may displace another one.
_ELEMENTS = {"changed_slot": 2, "contents": 2, "digest": 2}
_HAVE_END = {"chain_start", "block_first"}  # one element more
# Only tables with records need these.
_OF_RECORDS = {"old_meta", "reference", "freed_reference", "versions", "put_op", "put_reference"}
# `Planned` in kernels/native_planner.hpp.
_PLANNED_COUNT = 6
_PLANNED_GATE = 6
_PLANNED_CHAINS = 7
# What `locate` finds: of each operation, and of each chain.
_LOCATED_OPS = ("ops", "key_lengths", "key_offsets", "value_lengths", "chain")
_LOCATED_CHAINS = ("slot", "old_word", "old_meta")
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


class NativePlanner:
    """Plans batches of the host, where all of the batch fits.

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
        self._backend = backend
        self._tables = tables
        self._files = files
        self._heap = heap
        self.take_over_log()
        self._run_kind = files.run_kind
        self.result_bytes_max = result_bytes_max
        block: U8 = np.empty(_KEPT_BYTES, np.uint8)  # what nobody touches takes no memory
        self._of_layout = {
            name: _LayoutPlanner(files, layout, backend, heap, batch_result_bytes_max, block)
            for name, layout in LAYOUTS.items()
        }

        self._ops_kept = min(planner.ops_kept for planner in self._of_layout.values())

    @property
    def kept_bytes(self) -> int:
        """The memory that is kept for the columns of the next batch, of whichever layout."""
        return max(planner.kept_bytes for planner in self._of_layout.values())

    def take_over_log(self) -> None:
        """Take note that the undo log has grown."""
        self._log_words_max = self._files.log_words_max

    def take_over_heap(self) -> None:
        """Take note that the heap has grown: where it lies in memory, and its segments."""
        for planner in self._of_layout.values():
            planner.take_over_heap()

    @property
    def ops_max(self) -> int:
        """Operations of the largest batch that is planned so now.

        What a batch of a store with a GPU has changed is read when it has run: its columns must still be there.
        """
        backend = self._backend
        if backend is backend.host:
            return backend.host_ops_max
        return self._ops_kept if backend.path_costs else min(self._ops_kept, backend.host_ops_max)

    def struct_of(self, layout: str) -> tuple[int, int]:
        """Return the address of what plans batches of a layout, and the operations that it has columns for."""
        planner = self._of_layout[layout]
        return planner.address, planner.ops_max

    def begin_stores(self, number: int) -> None:
        """Forget what the last batch has changed: the native engine is to run one on a table."""
        if table := self._tables.get(number):
            self._of_layout[table.index.layout.name].writes.set(slots=0)

    def note_stored(self, number: int) -> None:
        """Tell the backend which slots were changed since `begin_stores`."""
        if table := self._tables.get(number):
            writes = self._of_layout[table.index.layout.name].writes
            writes.read_counters()
            if writes.slots:
                self._backend.host_stored(table.index, writes.changed_slot[: writes.slots])

    def planned_last(self, batch: Batch) -> tuple[Table, int]:
        """Return the table of a batch that was planned last, perhaps in vain, and how many new keys were met."""
        table = self._tables[batch.table]
        writes = self._of_layout[table.entry.layout].writes
        writes.read_counters()
        return table, writes.new_keys

    def lacks_room(self, batch: Batch) -> NoRoomError:
        """Return what a batch lacks whose records found no room when it was planned last, or its first requests."""
        table = self._tables[batch.table]
        op, units = self._of_layout[table.entry.layout].kept_records()
        return NoRoomError.of(self._heap, len(batch.request_ops), request_of_op(batch)[op], units)

    def knows_table(self, batch: Batch) -> bool:
        """Whether the table of a batch is there."""
        return batch.table in self._tables

    def have_columns(self, batch: Batch) -> bool:
        """Have columns for a batch, and not many more; return whether it may have as many operations."""
        table = self._tables.get(batch.table)
        if table is None or len(batch) > self.ops_max:
            return False
        self._of_layout[table.entry.layout].fit_columns(len(batch))
        return True

    def locate(self, batch: Batch) -> dict[str, NDArray[Any]] | None:
        """Find all keys of a batch, of any operations; return columns of it that the next batch overwrites.

        Returns
        -------
        dict of str to ndarray, or None
            Of each operation its number, lengths, offsets and `chain`; of each chain `slot`, `old_word`, `old_meta`.
            None: not a batch for this planner.
        """
        table = self._tables.get(batch.table)
        if table is None or not self._may_plan(batch):
            return None
        return self._of_layout[table.entry.layout].locate(batch, table)

    def plan(self, batch: Batch, first_sequence: int, now: int = 0, *, is_located: bool = False) -> Planned | None:
        """See `Planner.plan`; `is_located`: `locate` has just found the same keys, nothing has changed since."""
        table = self._tables.get(batch.table)
        if table is None or not self._may_plan(batch):
            return None
        planner = self._of_layout[table.entry.layout]
        if not planner.plan(batch, table, first_sequence, now, is_located=is_located):
            return None
        if planner.result_bytes > self.result_bytes_max:
            return None
        write_set = None
        if planner.writes.slots or planner.sets:  # a SET has a version, even if its key is deleted after
            runs, tail = log_runs([planner.writes], self._run_kind), planner.tail
            if runs[0].words > self._log_words_max:
                return None
            write_set = WriteSet([planner.writes], len(batch), runs, tail, (tail.segment,))
        requests = len(batch.request_ops)
        numbers = FIRST_REQUEST if requests == 1 else np.arange(requests)
        part = BatchPart(numbers, batch, planner.result())
        return Planned(BatchResult(part, {}, requests), write_set)

    def read_gate(self, table: Table, stable_sequence: int) -> int:
        """Return the newest epoch that may have supplied anything that the batch planned last has read.

        Parameters
        ----------
        table
            What it read; its index is an image with marks.
        stable_sequence
            Records with lower versions are durable.
        """
        return self._of_layout[table.entry.layout].read_gate(table, stable_sequence)

    def takes(self, batch: Batch) -> bool:
        """Whether a batch may be planned in one call: on the host, not too many operations."""
        is_on_host = isinstance(batch.keys, np.ndarray) and isinstance(batch.values, np.ndarray)
        return is_on_host and len(batch) <= self.ops_max

    def _may_plan(self, batch: Batch) -> bool:
        return len(batch) <= min(OPS_MAX, self._files.log_entries_max) and self.takes(batch)


class _LayoutPlanner:
    """Plans batches on tables of one layout; what it holds is of the last one planned."""

    def __init__(
        self, files: StoreFiles, layout: SlotLayout, backend: Backend, heap: Heap, result_bytes_max: int, block: U8
    ) -> None:
        self._layout = layout
        self._files = files
        self._heap = heap
        self._has_records = layout.has_records
        self._keeps_lock = not files.heap.is_paged  # else a call may wait for a disk
        self._fields = KernelFields(f"plan_{layout.name}").fields
        self._words = (ctypes.c_uint64 * len(self._fields))()
        self.address = ctypes.addressof(self._words)
        self._at = {field.name: at for at, field in enumerate(self._fields)}
        assert tuple(self._at)[: len(_OF_BATCH)] == _OF_BATCH
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
        plan, values = f"plan_{layout.name}", f"values_{layout.name}"
        self._plan = [native_step(plan, keeps_lock=keeps) for keeps in (False, True)]
        self._gate = native_step(f"gate_{layout.name}", keeps_lock=False)
        self._locate = native_step(f"locate_{layout.name}", keeps_lock=False)
        self._values = [native_step(values, keeps_lock=keeps) for keeps in (False, True)]
        # A batch fills each segment once at most. What nobody touches takes no memory.
        segments = heap.space_bytes // files.root.segment_bytes if layout.has_records else 0
        self._filled: U64 = np.empty(FILLED_WORDS * (segments + 1), np.uint64)
        self._block = block
        of_ops = self._fields[self._at["ops"] :]
        self._of_ops = [self._column(field) for field in of_ops if field.name != "filled_segment"]
        of_an_operation = sum(column.elements * column.dtype.itemsize for column in self._of_ops)
        self.ops_kept = (len(block) - 2 * _ALIGNMENT * len(self._of_ops)) // of_an_operation
        self._set(ops_kept=self.ops_kept)
        self._make_columns(_OPS_MIN)

    def _column(self, field: Field) -> _Column:
        elements = _ELEMENTS.get(field.name, 1) * (self._layout.slot_bytes // 8 if field.name == "contents" else 1)
        if field.name in _OF_RECORDS and not self._has_records:
            elements = 0
        return _Column(field.name, np.dtype(field.dtype or np.uint64), elements, field.name in _HAVE_END)

    def take_over_heap(self) -> None:
        heap = self._heap
        address, live_units = self._files.heap.address, address_of(heap.live_units)
        self._set(
            heap=address,
            heap_bytes=heap.bytes,
            segments=heap.segments,
            live_units=live_units,
            heap_state=address_of(heap.state),
        )
        self.writes.set(heap=address, segments=heap.segments)

    def _set(self, **words: int) -> None:
        for name, word in words.items():
            self._words[self._at[name]] = word

    def have_columns(self, count: int) -> None:
        """Have columns for so many operations."""
        if count > self.ops_max:
            self._make_columns(max(count, min(2 * self.ops_max, self.ops_kept)))

    def fit_columns(self, count: int) -> None:
        """Have columns for so many operations, and none outside the block that they do not need."""
        if count <= self.ops_kept < self.ops_max:
            self._make_columns(self.ops_kept)
        self.have_columns(count)

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
        self.writes.changed_slot = columns["changed_slot"]
        self._columns, self.ops_max, self.kept_bytes = columns, ops_max, first_outside
        self._set(ops_room=ops_max)

    def locate(self, batch: Batch, table: Table) -> dict[str, NDArray[Any]] | None:
        """Find all keys."""
        self._begin(batch, table, 0, 0, is_located=False)
        self._locate(self.address, 0, 1)
        columns, count = self._columns, len(batch)
        if columns["planned"][0]:
            return None
        chains = int(columns["planned"][_PLANNED_CHAINS])
        of_ops = {name: columns[name][:count] for name in _LOCATED_OPS}
        of_ops["value_offsets"] = columns["own_value_offsets"][:count]
        return of_ops | {name: columns[name][:chains] for name in _LOCATED_CHAINS}

    def plan(self, batch: Batch, table: Table, first_sequence: int, now: int, *, is_located: bool) -> bool:
        """Do all phases; return whether all of the batch fits.

        Raises
        ------
        ExpiredKeysError
            As `Planner.plan` says.
        """
        writes = self.writes
        self._begin(batch, table, first_sequence, now, is_located=is_located)
        self._plan[writes.is_short](self.address, 0, 1)
        left, self.sets, self._gets, self.result_bytes, *self._tail = self._columns["planned"][:_PLANNED_COUNT].tolist()
        if left == Left.EXPIRED:
            raise ExpiredKeysError
        writes.read_counters()
        return not left

    @property
    def tail(self) -> Tail:
        """Of the heap, after the planned batch, which writes."""
        return Tail(*self._tail)

    def kept_records(self) -> tuple[NDArray[np.intp], U64]:
        """Return the operations of the last batch that leave a record, and its units, also where there is no room."""
        columns = self._columns
        op = np.flatnonzero(columns["reference"][: self._words[0]])
        return op, record_units(columns["key_lengths"][op], columns["value_lengths"][op])

    def _begin(self, batch: Batch, table: Table, first_sequence: int, now: int, *, is_located: bool) -> None:
        """Give a batch to the next step."""
        writes, count = self.writes, len(batch)
        writes.index, writes.operations = table.index, count
        self.have_columns(count)
        writes.is_short = self._is_short(len(batch.keys) + len(batch.values))
        entry = table.entry
        self._words[: len(_OF_BATCH)] = [
            count,
            address_of_column(batch.ops),
            batch.ops.strides[0],
            address_of_column(batch.keys),
            address_of_column(batch.values),
            address_of_column(batch.key_lengths),
            batch.key_lengths.strides[0] // 4,
            address_of_column(batch.value_lengths),
            batch.value_lengths.strides[0] // 4,
            first_sequence,
            entry.id,
            table.index.address,
            table.index.blocks,
            table.index.unmoved,
            0 if batch.expiries is None else address_of(batch.expiries),
            now,
            is_located,
            0,
        ]

    def result(self) -> RequestResult:
        """Return the results of the planned batch."""
        count, gets, columns = self.writes.operations, self._gets, self._columns
        values: U8 = np.empty(self.result_bytes, np.uint8)
        if self.result_bytes:
            self._set(out=address_of(values))
            self._values[self._is_short(self.result_bytes)](self.address, 0, 1)
        return RequestResult(
            columns["status"][:count].copy(),
            columns["versions"][:count].copy() if self._has_records else constant(np.uint64(0), count),
            columns["length"][:gets].copy(),
            values,
        )

    def read_gate(self, table: Table, stable_sequence: int) -> int:
        image = table.index.region
        assert isinstance(image, Image)
        self._set(marks=address_of(image.marks), stable_sequence=stable_sequence)
        self._gate(self.address, 0, 1)
        return int(self._columns["planned"][_PLANNED_GATE])

    def _is_short(self, payload: int) -> bool:
        return self._keeps_lock and self.writes.operations <= _LOCKED_OPS_MAX and payload <= _LOCKED_BYTES_MAX
