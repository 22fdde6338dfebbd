"""Requests of gRPC, what a dictionary answers to them, and their columns."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from gpkvs.batch import HAS_VALUE, RETURNS_VALUE, Condition, Op, Status
from gpkvs.proto.v1 import kv_pb2
from tests.served.model import Held, Key, Moment, State, Within, is_within, until
from tests.server.wire import i64, u32, u64, u64s, values_of

I64_MAX = (1 << 63) - 1
_UNKNOWN = -1  # a version


class Operation(NamedTuple):
    """One operation of a request, as in `BatchRequest`."""

    op: Op
    key: bytes
    value: bytes = b""
    condition: Condition = Condition.NONE
    expected: int = 0
    ttl: int = 0


class Failed(NamedTuple):
    """The answer to a request of which nothing was done, since a check failed."""

    check: int
    found: int | None  # the version or number that is there


class Result(NamedTuple):
    """What an operation answers; a number that is not known is None."""

    status: int
    value: Any = b""
    version: int | None = 0


@dataclass(frozen=True)
class Request:
    """A request on one table."""

    table: str
    operations: tuple[Operation, ...]
    numbers: bool = False

    @property
    def keys(self) -> list[Key]:
        """Return the keys that it looks at."""
        return list({(self.table, operation.key): None for operation in self.operations})

    def run(self, state: State, at: Moment) -> Failed | list[Result]:
        """Change a state as the server does; return the answer. The versions that it gives are not known."""
        for number, operation in enumerate(self.operations):
            held = state.get((self.table, operation.key))
            if operation.op is Op.CHECK and not self._holds(operation, held):
                found = held and self._compared(held)
                return Failed(number, _UNKNOWN if held and found is None else found)
        return [self._run(operation, state, at) for operation in self.operations]

    def message(self, **fields: Any) -> kv_pb2.BatchRequest:
        """Return the message of it alone."""
        return batch_of(self.operations, table=self.table, **fields)

    def _compared(self, held: Held) -> int | None:
        return int.from_bytes(held.value, "little") if self.numbers else held.version

    def _holds(self, operation: Operation, held: Held | None) -> bool:
        match operation.condition:
            case Condition.ABSENT:
                return held is None
            case Condition.PRESENT:
                return held is not None
            case Condition.EQUALS:
                return held is not None and self._compared(held) == operation.expected
        return True

    def _run(self, operation: Operation, state: State, at: Moment) -> Result:
        op, key, value, *_ = operation
        where = self.table, key
        held = state.get(where)
        if op is Op.CHECK:
            return Result(Status.OK if held else Status.NOT_FOUND, b"", self._version(held))
        if not self._holds(operation, held):
            failed = Status.CONDITION_FAILED if held else Status.NOT_FOUND
            return Result(failed, b"", self._compared(held) if held else 0)
        if op is Op.SET:
            state[where] = Held(value, until(at, operation.ttl))
            return Result(Status.OK, b"", None)
        if op is Op.APPEND:
            kept = held.expiry if held else until(at, operation.ttl)
            state[where] = Held((held.value if held else b"") + value, kept)
            return Result(Status.OK, b"", None)
        if op is Op.INCREMENT:
            return self._increment(operation, state, at)
        if held is None:
            return Result(Status.NOT_FOUND)
        version = self._version(held)
        match op:
            case Op.GET:
                return Result(Status.OK, held.value, version)
            case Op.EXPIRY:
                return Result(Status.OK, Within(*held.expiry) if held.expiry else Within(0, 0), version)
            case Op.EXPIRE:
                state[where] = Held(held.value, until(at, operation.ttl))
                return Result(Status.OK, b"", None)
            case Op.DELETE:
                del state[where]
        return Result(Status.OK, b"", version)

    def _version(self, held: Held | None) -> int | None:
        return 0 if held is None or self.numbers else held.version

    def _increment(self, operation: Operation, state: State, at: Moment) -> Result:
        where = self.table, operation.key
        held = state.get(where)
        number = 0
        if held:
            number = number_in(held.value, binary=self.numbers)
            if number is None:
                return Result(Status.NOT_A_NUMBER, b"", held.version)
        number += int.from_bytes(operation.value, "little", signed=True)
        if not -I64_MAX - 1 <= number <= I64_MAX:
            return Result(Status.OVERFLOW, b"", self._version(held))
        value = i64(number) if self.numbers else b"%d" % number
        state[where] = Held(value, held.expiry if held else until(at, operation.ttl))
        return Result(Status.OK, i64(number), None)


def number_in(value: bytes, *, binary: bool) -> int | None:
    """Return the number that a value is; None if it is none, or not written as the server writes it."""
    if binary:
        return int.from_bytes(value, "little", signed=True)
    try:
        number = int(value)
    except ValueError:
        return None
    return number if b"%d" % number == value and -I64_MAX - 1 <= number <= I64_MAX else None


def batch_of(operations: Sequence[Operation], **fields: Any) -> kv_pb2.BatchRequest:
    """Put operations into columns; columns that say nothing are left out."""
    message = kv_pb2.BatchRequest(ops=bytes(operation.op for operation in operations), **fields)
    values = [operation.value for operation in operations if HAS_VALUE[operation.op]]
    message.keys = b"".join(operation.key for operation in operations)
    message.values = b"".join(values)
    lengths = [len(operation.key) for operation in operations]
    if len({*lengths}) == 1:
        message.key_size = lengths[0]
    else:
        message.key_lengths = u32(*lengths)
    if len({*map(len, values)}) == 1:
        message.value_size = len(values[0])
    elif values:
        message.value_lengths = u32(*map(len, values))
    if any(operation.condition for operation in operations):
        message.conditions = bytes(operation.condition for operation in operations)
    if any(operation.condition is Condition.EQUALS for operation in operations):
        message.expected = u64(*(operation.expected for operation in operations))
    if any(operation.ttl for operation in operations):
        message.ttls = u64(*(operation.ttl for operation in operations))
    return message


def results_of(operations: Sequence[Operation], response: kv_pb2.BatchResponse) -> list[Result]:
    """Take the columns of a response apart."""
    versions = u64s(response.versions) or [0] * len(operations)
    values = iter(values_of(response))
    return [
        Result(status, next(values) if RETURNS_VALUE[operation.op] else b"", version)
        for operation, status, version in zip(operations, response.status, versions, strict=True)
    ]


def fits(expected: Failed | list[Result], got: Failed | list[Result]) -> bool:
    """Whether an answer is the one that was expected, but for what nobody could know."""
    if isinstance(expected, Failed) or isinstance(got, Failed):
        if not (isinstance(expected, Failed) and isinstance(got, Failed)) or expected.check != got.check:
            return False
        return expected.found == got.found or (expected.found == _UNKNOWN and got.found is not None)
    return len(expected) == len(got) and all(map(_fits, expected, got))


def _fits(expected: Result, got: Result) -> bool:
    if expected.status != got.status or expected.version not in (None, got.version):
        return False
    if isinstance(expected.value, Within):
        number = int.from_bytes(got.value, "little")
        return number == 0 if expected.value.last == 0 else is_within(expected.value, number)
    return bool(expected.value == got.value)
