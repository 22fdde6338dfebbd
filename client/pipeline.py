"""A stream of columns: it sends requests without waiting for the responses, which come in their order."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Self

import grpc

from gpkvs.batch import Batch, RequestResult
from gpkvs.client.codec import decode, encode
from gpkvs.client.errors import ClientClosedError, DeadlineError, ServerError
from gpkvs.client.operations import check_message_bytes
from gpkvs.client.retry import CODES, Failure, classify, classify_error, trailing_of
from gpkvs.config import Limits
from gpkvs.errors import GpkvsError
from gpkvs.process.fork import Origin
from gpkvs.proto.v1 import kv_pb2


@dataclass(slots=True)
class _Sent:
    """A request without a response yet."""

    id: int
    ops: bytes
    is_write: bool
    result: asyncio.Future[RequestResult]


class AsyncPipeline:
    """Requests of columns, many in flight; made by `AsyncClient.pipeline`.

    Each request is atomic and durable by itself. The server executes them in their order, and a request that fails
    leaves the others alone. The pipeline repeats nothing: if the connection breaks or the server stops, the requests
    without a response fail, and a new pipeline is needed. It notices within half a minute that the network is gone.
    After a fork it belongs to the parent: in the child `close` does nothing, and all other methods raise `ForkedError`.

    Examples
    --------
    The short form, which gives the results in order:

    >>> async def load(client, batches):  # batches: any iterable of Batch
    ...     async with client.pipeline(table="numbers") as pipeline:
    ...         async for result in pipeline.results(batches):
    ...             assert not result.status.any()

    The long form, to send and to receive at different places:

    >>> async def read(client, first, second):
    ...     async with client.pipeline() as pipeline:
    ...         results = [await pipeline.send(first), await pipeline.send(second)]  # futures: sent, no more
    ...         return [await result for result in results]
    """

    def __init__(
        self,
        open_stream: Callable[[], Any],
        target: str,
        table: str,
        in_flight_max: int,
        limits: Limits,
        message_bytes_max: int,
        timeout_s: float | None,
    ) -> None:
        self._origin = Origin("the pipeline")
        self._target, self._table = target, table
        self._limits, self._message_bytes_max = limits, message_bytes_max
        self._in_flight_max = in_flight_max
        self._loop = asyncio.get_running_loop()
        self._sent: deque[_Sent] = deque()
        self._room = asyncio.Semaphore(in_flight_max)
        self._writing = asyncio.Lock()
        self._timeout_s = timeout_s
        self._next_id = 1
        self._responses = 0
        self._failure: Failure | None = None  # why the stream is over
        self._given_up = Failure(ClientClosedError("the pipeline was given up"), executed=True, transient=False)
        self._call = open_stream()
        self._reader = self._loop.create_task(self._read())

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if error is not None and self._origin.is_here:
            self._call.cancel()
        await self.close()

    async def send(self, batch: Batch) -> asyncio.Future[RequestResult]:
        """Send columns as one atomic, durable request; waits while `in_flight_max` requests have no response.

        Returns
        -------
        asyncio.Future
            The results, durable when they come. Awaiting it raises InvalidArgumentError, UnknownTableError,
            ConflictError or NoSpaceError if the server refused this request, `OutcomeUnknownError` if it has writes and
            its response was lost, and another `NotExecutedError` if it was not executed. Await it with
            `asyncio.wait_for` to give up after some time: the request may be executed all the same.

        Raises
        ------
        InvalidArgumentError
            If the columns do not add up or pass a limit; nothing was sent then.
        NotExecutedError
            If the stream is over: its subclasses say why.

        Notes
        -----
        Cancelling a send while it is being written ends the stream.
        """
        self._origin.require()
        batch.validate(self._limits)
        message = encode(batch, self._table)
        check_message_bytes(message, self._message_bytes_max)
        async with self._writing:
            await self._room.acquire()
            if self._failure:
                self._room.release()
                raise self._failure.raised(is_write=False)
            message.id = self._next_id
            self._next_id += 1
            sent = _Sent(message.id, message.ops, batch.changes, self._loop.create_future())
            self._sent.append(sent)
            try:
                await self._call.write(message)
            except (grpc.RpcError, asyncio.InvalidStateError):
                await asyncio.wait([self._reader])  # it learns why, and makes all requests fail, this one too
            except asyncio.CancelledError:
                # Either this task was cancelled, or the stream was: grpc says the same of both.
                if (task := asyncio.current_task()) is None or task.cancelling():
                    raise
                await asyncio.wait([self._reader])
        return sent.result

    async def results(self, batches: Iterable[Batch]) -> AsyncIterator[RequestResult]:
        """Send batches, one request each, and yield their results in order, with many in flight.

        Raises
        ------
        GpkvsError
            As the futures of `send`, at the first request that failed; those sent behind it may be executed all the
            same.
        """
        results: deque[asyncio.Future[RequestResult]] = deque()
        try:
            for batch in batches:
                if len(results) == self._in_flight_max:
                    yield await results.popleft()
                results.append(await self.send(batch))
            while results:
                yield await results.popleft()
        finally:
            for result in results:
                result.cancel()

    async def close(self) -> None:
        """End the stream after the responses to all requests; leaving the ``async with`` block does this.

        It waits as long as responses come. If none comes for the client's `timeout`, it gives up the requests without
        one: a write raises `OutcomeUnknownError`, a read `DeadlineError`. A block that raises gives them up at once. So
        does cancelling this.
        """
        if not self._origin.is_here:
            return
        ending = self._loop.create_task(self._end())
        seen = -1
        try:
            while not self._reader.done() and seen != self._responses:
                seen = self._responses
                await asyncio.wait([self._reader], timeout=self._timeout_s)
            if not self._reader.done():
                silent = DeadlineError(
                    f"{self._target}: no response for {self._timeout_s} s, while the pipeline was closed"
                )
                self._given_up = Failure(silent, executed=True, transient=False)
        finally:
            if not self._reader.done():  # also where nobody waits for the end any more
                self._call.cancel()
                ending.cancel()  # it may wait for a send that is stuck until gRPC gives up the connection
        await asyncio.wait([self._reader, ending])

    async def _end(self) -> None:
        """Tell the server that no more requests come, after those that are being sent."""
        async with self._writing:
            if self._failure is None:
                self._failure = Failure(ClientClosedError("the pipeline is closed"), executed=False, transient=False)
                with suppress(grpc.RpcError, asyncio.InvalidStateError):  # the stream has ended
                    await self._call.done_writing()

    async def _read(self) -> None:
        failure = Failure(ServerError("the server ended the stream"), executed=True, transient=False)
        try:
            while (response := await self._call.read()) is not grpc.aio.EOF:
                self._take(response)
            if await self._call.code() is not grpc.StatusCode.OK:
                code, details = await self._call.code(), await self._call.details() or ""
                trailing = dict(await self._call.trailing_metadata() or ())
                failure = classify(code, details, trailing, self._target, is_stream=True)
        except grpc.RpcError as error:
            failure = classify_error(error, self._target, is_stream=True)
        except asyncio.CancelledError:
            failure = self._given_up
        except ServerError as error:
            failure = Failure(error, executed=True, transient=False)
            self._call.cancel()
        finally:
            self._failure = self._failure or failure
            while self._sent:
                self._fail(self._sent.popleft(), failure)

    def _take(self, response: kv_pb2.BatchResponse) -> None:
        if not self._sent or self._sent[0].id != response.id:
            raise ServerError(f"a response to request {response.id}, which is not the next one")
        sent = self._sent.popleft()
        self._responses += 1
        self._room.release()
        if response.code:
            code = CODES.get(response.code, grpc.StatusCode.UNKNOWN)
            failure = classify(code, response.message, trailing_of(code, response), self._target)
            self._give(sent, failure.raised(is_write=sent.is_write))
        else:
            try:
                self._give(sent, decode(response, sent.ops))
            except ServerError as error:
                self._give(sent, Failure(error, executed=True, transient=False).raised(is_write=sent.is_write))

    def _fail(self, sent: _Sent, failure: Failure) -> None:
        self._room.release()
        self._give(sent, failure.raised(is_write=sent.is_write))

    @staticmethod
    def _give(sent: _Sent, result: RequestResult | GpkvsError) -> None:
        if sent.result.done():  # its caller has given it up
            return
        if isinstance(result, GpkvsError):
            sent.result.set_exception(result)
        else:
            sent.result.set_result(result)
