"""Small batches: all phases before the commit in one native call, on the caller's thread, and each of its steps in one.

The phases are those of `gpkvs.table` and the kernels are the same (gpkvs/kernels/small.hpp); only Python is missing
between them, which for one operation takes fifty times what the kernels do. Calls keep Python's lock: a batch is over
in less time than another thread would hold it.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gpkvs.backends.base import Backend
from gpkvs.backends.cpu import address_of
from gpkvs.backends.fields import KernelFields
from gpkvs.batch import U8, Batch, RequestResult, constant
from gpkvs.catalog import TableEntry
from gpkvs.files import StoreFiles
from gpkvs.heap import Heap, Tail
from gpkvs.layout import BYTES, UNIT_BYTES
from gpkvs.native import kernel_symbol
from gpkvs.pm.region import Region

_CALL = ctypes.PYFUNCTYPE(None, ctypes.c_void_p, ctypes.c_uint64, ctypes.c_uint64)
# Columns with more than one element an operation: a slot that changes may displace another one, offsets have an end.
_ELEMENTS = {"changed_slot": 2, "contents": 2, "digest": 2, "chain_start": 2, "block_first": 2}
OPS_MAX = 2048  # of a small batch: with more, a second thread would help
_COUNTS = 13  # `SmallCount` in gpkvs/kernels/small.hpp
# The first arguments, as `plan` gives them.
_OF_BATCH = (
    *("n", "given_ops", "op_step", "keys", "values"),
    *("given_key_lengths", "key_length_step", "given_value_lengths", "value_length_step"),
    *("first_sequence", "live_units", "tail_segment", "tail_units"),
)


class SmallTable:
    """Plans and stores small batches on one table; what it holds is of the last one that was planned (`Writes`).

    Parameters
    ----------
    files
        The mapped store.
    entry, index
        The table's catalogue entry and its mapped index.
    backend
        Told which slots the host stored to.
    """

    def __init__(self, files: StoreFiles, entry: TableEntry, index: Region, backend: Backend) -> None:
        self._backend = backend
        self.entry = entry
        self.index = index
        self._has_records = entry.slot_layout is BYTES
        fields = KernelFields(f"small_plan_{entry.layout}").fields
        self._words = (ctypes.c_uint64 * len(fields))()
        self._at = {field.name: at for at, field in enumerate(fields)}
        assert tuple(self._at)[: len(_OF_BATCH)] == _OF_BATCH
        hash_key0, hash_key1 = files.root.hash_keys
        self._set(
            table_id=entry.id,
            hash_key0=hash_key0,
            hash_key1=hash_key1,
            index=index.address,
            buckets=entry.buckets,
            heap=files.heap.address,
            heap_bytes=files.heap.bytes,
            segment_units=files.root.segment_bytes // UNIT_BYTES,
            segments=files.root.heap_bytes // files.root.segment_bytes,
        )
        first_column = self._at["ops"]
        self._columns: dict[str, NDArray[Any]] = {}
        for field in fields[first_column:]:
            words = entry.slot_layout.slot_bytes // 8 if field.name == "contents" else 1
            column = np.zeros(_ELEMENTS.get(field.name, 1) * words * OPS_MAX, field.dtype or np.uint64)
            self._columns[field.name] = column
            self._words[self._at[field.name]] = address_of(column)
        self._counts = self._columns["counts"]
        self._plan, self._reply, self._log, self._apply = (
            self._function(step) for step in ("plan", "reply", "log", "apply")
        )
        if self._has_records:
            self._record, self._settle = self._function("record"), self._function("settle")

    def _function(self, step: str) -> Callable[[int, int], None]:
        code = _CALL(kernel_symbol(f"small_{step}_{self.entry.layout}").run)
        return partial(code, ctypes.addressof(self._words))

    def _set(self, **words: int) -> None:
        for name, word in words.items():
            self._words[self._at[name]] = word

    def plan(self, batch: Batch, first_sequence: int, heap: Heap) -> bool:
        """Do all phases before the commit; PM is only read.

        Parameters
        ----------
        batch
            On this table only.
        first_sequence
            The version of its first operation.
        heap
            Where new records go.

        Returns
        -------
        bool
            False if the phases one by one must do it, because something does not fit at once.
        """
        tail = heap.tail
        self._words[: len(_OF_BATCH)] = [
            len(batch),
            _address(batch.ops),
            batch.ops.strides[0],
            _address(batch.keys),
            _address(batch.values),
            _address(batch.key_lengths),
            batch.key_lengths.strides[0] // 4,
            _address(batch.value_lengths),
            batch.value_lengths.strides[0] // 4,
            first_sequence,
            _address(heap.live_units),
            tail.segment,
            tail.units,
        ]
        self._plan(0, 1)
        (
            left,
            self.sets,
            self._gets,
            self.reply_bytes,
            self.user_bytes,
            self.slots,
            new_keys,
            removed_keys,
            self.records,
            self.heap_units,
            tail_units,
            *_,
        ) = self._counts[:_COUNTS].tolist()
        self.operations = len(batch)
        self.gained = new_keys - removed_keys
        self.tail = Tail(tail.segment, tail_units)
        return not left

    def result(self) -> RequestResult:
        """Return the results of the planned batch."""
        count, gets, columns = self.operations, self._gets, self._columns
        values: U8 = np.empty(self.reply_bytes, np.uint8)
        if self.reply_bytes:
            self._set(out=address_of(values))
            self._reply(0, 1)
        return RequestResult(
            columns["status"][:count].copy(),
            columns["versions"][:count].copy() if self._has_records else constant(np.uint64(0), count),
            columns["length"][:gets].copy(),
            values,
        )

    def store_records(self, first: int, last: int) -> None:
        """See `Writes.store_records`."""
        self._record(first, last)

    def store_log(self, epoch: int, address: int, first: int, last: int) -> None:
        """See `Writes.store_log`."""
        self._set(epoch=epoch, log=address)
        self._log(first, last)

    def log_digest(self) -> int:
        """See `Writes.log_digest`."""
        return int(self._counts[_COUNTS - 1])

    def apply(self, first: int, last: int) -> None:
        """See `Writes.apply`."""
        self._apply(first, last)
        self._backend.host_stored(self.index.address, self._columns["changed_slot"][first:last])

    def settle(self) -> None:
        """Count the records that are live now, and those that are no longer; cannot fail."""
        if self._has_records:
            self._settle(0, 1)


def _address(column: NDArray[Any]) -> int:
    """Return where a column begins, also one that is one number for all operations."""
    return address_of(column) if column.flags.c_contiguous else int(column.ctypes.data)
