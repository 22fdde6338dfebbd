"""Batch while busy: the requests that arrive while one transaction runs form the next.

The queue belongs to the event loop, the store to the engine's own thread. The thread gets a batch and gives its result
back, so it wakes the loop once a batch. There is no timer: a request that finds the engine idle starts at once,
together with the requests that the loop reads in the same turn.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from concurrent.futures import Executor
from dataclasses import dataclass
from functools import partial
from typing import Protocol

from gpkvs.batch import Batch, BatchResult
from gpkvs.errors import GpkvsError, NoSpaceError
from gpkvs.server.bounds import Bounds
from gpkvs.server.codec import Request, Response, batch_of, responses_of
from gpkvs.server.fair_queue import FairQueue
from gpkvs.server.memory import Account, Memory


class ExpiredRequestError(GpkvsError):
    """The client's deadline passed before the request got into a batch; it was not executed."""


class BatchObserver(Protocol):
    """Is told of every batch, and of every request that was dropped before it got into one."""

    def batch_done(self, result: BatchResult, seconds: float) -> None:
        """Note a transaction and its duration in the engine."""

    def request_dropped(self, reason: str) -> None:
        """Note a request that its client gave up: ``cancelled`` or ``deadline``."""


@dataclass(slots=True)
class _Waiting:
    request: Request
    account: Account
    response: asyncio.Future[Response]
    deadline: float  # seconds, of the monotonic clock


_Transacted = tuple[BatchResult, float, list[Response | GpkvsError]]
"""The result of a batch, its seconds in the engine, and the responses of its requests."""


class Batcher:
    """Collects requests into batches and runs these one after the other.

    Parameters
    ----------
    execute
        Runs a batch (`Store.execute_requests`); called in the engine's thread.
    engine_thread
        That thread.
    bounds
        The bounds of the queue and of a batch.
    memory
        Counts the working memory of a batch.
    observer
        Is told of every batch.
    """

    def __init__(
        self,
        execute: Callable[[Batch], BatchResult],
        engine_thread: Executor,
        bounds: Bounds,
        memory: Memory,
        observer: BatchObserver,
    ) -> None:
        self._execute = execute
        self._engine_thread = engine_thread
        self._bounds = bounds
        self._memory = memory
        self._observer = observer
        self._loop = asyncio.get_running_loop()
        self._queue: FairQueue[_Waiting] = FairQueue()
        self._busy = False

    @property
    def queue_requests(self) -> int:
        """Requests that wait for the transaction in progress to end."""
        return len(self._queue)

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
        account.admit(request.held_bytes, request.response_bytes)
        deadline = time.monotonic() + seconds_left if seconds_left is not None else float("inf")
        waiting = _Waiting(request, account, self._loop.create_future(), deadline)
        self._queue.append(waiting)
        if not self._busy:
            self._busy = True
            self._loop.call_soon(self._start)
        return waiting.response

    def _start(self) -> None:
        """Form the next batch of the requests that wait and hand it to the engine."""
        batch = self._take()
        if not batch:
            self._busy = False
            return
        requests = [waiting.request for waiting in batch]
        working_bytes = self._bounds.working_bytes(
            sum(request.payload_bytes for request in requests), sum(request.operations for request in requests)
        )
        self._memory.batch(working_bytes)
        job = self._loop.run_in_executor(self._engine_thread, self._transact, requests)
        job.add_done_callback(partial(self._finish, batch, working_bytes))

    def _take(self) -> list[_Waiting]:
        """Take requests from the front of the queue, up to the size of a batch; drop those that were given up."""
        batch: list[_Waiting] = []
        ops_left, bytes_left = self._bounds.config.batch_ops_max, self._bounds.config.batch_bytes_max
        now = time.monotonic()
        while self._queue:
            waiting = self._queue.first()
            request, size = waiting.request, waiting.request.payload_bytes
            if batch and (request.operations > ops_left or size > bytes_left):
                break
            self._queue.popleft()
            if waiting.response.done():
                waiting.account.release(request.held_bytes)
                self._observer.request_dropped("cancelled")
            elif waiting.deadline <= now:
                _give(waiting, ExpiredRequestError("the deadline passed while the request waited"))
                self._observer.request_dropped("deadline")
            elif request.gets and (refusal := waiting.account.connection.refusal()):
                _give(waiting, refusal)
            else:
                batch.append(waiting)
                ops_left -= request.operations
                bytes_left -= size
        return batch

    def _transact(self, requests: list[Request]) -> _Transacted:
        """Run one transaction; in the engine's thread."""
        batch = batch_of(requests)
        began = time.perf_counter()
        result = self._execute(batch)
        seconds = time.perf_counter() - began
        return result, seconds, responses_of(result)

    def _finish(self, batch: list[_Waiting], working_bytes: int, job: asyncio.Future[_Transacted]) -> None:
        """Give out the responses, then start the next transaction.

        In this order: the handlers that send them and the engine's Python would only fight for the interpreter, and
        the requests that arrive meanwhile make the next batch larger.
        """
        self._memory.batch(-working_bytes)
        try:
            error = job.exception()
            if error is not None:
                for waiting in batch:
                    _give(waiting, error)
            else:
                # The batch is durable here, and not before: now its callers may hear of it.
                result, seconds, responses = job.result()
                for waiting, response in zip(batch, responses, strict=False):
                    _give(waiting, response)
                self._queue.put_back(batch[result.requests :])
                self._observer.batch_done(result, seconds)
        finally:
            self._loop.call_soon(self._start)  # after the handlers that were woken above

    def abandon(self, error: GpkvsError) -> None:
        """Make all requests that wait fail with an error; a transaction in progress ends by itself."""
        while self._queue:
            _give(self._queue.popleft(), error)


def _give(waiting: _Waiting, response: Response | BaseException) -> None:
    """Resolve a future, unless its caller has gone; nobody needs its request any more."""
    waiting.account.release(waiting.request.held_bytes)
    if waiting.response.done():
        return
    planned = waiting.request.response_bytes
    if isinstance(response, BaseException):
        waiting.account.change_responses(-planned)
        waiting.response.set_exception(response)
    else:
        waiting.account.change_responses(response.held_bytes - planned)
        waiting.response.set_result(response)
