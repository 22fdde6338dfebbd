"""A history: the requests of concurrent clients and their responses, with times, in columns."""

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
    """What a client knows about a request."""

    OK = 1  # a response: done, durably
    REFUSED = 2  # an error that says that nothing of it was done
    UNKNOWN = 3  # no response: done or not


@dataclass(frozen=True)
class History:
    """Requests and their operations.

    Each request is atomic. A value is a number that only one SET ever writes. A version is a place in the one sequence
    of all operations: the SET with version v was the v-th operation, and the operations beside it in its request have
    the numbers next to v.

    Parameters
    ----------
    start, end : (r,) int64
        When each request was sent and when its response came, in ns of one clock; `end` means nothing without one.
    outcome : (r,) uint8
        `RequestOutcome` of each request.
    first_op : (r + 1,) int64
        The first operation of each request; the last element is their number.
    op : (n,) uint8
        `gpkvs.batch.Op` of each operation.
    key : (n,) uint32
        The number of its key.
    value : (n,) uint64
        The value that a SET wrote or a GET found; else 0.
    found : (n,) bool
        Whether a GET or DELETE found its key; false in a request without a response.
    version : (n,) uint64
        The version that was written, found or deleted; 0 for a miss, and without a response.
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
    """Records a history while it happens, in columns that grow."""

    def __init__(self) -> None:
        self._requests = _Columns(start=np.int64, end=np.int64, outcome=np.uint8, first_op=np.int64)
        self._ops = _Columns(op=np.uint8, key=np.uint32, value=np.uint64, found=np.bool_, version=np.uint64)

    @property
    def requests(self) -> int:
        """How many requests were begun."""
        return self._requests.rows

    @property
    def operations(self) -> int:
        """How many operations they have."""
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

    def respond(self, number: int, found: Flags, value: U64, version: U64) -> None:
        """Note the response to a request; `value` is that of each GET, 0 for a miss."""
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
        """Note that the server refused a request: it did nothing of it."""
        requests = self._requests.columns
        requests["end"][number] = time.monotonic_ns()
        requests["outcome"][number] = RequestOutcome.REFUSED

    def add_reading(self, start: int, end: int, key: U32, found: Flags, value: U64, version: U64) -> None:
        """Note a request that has read any number of keys, when it was sent and when its response came."""
        rows, number = self._ops.add(len(key)), self._requests.add(1).start
        for name, column in (("key", key), ("found", found), ("value", value), ("version", version)):
            self._ops.columns[name][rows] = column
        self._ops.columns["op"][rows] = Op.GET
        requests = self._requests.columns
        for name, told in (("start", start), ("end", end), ("outcome", RequestOutcome.OK), ("first_op", rows.start)):
            requests[name][number] = told

    def is_settled(self, number: int) -> bool:
        """Whether the outcome of a request is known."""
        return bool(self._requests.columns["outcome"][number] != RequestOutcome.UNKNOWN)

    def history(self) -> History:
        """Return the history so far; the outcome of a request without a response is unknown."""
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
