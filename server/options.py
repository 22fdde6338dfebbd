"""What operations ask for beside keys and values: conditions, expected versions and expiries, as columns of bytes.

Most requests have none of them, and pay for none.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final, NamedTuple

import numpy as np

from gpkvs.batch import U64, Condition
from gpkvs.errors import InvalidArgumentError
from gpkvs.proto.v1 import kv_pb2
from gpkvs.text import counted

_TIME_MAX: Final = (1 << 64) - 1


class Options(NamedTuple):
    """Columns of a request, each empty where no operation has any. Expiries are absolute."""

    conditions: bytes = b""
    expected: bytes = b""
    expiries: bytes = b""


Clock = Callable[[], int]
"""Tells the time by which keys expire, in milliseconds since 1970 (`gpkvs.store.Store.now_ms`)."""


def options_of(
    clock: Clock, *, condition: int = 0, expected: int = 0, expiry_ms: int = 0, ttl_ms: int = 0
) -> Options | None:
    """Return what a single operation asks for, or None if that is nothing.

    Raises
    ------
    InvalidArgumentError
        Naming the field.
    """
    if not (condition or expiry_ms or ttl_ms):
        return None
    if condition not in tuple(Condition):
        raise InvalidArgumentError(f"unknown condition {condition}: 0 to 3 are known", field="condition")
    if expiry_ms and ttl_ms:
        raise InvalidArgumentError("given beside expiry_ms: fill in one of the two", field="ttl_ms")
    if ttl_ms:
        expiry_ms = _expiry_of(clock(), ttl_ms, "ttl_ms")
    return Options(
        bytes([condition]) if condition else b"",
        expected.to_bytes(8, "little") if condition == Condition.EQUALS else b"",
        expiry_ms.to_bytes(8, "little") if expiry_ms else b"",
    )


def decode_options(message: kv_pb2.BatchRequest, operations: int, clock: Clock) -> Options | None:
    """Return what the operations of a request ask for, or None if that is nothing.

    Raises
    ------
    InvalidArgumentError
        Naming the field, and the operation's index where one is at fault.
    """
    conditions, expected, expiries, ttls = message.conditions, message.expected, message.expiries, message.ttls
    if not (conditions or expected or expiries or ttls):
        return None
    if len(conditions) not in (0, operations):
        raise InvalidArgumentError(f"{len(conditions):,} for {counted(operations, 'operation')}", field="conditions")
    for name, column in (("expected", expected), ("expiries", expiries), ("ttls", ttls)):
        if len(column) not in (0, 8 * operations):
            raise InvalidArgumentError(
                f"{len(column):,} bytes for {counted(operations, 'operation')}, 8 for each are needed", field=name
            )
    if expiries and ttls:
        raise InvalidArgumentError("given beside expiries: fill in one of the two", field="ttls")
    if ttls:
        expiries = _expiries_of(clock(), np.frombuffer(ttls, "<u8"))
    return _options(conditions, expected, expiries)


def _options(conditions: bytes, expected: bytes, expiries: bytes) -> Options | None:
    """Return columns, if they say anything: without zeros a request is executed as any that never had them."""
    options = Options(_unless_zeros(conditions), expected, _unless_zeros(expiries))
    return options if options.conditions or options.expiries else None


def _unless_zeros(column: bytes) -> bytes:
    return column if column.count(0) < len(column) else b""


def _expiries_of(now_ms: int, ttls: U64) -> bytes:
    """Return when what lives so long from now on expires; 0 stays 0."""
    longest = int(ttls.argmax())
    _expiry_of(now_ms, int(ttls[longest]), "ttls", longest)
    return np.where(ttls == 0, ttls, ttls + np.uint64(now_ms)).astype("<u8", copy=False).tobytes()


def _expiry_of(now_ms: int, ttl_ms: int, field: str, index: int | None = None) -> int:
    """Return when what lives so long from now on expires, or refuse it."""
    expiry_ms = now_ms + ttl_ms
    if expiry_ms > _TIME_MAX:
        raise InvalidArgumentError(f"{ttl_ms:,} ms from now on is past the end of time", field=field, index=index)
    return expiry_ms


def columns_of(options: Options) -> dict[str, Any]:
    """Return what operations ask for as columns of `gpkvs.batch.Batch`; some may be left out."""
    dtypes = (("conditions", "u1"), ("expected", "<u8"), ("expiries", "<u8"))
    return {name: np.frombuffer(column, dtype) for (name, dtype), column in zip(dtypes, options, strict=True) if column}
