"""A history: what concurrent clients asked, when, and what they were answered. Columns, recorded as it happens."""

from __future__ import annotations

import time
from dataclasses import dataclass, fields
from enum import IntEnum
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gpkvs.batch import U8, U32, U64, Op

I64 = NDArray[np.int64]
Flags = NDArray[np.bool_]

OPS_MAX = 255  # of one request: a value says which operation wrote it, in its lowest byte


class RequestOutcome(IntEnum):
    """What a client knows of a request."""

    OK = 1  # answered: done, durably
    REFUSED = 2  # answered: nothing of it was done
    UNKNOWN = 3  # no answer: done or not


@dataclass(frozen=True)
class History:
    """Requests and their operations.

    Each request is atomic. A value is a number that only one SET ever writes. Versions are places in the one sequence
    of all operations: the SET with version v was the v-th operation, and its neighbours in the request had the numbers
    next to it.

    Parameters
    ----------
    start, end : (r,) int64
        When each request was sent and answered, in ns of one clock; `end` means nothing unless it was answered.
    outcome : (r,) uint8
        `RequestOutcome` of each request.
    first_op : (r + 1,) int64
        The first operation of each request; the last element is their number.
    op : (n,) uint8
        `gpkvs.batch.Op` of each operation.
    key : (n,) uint32
        The number of its key.
    value : (n,) uint64
        The value that a SET wrote, or that a GET found; 0 else.
    found : (n,) bool
        Whether a GET or DELETE found its key; only in a request that was answered.
    version : (n,) uint64
        The version written, found or deleted; 0 for a miss, and where nothing was answered.
    """

    start: I64
    end: I64
    outcome: U8
    first_op: I64
    op: U8
    key: U32
    value: U64
    found: Flags
    version: U64

    def save(self, file: Path) -> None:
        """Write all columns to one file."""
        np.savez_compressed(file, **{column.name: getattr(self, column.name) for column in fields(self)})

    @staticmethod
    def load(file: Path) -> History:
        """Read what `save` wrote."""
        with np.load(file) as columns:
            return History(**{column.name: columns[column.name] for column in fields(History)})


class HistoryRecorder:
    """Writes a history while it happens, into columns that grow."""

    def __init__(self) -> None:
        self._requests = _Columns(start=np.int64, end=np.int64, outcome=np.uint8, first_op=np.int64)
        self._ops = _Columns(op=np.uint8, key=np.uint32, value=np.uint64, found=np.bool_, version=np.uint64)

    @property
    def requests(self) -> int:
        """Requests begun."""
        return self._requests.rows

    @property
    def operations(self) -> int:
        """Their operations."""
        return self._ops.rows

    def begin(self, op: U8, key: U32) -> tuple[int, U64]:
        """Note a request that is about to be sent; return its number and the values of its SETs."""
        assert len(op) <= OPS_MAX
        rows = self._ops.add(len(op))
        number = self._requests.add(1).start
        sets = op == Op.SET
        value = np.where(sets, np.uint64(number << 8) + np.arange(1, len(op) + 1, dtype=np.uint64), np.uint64(0))
        for name, column in (("op", op), ("key", key), ("value", value)):
            self._ops.columns[name][rows] = column
        requests = self._requests.columns
        requests["first_op"][number] = rows.start
        requests["outcome"][number] = RequestOutcome.UNKNOWN
        requests["start"][number] = time.monotonic_ns()
        return number, value[sets]

    def answer(self, number: int, found: Flags, value: U64, version: U64) -> None:
        """Note the answer to a request; `value` is that of each GET, 0 for a miss."""
        requests = self._requests.columns
        requests["end"][number] = time.monotonic_ns()
        requests["outcome"][number] = RequestOutcome.OK
        first = int(requests["first_op"][number])
        rows = slice(first, first + len(found))
        ops = self._ops.columns
        ops["found"][rows] = found
        ops["version"][rows] = version
        ops["value"][rows][ops["op"][rows] == Op.GET] = value

    def refuse(self, number: int) -> None:
        """Note that the server said that it did nothing of a request."""
        requests = self._requests.columns
        requests["end"][number] = time.monotonic_ns()
        requests["outcome"][number] = RequestOutcome.REFUSED

    def is_settled(self, number: int) -> bool:
        """Whether a request was answered, one way or the other."""
        return bool(self._requests.columns["outcome"][number] != RequestOutcome.UNKNOWN)

    def history(self) -> History:
        """Return what was recorded; a request without an answer has an unknown outcome."""
        requests, ops = self._requests.trimmed(), self._ops.trimmed()
        requests["first_op"] = np.append(requests["first_op"], self.operations)
        return History(**requests, **ops)


class _Columns:
    """Columns of equal length that grow by doubling."""

    def __init__(self, **dtypes: type[np.generic]) -> None:
        self.rows = 0
        self.columns: dict[str, NDArray[np.generic]] = {n: np.zeros(1024, dtype) for n, dtype in dtypes.items()}

    def add(self, count: int) -> slice:
        """Make room for `count` rows; return which they are."""
        rows = slice(self.rows, self.rows + count)
        for name, column in self.columns.items():
            if rows.stop > len(column):
                grown = np.zeros(2 * rows.stop, column.dtype)
                grown[: len(column)] = column
                self.columns[name] = grown
        self.rows = rows.stop
        return rows

    def trimmed(self) -> dict[str, NDArray[Any]]:
        return {name: column[: self.rows].copy() for name, column in self.columns.items()}
