"""Stores the records of an export: in batches, each of which may be repeated."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from itertools import islice
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gpkvs.batch import U32, Batch, Condition, Op, RequestResult, Status
from gpkvs.columns.row_layout import RowLayout
from gpkvs.export.columns import Columns, Numbers, rows_as_columns
from gpkvs.export.file_format import ExportError
from gpkvs.export.reader import Record

BATCH_BYTES_MAX = 1 << 20
"""A batch has no more, but one record at least."""

Execute = Callable[[Batch], RequestResult]
"""Stores a batch; may try more than once, since storing a record twice does no harm."""


@dataclass
class Imported:
    """What became of the records so far."""

    stored: int = 0
    there_already: int = 0


def import_records(chunks: Iterable[list[Record]], execute: Execute, *, if_absent: bool, batch_ops: int) -> Imported:
    """Store the records of a table of bytes."""
    cut = (part for chunk in chunks for part in _parts(chunk, batch_ops))
    return _run(map(_batch_of_records, cut), execute, if_absent=if_absent)


def import_columns(chunks: Iterable[Columns], execute: Execute, *, if_absent: bool, batch_ops: int) -> Imported:
    """Store the records of a table of bytes, or of rows, that come as columns."""
    batches = (batch for columns in chunks for batch in _batches_of_columns(columns, batch_ops))
    return _run(batches, execute, if_absent=if_absent)


def import_numbers(chunks: Iterable[Numbers], execute: Execute, *, if_absent: bool, batch_ops: int) -> Imported:
    """Store the records of a table of numbers."""
    cut = (
        (keys[start : start + batch_ops], values[start : start + batch_ops])
        for keys, values in chunks
        for start in range(0, len(keys), batch_ops)
    )
    return _run((_batch_of_numbers(*part) for part in cut), execute, if_absent=if_absent)


def numbers_of(chunks: Iterable[list[Record]]) -> Iterator[Numbers]:
    """Return the records of a table of numbers as columns."""
    for records in chunks:
        rows = np.array(records, np.uint64).reshape(-1, 3)
        yield rows[:, 0], rows[:, 1]


def columns_of_rows(chunks: Iterable[list[Record]], layout: RowLayout) -> Iterator[Columns]:
    """Return the records of a table of rows as columns."""
    for records in chunks:
        keys = np.fromiter((record[0] for record in records), np.uint64, len(records))
        values = np.frombuffer(b"".join(record[1] for record in records), np.uint8)
        expiries = np.fromiter((record[2] for record in records), np.uint64, len(records))
        yield rows_as_columns(layout, keys, values, expiries)


def _run(batches: Iterable[Batch], execute: Execute, *, if_absent: bool) -> Imported:
    imported = Imported()
    for batch in batches:
        conditions = np.full(len(batch), Condition.ABSENT, np.uint8) if if_absent else None
        status = execute(replace(batch, conditions=conditions)).status
        stored = int(np.count_nonzero(status == Status.OK.value))
        there_already = int(np.count_nonzero(status == Status.CONDITION_FAILED.value))
        if stored + there_already < len(batch):
            raise ExportError(f"records were not stored, their statuses are {sorted(set(status.tolist()))}")
        imported.stored += stored
        imported.there_already += there_already
    return imported


def _parts(records: list[Record], batch_ops: int) -> Iterator[list[Record]]:
    """Cut records into parts that make a batch each."""
    left = iter(records)
    while part := list(islice(left, batch_ops)):
        begun: list[Record] = []
        length = 0
        for record in part:
            size = len(record[0]) + len(record[1])
            if begun and length + size > BATCH_BYTES_MAX:
                yield begun
                begun, length = [], 0
            begun.append(record)
            length += size
        yield begun


def _batches_of_columns(columns: Columns, batch_ops: int) -> Iterator[Batch]:
    """Cut columns into batches; nothing is copied."""
    count = len(columns.key_lengths)
    key_ends, value_ends = _bounds(columns.key_lengths), _bounds(columns.value_lengths)
    bytes_before = key_ends + value_ends
    first = 0
    while first < count:
        fit = int(np.searchsorted(bytes_before, bytes_before[first] + BATCH_BYTES_MAX, "right")) - 1
        last = min(max(fit, first + 1), first + batch_ops, count)
        expiries = None if columns.expiries is None else columns.expiries[first:last]
        yield Batch(
            ops=np.full(last - first, Op.SET, np.uint8),
            keys=columns.keys[key_ends[first] : key_ends[last]],
            key_lengths=columns.key_lengths[first:last],
            values=columns.values[value_ends[first] : value_ends[last]],
            value_lengths=columns.value_lengths[first:last],
            expiries=expiries if expiries is not None and expiries.any() else None,
        )
        first = last


def _bounds(lengths: U32) -> NDArray[np.int64]:
    """Return where each of some neighbours begins, and where the last one ends."""
    bounds = np.zeros(len(lengths) + 1, np.int64)
    np.cumsum(lengths, out=bounds[1:])
    return bounds


def _batch_of_records(records: list[Record]) -> Batch:
    keys, values = [record[0] for record in records], [record[1] for record in records]
    expiries = [record[2] for record in records]
    return Batch(
        ops=np.full(len(records), Op.SET, np.uint8),
        keys=np.frombuffer(b"".join(keys), np.uint8),
        key_lengths=_lengths(keys),
        values=np.frombuffer(b"".join(values), np.uint8),
        value_lengths=_lengths(values),
        expiries=np.array(expiries, np.uint64) if any(expiries) else None,
    )


def _batch_of_numbers(keys: Any, values: Any) -> Batch:
    count = len(keys)
    lengths = np.full(count, 8, np.uint32)
    return Batch(
        ops=np.full(count, Op.SET, np.uint8),
        keys=_bytes_of(keys),
        key_lengths=lengths,
        values=_bytes_of(values),
        value_lengths=lengths,
    )


def _bytes_of(numbers: Any) -> Any:
    return np.ascontiguousarray(numbers, "<u8").view(np.uint8)


def _lengths(column: list[bytes]) -> Any:
    return np.fromiter(map(len, column), np.uint32, len(column))
