"""What a client is told of an error: the gRPC status, its text, and whether the request was not executed.

The client is told so by the status of a call, or by a response of a Pipeline, which goes on.
"""

from __future__ import annotations

import logging
from bisect import bisect_right
from itertools import accumulate
from typing import NamedTuple

from gpkvs.errors import (
    ChangesLostError,
    ConflictError,
    CorruptRecordError,
    CorruptStoreError,
    GpkvsError,
    InvalidArgumentError,
    NoSpaceError,
    NotANumberError,
    NumberOverflowError,
    StoreClosedError,
    TableExistsError,
    UnknownTableError,
)
from gpkvs.server.access.audit import AuditError
from gpkvs.server.access.caller import LoginError
from gpkvs.server.access.rights import RightsError
from gpkvs.server.call_types import StatusCode
from gpkvs.server.calls.receives import SlowRequestError
from gpkvs.server.calls.request_queue import ConnectionGoneError, ExpiredRequestError
from gpkvs.server.calls.wire import UnsupportedError
from gpkvs.server.gate import NotServingError
from gpkvs.server.signs.exporter import Metrics
from gpkvs.server.signs.full_log import FullLog

_log = logging.getLogger("gpkvs.server")
_FULL_LOG = FullLog()

# The first class that fits counts. The reason is a label of gpkvs_requests_refused_total.
_REFUSALS: tuple[tuple[type[GpkvsError], StatusCode, str], ...] = (
    (UnknownTableError, StatusCode.NOT_FOUND, "unknown_table"),
    (TableExistsError, StatusCode.ALREADY_EXISTS, "table_exists"),
    (InvalidArgumentError, StatusCode.INVALID_ARGUMENT, "invalid"),
    (NoSpaceError, StatusCode.RESOURCE_EXHAUSTED, "no_space"),
    (ConflictError, StatusCode.ABORTED, "conflict"),
    (ChangesLostError, StatusCode.OUT_OF_RANGE, "changes_lost"),
    (LoginError, StatusCode.UNAUTHENTICATED, "unauthenticated"),
    (RightsError, StatusCode.PERMISSION_DENIED, "permission_denied"),
    (AuditError, StatusCode.UNAVAILABLE, "audit"),
    (NotServingError, StatusCode.UNAVAILABLE, "not_serving"),
    (UnsupportedError, StatusCode.UNIMPLEMENTED, "unsupported"),
    (SlowRequestError, StatusCode.DEADLINE_EXCEEDED, "slow"),
    (ExpiredRequestError, StatusCode.DEADLINE_EXCEEDED, "deadline"),
    (ConnectionGoneError, StatusCode.CANCELLED, "cancelled"),
)
# The request was executed, and its only operation did nothing: the operation's status says so in the metrics.
_NOT_DONE: tuple[tuple[type[GpkvsError], StatusCode], ...] = (
    (NotANumberError, StatusCode.FAILED_PRECONDITION),
    (NumberOverflowError, StatusCode.OUT_OF_RANGE),
)
_FAILURES: tuple[tuple[type[GpkvsError], StatusCode], ...] = (
    (CorruptRecordError, StatusCode.DATA_LOSS),
    (CorruptStoreError, StatusCode.DATA_LOSS),
    (StoreClosedError, StatusCode.UNAVAILABLE),
    (GpkvsError, StatusCode.INTERNAL),
)

_BUG_TEXT = "internal error: the server's log has the details"

# Clients reject trailers of more than 8 KiB, and with them the status and its metadata, which take less than 1 KiB.
_TEXT_BYTES_MAX = 3 << 10
_CUT = "..."
_PLAIN = frozenset(range(0x20, 0x7F)) - {ord("%")}  # what gRPC sends as it is; any other byte takes three


class ErrorStatus(NamedTuple):
    """An error as the wire has it."""

    code: StatusCode
    text: str
    full: str  # what is full, if the request was refused for want of room
    is_refusal: bool  # the request surely changed nothing
    conflict: ConflictError | None = None  # if a check of the request failed


def tell(error: Exception, method: str, metrics: Metrics, request_id: str = "") -> ErrorStatus:
    """Return what a client is told of an error; count it as a refusal, or log it as a failure.

    Parameters
    ----------
    error
        Why a request failed.
    method
        What failed, for the log.
    metrics
        Counts the requests that were refused.
    request_id
        For the log, too; empty where several requests fail together.
    """
    request, fields = _named(request_id)
    if not isinstance(error, GpkvsError):  # a bug: the log gets the traceback, the client no details
        _log.error("%s failed%s", method, request, exc_info=error, extra=fields)
        return ErrorStatus(StatusCode.INTERNAL, _BUG_TEXT, "", is_refusal=False)
    for kind, code in _NOT_DONE:
        if isinstance(error, kind):
            return ErrorStatus(code, status_text(error), "", is_refusal=True)
    told = told_of(error)
    if told.is_refusal:
        if not isinstance(error, ExpiredRequestError):  # the door has counted it: nobody may be there any more to tell
            note_refused(error, metrics)
    else:
        log_failure(error, request_id)
    return told


def log_failure(error: GpkvsError, request_id: str = "") -> None:
    """Log an error that is no refusal, with the id of its call; empty where several requests fail together."""
    code, reason = status_of(error)
    if not reason:
        request, fields = _named(request_id)
        _log.error("%s: %s%s", code.name, error, request, extra=fields)


def _named(request_id: str) -> tuple[str, dict[str, str]]:
    """Return how a line of the log names a call, and the fields that it has."""
    return (f" (request {request_id})", {"request_id": request_id}) if request_id else ("", {})


def told_of(error: GpkvsError) -> ErrorStatus:
    """Return what a client is told of an error, and count nothing."""
    code, reason = status_of(error)
    full = error.resource if isinstance(error, NoSpaceError) else ""
    conflict = error if isinstance(error, ConflictError) else None
    return ErrorStatus(code, status_text(error), full, bool(reason), conflict)


def note_refused(error: GpkvsError, metrics: Metrics, requests: int = 1) -> None:
    """Count requests that were refused for the same reason; the log says once in a while what is full."""
    metrics.requests_refused(status_of(error)[1], requests)
    if isinstance(error, NoSpaceError):
        _FULL_LOG.note(error)


def status_of(error: GpkvsError) -> tuple[StatusCode, str]:
    """Return the status of an error, and the reason's name if the request was refused before execution (else "")."""
    for kind, code, reason in _REFUSALS:
        if isinstance(error, kind):
            return code, error.resource + "_full" if isinstance(error, NoSpaceError) else reason
    return next(code for kind, code in _FAILURES if isinstance(error, kind)), ""


def status_text(error: GpkvsError) -> str:
    """Return an error's text as a status carries it: short enough for the trailers after gRPC's percent-encoding.

    Texts that repeat a caller's bytes are short already (`gpkvs.text.quoted`); this bounds all others.
    """
    text = str(error)[:_TEXT_BYTES_MAX]
    data = text.encode("utf-8", "backslashreplace")
    sizes = list(accumulate(1 if byte in _PLAIN else 3 for byte in data))
    if len(text) == len(str(error)) and sizes[-1:] <= [_TEXT_BYTES_MAX]:
        return data.decode()
    end = bisect_right(sizes, _TEXT_BYTES_MAX - len(_CUT))
    return data[:end].decode("utf-8", "ignore") + _CUT
