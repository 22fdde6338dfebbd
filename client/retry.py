"""What a failed call means, and when it is tried again.

It is safe to repeat a read, and a write that surely was not executed: the server says so (`EXECUTED_KEY` in the
trailing metadata of a request that it refused before execution), or there never was a connection. The response to any
other write is lost, and only the caller can know whether writing twice does harm.
"""

from __future__ import annotations

import random
import re
import time
from collections.abc import Mapping
from dataclasses import dataclass
from math import inf

import grpc
from grpc import StatusCode

from gpkvs.client.errors import (
    AccessDeniedError,
    ClientClosedError,
    DeadlineError,
    LoginError,
    OutcomeUnknownError,
    ServerBusyError,
    ServerError,
    TlsError,
    UnavailableError,
)
from gpkvs.client.request_id import current_request_id
from gpkvs.errors import (
    ConflictError,
    CorruptRecordError,
    GpkvsError,
    InvalidArgumentError,
    NoSpaceError,
    TableExistsError,
    UnknownTableError,
)
from gpkvs.proto.metadata import EXECUTED_KEY, FAILED_CHECK_KEY, FOUND_KEY, FULL_KEY, NOT_EXECUTED, REQUEST_ID_KEY
from gpkvs.proto.v1 import kv_pb2

# The gRPC library's texts for a call that it could not hand to any connection.
_NEVER_SENT = (
    "failed to connect to all addresses",
    "DNS resolution failed",
    "Name resolution failure",
    "errors resolving",
)
# The gRPC library's texts for a connection that failed while it was made, and what each means.
_NO_TLS: Mapping[str, str] = {
    "CERTIFICATE_VERIFY_FAILED": "the server's certificate is not trusted ({reason}): name the CA that signed it (ca, "
    "--tls-ca), or ask for a new certificate",
    "Hostname Verification Check failed": "the server's certificate is not for {host}: connect to a name that it has",
    "WRONG_VERSION_NUMBER": "there is no TLS there: use another port, or no TLS (credentials, --tls)",
    # What a client of TLS 1.3 sees of an alert behind its handshake. A server before 0.2 closes without one.
    "Unwrap failed": "the server refuses this client: it wants a client's certificate that it trusts (cert, "
    "--tls-cert)",
    "Failed to create security handshaker": "no TLS with these files (ca, cert, key): each must be PEM, the "
    "certificate must belong to its key, and the key must not be encrypted",
}
_CLOSED_AT_ONCE = "Socket closed"
# The same for a server that says GOAWAY and nothing else.
_TURNED_AWAY = "Expected SETTINGS frame as the first frame, got frame type 7"
# What it says inside TLS: it takes no handshake.
_NO_ROOM = "TLSV1_ALERT_INTERNAL_ERROR"
# The text of grpc.aio for a stream that ended while a message was written to it; the server's own status is lost.
_WRITE_FAILED = "Internal error from Core"
# The text of the server's gRPC library for a message that it did not hand to the service.
_TOO_LARGE = "SERVER: Received message larger than max"
# Statuses by which a request is refused before it is executed, whoever sends them.
_BEFORE_EXECUTION = (
    StatusCode.INVALID_ARGUMENT,
    StatusCode.NOT_FOUND,
    StatusCode.ALREADY_EXISTS,
    StatusCode.UNAUTHENTICATED,
    StatusCode.PERMISSION_DENIED,
    StatusCode.UNIMPLEMENTED,
)
# A stream may end with one of them in the middle, as where its user is removed.
_DENIED: Mapping[StatusCode, type[AccessDeniedError]] = {
    StatusCode.UNAUTHENTICATED: LoginError,
    StatusCode.PERMISSION_DENIED: AccessDeniedError,
}
_INVALID: Mapping[StatusCode, type[InvalidArgumentError]] = {
    StatusCode.INVALID_ARGUMENT: InvalidArgumentError,
    StatusCode.NOT_FOUND: UnknownTableError,
    StatusCode.ALREADY_EXISTS: TableExistsError,
}
# These are of the server, not of the store: they have room again a moment later.
_FULL_FOR_A_MOMENT = ("", "queue", "memory")


_DOUBLINGS_MAX = 60  # of a pause: more are beyond any maximum, and later beyond any float
CODES: Mapping[int, StatusCode] = {code.value[0]: code for code in StatusCode}
# After one of these in a response, nothing of its request was executed: proto/v1/kv.proto says so.
_REFUSED = (
    StatusCode.INVALID_ARGUMENT,
    StatusCode.NOT_FOUND,
    StatusCode.PERMISSION_DENIED,
    StatusCode.RESOURCE_EXHAUSTED,
    StatusCode.ABORTED,
)


@dataclass(frozen=True)
class RetryPolicy:
    """How often and how far apart a call is repeated, where that is safe.

    Parameters
    ----------
    attempts_max
        Calls in all; 1 never repeats. The call's deadline ends it earlier, but does not prolong it: the pauses
        between the eight of the default come to 1.1 to 2.3 s. To outlast a server's restart, allow more.
    delay_ms_first, delay_ms_max
        The pause before the second attempt; it doubles with each further one, up to the maximum.
    jitter
        The share of each pause that is random, 0 to 1, so that many clients do not come back at the same
        moment.
    """

    attempts_max: int = 8
    delay_ms_first: float = 20.0
    delay_ms_max: float = 1000.0
    jitter: float = 0.5

    def __post_init__(self) -> None:
        if self.attempts_max < 1:
            raise InvalidArgumentError(f"{self.attempts_max}, at least 1 is needed", field="attempts_max")

    def delay_s(self, attempt: int) -> float:
        """Return the pause in seconds after the attempt with this number, the first being 1."""
        delay_ms = min(self.delay_ms_max, self.delay_ms_first * 2.0 ** min(attempt - 1, _DOUBLINGS_MAX))
        return delay_ms / 1000 * (1 - self.jitter * random.random())


@dataclass(frozen=True)
class Failure:
    """What one failed call means.

    Parameters
    ----------
    error
        What to raise, except for a write that may have been executed.
    executed
        Whether the request may have been executed.
    transient
        Whether the same request may succeed a moment later.
    """

    error: GpkvsError
    executed: bool
    transient: bool

    @property
    def is_of_one(self) -> bool:
        """Whether one operation may be the cause why the whole message was refused."""
        if isinstance(self.error, InvalidArgumentError) and self.error.field == "table":  # it is the whole message's
            return False
        if isinstance(self.error, LoginError):  # so is the caller
            return False
        return isinstance(self.error, InvalidArgumentError | NoSpaceError | AccessDeniedError) and not self.executed

    def may_repeat(self, *, is_write: bool) -> bool:
        """Whether trying again is safe and may help."""
        return self.transient and not (is_write and self.executed)

    def raised(self, *, is_write: bool) -> GpkvsError:
        """Return a new error to raise to one caller."""
        if is_write and self.executed:
            return outcome_unknown(self.error)
        return _copy(self.error)


class StreamAttempts:
    """Says whether, and when, a stream that broke is begun anew: it goes on where it was.

    Parameters
    ----------
    policy
        How often and how far apart.
    timeout_s
        Seconds without a stream, from the first failure on; None: it does not count.
    """

    def __init__(self, policy: RetryPolicy, timeout_s: float | None) -> None:
        self._policy = policy
        self._timeout_s = timeout_s
        self.count = 0  # since the last progress
        self._deadline: float | None = None

    def begin(self) -> None:
        """Take note of one more stream."""
        self.count += 1

    def arrived(self, *, is_progress: bool = True) -> None:
        """Take note of a response; without progress the attempts count on."""
        self._deadline = None
        if is_progress:
            self.count = 0

    def delay_s(self, failure: Failure) -> float:
        """Return the pause before the next stream.

        Raises
        ------
        GpkvsError
            If there is to be none: the failure's.
        """
        now = time.monotonic()
        if self._deadline is None and self._timeout_s is not None:
            self._deadline = now + self._timeout_s
        delay_s = self._policy.delay_s(max(self.count, 1))
        is_late = self._deadline is not None and now + delay_s >= self._deadline
        if is_late or self.count >= self._policy.attempts_max or not failure.may_repeat(is_write=False):
            raise failure.raised(is_write=False)
        return delay_s


def outcome_unknown(cause: GpkvsError) -> OutcomeUnknownError:
    """Return the error of a write whose response was lost."""
    error = OutcomeUnknownError(f"the write was sent and may have been executed, or not: {cause}")
    error.__cause__ = cause
    error.request_id = cause.request_id
    return error


def _copy(error: GpkvsError) -> GpkvsError:
    """Each caller gets an exception of its own: a traceback grows with every raise."""
    copy = type(error).__new__(type(error))
    copy.args = error.args
    copy.__dict__.update(error.__dict__)
    return copy


def classify(
    code: StatusCode,
    details: str,
    trailing: Mapping[str, str | bytes],
    target: str,
    *,
    is_stream: bool = False,
) -> Failure:
    """Say what a failed call means.

    Parameters
    ----------
    code, details
        The gRPC status.
    trailing
        The trailing metadata.
    target
        The server's address, for the message.
    is_stream
        Whether it ended a stream of requests, some of which may have been executed.
    """
    never_sent = any(text in details for text in _NEVER_SENT)
    said = _text(trailing.get(EXECUTED_KEY, ""))
    is_before = code in _BEFORE_EXECUTION and not (is_stream and code in _DENIED)
    executed = not (never_sent or is_before or said == NOT_EXECUTED)
    full = _text(trailing.get(FULL_KEY, ""))
    transient = False
    error: GpkvsError
    match code:
        case StatusCode.UNAVAILABLE:
            error = _not_connected(details, target) if never_sent else UnavailableError(f"{target}: {details}")
            transient = not isinstance(error, TlsError)
        case StatusCode.INTERNAL if details == _WRITE_FAILED:
            error = UnavailableError(f"{target}: the connection or the stream ended")
        case StatusCode.RESOURCE_EXHAUSTED if _TOO_LARGE in details:
            error = InvalidArgumentError(
                f"{details.removeprefix('SERVER: ')} (message_bytes_max): split it", field="message"
            )
            executed = False
        case StatusCode.RESOURCE_EXHAUSTED if full not in _FULL_FOR_A_MOMENT:
            error = NoSpaceError(full, details.removeprefix(f"{full} full: "))
        case StatusCode.RESOURCE_EXHAUSTED:
            error, transient = ServerBusyError(f"{target}: {details}"), True
        case _ if kind := _INVALID.get(code):
            error = _invalid(kind, details)
        case StatusCode.ABORTED if failed_check := _text(trailing.get(FAILED_CHECK_KEY, "")):
            found = _text(trailing.get(FOUND_KEY, ""))
            error, executed = ConflictError(int(failed_check), int(found) if found else None), False
        case StatusCode.UNAUTHENTICATED | StatusCode.PERMISSION_DENIED:
            error = _DENIED[code](f"{target}: {details}")
        case StatusCode.UNIMPLEMENTED:
            error = ServerError(f"{target} is no gpkvs server, or an older one: {details}")
        case StatusCode.DEADLINE_EXCEEDED:
            error = DeadlineError(f"{target}: the deadline of the call has passed")
        case StatusCode.DATA_LOSS:
            error = CorruptRecordError(details)
        case _:
            error = ServerError(f"{target}: {code.name}: {details}")
    _name(error, _text(trailing.get(REQUEST_ID_KEY, "")) or current_request_id())
    return Failure(error, executed, transient)


def _name(error: GpkvsError, request_id: str) -> None:
    """Give an error the id of its call, if there is one; tracebacks show it."""
    error.request_id = request_id
    if request_id:
        error.add_note(f"request {request_id}")


def _not_connected(details: str, target: str) -> UnavailableError:
    """Return why there is no connection; no request was sent."""
    for text, meaning in _NO_TLS.items():
        if text in details:
            reason = details.partition(f"{text}: ")[2].removesuffix(": OK")
            host = target.rpartition(":")[0]
            return TlsError(f"{target}: {meaning.format(reason=reason, host=host)}")
    if _TURNED_AWAY in details:
        return UnavailableError(
            f"{target}: the server refuses each new connection: it wants TLS (credentials, --tls), or has no room for "
            "one more (--memory-max, ulimit -n), or this is not its port for gRPC (--listen)"
        )
    if _NO_ROOM in details:
        return UnavailableError(
            f"{target}: the server has no room for one more connection (--memory-max, ulimit -n), or fails in its TLS"
        )
    if _CLOSED_AT_ONCE in details:  # with TLS 1.3, a server that refuses a client's certificate does no more either
        return UnavailableError(
            f"{target}: the server closes each new connection: it may be stopping, or it wants TLS (credentials, "
            "--tls), or a client's certificate that it trusts (cert, --tls-cert)"
        )
    return UnavailableError(f"{target}: cannot connect: is the server running there?")


def closed_in_flight() -> Failure:
    """Return what a call means that was sent, when its client was closed."""
    error = ClientClosedError("the client was closed while the call was in flight")
    return Failure(error, executed=True, transient=False)


def trailing_of(code: StatusCode, failed: kv_pb2.BatchResponse | kv_pb2.RequestFailure) -> dict[str, str | bytes]:
    """Return what the trailing metadata of a call that failed like this request would say."""
    trailing: dict[str, str | bytes] = {FULL_KEY: failed.full}
    if code in _REFUSED:
        trailing[EXECUTED_KEY] = NOT_EXECUTED
    if failed.HasField("failed_check"):
        trailing[FAILED_CHECK_KEY] = str(failed.failed_check)
    if failed.HasField("found"):
        trailing[FOUND_KEY] = str(failed.found)
    return trailing


def _text(value: str | bytes) -> str:
    """Return a value of trailing metadata as text: grpc gives it as either."""
    return value.decode() if isinstance(value, bytes) else value


def _invalid(kind: type[InvalidArgumentError], details: str) -> InvalidArgumentError:
    """Rebuild the error from the server's text, which names operation, field and limit already."""
    named = re.match(r"^(?:operation (\d+), )?(\w+): (.*)$", details, re.DOTALL)
    if named is None:
        return kind(details)
    return kind(named[3], field=named[2], index=None if named[1] is None else int(named[1]))


def seconds_left(timeout_s: float | None, target: str) -> float:
    """Return how long a call may take: for ever, if it has no timeout.

    Raises
    ------
    DeadlineError
        If its time is over already, as that of a caller who divides its own: such a call is not sent.
    TypeError
        If it is no number.
    """
    if timeout_s is None:
        return inf
    try:
        is_over = not timeout_s > 0
    except TypeError:
        raise TypeError(f"a timeout is a number of seconds, or None, not {type(timeout_s).__name__}") from None
    if is_over:
        raise DeadlineError(f"{target}: the deadline of the call has passed before it began")
    return timeout_s


def classify_error(error: grpc.RpcError, target: str, *, is_stream: bool = False) -> Failure:
    """Say what an error raised by a call of `grpc.aio`, or by a blocking one, means; as `classify`."""
    assert isinstance(error, grpc.Call | grpc.aio.AioRpcError)
    trailing = dict(error.trailing_metadata() or ())
    return classify(error.code(), error.details() or "", trailing, target, is_stream=is_stream)
