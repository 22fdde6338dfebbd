"""What operations do to a dictionary: the model that stores are compared with in the explorers of crashes."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from gpkvs.batch import Batch, BatchResult, Condition, Op, Status
from gpkvs.errors import ConflictError

Held = dict[bytes, tuple[bytes, int]]  # by key: value and version, which is 0 in a table of numbers

_I64 = 1 << 63
_TEXT_MAX = 20  # characters of a number
_WITH_VALUE = (Op.SET, Op.INCREMENT, Op.APPEND)


@dataclass(frozen=True)
class Asked:
    """One operation, and what it asks of its key first."""

    op: Op
    key: bytes
    value: bytes = b""
    condition: Condition = Condition.NONE
    expected: int = 0


def asked_of(operation: tuple[Op, bytes] | tuple[Op, bytes, bytes] | Asked) -> Asked:
    """Return a plain operation in the same form."""
    return operation if isinstance(operation, Asked) else Asked(*operation)


def number(value: int) -> bytes:
    """Return a number as the value of an increment, or of a table of numbers."""
    return value.to_bytes(8, "little", signed=True)


def batch_of(requests: Sequence[tuple[int, Sequence[Asked]]]) -> Batch:
    """Return requests, each with the id of its table, as one batch."""
    asked = [operation for _, request in requests for operation in request]
    values = [one.value for one in asked if one.op in _WITH_VALUE]
    looks = any(one.condition is not Condition.NONE for one in asked)
    return Batch(
        np.array([one.op for one in asked], np.uint8),
        np.frombuffer(b"".join(one.key for one in asked), np.uint8),
        np.array([len(one.key) for one in asked], np.uint32),
        np.frombuffer(b"".join(values), np.uint8),
        np.array([len(value) for value in values], np.uint32),
        np.array([len(request) for _, request in requests], np.uint32),
        np.array([table for table, _ in requests], np.uint32),
        conditions=np.array([one.condition for one in asked], np.uint8) if looks else None,
        expected=np.array([one.expected for one in asked], np.uint64) if looks else None,
    )


@dataclass(frozen=True)
class Model:
    """What one table holds.

    Parameters
    ----------
    held
        Changed by what runs.
    has_records
        Whether its values are bytes with a version; else they are numbers.
    """

    held: Held
    has_records: bool

    def differences(self, request: Sequence[Asked], result: BatchResult, at: int) -> Iterator[str]:
        """Run a request, and say where its results are not those of the store."""
        failed = next((place for place, one in enumerate(request) if self.refuses(one)), None)
        try:
            found = result.request(at)
        except ConflictError as conflict:
            told = self.told(request[failed].key) if failed is not None else None
            if (conflict.index, conflict.found) != (failed, told):
                yield f"check {conflict.index} failed on {conflict.found}; in the model check {failed} on {told}"
            return
        if failed is not None:
            yield f"check {failed} fails in the model, the request was done"
            return
        values = iter(found.value_list())
        columns = zip(request, found.status.tolist(), found.versions.tolist(), strict=True)
        for place, (one, status, version) in enumerate(columns):
            wanted, told, returned = self.run(one, version)
            if status != wanted:
                yield f"{place}, {one}: status {status}, in the model {wanted}"
            if self.has_records and version != (told or 0):
                yield f"{place}, {one}: version {version}, in the model {told}"
            if one.op in (Op.GET, Op.INCREMENT) and (value := next(values)) != (returned or b""):
                yield f"{place}, {one}: value {value!r}, in the model {returned!r}"

    def refuses(self, one: Asked) -> bool:
        """Whether an operation is a check that fails now: nothing of its request is done."""
        return one.op is Op.CHECK and not self._holds(one)

    def told(self, key: bytes) -> int | None:
        """Return what a condition compares: the version, or the number."""
        if key not in self.held:
            return None
        value, version = self.held[key]
        return version if self.has_records else int.from_bytes(value, "little")

    def _holds(self, one: Asked) -> bool:
        told = self.told(one.key)
        match one.condition:
            case Condition.ABSENT:
                return told is None
            case Condition.PRESENT:
                return told is not None
            case Condition.EQUALS:
                return told == one.expected
        return True

    def run(self, one: Asked, version: int) -> tuple[Status, int | None, bytes | None]:
        """Do an operation, which gives this version if it writes; return its status, version and value."""
        told = self.told(one.key)
        there = Status.NOT_FOUND if told is None else Status.OK
        if one.op in (Op.GET, Op.EXISTS, Op.CHECK):
            is_read = one.op is Op.GET and told is not None
            return there, told, self.held[one.key][0] if is_read else None
        if not self._holds(one):
            return (Status.NOT_FOUND if told is None else Status.CONDITION_FAILED), told, None
        if one.op is Op.DELETE:
            self.held.pop(one.key, None)
            return there, told, None
        value, returned = one.value, None
        if one.op is Op.INCREMENT:
            total = self._sum(one)
            if isinstance(total, Status):
                return total, told, None
            returned = number(total)
            value = b"%d" % total if self.has_records else returned
        elif one.op is Op.APPEND:
            value = self.held.get(one.key, (b"", 0))[0] + one.value
        self.held[one.key] = value, version
        return Status.OK, version, returned

    def _sum(self, one: Asked) -> int | Status:
        found = self._number(one.key)
        if isinstance(found, Status):
            return found
        total = found + int.from_bytes(one.value, "little", signed=True)
        return total if -_I64 <= total < _I64 else Status.OVERFLOW

    def _number(self, key: bytes) -> int | Status:
        if key not in self.held:
            return 0
        value = self.held[key][0]
        if not self.has_records:
            return int.from_bytes(value, "little", signed=True)
        digits = value.removeprefix(b"-")
        if not digits.isdigit() or len(value) > _TEXT_MAX:
            return Status.NOT_A_NUMBER
        found = int(value)
        return found if -_I64 <= found < _I64 else Status.OVERFLOW
