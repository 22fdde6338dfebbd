"""Batch while busy: whatever arrived while one transaction ran forms the next.

The queue belongs to the event loop, the store to the engine's own thread; a batch goes over and its result comes back,
so the loop is woken once a batch. No timer: a request that finds the engine idle starts at once, together with what
the loop reads in the same turn.
"""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Callable
from concurrent.futures import Executor
from dataclasses import dataclass
from functools import partial
from typing import Protocol

from gpkvs.batch import Batch, BatchResult
from gpkvs.config import ServerConfig
from gpkvs.errors import GpkvsError, NoSpaceError
from gpkvs.server.codec import Answer, Request, join, split
from gpkvs.server.outbox import Account


class DeadlineError(GpkvsError):
    """The client's deadline passed before the request got into a batch; it was not executed."""


class BatchObserver(Protocol):
    """What is told of every batch and of every request that was dropped before it got into one."""

    def batch_done(self, result: BatchResult, requests: int, seconds: float) -> None:
        """Note a transaction and its duration in the engine."""

    def request_dropped(self, reason: str) -> None:
        """Note a request that its client gave up: ``cancelled`` or ``deadline``."""


@dataclass(slots=True)
class _Waiting:
    request: Request
    account: Account
    answer: asyncio.Future[Answer]
    deadline: float  # seconds, of the monotonic clock


@dataclass(slots=True)
class _Done:
    result: BatchResult
    seconds: float
    answers: list[Answer | GpkvsError]


class Batcher:
    """Collects requests into batches and runs these one after the other.

    Parameters
    ----------
    execute
        Runs a batch (`Store.execute_requests`); called in the engine's thread.
    engine
        That thread.
    config
        The bounds of queue and batch.
    observer
        Told what was done.
    """

    def __init__(
        self,
        execute: Callable[[Batch], BatchResult],
        engine: Executor,
        config: ServerConfig,
        observer: BatchObserver,
    ) -> None:
        self._execute = execute
        self._engine = engine
        self._config = config
        self._observer = observer
        self._loop = asyncio.get_running_loop()
        self._queue: deque[_Waiting] = deque()
        self.queue_bytes = 0
        self._busy = False

    @property
    def queue_requests(self) -> int:
        """Requests that wait for the transaction in progress to end."""
        return len(self._queue)

    def submit(self, request: Request, account: Account, seconds_left: float | None = None) -> asyncio.Future[Answer]:
        """Queue a request; its answer is durable when it comes.

        Cancelling the answer drops the request if it is not yet in a batch; else the batch commits whole.

        Parameters
        ----------
        request
            Checked columns.
        account
            Of the call, where the answer is counted; without room there the request fails with NoSpaceError when its
            turn comes.
        seconds_left
            Until the client's deadline, if it has one.

        Raises
        ------
        NoSpaceError
            If the queue is full.
        """
        size = request.held_bytes
        if self._queue:
            self._require_room(size)
        deadline = time.monotonic() + seconds_left if seconds_left is not None else float("inf")
        waiting = _Waiting(request, account, self._loop.create_future(), deadline)
        self._queue.append(waiting)
        self.queue_bytes += size
        if not self._busy:
            self._busy = True
            self._loop.call_soon(self._start)
        return waiting.answer

    def _require_room(self, size: int) -> None:
        config = self._config
        if len(self._queue) >= config.queue_requests_max:
            raise NoSpaceError(
                "queue",
                f"{len(self._queue):,} requests wait, as many as queue_requests_max allows: try again later, "
                "or send fewer and larger batches",
            )
        if self.queue_bytes + size > config.queue_bytes_max:
            raise NoSpaceError(
                "queue",
                f"{self.queue_bytes:,} bytes wait, {size:,} more are over the limit of {config.queue_bytes_max:,} "
                "(queue_bytes_max): try again later",
            )

    def _start(self) -> None:
        """Form the next batch of what waits and hand it to the engine."""
        batch = self._take()
        if not batch:
            self._busy = False
            return
        job = self._loop.run_in_executor(self._engine, self._transact, [waiting.request for waiting in batch])
        job.add_done_callback(partial(self._finish, batch))

    def _take(self) -> list[_Waiting]:
        """Take requests from the front of the queue, up to the size of a batch; drop those given up."""
        batch: list[_Waiting] = []
        ops_left, bytes_left = self._config.batch_ops_max, self._config.batch_bytes_max
        now = time.monotonic()
        while self._queue:
            waiting = self._queue[0]
            request, size = waiting.request, waiting.request.payload_bytes
            if batch and (request.operations > ops_left or size > bytes_left):
                break
            self._queue.popleft()
            self.queue_bytes -= request.held_bytes
            if waiting.answer.done():
                self._observer.request_dropped("cancelled")
            elif waiting.deadline <= now:
                waiting.answer.set_exception(DeadlineError("the deadline passed while the request waited"))
                self._observer.request_dropped("deadline")
            elif request.gets and (refusal := waiting.account.refusal()):
                waiting.answer.set_exception(refusal)
            else:
                batch.append(waiting)
                ops_left -= request.operations
                bytes_left -= size
        return batch

    def _transact(self, requests: list[Request]) -> _Done:
        """Run one transaction; in the engine's thread."""
        batch = join(requests)
        began = time.perf_counter()
        result = self._execute(batch)
        return _Done(result, time.perf_counter() - began, split(requests, result))

    def _finish(self, batch: list[_Waiting], job: asyncio.Future[_Done]) -> None:
        """Give out the answers, then start the next transaction.

        In this order, because the handlers that answer and the engine's Python would only fight for the interpreter,
        and what arrives meanwhile makes the next batch larger.
        """
        try:
            error = job.exception()
            if error is not None:
                for waiting in batch:
                    _give(waiting, error)
            else:
                # The batch is durable here, and not before: now its callers may hear of it.
                done = job.result()
                for waiting, answer in zip(batch, done.answers, strict=False):
                    _give(waiting, answer)
                self._put_back(batch[done.result.requests :])
                self._observer.batch_done(done.result, done.result.requests, done.seconds)
        finally:
            self._loop.call_soon(self._start)  # behind the handlers that were woken above

    def _put_back(self, rest: list[_Waiting]) -> None:
        """Return requests that the engine left for the next transaction to the front of the queue."""
        self._queue.extendleft(reversed(rest))
        self.queue_bytes += sum(waiting.request.held_bytes for waiting in rest)

    def abandon(self) -> None:
        """Drop everything that waits; a transaction in progress ends by itself."""
        for waiting in self._queue:
            waiting.answer.cancel()


def _give(waiting: _Waiting, answer: Answer | BaseException) -> None:
    """Resolve a future, unless its caller has gone."""
    if waiting.answer.done():
        return
    if isinstance(answer, BaseException):
        waiting.answer.set_exception(answer)
        return
    waiting.account.add(answer.held_bytes)
    waiting.answer.set_result(answer)
