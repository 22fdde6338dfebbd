"""Operations and their results as Python objects: for the store and both clients.

Calls become columns here, once: a store runs them, a client makes a message of them. Operations are checked as they
are added.
"""

from __future__ import annotations

import time
from array import array
from collections.abc import Callable, Iterable, Sequence
from datetime import timedelta
from math import inf
from typing import Any, NamedTuple, TypeAlias, TypeGuard, TypeVar, overload

import numpy as np
from numpy.typing import NDArray

from gpkvs.batch import READS, Condition, Op, RequestColumns, RequestResult, Status
from gpkvs.config import Limits
from gpkvs.errors import CorruptRecordError, GpkvsError, InvalidArgumentError, memory_refused
from gpkvs.outcome import outcome_of
from gpkvs.request_checks import check_key_bytes, check_request_ops, check_value_bytes, wrong_bytes

Bytes: TypeAlias = bytes | bytearray | memoryview | NDArray[np.uint8]
"""What is taken as a key or a value; arrays are contiguous."""
Whole: TypeAlias = int | np.integer[Any]
"""A key or a value of a table of the layout u64: a whole number from 0 to 2**64 - 1."""
Key: TypeAlias = Bytes | Whole
"""A key of any table."""
Value: TypeAlias = bytes | memoryview
"""A value as it is stored; a `memoryview` is memory of the caller's."""
Ttl: TypeAlias = float | timedelta | None
"""How long until a key expires: seconds, or a `timedelta`; None: for ever."""
Operation: TypeAlias = tuple[Op, Key] | tuple[Op, Key, Any]
"""``(Op.GET, key)``, ``(Op.SET, key, value)``: what `OperationList` takes."""
Result: TypeAlias = bytes | int | float | bool | GpkvsError | None
"""What became of one operation; an error, if it was not done."""

AnyValue = TypeVar("AnyValue", bytes, memoryview)

_FORMS = (
    "an operation is (Op.GET, key), (Op.SET, key, value), (Op.DELETE, key), (Op.EXISTS, key), "
    "(Op.INCREMENT, key, number), (Op.APPEND, key, value), (Op.CHECK, key, version or None), "
    "(Op.EXPIRE, key, seconds or None) or (Op.EXPIRY, key)"
)
_WHOLE = (int, np.integer)
_WHOLE_MAX = (1 << 64) - 1
_TTL_MS_MAX = 1 << 50  # 35,000 years: with any clock the sum is a number of 64 bits
_GET, _SET, _DELETE, _EXISTS, _INCREMENT, _APPEND, _CHECK, _EXPIRE, _EXPIRY, _ADD = map(int, Op)
_HAS_VALUE = frozenset({_SET, _INCREMENT, _APPEND})
_OK, _CORRUPT = int(Status.OK), int(Status.CORRUPT)
_RETURNS_VALUE = frozenset({_GET, _INCREMENT, _EXPIRY})


def wall_clock_ms() -> int:
    """Return the time of this machine, in milliseconds since 1970."""
    return time.time_ns() // 1_000_000


class Options(NamedTuple):
    """What one operation asks for beside its key and value.

    Parameters
    ----------
    condition, expected
        What it asks of its key; `expected` counts with `Condition.EQUALS`.
    ttl_ms
        When what it leaves expires, from the moment on at which it is executed; 0: never.
    """

    condition: Condition = Condition.NONE
    expected: int = 0
    ttl_ms: int = 0


_NO_OPTIONS = Options()


class ResultLists(NamedTuple):
    """What became of the operations of a request, as Python objects.

    Parameters
    ----------
    statuses, versions
        Of each operation.
    values
        Of those that return one.
    """

    statuses: Sequence[int]
    versions: Sequence[int]
    values: Sequence[bytes]

    @classmethod
    def of(cls, result: RequestResult) -> ResultLists:
        """Return what columns hold."""
        return cls(result.status.tolist(), result.versions.tolist(), result.value_list())

    def require_sound(self) -> None:
        """Raise CorruptRecordError if an operation met a record that fails its checksum; the others are done."""
        if _CORRUPT in self.statuses:
            raise CorruptRecordError(
                f"operation {self.statuses.index(_CORRUPT)}: the record fails its checksum, so no value is returned; "
                "the writes of the request, if any, are done"
            )

    def pairs(self) -> list[tuple[bytes, int] | None]:
        """Return, of operations that were all GETs, each value with what conditions compare; None for a miss.

        They compare the version. A table of numbers has none, there it is the number.
        """
        return [
            (value, version or int.from_bytes(value, "little")) if status == _OK else None
            for status, version, value in zip(self.statuses, self.versions, self.values, strict=True)
        ]


def as_bytes(noun: str, given: Bytes | Whole) -> bytes:
    """Return a key or a value, `noun`, as `bytes`.

    Raises
    ------
    TypeError
        If it is not like bytes.
    """
    if type(given) is bytes:
        return given
    if isinstance(given, bytes | bytearray):
        return bytes(given)
    if isinstance(given, memoryview) and given.itemsize == 1:
        return given.tobytes()
    if isinstance(given, np.ndarray) and given.dtype == np.uint8 and given.flags.c_contiguous:
        return given.tobytes()
    raise TypeError(f"a {noun} is bytes, not {type(given).__name__}{_hint(given)}")


def is_whole(given: object) -> TypeGuard[Whole]:
    """Return whether a key was given as a number: then its table must have the layout u64, and its value is one too."""
    return isinstance(given, _WHOLE)


def whole_as_bytes(noun: str, given: object) -> bytes:
    """Return a key or a value of a table of numbers as the 8 bytes that the table holds.

    Raises
    ------
    TypeError
        If it is no whole number.
    InvalidArgumentError
        If it is out of range.
    """
    return number_of(noun, given, 0, _WHOLE_MAX).to_bytes(8, "little")


def key_as_bytes(key: Key) -> bytes:
    """Return a key as the bytes that its table holds; raises as `as_bytes` and `whole_as_bytes`."""
    if type(key) is bytes:
        return key
    return whole_as_bytes("key", key) if is_whole(key) else as_bytes("key", key)


def value_as_bytes(key: Key, value: Bytes | Whole) -> bytes:
    """Return the value of a key as the bytes that its table holds: of a number for a number, else bytes."""
    if not is_whole(key):
        return as_bytes("value", value)
    if not is_whole(value):
        raise TypeError(f"the key is an int, so its value is an int too, not {type(value).__name__}")
    return whole_as_bytes("value", value)


def as_given(key: Key, value: bytes) -> Any:
    """Return a value that was read in the form in which its key was given: as an int, or as bytes."""
    return int.from_bytes(value, "little") if is_whole(key) else value


def _hint(given: object) -> str:
    if isinstance(given, str):
        return ": encode it first, as in 'text'.encode()"
    if isinstance(given, int):
        return (
            ": write it as text, as in b'%d' % number. Only a table of the layout u64 holds ints, and there key and "
            "value are both ints"
        )
    if isinstance(given, np.ndarray | memoryview):
        return (
            f" of {given.dtype if isinstance(given, np.ndarray) else given.format}: a contiguous one of bytes (uint8)"
        )
    if isinstance(given, dict | list | tuple | set | float | None):
        return ": pack it, as json.dumps(...).encode() does, or gpkvs.client.Objects, which also unpacks"
    return ": convert it with bytes(...)"


def number_of(noun: str, given: object, low: int, high: int) -> int:
    """Return a whole number, which must be one; raises TypeError, or InvalidArgumentError if it is out of range."""
    if isinstance(given, bool) or not isinstance(given, int | np.integer):
        raise TypeError(f"a {noun} is an int, not {type(given).__name__}")
    if not low <= given <= high:
        raise InvalidArgumentError(f"{given:,}, allowed are {low:,} to {high:,}", field=noun)
    return int(given)


def ttl_ms(ttl: Ttl) -> int:
    """Return a time to live in milliseconds; 0: for ever.

    Raises
    ------
    TypeError
        If it is no number and no `timedelta`.
    InvalidArgumentError
        If it is not positive, or too long.
    """
    if ttl is None:
        return 0
    seconds = ttl.total_seconds() if isinstance(ttl, timedelta) else ttl
    if isinstance(seconds, bool) or not isinstance(seconds, int | float | np.integer | np.floating):
        raise TypeError(f"a ttl is a number of seconds or a timedelta, not {type(ttl).__name__}")
    if seconds == inf:
        return 0
    if not seconds > 0:  # or no number
        raise InvalidArgumentError(f"{seconds} seconds: it must be positive (to remove a key, delete it)", field="ttl")
    if seconds * 1000 > _TTL_MS_MAX:
        raise InvalidArgumentError(f"at most {_TTL_MS_MAX // 1000:,} seconds; None means for ever", field="ttl")
    return max(round(seconds * 1000), 1)


def _condition(*, absent: bool, present: bool, version: int | None) -> tuple[Condition, int]:
    """Return a condition and what it expects."""
    if absent + present + (version is not None) > 1:
        raise InvalidArgumentError("an operation takes one condition, and several were given", field="conditions")
    if version is not None:
        return Condition.EQUALS, number_of("version", version, 0, (1 << 64) - 1)
    return (Condition.ABSENT if absent else Condition.PRESENT if present else Condition.NONE), 0


class OperationList:
    """Operations in order, checked as they are added: one atomic request.

    Parameters
    ----------
    operations
        The first ones: ``(Op.GET, key)``, ``(Op.SET, key, value)``, ``(Op.DELETE, key)``, ``(Op.EXISTS, key)``,
        ``(Op.INCREMENT, key, number)``, ``(Op.APPEND, key, value)``, ``(Op.CHECK, key, version)`` (None: it must not be
        there), ``(Op.EXPIRE, key, seconds)`` (None: never), ``(Op.EXPIRY, key)``. In a table of the layout u64 keys and
        values may be ints; a GET of an int returns an int.
    limits
        Of keys and values; None checks them later.

    Attributes
    ----------
    results
        After the request was executed, one for each operation in order: a GET's value or None, the version of a SET or
        APPEND, whether a DELETE, EXISTS or EXPIRE found its key, the sum of an INCREMENT, True for a CHECK, the seconds
        that a key of an EXPIRY has left (`math.inf`: it never expires, None: it is not there). An operation that was
        not done has the error in its place.
    versions
        Then, the version that each operation read, wrote or found.
    is_of_numbers
        Whether a key was given as an int: then a table of another layout than u64 is refused.
    """

    def __init__(self, operations: Iterable[Operation] = (), limits: Limits | None = None) -> None:
        self.results: list[Result] = []
        self.versions: list[int] = []
        self.is_of_numbers = False
        self._wholes: set[int] = set()  # the operations whose keys were given as ints
        self._limits = limits
        self._ops = bytearray()
        self._keys: list[bytes] = []
        self._values: list[Value] = []
        self._options: dict[int, Options] = {}
        for operation in operations:
            self._add_tuple(*operation)

    def __len__(self) -> int:
        return len(self._ops)

    def __repr__(self) -> str:
        return f"<{type(self).__name__} of {len(self)} operations>"

    def get(self, key: Key) -> None:
        """Read a key."""
        self._add(_GET, key)

    def exists(self, key: Key) -> None:
        """Look whether a key is there."""
        self._add(_EXISTS, key)

    @overload
    def set(
        self,
        key: Bytes,
        value: Bytes,
        *,
        ttl: Ttl = None,
        if_absent: bool = False,
        if_present: bool = False,
        if_version: int | None = None,
    ) -> None: ...

    @overload
    def set(
        self,
        key: Whole,
        value: Whole,
        *,
        ttl: Ttl = None,
        if_absent: bool = False,
        if_present: bool = False,
        if_version: int | None = None,
    ) -> None: ...

    def set(
        self,
        key: Key,
        value: Bytes | Whole,
        *,
        ttl: Ttl = None,
        if_absent: bool = False,
        if_present: bool = False,
        if_version: int | None = None,
    ) -> None:
        """Write a key; under a condition, if one is given."""
        options = _NO_OPTIONS
        if ttl is not None or if_absent or if_present or if_version is not None:
            condition, expected = _condition(absent=if_absent, present=if_present, version=if_version)
            options = Options(condition, expected, ttl_ms(ttl))
        if type(value) is not bytes or type(key) is not bytes:
            value = value_as_bytes(key, value)
        self._add(_SET, key, self._checked_value(value), options)

    def set_from(self, key: Bytes, value: memoryview, *, ttl: Ttl = None) -> None:
        """Write a key; its value is memory of the caller's, which is read when the request runs."""
        self._add(_SET, as_bytes("key", key), self._checked_value(value), Options(ttl_ms=ttl_ms(ttl)))

    def delete(self, key: Key, *, if_version: int | None = None) -> None:
        """Remove a key; under a condition, if one is given."""
        options = _NO_OPTIONS
        if if_version is not None:
            options = Options(*_condition(absent=False, present=False, version=if_version))
        self._add(_DELETE, key, None, options)

    def incr(self, key: Key, delta: int = 1, *, ttl: Ttl = None) -> None:
        """Add to the number that a key holds; `ttl` is for a new key."""
        number = number_of("delta", delta, -(1 << 63), (1 << 63) - 1)
        self._add(_INCREMENT, key, number.to_bytes(8, "little", signed=True), Options(ttl_ms=ttl_ms(ttl)))

    def append(self, key: Bytes, value: Bytes, *, ttl: Ttl = None) -> None:
        """Add to the end of a key's value; `ttl` is for a new key."""
        self._add(_APPEND, key, self._checked_value(as_bytes("value", value)), Options(ttl_ms=ttl_ms(ttl)))

    def expire(self, key: Key, ttl: Ttl) -> None:
        """Have a key that is there expire in some time, or never (None)."""
        self._add(_EXPIRE, key, None, Options(ttl_ms=ttl_ms(ttl)))

    def ttl(self, key: Key) -> None:
        """Read how long a key will be there."""
        self._add(_EXPIRY, key)

    def check(self, key: Key, *, absent: bool = False, present: bool = False, version: int | None = None) -> None:
        """Have the whole request refused (`ConflictError`) unless the key is as it should be.

        Parameters
        ----------
        key
            It may be any key, also one that nothing else of the request names.
        absent, present, version
            One of them: it must not be there, it must be there, it must have this version (in a table of numbers: be
            this number).
        """
        condition, expected = _condition(absent=absent, present=present, version=version)
        if condition is Condition.NONE:
            raise InvalidArgumentError("a check needs one: absent, present or version", field="conditions")
        self._add(_CHECK, key, None, Options(condition, expected))

    def _add_tuple(self, op: Op, key: Any, *more: Any) -> None:
        """Add what is given as a tuple."""
        takes_more = op in (Op.SET, Op.INCREMENT, Op.APPEND, Op.CHECK, Op.EXPIRE)
        if op not in tuple(Op) or op == _ADD or len(more) != takes_more:
            raise InvalidArgumentError(_FORMS, index=len(self), field="ops")
        match Op(op):
            case Op.SET:
                self.set(key, *more)
            case Op.INCREMENT:
                self.incr(key, *more)
            case Op.APPEND:
                self.append(key, *more)
            case Op.CHECK:
                self.check(key, absent=more[0] is None, version=more[0])
            case Op.EXPIRE:
                self.expire(key, *more)
            case _:
                self._add(op, key)

    def _add(self, op: int, key: Key, value: Value | None = None, options: Options = _NO_OPTIONS) -> None:
        if type(key) is not bytes:
            if is_whole(key):
                self.is_of_numbers = True
                self._wholes.add(len(self._ops))
            key = key_as_bytes(key)
        if self._limits:
            check_key_bytes(len(key), self._limits)
        if options is not _NO_OPTIONS and any(options):
            self._options[len(self._ops)] = options
        if value is not None:
            self._values.append(value)
        self._ops.append(op)
        self._keys.append(key)

    def _checked_value(self, value: AnyValue) -> AnyValue:
        if self._limits:
            check_value_bytes(len(value), self._limits)
        return value

    @property
    def keys(self) -> list[bytes]:
        """The key of each operation."""
        return self._keys

    @property
    def given_keys(self) -> list[Any]:
        """The key of each operation, as an int where it was given as one."""
        if not self._wholes:
            return self._keys
        return [int.from_bytes(key, "little") if index in self._wholes else key for index, key in enumerate(self._keys)]

    @property
    def ops(self) -> bytes:
        """What each operation does, as `Op`."""
        return bytes(self._ops)

    @property
    def values(self) -> list[Value]:
        """The values of SETs, INCREMENTs and APPENDs, as they are sent."""
        return self._values

    @property
    def only(self) -> tuple[int, bytes, Options | None]:
        """What the only operation does, its value, and what it asks for beside them."""
        assert len(self) == 1
        return self._ops[0], bytes(self._values[0]) if self._values else b"", self._options.get(0)

    @property
    def changes(self) -> bool:
        """Whether any operation may change something: then the request must not be executed twice."""
        return not READS.issuperset(self._ops)

    @property
    def options(self) -> list[Options]:
        """What each operation asks for; empty if none does."""
        if not self._options:
            return []
        return [self._options.get(index, _NO_OPTIONS) for index in range(len(self))]

    @memory_refused()
    def columns(self, limits: Limits, now_ms: Callable[[], int]) -> RequestColumns:
        """Return the request as columns, checked; what expires does so from now on.

        Parameters
        ----------
        limits
            Of its table.
        now_ms
            The clock, in milliseconds since 1970; asked if something expires.
        """
        self._check(limits)
        expiries = conditions = expected = None
        if self._options:
            options = self.options
            if any(option.condition for option in options):
                conditions = bytes(option.condition for option in options)
                expected = array("Q", [option.expected for option in options]).tobytes()
            if any(option.ttl_ms for option in options):
                now = now_ms()
                expiries = array("Q", [option.ttl_ms and option.ttl_ms + now for option in options]).tobytes()
        return RequestColumns(
            bytes(self._ops),
            b"".join(self._keys),
            array("I", map(len, self._keys)).tobytes(),
            self._values[0] if len(self._values) == 1 else b"".join(self._values),
            array("I", map(len, self._values)).tobytes(),
            expiries,
            conditions,
            expected,
        )

    def _check(self, limits: Limits) -> None:
        """Check the lengths of keys and values."""
        check_request_ops(len(self._ops), limits)
        for index, key in enumerate(self._keys):
            if not limits.key_bytes_min <= len(key) <= limits.key_bytes_max:
                low, high = limits.key_bytes_min, limits.key_bytes_max
                raise wrong_bytes("key", len(key), low, high, field="keys", index=index)
        low, high = limits.value_bytes_min, limits.value_bytes_max
        for number, value in enumerate(self._values):
            if not low <= len(value) <= high:
                index = [index for index, op in enumerate(self._ops) if op in _HAS_VALUE][number]
                raise wrong_bytes("value", len(value), low, high, field="values", index=index)

    def pairs(self) -> list[tuple[bytes, int] | None]:
        """Return what GETs read: `ResultLists.pairs`."""
        return self._taken.pairs()

    def take(self, result: RequestResult | ResultLists, now_ms: Callable[[], int] = wall_clock_ms) -> list[Result]:
        """Keep what became of the operations, and return it.

        Parameters
        ----------
        result
            Of the request.
        now_ms
            The clock, by which the time until an expiry is told.

        Raises
        ------
        CorruptRecordError
            If an operation met a record that fails its checksum. The others of the request are done all the same.
        """
        lists = result if isinstance(result, ResultLists) else ResultLists.of(result)
        lists.require_sound()
        statuses, versions, values = lists
        self._taken, self.versions = lists, list(versions)
        returned = iter(values)
        results: list[Result] = []
        for index, (op, status, version) in enumerate(zip(self._ops, statuses, versions, strict=True)):
            value = next(returned) if op in _RETURNS_VALUE else b""
            has_condition = bool(self._options and self._options.get(index, _NO_OPTIONS).condition)
            outcome = outcome_of(op, status, version, value, has_condition=has_condition)
            is_expiry = op == _EXPIRY and isinstance(outcome, int)
            results.append(seconds_left(outcome, now_ms) if is_expiry else outcome)
        for index in self._wholes:
            read = results[index]
            if self._ops[index] == _GET and isinstance(read, bytes):
                results[index] = int.from_bytes(read, "little")
        self.results = results
        return results


def seconds_left(expiry_ms: Any, now_ms: Callable[[], int] = wall_clock_ms) -> float | None:
    """Return the time until an expiry, what an EXPIRY returned; None if the key is not there."""
    if expiry_ms is None:
        return None
    return max(expiry_ms - now_ms(), 0) / 1000 if expiry_ms else inf
