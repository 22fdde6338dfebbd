"""What operations do to a dictionary: the model that stores are compared with in the explorers of crashes."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from gpkvs.batch import Batch, BatchResult, Condition, Op, Status
from gpkvs.errors import ConflictError


class Kept(NamedTuple):
    """What a key has."""

    value: bytes
    version: int  # 0 in a table of numbers
    expiry: int = 0  # in milliseconds since 1970; 0: never


Held = dict[bytes, Kept]

_I64 = 1 << 63
_TEXT_MAX = 20  # characters of a number
_WITH_VALUE = (Op.SET, Op.INCREMENT, Op.APPEND)


@dataclass(frozen=True)
class Asked:
    """One operation, what it asks of its key first, and when what it leaves expires."""

    op: Op
    key: bytes
    value: bytes = b""
    condition: Condition = Condition.NONE
    expected: int = 0
    expiry: int = 0


def asked_of(operation: tuple[Op, bytes] | tuple[Op, bytes, bytes] | Asked) -> Asked:
    """Return a plain operation in the same form."""
    return operation if isinstance(operation, Asked) else Asked(*operation)


def number(value: int) -> bytes:
    """Return a number as the value of an increment, or of a table of numbers."""
    return value.to_bytes(8, "little", signed=True)


def batch_of(table: int, requests: Sequence[Sequence[Asked]]) -> Batch:
    """Return requests on the table with an id as one batch."""
    asked = [operation for request in requests for operation in request]
    values = [one.value for one in asked if one.op in _WITH_VALUE]
    looks = any(one.condition is not Condition.NONE for one in asked)
    expires = any(one.expiry for one in asked)
    return Batch(
        np.array([one.op for one in asked], np.uint8),
        np.frombuffer(b"".join(one.key for one in asked), np.uint8),
        np.array([len(one.key) for one in asked], np.uint32),
        np.frombuffer(b"".join(values), np.uint8),
        np.array([len(value) for value in values], np.uint32),
        np.array([len(request) for request in requests], np.uint32),
        table,
        conditions=np.array([one.condition for one in asked], np.uint8) if looks else None,
        expected=np.array([one.expected for one in asked], np.uint64) if looks else None,
        expiries=np.array([one.expiry for one in asked], np.uint64) if expires else None,
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
            if one.op in (Op.GET, Op.INCREMENT, Op.EXPIRY) and (value := next(values)) != (returned or b""):
                yield f"{place}, {one}: value {value!r}, in the model {returned!r}"

    def refuses(self, one: Asked) -> bool:
        """Whether an operation is a check that fails now: nothing of its request is done."""
        return one.op is Op.CHECK and not self._holds(one)

    def told(self, key: bytes) -> int | None:
        """Return what a condition compares: the version, or the number."""
        if key not in self.held:
            return None
        kept = self.held[key]
        return kept.version if self.has_records else int.from_bytes(kept.value, "little")

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
        if one.op in (Op.GET, Op.EXISTS, Op.CHECK, Op.EXPIRY):
            return there, told, self._returned(one)
        if not self._holds(one):
            return (Status.NOT_FOUND if told is None else Status.CONDITION_FAILED), told, None
        if one.op is Op.DELETE:
            self.held.pop(one.key, None)
            return there, told, None
        if one.op is Op.EXPIRE and told is None:
            return Status.NOT_FOUND, None, None
        kept = self.held.get(one.key)
        value, expiry, returned = one.value, one.expiry, None
        if one.op is Op.INCREMENT:
            total = self._sum(one)
            if isinstance(total, Status):
                return total, told, None
            returned = number(total)
            value = b"%d" % total if self.has_records else returned
        elif one.op is Op.APPEND and kept:
            value = kept.value + one.value
        elif one.op is Op.EXPIRE and kept:
            value = kept.value
        if one.op in (Op.INCREMENT, Op.APPEND) and kept:
            expiry = kept.expiry
        self.held[one.key] = Kept(value, version, expiry)
        return Status.OK, version, returned

    def _returned(self, one: Asked) -> bytes | None:
        kept = self.held.get(one.key)
        if one.op is Op.GET and kept:
            return kept.value
        return kept.expiry.to_bytes(8, "little") if one.op is Op.EXPIRY and kept else None

    def _sum(self, one: Asked) -> int | Status:
        found = self._number(one.key)
        if isinstance(found, Status):
            return found
        total = found + int.from_bytes(one.value, "little", signed=True)
        return total if -_I64 <= total < _I64 else Status.OVERFLOW

    def _number(self, key: bytes) -> int | Status:
        if key not in self.held:
            return 0
        value = self.held[key].value
        if not self.has_records:
            return int.from_bytes(value, "little", signed=True)
        if not value.removeprefix(b"-").isdigit() or len(value) > _TEXT_MAX:
            return Status.NOT_A_NUMBER
        found = int(value)
        return found if b"%d" % found == value and -_I64 <= found < _I64 else Status.NOT_A_NUMBER
