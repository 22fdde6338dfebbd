"""What became of one operation, as a Python object: its result, or the error that says why it was not done."""

from __future__ import annotations

from typing import TypeAlias

from gpkvs.batch import Op, Status
from gpkvs.errors import (
    ConditionFailedError,
    CorruptRecordError,
    GpkvsError,
    InvalidArgumentError,
    NotANumberError,
    NumberOverflowError,
)

Outcome: TypeAlias = bytes | int | bool | None

_OK = int(Status.OK)


def outcome_of(
    op: int, status: int, version: int, value: bytes = b"", *, has_condition: bool = False
) -> Outcome | GpkvsError:
    """Return what became of an operation of a request that was executed.

    Parameters
    ----------
    op
        `Op`.
    status, version, value
        As the response has them; `value` of those that return one.
    has_condition
        Whether it had a condition.

    Returns
    -------
    bytes, int, bool, None or GpkvsError
        A GET's value or None; the version of a SET or APPEND; the sum of an INCREMENT; when the key of an EXPIRY
        expires (milliseconds since 1970, 0: never) or None; whether a DELETE, EXISTS, EXPIRE or CHECK found what it
        asked for. An error, not raised, if it was not done.
    """
    if status == _OK:
        return _done(op, version, value)
    return _not_done(op, status, version, has_condition=has_condition)


def _done(op: int, version: int, value: bytes) -> Outcome:
    match op:
        case Op.GET:
            return value
        case Op.SET | Op.APPEND:
            return version
        case Op.INCREMENT:
            return int.from_bytes(value, "little", signed=True)
        case Op.EXPIRY:
            return int.from_bytes(value, "little")
        case _:
            return True


def _not_done(op: int, status: int, version: int, *, has_condition: bool) -> Outcome | GpkvsError:
    if status == Status.NOT_FOUND and op == Op.CHECK:  # the key must not be there: else there were no result
        return True
    if status == Status.NOT_FOUND and not has_condition:
        return None if op in (Op.GET, Op.EXPIRY) else False
    return _error(op, status, version)


def _error(op: int, status: int, version: int) -> GpkvsError:
    match status:
        case Status.NOT_FOUND:
            return ConditionFailedError(None)
        case Status.CONDITION_FAILED:
            return ConditionFailedError(version)
        case Status.OVERFLOW if op == Op.APPEND:
            return InvalidArgumentError(
                "with what is there it would be longer than the limit (value_bytes_max); nothing was added",
                field="value",
            )
        case Status.OVERFLOW:
            return NumberOverflowError()
        case Status.NOT_A_NUMBER:
            return NotANumberError()
        case _:
            return CorruptRecordError("the record fails its checksum, so no value is returned: run gpkvs check")
