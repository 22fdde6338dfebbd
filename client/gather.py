"""Concurrent calls, gathered into messages.

Each call keeps its own deadline and its own error: if the server refuses a message because of one operation, the client
sends it again without that one.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Iterable
from dataclasses import asdict, dataclass
from typing import Any

from gpkvs.batch import READS, Op, RequestResult, Status
from gpkvs.client.codec import encode_lists
from gpkvs.client.errors import AccessDeniedError, DeadlineError
from gpkvs.client.retry import Failure, RetryPolicy, outcome_unknown
from gpkvs.client.sending import Sending
from gpkvs.config import DEFAULT_TABLE, MIB
from gpkvs.errors import CorruptRecordError, GpkvsError, InvalidArgumentError, NoSpaceError
from gpkvs.operations import Options
from gpkvs.outcome import outcome_of
from gpkvs.proto.v1 import kv_pb2

Send = Callable[[kv_pb2.BatchRequest, float], Awaitable[RequestResult | Failure]]
"""Send one message, once; the second argument is the deadline in the event loop's time, `inf` for none."""


@dataclass(frozen=True)
class GatherConfig:
    """How much goes into one message.

    Parameters
    ----------
    messages_in_flight_max
        More of them overlap the network with the server's work, fewer make larger messages.
    ops_max
        Operations in a message.
    bytes_max
        Bytes of keys and values in a message, and about the bytes of values in its response; one larger
        operation goes alone.
    """

    messages_in_flight_max: int = 2
    ops_max: int = 4096
    bytes_max: int = 4 * MIB

    def __post_init__(self) -> None:
        for name, number in asdict(self).items():
            if number < 1:
                raise InvalidArgumentError(f"{number}, at least 1 is needed", field=name)


_OK = int(Status.OK)
_GET, _SET = Op.GET, Op.SET  # found faster than through their class
_HAS_VALUE = frozenset({Op.SET, Op.INCREMENT, Op.APPEND})
_RETURNS_VALUE = frozenset({Op.GET, Op.INCREMENT, Op.EXPIRY})
# Only these are ever refused for want of space.
_TAKES_SPACE = frozenset({Op.SET, Op.INCREMENT, Op.APPEND, Op.EXPIRE})


class _Call:
    """One operation that somebody waits for."""

    __slots__ = ("deadline", "failure", "future", "key", "may_be_executed", "op", "options", "value")

    def __init__(
        self,
        op: Op,
        key: bytes,
        value: bytes,
        deadline: float,
        future: asyncio.Future[Any],
        options: Options | None,
    ) -> None:
        self.op = op
        self.key = key
        self.value = value
        self.deadline = deadline
        self.future = future
        self.options = options
        self.may_be_executed = False
        self.failure: Failure | None = None

    def fail(self, error: GpkvsError) -> None:
        if not self.future.done():
            self.future.set_exception(error)

    def give_up(self, reason: GpkvsError) -> None:
        """End the call, if it has no result yet."""
        if self.future.done():
            return
        is_write = self.op not in READS
        self.fail(outcome_unknown(reason) if is_write and self.may_be_executed else reason)


class Gatherer(Sending[_Call]):
    """Gathers calls on one table into messages.

    Parameters
    ----------
    send
        Sends one message.
    target, table
        The server's address and the table's name.
    config, retry
        How much is gathered; how often a refused message is repeated.
    is_of_numbers
        Whether the calls have the server refuse a table of another layout than u64.
    over
        As of `Sending`.
    """

    def __init__(
        self,
        send: Send,
        target: str,
        table: str,
        config: GatherConfig,
        retry: RetryPolicy,
        *,
        is_of_numbers: bool = False,
        over: Callable[[], object] | None = None,
    ) -> None:
        super().__init__(config.messages_in_flight_max, over)
        self._send = send
        self._table = table
        self._where = f"{target}, table {table or DEFAULT_TABLE!r}"
        self._config = config
        self._retry = retry
        self._is_of_numbers = is_of_numbers
        self._queue: deque[_Call] = deque()
        self._had_options = False  # ever
        self._value_bytes = 0  # of the longest value read lately: so much may a GET bring

    def submit(
        self, op: Op, key: bytes, value: bytes, deadline: float, options: Options | None = None
    ) -> asyncio.Future[Any]:
        """Queue one checked operation; the future gets its result (`gpkvs.outcome`).

        It may be any but a CHECK: that one would take back the operations of others.
        """
        assert op is not Op.CHECK
        future: asyncio.Future[Any] = self._loop.create_future()
        self._queue.append(_Call(op, key, value, deadline, future, options))
        if options is not None:
            self._had_options = True
        if deadline < self._sweep_at:
            self._sweep_by(deadline)
        self._flush_soon()
        return future

    def _take(self) -> list[_Call]:
        """Take the next message's calls from the queue, in order."""
        calls: list[_Call] = []
        size_bytes = 0
        while self._queue and len(calls) < self._config.ops_max:
            call = self._queue[0]
            size_bytes += len(call.key) + (self._value_bytes if call.op is _GET else len(call.value))
            if calls and size_bytes > self._config.bytes_max:
                break
            self._queue.popleft()
            if not call.future.done():  # cancelled, or its deadline has passed
                calls.append(call)
        return calls

    async def _deliver(self, calls: list[_Call]) -> None:
        """Send calls until each has a result or an error."""
        parts = deque([calls])
        while parts:
            parts.extendleft(reversed(await self._deliver_part(parts.popleft())))

    async def _deliver_part(self, calls: list[_Call]) -> list[list[_Call]]:
        """Send calls as one message until there is a response; return its parts if some calls made it refused."""
        attempt = 0
        while calls := [call for call in calls if not call.future.done()]:
            attempt += 1
            failure = await self._attempt(calls)
            if failure is None:
                break
            parts = _parts(calls, failure.error) if failure.is_of_one else [calls]
            if len(parts) > 1:
                for call in calls:  # the message was refused: nothing of it was executed
                    call.may_be_executed = False
                    call.failure = failure
                return parts
            calls = self._sort_out(calls, failure, is_last=attempt >= self._retry.attempts_max)
            if calls:
                await asyncio.sleep(self._retry.delay_s(attempt))
        return []

    async def _attempt(self, calls: list[_Call]) -> Failure | None:
        """Send one message once; hand out the results, or return what went wrong."""
        ops = bytes([call.op for call in calls])
        message = encode_lists(
            ops,
            [call.key for call in calls],
            [call.value for call in calls if call.op is _SET or call.op in _HAS_VALUE],
            self._table,
            [call.options for call in calls] if self._had_options else (),
        )
        if self._is_of_numbers:
            message.numbers = True
        for call in calls:
            call.may_be_executed = True
        outcome = await self._send(message, max(call.deadline for call in calls))
        if isinstance(outcome, Failure):
            return outcome
        self._hand_out(calls, outcome)
        return None

    def _hand_out(self, calls: list[_Call], result: RequestResult) -> None:
        lengths = result.value_lengths.tolist()
        self._value_bytes = max(max(lengths, default=0), self._value_bytes // 2)
        values = iter(result.value_list())
        for call, status, version in zip(calls, result.status.tolist(), result.versions.tolist(), strict=True):
            outcome: bytes | int
            if call.op is _GET:
                outcome = value = next(values)
            elif call.op is _SET:
                outcome, value = version, b""
            else:
                self._settle(call, status, version, next(values) if call.op in _RETURNS_VALUE else b"")
                continue
            if status != _OK:
                self._settle(call, status, version, value)
            elif not call.future.done():
                call.future.set_result(outcome)

    def _settle(self, call: _Call, status: int, version: int, value: bytes) -> None:
        has_condition = call.options is not None and bool(call.options.condition)
        outcome = outcome_of(call.op, status, version, value, has_condition=has_condition)
        if isinstance(outcome, CorruptRecordError):
            call.fail(CorruptRecordError(f"{self._where}: {outcome}"))
        elif isinstance(outcome, GpkvsError):
            call.fail(outcome)
        elif not call.future.done():
            call.future.set_result(outcome)

    def _sort_out(self, calls: list[_Call], failure: Failure, *, is_last: bool) -> list[_Call]:
        """End the calls that must not or need not be repeated; return the others."""
        again = []
        for call in calls:
            is_write = call.op not in READS
            if is_last or not failure.may_repeat(is_write=is_write):
                call.fail(failure.raised(is_write=is_write))
            else:
                call.may_be_executed = False
                call.failure = failure
                again.append(call)
        return again

    def _waiting(self) -> Iterable[_Call]:
        return self._queue

    def _has_waiting(self) -> bool:
        return bool(self._queue)

    def _clear(self) -> list[_Call]:
        calls = list(self._queue)
        self._queue.clear()
        return calls

    def _late(self, call: _Call) -> DeadlineError:
        tried = f"; the last attempt: {call.failure.error}" if call.failure is not None else ""
        return DeadlineError(f"{self._where}: the deadline of the call has passed{tried}")


def _parts(calls: list[_Call], error: GpkvsError) -> list[list[_Call]]:
    """Split the calls of a message that was refused because of one, so that the others get through."""
    if len(calls) == 1:
        return [calls]
    if isinstance(error, AccessDeniedError):
        return _by_rights(calls)
    if isinstance(error, NoSpaceError):
        writes = [call for call in calls if call.op in _TAKES_SPACE]
        if 0 < len(writes) < len(calls):
            return [[call for call in calls if call.op not in _TAKES_SPACE], writes]
    elif isinstance(error, InvalidArgumentError) and error.index is not None and error.index < len(calls):
        # The rest goes in halves: as a whole, a message with n bad calls would be sent n times.
        i = error.index
        return [part for part in (calls[:i], calls[i : i + 1], *_halves(calls[i + 1 :])) if part]
    return _halves(calls)


def _by_rights(calls: list[_Call]) -> list[list[_Call]]:
    """Split calls by the rights that they take: who lacks one of them is refused all calls of one part."""
    parts: dict[tuple[bool, bool], list[_Call]] = {}
    for call in calls:
        reads = call.op in READS or call.op is Op.INCREMENT or bool(call.options and call.options.condition)
        parts.setdefault((reads, call.op not in READS), []).append(call)
    return list(parts.values())


def _halves(calls: list[_Call]) -> list[list[_Call]]:
    middle = len(calls) // 2
    return [calls[:middle], calls[middle:]]
