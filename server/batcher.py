"""Batch while busy: the requests that arrive while one transaction runs form the next.

The queue belongs to the event loop, the store to the engine's own thread. The thread gets a batch and gives its result
back, so it wakes the loop once a batch. There is no timer: a request that finds the engine idle starts at once,
together with the requests that the loop reads in the same turn.

With a journal a batch is stored before it is durable. A second thread waits for the flush, and the engine may run the
next batch meanwhile, but only a large one (`_EARLY_OPERATIONS_MIN`).
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable
from concurrent.futures import Executor
from dataclasses import dataclass, field
from functools import partial
from typing import NamedTuple, Protocol

from gpkvs.batch import Batch, BatchResult
from gpkvs.engine.begun_batch import BegunBatch
from gpkvs.errors import GpkvsError, NoSpaceError
from gpkvs.server.bounds import Bounds
from gpkvs.server.codec import Request, Response, batch_of, behind, first_key, joined_responses, responses_of
from gpkvs.server.fair_queue import FairQueue
from gpkvs.server.memory import Account, Memory
from gpkvs.server.running_call import RunningCall, running

_log = logging.getLogger("gpkvs")

# Batches that are stored and not durable: the journal has buffers for as many.
_IN_FLIGHT_MAX = 4
# So long nothing is asked for before the store does what batches leave behind.
_IDLE_SECONDS = 0.1
# And then so long, if there is no more to do: keys expire, and what is not needed for a minute is given back.
_IDLE_AGAIN_SECONDS = 1.0
# With fewer operations the next batch waits for the flush, as without a journal. Each batch and each flush costs the
# same whatever its size: 50 clients with one call each did 1,000 calls a second when every batch started early (2 in a
# batch), and 1,600 when none did (5 in a batch).
_EARLY_OPERATIONS_MIN = 4096
# As gRPC's own libraries say it, whoever is the first to see it.
_DEADLINE_TEXT = "Deadline Exceeded"
_NANOSECONDS = 1e9


class ExpiredRequestError(GpkvsError):
    """The client's deadline passed before the request got into a batch; it was not executed."""


class BatchObserver(Protocol):
    """Is told of every batch, and of every request that was dropped before it got into one."""

    def batch_done(self, result: BatchResult, seconds: float) -> None:
        """Note a transaction, and how long it took until it was durable."""

    def request_dropped(self, reason: str) -> None:
        """Note a request that its client gave up: ``cancelled`` or ``deadline``."""


@dataclass(slots=True)
class _Waiting:
    request: Request
    account: Account
    response: asyncio.Future[Response]
    deadline: float  # seconds, of the monotonic clock
    held_bytes: int  # counted for the request until its end
    planned_bytes: int  # counted for its response
    call: RunningCall | None  # that asks for it
    submitted_ns: int
    # If it is several requests of which the engine could not do all at once: the responses to those that are done and
    # durable, and how many they are. `request` has the rest.
    done: list[Response] = field(default_factory=list)
    requests_done: list[int] = field(default_factory=list)

    @property
    def operations(self) -> int:
        """Of its request."""
        return self.request.operations

    def keep(self, response: Response, requests: int) -> None:
        """Keep the response to the first few requests; the others are still to be done."""
        self.done.append(response)
        self.requests_done.append(requests)
        self.request = behind(self.request, requests)

    def whole(self, response: Response | BaseException) -> Response:
        """Return the response to all requests, given what became of the rest."""
        if isinstance(response, BaseException):
            reason = response if isinstance(response, Exception) else GpkvsError(repr(response))
            failures = tuple((number, reason) for number in range(self.request.requests))
            response = Response(b"", b"", b"", b"", failures)
        return joined_responses([*self.done, response], self.requests_done)


class _Stored(NamedTuple):
    """What the engine's thread makes of a batch.

    Attributes
    ----------
    begun
        The batch.
    responses
        Of its requests. Nobody may see them before the batch is durable.
    began
        When its transaction began.
    seconds
        From then until it was durable; `None` before.
    planned_ns
        When it was planned, by the monotonic clock: what came then made it durable.
    """

    begun: BegunBatch
    responses: list[Response | GpkvsError]
    began: float
    seconds: float | None
    planned_ns: int


@dataclass(slots=True)
class _Taken:
    """Requests that were taken for a batch, and the memory that is counted for it."""

    waiting: list[_Waiting]
    counted_bytes: int = 0

    @property
    def operations(self) -> int:
        return sum(waiting.operations for waiting in self.waiting)

    @property
    def payload_bytes(self) -> int:
        return sum(waiting.request.payload_bytes for waiting in self.waiting)


class Batcher:
    """Collects requests into batches and runs these one after the other.

    Parameters
    ----------
    begin
        Runs a batch (`Store.begin_requests`); called in the engine's thread.
    engine_thread
        That thread.
    flush_thread
        Waits until batches are durable, one after the other.
    bounds
        The bounds of the queue and of a batch.
    memory
        Counts the working memory of a batch.
    observer
        Is told of every batch.
    maintain
        Does a step of the work that batches leave behind, and says whether there is more (`Store.maintain`); None where
        another one does that.
    planned_ns
        Returns when the last batch was planned, if the native engine did that (`Meter.planned_ns`).
    """

    def __init__(
        self,
        begin: Callable[[Batch], BegunBatch],
        engine_thread: Executor,
        flush_thread: Executor,
        bounds: Bounds,
        memory: Memory,
        observer: BatchObserver,
        maintain: Callable[[], bool] | None = None,
        planned_ns: Callable[[], int] = lambda: 0,
    ) -> None:
        self._begin = begin
        self._engine_thread = engine_thread
        self._flush_thread = flush_thread
        self._bounds = bounds
        self._memory = memory
        self._observer = observer
        self._maintain = maintain
        self._planned_ns = planned_ns
        self._idle_timer: asyncio.TimerHandle | None = None
        self._has_nothing_to_maintain = False  # the timer is the long one
        self._is_stopping = False
        self._loop = asyncio.get_running_loop()
        self._queue: FairQueue[_Waiting] = FairQueue()
        self._busy = False  # the engine's thread has a batch, or gets one in this turn of the loop
        self._in_flight = 0
        self._lacks_memory = False  # for one more batch beside those in flight
        self._maintain_later(_IDLE_SECONDS)

    @property
    def queue_requests(self) -> int:
        """Requests that wait to get into a batch."""
        return len(self._queue)

    @property
    def batches_in_flight(self) -> int:
        """Batches that are stored and not durable yet."""
        return self._in_flight

    def submit(self, request: Request, account: Account, seconds_left: float | None = None) -> asyncio.Future[Response]:
        """Queue a request; it is durable when its response comes.

        Cancelling the response drops the request if it is not yet in a batch; else the batch commits whole.

        Parameters
        ----------
        request
            Checked columns.
        account
            Of the call, where the request and its response are counted.
        seconds_left
            Until the client's deadline, if it has one.

        Raises
        ------
        NoSpaceError
            If the queue is full, or the memory.
        """
        queued_max = self._bounds.config.queue_requests_max
        if len(self._queue) >= queued_max:
            raise NoSpaceError(
                "queue",
                f"{queued_max:,} requests wait, as many as queue_requests_max allows: try again later, or send fewer "
                "and larger batches",
            )
        held_bytes, planned_bytes = request.held_bytes, request.response_bytes
        account.admit(held_bytes, planned_bytes)
        deadline = time.monotonic() + seconds_left if seconds_left is not None else float("inf")
        call = running.get()
        if call:
            call.asked(request.table, request.operations, request.payload_bytes)
            call.takes_key(first_key(request))
        response: asyncio.Future[Response] = self._loop.create_future()
        submitted_ns = time.perf_counter_ns()
        waiting = _Waiting(request, account, response, deadline, held_bytes, planned_bytes, call, submitted_ns)
        self._queue.append(waiting)
        self._start_soon()
        return waiting.response

    def _start_soon(self) -> None:
        """Form the next batch in the next turn of the loop, if the engine's thread is free."""
        if not self._busy:
            self._busy = True
            self._loop.call_soon(self._start)

    def _start(self) -> None:
        """Form the next batch of the requests that wait and hand it to the engine."""
        batch = _Taken(self._take() if self._may_start() else [])
        if not batch.waiting or not self._count_working(batch):
            self._busy = False
            if self._idle_timer is None or self._has_nothing_to_maintain:
                self._maintain_later(_IDLE_SECONDS)
            return
        job = self._loop.run_in_executor(
            self._engine_thread, self._transact, [waiting.request for waiting in batch.waiting]
        )
        job.add_done_callback(partial(self._on_stored, batch))

    def _maintain_later(self, seconds: float) -> None:
        if self._is_stopping or self._maintain is None:
            return
        if self._idle_timer is not None:
            self._idle_timer.cancel()
        self._has_nothing_to_maintain = seconds == _IDLE_AGAIN_SECONDS
        self._idle_timer = self._loop.call_later(seconds, self._maintain_if_idle, self._maintain)

    def stop_maintenance(self) -> None:
        """Begin no step of maintenance any more; the engine's thread may end when its last batch has."""
        self._is_stopping = True
        if self._idle_timer is not None:
            self._idle_timer.cancel()
            self._idle_timer = None

    def _maintain_if_idle(self, maintain: Callable[[], bool]) -> None:
        """Have the engine's thread do a step of maintenance, unless there are requests."""
        self._idle_timer = None
        if self._busy or self._queue or self._in_flight:
            return  # the last batch sets the timer again
        self._busy = True
        job = self._loop.run_in_executor(self._engine_thread, maintain)
        job.add_done_callback(self._on_maintained)

    def _on_maintained(self, job: asyncio.Future[bool]) -> None:
        """Start what arrived meanwhile, or go on if there is more to do."""
        self._busy = False
        error = job.exception()
        if error is not None:
            _log.warning("maintenance of the store failed: %r", error)
        if self._queue:
            self._start_soon()
        else:
            self._maintain_later(0 if error is None and job.result() else _IDLE_AGAIN_SECONDS)

    def _may_start(self) -> bool:
        """Whether to form a batch now."""
        if not self._in_flight:
            return True
        is_large = self._queue.operations >= _EARLY_OPERATIONS_MIN
        return is_large and self._in_flight < _IN_FLIGHT_MAX and not self._lacks_memory

    def _count_working(self, batch: _Taken) -> bool:
        """Count the working memory of a batch; or put it back if there is none for it beside those in flight."""
        wanted = self._bounds.working_bytes(batch.payload_bytes, batch.operations)
        if self._in_flight and self._memory.by_kind["batch"] + wanted > self._bounds.engine_bytes:
            self._queue.put_back(batch.waiting)
            self._lacks_memory = True
            return False
        self._count(batch, wanted)
        return True

    def _count(self, batch: _Taken, size: int) -> None:
        self._memory.batch(size - batch.counted_bytes)
        batch.counted_bytes = size

    def _take(self) -> list[_Waiting]:
        """Take requests on one table from the queue, up to the size of a batch; drop those that were given up.

        Who waits for another table keeps its place, and those of its connection behind it.
        """
        batch: list[_Waiting] = []
        ops_left, bytes_left = self._bounds.config.batch_ops_max, self._bounds.config.batch_bytes_max
        now = time.monotonic()
        while self._queue.has_turn:
            waiting = self._queue.first()
            request, size = waiting.request, waiting.request.payload_bytes
            if batch and request.table != batch[0].request.table:
                self._queue.pass_by()
                continue
            if batch and (request.operations > ops_left or size > bytes_left):
                break
            self._queue.popleft()
            if waiting.response.done():
                waiting.account.release(waiting.held_bytes)
                self._observer.request_dropped("cancelled")
            elif waiting.deadline <= now:
                _refuse(waiting, ExpiredRequestError(_DEADLINE_TEXT))
                self._observer.request_dropped("deadline")
            elif request.returning and (refusal := waiting.account.connection.refusal()):
                _refuse(waiting, refusal)
            else:
                batch.append(waiting)
                ops_left -= request.operations
                bytes_left -= size
        self._queue.end_passing()
        return batch

    def _transact(self, requests: list[Request]) -> _Stored:
        """Run one transaction; in the engine's thread."""
        batch = batch_of(requests)
        began = time.perf_counter()
        begun = self._begin(batch)
        planned_ns = self._planned_ns()
        if planned_ns < _NANOSECONDS * began:  # Python has planned it
            planned_ns = time.perf_counter_ns()
        if begun.is_durable:
            begun.finish()
            return _Stored(begun, responses_of(begun.result, requests), began, time.perf_counter() - began, planned_ns)
        return _Stored(begun, responses_of(begun.result, requests), began, None, planned_ns)  # the disk works meanwhile

    def _on_stored(self, batch: _Taken, job: asyncio.Future[_Stored]) -> None:
        """Give out the responses of a batch if it is durable, else have its flush waited for; start the next one."""
        try:
            error = job.exception()
            if error is not None:
                self._fail(batch, error)
                return
            stored = job.result()
            covered = len(stored.responses)
            self._queue.put_back(batch.waiting[covered:])
            del batch.waiting[covered:]
            if stored.seconds is None:
                self._wait_for_flush(batch, stored)
            else:
                self._give_out(batch, stored)
        finally:
            self._loop.call_soon(self._start)  # after the handlers that were woken above

    def _wait_for_flush(self, batch: _Taken, stored: _Stored) -> None:
        """Have the second thread wait; count what the batch still holds."""
        self._count(batch, self._bounds.stored_bytes(batch.payload_bytes, batch.operations, stored.begun.result))
        self._in_flight += 1
        job = self._loop.run_in_executor(self._flush_thread, _finish, stored)
        job.add_done_callback(partial(self._on_durable, batch))

    def _on_durable(self, batch: _Taken, job: asyncio.Future[_Stored]) -> None:
        """Give out the responses; a batch that was too small to start early starts now."""
        self._in_flight -= 1
        self._lacks_memory = False
        try:
            error = job.exception()
            if error is not None:
                self._fail(batch, error)
            else:
                self._give_out(batch, job.result())
        finally:
            self._start_soon()

    def _fail(self, batch: _Taken, error: BaseException) -> None:
        self._count(batch, 0)
        for waiting in batch.waiting:
            _give(waiting, error)

    def _give_out(self, batch: _Taken, stored: _Stored) -> None:
        """Give out the responses, before the next transaction starts.

        In this order: the handlers that send them and the engine's Python would only fight for the interpreter, and
        the requests that arrive meanwhile make the next batch larger.
        """
        self._count(batch, 0)
        left = sum(waiting.request.requests for waiting in batch.waiting) - stored.begun.result.requests
        if left:
            self._keep_part(batch, stored, left)
        # The batch is durable here, and not before: now its callers may hear of it.
        assert stored.seconds is not None
        for waiting, response in zip(batch.waiting, stored.responses, strict=True):
            if waiting.call:
                _note(waiting.call, waiting, response, stored)
            _give(waiting, response)
        self._observer.batch_done(stored.begun.result, stored.seconds)

    def _keep_part(self, batch: _Taken, stored: _Stored, left: int) -> None:
        """Queue the rest of the last requests again, which came together and were done in part only.

        Not before that part is durable: the rest may be durable first, if it only reads.
        """
        waiting, response = batch.waiting.pop(), stored.responses.pop()
        assert isinstance(response, Response)
        waiting.keep(response, waiting.request.requests - left)
        self._queue.put_back([waiting])

    def abandon(self, error: GpkvsError) -> None:
        """Make all requests that wait fail with an error; transactions in progress end by themselves."""
        while self._queue:
            _refuse(self._queue.popleft(), error)


def _finish(stored: _Stored) -> _Stored:
    """Wait until a batch is durable; in the second thread."""
    stored.begun.finish()
    return stored._replace(seconds=time.perf_counter() - stored.began)


def _note(call: RunningCall, waiting: _Waiting, response: Response | GpkvsError, stored: _Stored) -> None:
    """Tell a call where the time of its request went."""
    assert stored.seconds is not None
    began_ns, durable_ns = (int(_NANOSECONDS * at) for at in (stored.began, stored.began + stored.seconds))
    bytes_out = len(response.values) if isinstance(response, Response) else 0
    call.was_run(waiting.submitted_ns, began_ns, stored.planned_ns, max(durable_ns, stored.planned_ns), bytes_out)


def _refuse(waiting: _Waiting, error: GpkvsError) -> None:
    """Give an error to a request that was not executed."""
    if waiting.call:
        waiting.call.was_not_run(waiting.submitted_ns)
    _give(waiting, error)


def _give(waiting: _Waiting, response: Response | BaseException) -> None:
    """Resolve a future, unless its caller has gone; nobody needs its request any more."""
    waiting.account.release(waiting.held_bytes)
    if waiting.response.done():
        return
    if waiting.done:
        response = waiting.whole(response)
    planned = waiting.planned_bytes
    if isinstance(response, BaseException):
        waiting.account.change_responses(-planned)
        waiting.response.set_exception(response)
    else:
        waiting.account.change_responses(response.held_bytes - planned)
        waiting.response.set_result(response)
