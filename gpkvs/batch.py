"""A batch of operations and its results, as columns.

A batch is the arrival order of its operations; it is made of whole requests, and the request is the unit
of rejection (docs/design.md, section 4). Columns are NumPy arrays: no Python object per operation exists between
the socket and the kernels.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from enum import IntEnum
from functools import cached_property, lru_cache
from typing import Any, NamedTuple, TypeVar

import numpy as np
from numpy.typing import NDArray

from gpkvs.config import Limits
from gpkvs.errors import GpkvsError, InvalidArgumentError, memory_refused
from gpkvs.request_checks import check_request_ops, wrong_bytes
from gpkvs.text import counted

Number = TypeVar("Number", bound=np.generic)
U8 = NDArray[np.uint8]
U32 = NDArray[np.uint32]
U64 = NDArray[np.uint64]


class Op(IntEnum):
    """What an operation does; the numbers are those of the protocol.

    Columns are compared with ``Op.GET.value``: NumPy takes ten microseconds to see that a member is a number.
    """

    GET = 1
    SET = 2
    DELETE = 3
    EXISTS = 4  # a GET without its value
    INCREMENT = 5  # adds a signed number of 64 bits, its value, to the number that the key holds; a missing one is 0
    APPEND = 6  # adds its value to the end of the key's
    CHECK = 7  # does nothing; if its condition fails, nothing of the request is done
    EXPIRE = 8  # gives a key that is there another expiry, or none
    EXPIRY = 9  # returns when the key expires: milliseconds since 1970, 8 bytes, 0 if never
    ADD = 10  # adds its value, a row, to the key's, element by element; a missing one is zeros


LENGTH, REQUIRE, COPY, SETRANGE, INCREMENT_DECIMAL = range(11, 16)
"""Operations of the door's own requests, and of no client's.

A LENGTH returns how many bytes a value has, as 8 bytes. A REQUIRE changes nothing: conditions of those behind it ask
whether its own holds, and it brings what it compares with, as a value. A COPY gives its key the value and the expiry of
the key of the operation before. A SETRANGE writes its value over a part of the key's, which begins where `expected`
says. An INCREMENT_DECIMAL adds a number with a point, as text.
"""

_GET, _SET = Op.GET.value, Op.SET.value


class Condition(IntEnum):
    """What an operation asks of its key before it does anything; the numbers are those of the protocol."""

    NONE = 0
    ABSENT = 1
    PRESENT = 2
    EQUALS = 3  # the version is the one expected; in a table of numbers, the number is


class Status(IntEnum):
    """What became of one operation; the numbers are those of the protocol."""

    OK = 0
    NOT_FOUND = 1
    CORRUPT = 2
    CONDITION_FAILED = 3  # the key is there, and not as the operation asks; the version tells how it is
    OVERFLOW = 4  # the sum is no signed number of 64 bits, or the value would be too long
    NOT_A_NUMBER = 5  # what the key holds


_COLUMN_TYPES = {
    "ops": np.dtype(np.uint8),
    "keys": np.dtype(np.uint8),
    "key_lengths": np.dtype(np.uint32),
    "values": np.dtype(np.uint8),
    "value_lengths": np.dtype(np.uint32),
    "request_ops": np.dtype(np.uint32),
}
_OPTIONAL_COLUMN_TYPES = {
    "conditions": np.dtype(np.uint8),
    "expected": np.dtype(np.uint64),
    "expiries": np.dtype(np.uint64),
}
# Operations with a value in the request, and with one in the response.
HAS_VALUE = np.isin(np.arange(256), [Op.SET, Op.INCREMENT, Op.APPEND, Op.ADD, REQUIRE, SETRANGE, INCREMENT_DECIMAL])
RETURNS_VALUE = np.isin(np.arange(256), [Op.GET, Op.INCREMENT, Op.EXPIRY, LENGTH])
_ONLY_READS = np.isin(np.arange(256), [Op.GET, Op.EXISTS, Op.EXPIRY])
# Operations that may leave a key that expires; what the others say of it counts for nothing.
_GIVES_EXPIRY = np.isin(np.arange(256), [Op.SET, Op.INCREMENT, Op.APPEND, Op.EXPIRE, Op.ADD])
READS = frozenset({Op.GET, Op.EXISTS, Op.CHECK, Op.EXPIRY})
"""Operations that change nothing: a request of them may be executed twice."""


# Plain numbers: a look at a member of an enumeration takes two calls.
_OP_MIN, _OP_PLAIN_MAX, _OP_MAX = Op.GET.value, Op.EXISTS.value, Op.ADD.value
# In these columns one number may stand for all operations; kernels get a full copy then.
_MAY_BE_CONSTANT = ("ops", "key_lengths", "value_lengths")


@dataclass(frozen=True)
class Batch:
    """Operations of one or more requests on one table, in arrival order.

    Parameters
    ----------
    ops : (n,) uint8
        `Op` of each operation.
    keys : (sum of key_lengths,) uint8
        All keys, concatenated.
    key_lengths : (n,) uint32
        Bytes in each key. Here as in `value_lengths` one number may stand for all (`is_constant`).
    values : (sum of value_lengths,) uint8
        The values of the SETs in order, concatenated.
    value_lengths : (number of SETs,) uint32
        Bytes in each SET's value. INCREMENTs (8 bytes), APPENDs and ADDs have values, too.
    request_ops : (r,) uint32, optional
        Operations in each request; by default the batch is one request.
    table : int, optional
        The id of their table; by default the default table's, 0.
    conditions : (n,) uint8, optional
        `Condition` of each operation; by default none has one.
    expected : (n,) uint64, optional
        The version or number that each operation with `Condition.EQUALS` asks for.
    expiries : (n,) uint64, optional
        When what each SET or EXPIRE leaves expires, in milliseconds since 1970; 0: never. An INCREMENT, APPEND
        or ADD gives it to a new key. Other operations do not look at theirs. By default all are 0.
    into : n of (bytes,) uint8, optional
        The caller's memory for the values of one request of GETs; or one array (n, bytes), of which each row is
        contiguous. Who can puts them there; the result has lengths and no values then. If one of them is longer than
        its memory, or damaged, none is put anywhere.
    versions : (n,) uint64, optional
        What SETs give their keys instead of new versions, each lower than the store's first one: only of SETs and
        DELETEs on the host, in one request, in a store in the making (`gpkvs.config.Making`).
    """

    ops: U8
    keys: U8
    key_lengths: U32
    values: U8
    value_lengths: U32
    request_ops: U32 = field(default_factory=lambda: np.zeros(0, np.uint32))
    table: int = 0
    conditions: U8 | None = None
    expected: U64 | None = None
    expiries: U64 | None = None
    into: Sequence[U8] | U8 | None = None
    versions: U64 | None = None

    def __post_init__(self) -> None:
        if len(self.request_ops) == 0:
            object.__setattr__(self, "request_ops", np.array([len(self.ops)], np.uint32))

    def __len__(self) -> int:
        return len(self.ops)

    @cached_property
    def has_writes(self) -> bool:
        """Whether any operation is no GET."""
        return self._plain[0] < len(self.ops)

    @cached_property
    def changes(self) -> bool:
        """Whether any operation may change something (`READS`): the request must not be executed twice."""
        gets, sets = self._plain
        return sets > 0 or (gets < len(self.ops) and not np.isin(self._kinds, list(READS)).all())

    @cached_property
    def looks_first(self) -> bool:
        """Whether what some operation does depends on what is there (kernels/plan/resolve.hpp)."""
        return self.conditions is not None or (not self._is_plain and int(self._kinds.max()) > _OP_PLAIN_MAX)

    @cached_property
    def has_reads(self) -> bool:
        """Whether any operation is a GET."""
        return self._plain[0] > 0

    @property
    def gets(self) -> int:
        """How many GETs there are."""
        return self._plain[0]

    @property
    def has_only_sets(self) -> bool:
        """Whether all operations are SETs."""
        return len(self.value_lengths) == len(self.ops)

    @cached_property
    def write_bytes(self) -> int:
        """Bytes that the batch asks to write: keys and values of SETs, keys of DELETEs."""
        if self.has_only_sets:  # nothing to leave out
            return len(self.keys) + len(self.values)
        if self._is_plain and is_constant(self.key_lengths):
            return self._plain[1] * int(self.key_lengths[0]) + len(self.values)
        writes = (self.ops == Op.SET.value) | (self.ops == Op.DELETE.value)
        return int(self.key_lengths[writes].sum(dtype=np.uint64)) + len(self.values)

    def count_kinds(self, count: Callable[[U8], tuple[int, int]]) -> None:
        """Have GETs and SETs counted by something faster than NumPy, unless it is done or one number says all."""
        if "_plain" not in self.__dict__ and not is_constant(self.ops):
            self.__dict__["_plain"] = count(self.ops)

    @cached_property
    def _plain(self) -> tuple[int, int]:
        """How many GETs and how many SETs there are; in a large batch each pass over the operations counts."""
        kinds, count = self._kinds, len(self.ops)
        if len(kinds) == 1:  # without NumPy, which takes a microsecond for each step
            kind = int(kinds[0])
            return count * (kind == _GET), count * (kind == _SET)
        return int(np.count_nonzero(kinds == _GET)), int(np.count_nonzero(kinds == _SET))

    @property
    def _is_plain(self) -> bool:
        """Whether there are GETs and SETs only."""
        return sum(self._plain) == len(self.ops)

    @property
    def _kinds(self) -> U8:
        """The kinds of operations; only the first one, if one number stands for all."""
        return self.ops[:1] if self.ops.strides == (0,) else self.ops

    @staticmethod
    def of(operations: Sequence[tuple[Op, bytes] | tuple[Op, bytes, bytes]]) -> Batch:
        """Build one request from a list of ``(Op.GET, key)``, ``(Op.SET, key, value)``, ``(Op.DELETE, key)``.

        A convenience for a handful of operations; bulk work should build the columns directly.
        """
        keys = [operation[1] for operation in operations]
        values = [operation[2] for operation in operations if len(operation) == 3]
        return Batch(
            ops=np.array([operation[0] for operation in operations], np.uint8),
            keys=np.frombuffer(b"".join(keys), np.uint8),
            key_lengths=np.array([len(key) for key in keys], np.uint32),
            values=np.frombuffer(b"".join(values), np.uint8),
            value_lengths=np.array([len(value) for value in values], np.uint32),
        )

    @staticmethod
    def of_numbers(op: Op, keys: U8, values: U8, table: int = 0) -> Batch:
        """Build one request of one kind of operation on 8-byte keys (SETs: and 8-byte values); nothing is copied.

        `table` is the id of its table.
        """
        count = len(keys) // 8
        lengths = constant(np.uint32(8), count)
        return Batch(
            ops=constant(np.uint8(op), count),
            keys=keys,
            key_lengths=lengths,
            values=values,
            value_lengths=lengths[: len(values) // 8],
            request_ops=np.array([count], np.uint32),
            table=table,
        )

    def on_table(self, table: int) -> Batch:
        """Return the same requests for the table with an id; what is known of its operations stays known."""
        batch = object.__new__(Batch)
        batch.__dict__.update(self.__dict__, table=table)
        return batch

    @staticmethod
    def concatenate(batches: Sequence[Batch]) -> Batch:
        """Join batches on one table in order; each one's requests stay requests of their own."""
        if len(batches) == 1:
            return batches[0]
        assert len({batch.table for batch in batches}) == 1
        return Batch(
            ops=np.concatenate([batch.ops for batch in batches]),
            keys=np.concatenate([batch.keys for batch in batches]),
            key_lengths=np.concatenate([batch.key_lengths for batch in batches]),
            values=np.concatenate([batch.values for batch in batches]),
            value_lengths=np.concatenate([batch.value_lengths for batch in batches]),
            request_ops=np.concatenate([batch.request_ops for batch in batches]),
            table=batches[0].table,
            conditions=_joined([(batch.conditions, len(batch)) for batch in batches], np.uint8),
            expected=_joined([(batch.expected, len(batch)) for batch in batches], np.uint64),
            expiries=_joined([(batch.expiries, len(batch)) for batch in batches], np.uint64),
            versions=_joined([(batch.versions, len(batch)) for batch in batches], np.uint64),
        )

    def take(self, requests: NDArray[np.bool_]) -> Batch:
        """Return the batch of the requests that a mask selects, in the same order."""
        ops = np.repeat(requests, self.request_ops)
        set_ops = ops[self.has_value]
        return Batch(
            ops=self.ops[ops],
            keys=self.keys[np.repeat(ops, self.key_lengths)],
            key_lengths=self.key_lengths[ops],
            values=self.values[np.repeat(set_ops, self.value_lengths)],
            value_lengths=self.value_lengths[set_ops],
            request_ops=self.request_ops[requests],
            table=self.table,
            conditions=None if self.conditions is None else self.conditions[ops],
            expected=None if self.expected is None else self.expected[ops],
            expiries=None if self.expiries is None else self.expiries[ops],
            versions=None if self.versions is None else self.versions[ops],
        )

    @cached_property
    def has_value(self) -> NDArray[np.bool_]:
        """Of each operation, whether it has a value."""
        return HAS_VALUE[self.ops] if self.looks_first else self.ops == Op.SET.value

    @cached_property
    def gives_expiry(self) -> NDArray[np.bool_]:
        """Of each operation, whether it would have its key expire; of a batch with `expiries`."""
        assert self.expiries is not None
        gives: NDArray[np.bool_] = _GIVES_EXPIRY[self.ops] & (self.expiries != 0)
        return gives

    @memory_refused()
    def validate(self, limits: Limits, sets: int | None = None) -> None:
        """Check the columns against each other and the limits.

        Parameters
        ----------
        limits
            Of the table.
        sets
            How many SETs there are, if the caller has counted that all operations are GETs and SETs. In a small batch
            each pass over a column counts.

        Raises
        ------
        InvalidArgumentError
            Naming the first operation at fault, the field and the limit.
        NoMemoryError
            If the process gets no memory for it.
        """
        self._check_types()
        self.check_size(limits)
        n = len(self.ops)
        with_value = self._check_ops() if sets is None else sets
        _check_column(
            "key", self.key_lengths, self.keys, n, lambda: np.arange(n), limits.key_bytes_min, limits.key_bytes_max
        )
        _check_column(
            "value",
            self.value_lengths,
            self.values,
            with_value,
            lambda: np.flatnonzero(self.has_value),
            limits.value_bytes_min,
            limits.value_bytes_max,
        )
        if self.conditions is not None or (sets is None and self.looks_first):
            self._check_conditions()

    def _check_ops(self) -> int:
        """Check the kinds of operations; return how many of them have a value."""
        if self._is_plain:
            return self._plain[1]
        lowest = highest = int(self.ops[0])
        if len(self.ops) > 1:  # else NumPy would take two microseconds
            lowest, highest = int(self.ops.min()), int(self.ops.max())
        if lowest < _OP_MIN or highest > _OP_MAX:
            i = int(((self.ops < _OP_MIN) | (self.ops > _OP_MAX)).argmax())
            known = ", ".join(f"{op.value} is {op.name.lower()}" for op in Op)
            raise InvalidArgumentError(f"unknown operation {int(self.ops[i])}: {known}", field="ops", index=i)
        self.__dict__["looks_first"] = self.conditions is not None or highest > _OP_PLAIN_MAX  # nobody looks again
        return int(np.count_nonzero(self.has_value))

    def _check_conditions(self) -> None:
        """Check what operations ask of their keys."""
        checks, conditions = self.ops == Op.CHECK.value, self.conditions
        wrongs = [(checks, "a check needs one", "conditions")]
        if conditions is not None:
            has_none, equals = conditions == Condition.NONE.value, conditions == Condition.EQUALS.value
            wrongs = [
                (conditions > Condition.EQUALS.value, "unknown condition: 0 to 3 are known", "conditions"),
                (equals & (self.expected is None), "nothing is expected", "expected"),
                (~has_none & _ONLY_READS[self.ops], "a GET has no condition", "conditions"),
                (checks & has_none, "a check needs one", "conditions"),
            ]
        for wrong, message, name in wrongs:
            if wrong.any():
                raise InvalidArgumentError(message, field=name, index=int(wrong.argmax()))
        increments = self.ops[self.has_value] == Op.INCREMENT.value
        long = increments & (self.value_lengths != 8)
        if long.any():
            index = int(np.flatnonzero(self.has_value)[long.argmax()])
            raise InvalidArgumentError(
                "an increment is a signed number of 64 bits: 8 bytes", field="value_lengths", index=index
            )

    def check_size(self, limits: Limits) -> None:
        """Check the number of operations of each request.

        Raises
        ------
        InvalidArgumentError
            If it is none, or more than `Limits.request_ops_max`.
        """
        if len(self.ops) == 0:
            raise InvalidArgumentError("a request needs at least one operation", field="ops")
        if len(self.ops) > limits.request_ops_max:
            check_request_ops(int(self.request_ops.max()), limits)

    def _check_types(self) -> None:
        """Check types and memory layout: kernels read the arrays as they lie in memory."""
        for name, dtype in _COLUMN_TYPES.items():
            column = getattr(self, name)
            if column.dtype != dtype or column.ndim != 1:
                raise InvalidArgumentError(
                    f"an array of {column.dtype} with {column.ndim} dimensions; one of {dtype} with 1 is needed",
                    field=name,
                )
            if not column.flags.c_contiguous and not (name in _MAY_BE_CONSTANT and is_constant(column)):
                raise InvalidArgumentError(
                    "its elements do not lie side by side in memory: numpy.ascontiguousarray copies it", field=name
                )
        if not self.conditions is self.expected is self.expiries is None:
            self._check_optional()
        if self.into is not None:
            self._check_into(self.into)
        if int(self.request_ops.sum(dtype=np.uint64)) != len(self.ops):
            raise InvalidArgumentError(f"they do not add up to {len(self.ops):,} operations", field="request_ops")

    def _check_into(self, into: Sequence[U8] | U8) -> None:
        if len(into) != len(self.ops) or self.gets != len(self.ops):
            raise InvalidArgumentError(f"{len(into):,} for {counted(self.gets, 'GET')}: each has one", field="into")
        rows = [into[:1, :]] if isinstance(into, np.ndarray) and into.ndim == 2 else [row[None] for row in into]
        for index, row in enumerate(rows):
            if row.dtype != np.uint8 or row.ndim != 2 or not (row.flags.c_contiguous and row.flags.writeable):
                raise InvalidArgumentError(
                    "contiguous memory that can be written to is needed, as an array of uint8",
                    field="into",
                    index=index,
                )

    def _check_optional(self) -> None:
        for name, dtype in _OPTIONAL_COLUMN_TYPES.items():
            column = getattr(self, name)
            if column is None:
                continue
            if column.dtype != dtype or column.ndim != 1 or not column.flags.c_contiguous:
                raise InvalidArgumentError(f"a contiguous array of {dtype} with 1 dimension is needed", field=name)
            if len(column) != len(self.ops):
                raise InvalidArgumentError(f"{len(column):,} for {counted(len(self.ops), 'operation')}", field=name)


def _joined(columns: Sequence[tuple[NDArray[Any] | None, int]], dtype: type[np.generic]) -> NDArray[Any] | None:
    """Join columns that are zeros where they are missing."""
    if all(column is None for column, _ in columns):
        return None
    return np.concatenate([np.zeros(count, dtype) if column is None else column for column, count in columns])


@lru_cache(maxsize=1024, typed=True)
def constant(number: Number, count: int) -> NDArray[Number]:
    """Return a column that is one number for all operations and takes no memory; it cannot be stored to.

    `numpy.broadcast_to` returns the same, but takes many times as long.
    """
    column: NDArray[Number] = np.ndarray((count,), number.dtype, number.tobytes(), 0, (0,))
    return column


def is_constant(column: NDArray[Any]) -> bool:
    """Whether a column is one number for all operations, which takes no memory (`numpy.broadcast_to`)."""
    return column.strides == (0,)


def _check_column(
    name: str,
    lengths: U32,
    column: U8,
    count: int,
    operations: Callable[[], NDArray[np.int64]],
    bytes_min: int,
    bytes_max: int,
) -> None:
    """Check one column of `count` byte strings; `operations` gives the numbers of the operations that have one."""
    if len(lengths) != count:
        raise InvalidArgumentError(
            f"{counted(len(lengths), 'length')} for {counted(count, name)}",
            field=f"{name}_lengths",
            index=int(operations()[len(lengths)]) if len(lengths) < count else None,
        )
    looked = lengths[:1] if is_constant(lengths) else lengths
    if count and (looked.min() < bytes_min or looked.max() > bytes_max):
        i = int(((looked < bytes_min) | (looked > bytes_max)).argmax())
        raise wrong_bytes(name, int(lengths[i]), bytes_min, bytes_max, field=f"{name}s", index=int(operations()[i]))
    wanted = int(looked.sum(dtype=np.uint64)) * (count if is_constant(lengths) else 1)
    if wanted != len(column):
        short = int(np.searchsorted(np.cumsum(lengths, dtype=np.uint64), len(column), side="right"))
        raise InvalidArgumentError(
            f"the lengths add up to {counted(wanted, 'byte')}, the column has {len(column):,}",
            field=f"{name}s",
            index=int(operations()[short]) if short < count else None,
        )


class RequestColumns(NamedTuple):
    """One request of one table: the columns of a `Batch` as bytes, for which NumPy is not asked.

    A lone value may be a caller's memory.
    """

    ops: bytes
    keys: bytes
    key_lengths: bytes
    values: bytes | memoryview
    value_lengths: bytes
    expiries: bytes | None
    conditions: bytes | None
    expected: bytes | None

    def batch(self, table: int) -> Batch:
        """Return it as a batch of one request on the table with this number."""

        def column(data: bytes, dtype: type[Number]) -> NDArray[Number]:
            # Memory that may be stored to gives its address away in half of the time (`address_of`).
            return np.frombuffer(bytearray(data), dtype)

        return Batch(
            ops=column(self.ops, np.uint8),
            keys=column(self.keys, np.uint8),
            key_lengths=column(self.key_lengths, np.uint32),
            values=np.frombuffer(self.values, np.uint8),  # they may be long
            value_lengths=column(self.value_lengths, np.uint32),
            request_ops=np.array([len(self.ops)], np.uint32),
            table=table,
            conditions=None if self.conditions is None else column(self.conditions, np.uint8),
            expected=None if self.expected is None else column(self.expected, np.uint64),
            expiries=None if self.expiries is None else column(self.expiries, np.uint64),
        )


@dataclass(frozen=True)
class RequestResult:
    """The results of one request, as columns.

    Parameters
    ----------
    status : (n,) uint8
        `Status` of each operation.
    versions : (n,) uint64
        The version read, written or deleted; 0 for a miss, and constant 0 where the table has none.
    value_lengths : (number of GETs,) uint32
        Bytes in what each GET, INCREMENT (8) and EXPIRY (8) returns; 0 for a miss.
    values : uint8
        The values of the GETs in order, concatenated.
    has_numbers : bool
        The table has no versions, and some condition failed: `versions` tells the numbers that such conditions found.
    """

    status: U8
    versions: U64
    value_lengths: U32
    values: U8
    has_numbers: bool = False

    def value_list(self) -> list[bytes]:
        """Return the GETs' values as Python objects, b"" for a miss (for small requests)."""
        data = self.values.tobytes()
        if len(self.value_lengths) <= 1:
            return [data] * len(self.value_lengths)
        ends = np.cumsum(self.value_lengths, dtype=np.uint64).tolist()
        return [data[end - length : end] for end, length in zip(ends, self.value_lengths.tolist(), strict=True)]


@dataclass(frozen=True)
class BatchPart:
    """The requests of a batch that were executed, and their results.

    Parameters
    ----------
    numbers : (r,) int64
        The number of each request in the batch that was handed in.
    batch
        Their operations.
    result
        The columns of all of them.
    """

    numbers: NDArray[np.int64]
    batch: Batch
    result: RequestResult

    def cuts(self, requests: NDArray[np.intp] | None = None) -> Iterator[tuple[slice, slice, slice]]:
        """Cut the results at the ends of requests: of each its operations, its GETs and the bytes of its values.

        Parameters
        ----------
        requests
            How many requests lie before each cut, and in all, from 0 on; by default each is cut off by itself.
        """
        result = self.result
        if requests is None and len(self.numbers) == 1:
            return iter([(slice(len(result.status)), slice(len(result.value_lengths)), slice(len(result.values)))])
        op_bounds = _bounds(self.batch.request_ops)
        if requests is not None:
            op_bounds = op_bounds[requests]
        get_bounds = self._get_bounds(op_bounds)
        byte_bounds = _bounds(result.value_lengths)[get_bounds]
        return zip(_slices(op_bounds), _slices(get_bounds), _slices(byte_bounds), strict=True)

    def _get_bounds(self, op_bounds: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return how many GETs there are before each of the bounds."""
        gets = len(self.result.value_lengths)
        if gets in (0, len(self.batch)):  # none of the operations is a GET, or all are
            return op_bounds if gets else np.zeros_like(op_bounds)
        return np.searchsorted(np.flatnonzero(RETURNS_VALUE[self.batch.ops]), op_bounds)

    def requests(self) -> Iterator[RequestResult]:
        """Return the results of each request; the arrays are parts of the same memory."""
        result = self.result
        for ops, gets, data in self.cuts():
            yield RequestResult(
                result.status[ops],
                result.versions[ops],
                result.value_lengths[gets],
                result.values[data],
                result.has_numbers,
            )


def _slices(bounds: NDArray[np.int64]) -> Iterator[slice]:
    numbers = bounds.tolist()
    return map(slice, numbers, numbers[1:])


def _bounds(sizes: NDArray[Any]) -> NDArray[np.int64]:
    """Return where each of some neighbours begins, and where the last one ends."""
    bounds = np.zeros(len(sizes) + 1, np.int64)
    np.cumsum(sizes, out=bounds[1:])
    return bounds


@dataclass(frozen=True)
class BatchResult:
    """The results of a batch, durable when this object exists.

    Parameters
    ----------
    part
        The requests that were executed; None: none was.
    rejected
        Why requests were rejected, by their numbers in the batch that was handed in; nothing of them was written.
    requests
        How many requests these results cover. The engine may stop before the end of a batch that is too large for one
        transaction; the rest is then still to be executed.
    """

    part: BatchPart | None
    rejected: dict[int, GpkvsError]
    requests: int

    @cached_property
    def _by_number(self) -> dict[int, RequestResult]:
        part = self.part
        return dict(zip(part.numbers.tolist(), part.requests(), strict=True)) if part else {}

    def request(self, number: int) -> RequestResult:
        """Return the results of one request.

        Raises
        ------
        GpkvsError
            The reason, if the request was rejected.
        """
        assert number < self.requests
        if number in self.rejected:
            raise self.rejected[number]
        if self.requests == 1:
            assert self.part
            return self.part.result
        return self._by_number[number]


def offsets_of(lengths: U32) -> U64:
    """Return where each of the concatenated byte strings begins."""
    ends: U64 = lengths.cumsum(dtype=np.uint64)
    return ends - lengths
