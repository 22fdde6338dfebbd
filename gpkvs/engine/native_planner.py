"""Small batches: all phases before the commit in one native call, and each step of the commit in one more.

The phases are those of `gpkvs.engine.table` and the kernels are the same (gpkvs/kernels/small.hpp); only Python is
missing between them, which for one operation takes fifty times what the kernels do, and for thousands as much.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gpkvs.backends.base import Backend
from gpkvs.backends.cpu.backend import address_of
from gpkvs.backends.fields import KernelFields
from gpkvs.batch import U8, Batch, RequestResult, constant
from gpkvs.engine.heap import Heap, Tail
from gpkvs.media.catalog import TableEntry
from gpkvs.media.files import StoreFiles
from gpkvs.media.layout import BYTES_LAYOUT, UNIT_BYTES, SlotLayout
from gpkvs.native import kernel_symbol
from gpkvs.pm.region import Region

OPS_MAX = 65_536  # of a small batch: with more, Python takes a few percent, and columns kept for it much memory

# Up to so many operations, and bytes, a call keeps Python's lock: to hand it over takes longer than they do.
_LOCKED_OPS_MAX = 512
_LOCKED_BYTES_MAX = 64 << 10
_OPS_MIN = 256  # for which there are columns from the first
# The first arguments: of a batch and its table.
_OF_BATCH = (
    *("n", "given_ops", "op_step", "keys", "values"),
    *("given_key_lengths", "key_length_step", "given_value_lengths", "value_length_step"),
    *("first_sequence", "live_units", "tail_segment", "tail_units", "table_id", "index", "buckets"),
)
# Columns with more than one element an operation: a slot that changes may displace another one, chains have an end.
_ELEMENTS = {"changed_slot": 2, "contents": 2, "digest": 2, "chain_start": 2, "block_first": 2}
_COUNTS = 14  # `SmallCount` in gpkvs/kernels/small.hpp


class NativePlanner:
    """Plans and stores small batches on tables of one layout; what it holds is of the last one planned (`Writes`).

    Parameters
    ----------
    files
        The mapped store.
    layout
        Of the tables.
    backend
        Whose host threads do the work, and which is told what they stored.
    result_bytes_max
        Values that one transaction may read; what may be more is left to the phases.
    """

    entry: TableEntry
    index: Region

    def __init__(self, files: StoreFiles, layout: SlotLayout, backend: Backend, result_bytes_max: int) -> None:
        self._backend = backend
        self._layout = layout
        self._has_records = layout is BYTES_LAYOUT
        self._keeps_lock = not files.heap.is_paged  # else a call may wait for a disk
        self._fields = KernelFields(f"small_plan_{layout.name}").fields
        self._words = (ctypes.c_uint64 * len(self._fields))()
        self._at = {field.name: at for at, field in enumerate(self._fields)}
        assert tuple(self._at)[: len(_OF_BATCH)] == _OF_BATCH
        hash_key0, hash_key1 = files.root.hash_keys
        self._set(
            pool=backend.host_threads,
            hash_key0=hash_key0,
            hash_key1=hash_key1,
            heap=files.heap.address,
            heap_bytes=files.heap.bytes,
            segment_units=files.root.segment_bytes // UNIT_BYTES,
            segments=files.root.heap_bytes // files.root.segment_bytes,
            result_bytes_max=result_bytes_max,
        )
        self._functions = [self._bind(ctypes.CFUNCTYPE), self._bind(ctypes.PYFUNCTYPE)]
        self._live_units: NDArray[np.uint64] | None = None
        self._live_units_at = 0
        self._make_columns(_OPS_MIN)

    @property
    def kept_bytes(self) -> int:
        """The memory that is kept for the columns of the next batch."""
        return sum(column.nbytes for column in self._columns.values())

    def _set(self, **words: int) -> None:
        for name, word in words.items():
            self._words[self._at[name]] = word

    def _bind(self, function_type: Callable[..., Any]) -> dict[str, Callable[[int, int], None]]:
        """Return the native steps, which give Python's lock away (CFUNCTYPE) or keep it."""
        signature = function_type(None, ctypes.c_void_p, ctypes.c_uint64, ctypes.c_uint64)
        steps = ["plan", "result", "log", "apply", *(["record", "count_live"] if self._has_records else [])]
        return {
            step: partial(
                signature(kernel_symbol(f"small_{step}_{self._layout.name}").run), ctypes.addressof(self._words)
            )
            for step in steps
        }

    def _make_columns(self, ops_max: int) -> None:
        """Make the columns that the phases hand on, for so many operations: all of them, or none."""
        columns: dict[str, NDArray[Any]] = {}
        for field in self._fields[self._at["ops"] :]:
            words = self._layout.slot_bytes // 8 if field.name == "contents" else 1
            count = _ELEMENTS.get(field.name, 1) * words * ops_max
            columns[field.name] = np.empty(count, field.dtype or np.uint64)
        addresses = {name: address_of(column) for name, column in columns.items()}
        self._columns, self._ops_max = columns, ops_max
        self._set(**addresses)

    def plan(self, batch: Batch, entry: TableEntry, index: Region, first_sequence: int, heap: Heap) -> bool:
        """Do all phases before the commit; PM is only read.

        Parameters
        ----------
        batch
            On one table.
        entry, index
            The table's catalogue entry and its mapped index.
        first_sequence
            The version of its first operation.
        heap
            Where new records go.

        Returns
        -------
        bool
            False if the phases one by one must do it, because something does not fit.
        """
        self.entry, self.index = entry, index
        self.operations = len(batch)
        if self.operations > self._ops_max:
            self._make_columns(1 << (self.operations - 1).bit_length())
        payload = len(batch.keys) + len(batch.values)
        self._call = self._functions[self._keeps_lock and self._is_short(payload)]
        tail = heap.tail
        self._words[: len(_OF_BATCH)] = [
            self.operations,
            _address(batch.ops),
            batch.ops.strides[0],
            _address(batch.keys),
            _address(batch.values),
            _address(batch.key_lengths),
            batch.key_lengths.strides[0] // 4,
            _address(batch.value_lengths),
            batch.value_lengths.strides[0] // 4,
            first_sequence,
            self._live_units_address(heap),
            tail.segment,
            tail.units,
            entry.id,
            index.address,
            entry.buckets,
        ]
        self._call["plan"](0, 1)
        (
            left,
            self.sets,
            self._gets,
            self.result_bytes,
            self.user_bytes,
            self.slots,
            new_keys,
            removed_keys,
            self.records,
            self.heap_units,
            tail_segment,
            tail_units,
            *_,
        ) = self._columns["counts"][:_COUNTS].tolist()
        self.gained = new_keys - removed_keys
        self.tail = Tail(tail_segment, tail_units)
        return not left

    def result(self) -> RequestResult:
        """Return the results of the planned batch."""
        count, gets, columns = self.operations, self._gets, self._columns
        values: U8 = np.empty(self.result_bytes, np.uint8)
        if self.result_bytes:
            self._set(out=address_of(values))
            self._functions[self._keeps_lock and self._is_short(self.result_bytes)]["result"](0, 1)
        return RequestResult(
            columns["status"][:count].copy(),
            columns["versions"][:count].copy() if self._has_records else constant(np.uint64(0), count),
            columns["length"][:gets].copy(),
            values,
        )

    def _live_units_address(self, heap: Heap) -> int:
        """Return where the live units are: a batch that is not small makes new ones."""
        if heap.live_units is not self._live_units:
            self._live_units, self._live_units_at = heap.live_units, address_of(heap.live_units)
        return self._live_units_at

    def _is_short(self, payload: int) -> bool:
        return self.operations <= _LOCKED_OPS_MAX and payload <= _LOCKED_BYTES_MAX

    def store_records(self, first: int, last: int) -> None:
        """See `Writes.store_records`."""
        self._call["record"](first, last)

    def store_log(self, epoch: int, address: int, first: int, last: int) -> None:
        """See `Writes.store_log`."""
        self._set(epoch=epoch, log=address)
        self._call["log"](first, last)

    def log_digest(self) -> int:
        """See `Writes.log_digest`."""
        return int(self._columns["counts"][_COUNTS - 1])

    def apply(self, first: int, last: int) -> None:
        """See `Writes.apply`."""
        self._call["apply"](first, last)
        self._backend.host_stored(self.index.address, self._columns["changed_slot"][first:last])

    def count_live(self) -> None:
        """Count the records that are live now, and those that are no longer; cannot fail."""
        if self._has_records:
            self._call["count_live"](0, 1)


def _address(column: NDArray[Any]) -> int:
    """Return where a column begins, also one that is one number for all operations."""
    return address_of(column) if column.flags.c_contiguous else int(column.ctypes.data)
