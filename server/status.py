"""Which gRPC status an error is, its text, and whether it means that the request was not executed."""

from __future__ import annotations

from bisect import bisect_right
from itertools import accumulate

import grpc

from gpkvs.errors import (
    CorruptRecordError,
    CorruptStoreError,
    GpkvsError,
    InvalidArgumentError,
    NoSpaceError,
    StoreClosedError,
    TableExistsError,
    UnknownTableError,
)
from gpkvs.server.batcher import DeadlineError
from gpkvs.server.gate import NotServingError
from gpkvs.server.receive import SlowRequestError
from gpkvs.server.wire import UnsupportedError

# The first class that fits counts. The reason is a label of gpkvs_requests_refused_total.
_REFUSALS: tuple[tuple[type[GpkvsError], grpc.StatusCode, str], ...] = (
    (UnknownTableError, grpc.StatusCode.NOT_FOUND, "unknown_table"),
    (TableExistsError, grpc.StatusCode.ALREADY_EXISTS, "table_exists"),
    (InvalidArgumentError, grpc.StatusCode.INVALID_ARGUMENT, "invalid"),
    (NoSpaceError, grpc.StatusCode.RESOURCE_EXHAUSTED, "no_space"),
    (NotServingError, grpc.StatusCode.UNAVAILABLE, "not_serving"),
    (UnsupportedError, grpc.StatusCode.UNIMPLEMENTED, "unsupported"),
    (SlowRequestError, grpc.StatusCode.DEADLINE_EXCEEDED, "slow"),
    (DeadlineError, grpc.StatusCode.DEADLINE_EXCEEDED, "deadline"),
)
_FAILURES: tuple[tuple[type[GpkvsError], grpc.StatusCode], ...] = (
    (CorruptRecordError, grpc.StatusCode.DATA_LOSS),
    (CorruptStoreError, grpc.StatusCode.DATA_LOSS),
    (StoreClosedError, grpc.StatusCode.UNAVAILABLE),
    (GpkvsError, grpc.StatusCode.INTERNAL),
)

# Clients reject trailers of more than 8 KiB, and with them the status and its metadata, which take less than 1 KiB.
_TEXT_BYTES_MAX = 3 << 10
_CUT = "..."
_PLAIN = frozenset(range(0x20, 0x7F)) - {ord("%")}  # what gRPC sends as it is; any other byte takes three


def status_of(error: GpkvsError) -> tuple[grpc.StatusCode, str]:
    """Return the status of an error, and the reason's name if the request was refused before execution (else "")."""
    for kind, code, reason in _REFUSALS:
        if isinstance(error, kind):
            return code, error.resource + "_full" if isinstance(error, NoSpaceError) else reason
    return next(code for kind, code in _FAILURES if isinstance(error, kind)), ""


def status_text(error: GpkvsError) -> str:
    """Return an error's text as a status carries it: short enough for the trailers after gRPC's percent-encoding.

    The last line of defence: texts that repeat what a caller sent are short already (`gpkvs.text.quoted`).
    """
    text = str(error)[:_TEXT_BYTES_MAX]
    data = text.encode("utf-8", "backslashreplace")
    sizes = list(accumulate(1 if byte in _PLAIN else 3 for byte in data))
    if len(text) == len(str(error)) and sizes[-1:] <= [_TEXT_BYTES_MAX]:
        return data.decode()
    end = bisect_right(sizes, _TEXT_BYTES_MAX - len(_CUT))
    return data[:end].decode("utf-8", "ignore") + _CUT
