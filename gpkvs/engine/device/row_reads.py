"""Rows that are read on a GPU: those that it has not in its memory the host reads, and the GPU gets them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gpkvs.backends.base import Backend
from gpkvs.backends.row_cache import KnownRows, Reading
from gpkvs.batch import U8, U32, U64, Batch, Op, RequestResult, Status, constant
from gpkvs.columns.row_layout import KEY_BYTES
from gpkvs.config import MIB
from gpkvs.errors import CorruptRecordError
from gpkvs.text import counted

# Of rows that are read at once, in memory that the link reaches.
_PART_BYTES, _PART_ROWS = 32 * MIB, 1 << 18
_NO_BYTES, _NO_LENGTHS = np.empty(0, np.uint8), np.empty(0, np.uint32)


def key_bytes(backend: Backend, keys: NDArray[np.integer[Any]]) -> U8:
    """Return keys, 8 bytes each, as a column of a backend, which is in use (`Backend.enter`)."""
    column = backend.upload(keys)
    if column.dtype.itemsize < KEY_BYTES:
        column = column.astype(np.int64 if column.dtype.kind == "i" else np.uint64)
    return column.view(np.uint8)


def reading_of(
    backend: Backend, keys: NDArray[np.integer[Any]], row_bytes: int, rows: U8 | None, absent: U8 | None
) -> Reading:
    """Return what `Engine.read_rows` is given as columns of a backend, which is in use (`Backend.enter`)."""
    xp, count = backend.xp, len(keys)
    if absent is None and rows is None:
        absent = np.zeros(row_bytes, np.uint8)
    return Reading(
        keys=key_bytes(backend, keys),
        keys_max=(1 << (63 if keys.dtype.kind == "i" else 64)) - 1,
        rows=xp.empty(count * row_bytes, np.uint8) if rows is None else rows,
        row_bytes=row_bytes,
        absent=None if absent is None else backend.upload(absent),
        seen=xp.empty(count, np.uint8),
    )


class LeftRows:
    """The rows that are left of a reading.

    Parameters
    ----------
    backend
        In use (`Backend.enter`).
    table
        Its number.
    reading
        What it is.
    """

    def __init__(self, backend: Backend, table: int, reading: Reading) -> None:
        self._backend, self._table, self._reading = backend, table, reading
        self._numbers: U32 = backend.numbers_where(reading.seen > Status.NOT_FOUND.value)
        keys: Any = reading.keys.view(np.uint64)
        self._keys: U64 = backend.download(keys[self._numbers])
        self._numbers_on_host: U32 = backend.download(self._numbers)

    def read(self, run: Callable[[Batch], RequestResult]) -> Iterator[tuple[U32, KnownRows]]:
        """Read them, part by part, as columns of the host; `run` runs a batch of the host.

        Yields
        ------
        numbers : (m,) uint32
            Of their keys; a column of the processor.
        KnownRows
            The rows.

        Raises
        ------
        CorruptRecordError
            If a row is damaged.
        """
        size = self._reading.row_bytes
        step = min(_PART_ROWS, max(1, _PART_BYTES // size))
        for first in range(0, len(self._keys), step):
            part = slice(first, first + step)
            keys = self._keys[part]
            rows: NDArray[np.uint8] = self._backend.result_column(len(keys) * size, np.uint8)
            batch = Batch(
                ops=constant(np.uint8(Op.GET), len(keys)),
                keys=keys.view(np.uint8),
                key_lengths=constant(np.uint32(KEY_BYTES), len(keys)),
                values=_NO_BYTES,
                value_lengths=_NO_LENGTHS,
                into=rows.reshape(len(keys), size),
            )
            result = run(batch.on_table(self._table))
            self._require_rows(result, self._numbers_on_host[part])
            there = (result.status == Status.OK.value).view(np.uint8)
            yield self._numbers[part], KnownRows(rows, there, result.versions)

    def _require_rows(self, result: RequestResult, numbers: U32) -> None:
        """Check that each value that was found is a row."""
        size = self._reading.row_bytes
        wrong = (result.status == Status.CORRUPT.value) | (
            (result.status == Status.OK.value) & (result.value_lengths != size)
        )
        if wrong.any():
            at = int(wrong.argmax())
            what = (
                "the record fails its checksum, so no value is returned"
                if result.status[at] == Status.CORRUPT.value
                else f"a value of {counted(int(result.value_lengths[at]), 'byte')}, which is no row of {size:,}"
            )
            raise CorruptRecordError(f"operation {int(numbers[at])}: {what}: run `gpkvs check`")
