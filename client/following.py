"""What follows the changes of a server's tables: for threads, and for asyncio.

For threads, one reads the stream, as far ahead as `_ARRIVALS_MAX`: gRPC's blocking streams know no timeout. A
follower that does not read has the server hear of it by flow control.
"""

from __future__ import annotations

import asyncio
import threading
import time
import weakref
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from types import TracebackType
from typing import Any, Self

import grpc

from gpkvs.changes import Changes, Position
from gpkvs.client.errors import ClientClosedError, DeadlineError
from gpkvs.client.watch import Arrival, WatchProgress
from gpkvs.process.fork import Origin
from gpkvs.watch import READ_BYTES

OpenStream = Callable[..., Any]
"""Opens the stream of a request; takes a timeout."""

_ARRIVALS_MAX = 2


class _Arrivals:
    """What a stream has brought and nobody has read yet; shared by the thread that reads it and who follows."""

    def __init__(self) -> None:
        self._origin = Origin("the watch")
        self._changed = threading.Condition()
        self._waiting: deque[Arrival] = deque()
        self._error: BaseException | None = None
        self._trace: TracebackType | None = None  # of the error: each that raises it adds to its own
        self._stream: Any = None
        self.closed = threading.Event()

    def opened(self, stream: Any) -> None:
        """Take the stream that is read now; `close` cancels it."""
        with self._changed:
            self._stream = stream
            if self.closed.is_set():
                stream.cancel()

    def put(self, arrival: Arrival) -> bool:
        """Hand over what came, as soon as there is room; return whether anybody still follows."""
        with self._changed:
            self._changed.wait_for(lambda: self.closed.is_set() or len(self._waiting) < _ARRIVALS_MAX)
            self._waiting.append(arrival)
            self._changed.notify_all()
            return not self.closed.is_set()

    def fail(self, error: BaseException) -> None:
        """Say that nothing comes any more, behind what has come."""
        with self._changed:
            self._error, self._trace = error, error.__traceback__
            self._changed.notify_all()

    def take(self, timeout: float | None) -> Arrival | None:
        """Return what came next, None if nothing does in time.

        Raises
        ------
        BaseException
            What ended the thread that reads: nothing comes any more.
        """
        with self._changed:
            self._changed.wait_for(lambda: self._waiting or self._error or self.closed.is_set(), timeout)
            if self.closed.is_set():
                raise ClientClosedError("it was closed: nothing follows any more")
            if self._waiting:
                self._changed.notify_all()
                return self._waiting.popleft()
            if self._error is not None:
                raise self._error.with_traceback(self._trace)
            return None

    def close(self) -> None:
        """End the stream, and the thread that reads it; in the child of a fork neither is there."""
        if not self._origin.is_here:  # a thread of the parent may have held a lock, ours or one of gRPC's
            return
        with self._changed:
            self.closed.set()
            self._waiting.clear()
            self._changed.notify_all()
            if self._stream is not None:
                self._stream.cancel()


class Following:
    """Follows what changes on a server; made by `Client.follow`. One thread uses it at a time.

    Use it in a ``with`` block, or `close` it.

    Parameters
    ----------
    open_stream
        Opens a stream.
    progress
        Knows what to ask for.

    Attributes
    ----------
    position
        Behind what was read.

    Raises
    ------
    GpkvsError
        If it cannot begin.
    """

    def __init__(self, open_stream: OpenStream, progress: WatchProgress) -> None:
        self._open_stream = open_stream
        self._progress = progress
        self._arrivals = arrivals = _Arrivals()
        self._end = weakref.finalize(self, arrivals.close)
        self._end.atexit = False  # the interpreter ends without it
        work = threading.Thread(target=_bring, args=(arrivals, open_stream, progress), name="gpkvs-watch", daemon=True)
        work.start()
        first = None
        try:
            first = arrivals.take(progress.timeout_s)
        finally:
            if first is None:
                self.close()
        if first is None:
            raise DeadlineError(f"{progress.target}: the deadline of the call has passed")
        self.position = first.position

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def read(self, bytes_max: int = READ_BYTES, timeout: float | None = 0.0) -> list[Changes]:
        """Return what comes next, in the order in which it was executed; all of it is durable.

        Parameters
        ----------
        bytes_max
            About so much; the server says how much comes at once.
        timeout
            Seconds to wait if there is nothing; None: for ever.

        Returns
        -------
        list of Changes
            Empty if nothing came in time, or if the server was opened anew and goes on: `position` says so.

        Raises
        ------
        ChangesLostError
            If the server no longer holds what comes next.
        UnknownTableError
            Behind the entry that says that the watched table was dropped.
        NotExecutedError
            If no server is there: its subclasses say why. It was tried again, within the retry policy.
        """
        self._progress.require_open()
        give_up = None if timeout is None else time.monotonic() + timeout
        found: list[Changes] = []
        while not found:
            arrival = self._arrivals.take(None if give_up is None else max(give_up - time.monotonic(), 0.0))
            if arrival is None:
                return []
            is_opened_anew = arrival.position.timeline != self.position.timeline
            found += arrival.entries
            self.position = arrival.position
            if is_opened_anew:  # positions before and behind are of two timelines
                break
        return found

    def newest(self) -> Position:
        """Return the position of the last transaction executed; it is asked again, within the retry policy."""
        progress = self._progress.to_position()
        while True:
            stream = self._open_stream(progress.request(), timeout=progress.timeout_s)
            try:
                for response in stream:
                    return progress.take(response).position
                raise progress.ended()
            except grpc.RpcError as error:
                progress.require_open()
                delay_s = progress.delay_s(error)
            finally:
                stream.cancel()
            time.sleep(delay_s)

    def close(self) -> None:
        """Follow no more; in the child of a fork this does nothing."""
        self._end()


def _bring(arrivals: _Arrivals, open_stream: OpenStream, progress: WatchProgress) -> None:
    """Read streams, one after the other, until nobody follows or nothing comes any more; in a thread of its own."""
    try:
        while not arrivals.closed.is_set():
            stream = open_stream(progress.request(), timeout=None)
            arrivals.opened(stream)
            try:
                for response in stream:
                    if not arrivals.put(progress.take(response)):
                        return
                raise progress.ended()
            except grpc.RpcError as error:
                if not arrivals.closed.is_set():
                    progress.require_open()
                    arrivals.closed.wait(progress.delay_s(error))
            finally:
                stream.cancel()
    except BaseException as error:  # noqa: BLE001 - whoever reads raises it
        arrivals.fail(error)


class AsyncFollowing:
    """Follows what changes on a server; made by `AsyncClient.follow`. One task uses it at a time. As `Following`.

    Attributes
    ----------
    position
        Behind what was read.
    """

    def __init__(self, open_stream: OpenStream, progress: WatchProgress) -> None:
        self._open_stream = open_stream
        self._progress = progress
        self._origin = Origin("the watch")
        self._stream: Any = None
        self._arriving: asyncio.Task[Arrival] | None = None
        self._is_closed = False
        self.position = Position(0, 0)

    async def begin(self) -> Self:
        """Wait for the first response, which says where it begins."""
        try:
            async with asyncio.timeout(self._progress.timeout_s):
                self.position = (await self._next()).position
        except TimeoutError:
            await self.close()
            raise DeadlineError(f"{self._progress.target}: the deadline of the call has passed") from None
        except BaseException:
            await self.close()
            raise
        return self

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    async def read(self, bytes_max: int = READ_BYTES, timeout: float | None = 0.0) -> list[Changes]:
        """Return what comes next; as `Following.read`."""
        self._progress.require_open()
        give_up = None if timeout is None else time.monotonic() + timeout
        found: list[Changes] = []
        while not found:
            if self._is_closed:
                raise ClientClosedError("it was closed: nothing follows any more")
            if self._arriving is None:  # it goes on beside a read that has given up
                self._arriving = asyncio.create_task(self._next())
            left = None if give_up is None else max(give_up - time.monotonic(), 0.0)
            done, _ = await asyncio.wait([self._arriving], timeout=left)
            if not done:
                return []
            arrived, self._arriving = self._arriving, None
            if self._is_closed and arrived.cancelled():  # another task has closed it
                continue
            arrival = arrived.result()
            is_opened_anew = arrival.position.timeline != self.position.timeline
            found += arrival.entries
            self.position = arrival.position
            if is_opened_anew:  # positions before and behind are of two timelines
                break
        return found

    async def newest(self) -> Position:
        """Return the position of the last transaction executed; as `Following.newest`."""
        progress = self._progress.to_position()
        while True:
            stream = self._open_stream(progress.request(), timeout=progress.timeout_s)
            try:
                async for response in stream:
                    return progress.take(response).position
                raise progress.ended()
            except grpc.RpcError as error:
                progress.require_open()
                delay_s = progress.delay_s(error)
            finally:
                stream.cancel()
            await asyncio.sleep(delay_s)

    async def close(self) -> None:
        """Follow no more; in the child of a fork this does nothing."""
        if not self._origin.is_here:
            return
        self._is_closed = True
        if self._arriving is not None:
            self._arriving.cancel()
            await asyncio.wait([self._arriving])
        if self._stream is not None:
            self._stream.cancel()
            self._stream = None

    async def _next(self) -> Arrival:
        """Return what comes next, of this stream or a later one."""
        while True:
            if self._stream is None:
                self._stream = self._open_stream(self._progress.request(), timeout=None)
            try:
                response = await self._stream.read()
                if response is not grpc.aio.EOF:
                    return self._progress.take(response)
                raise self._progress.ended()
            except grpc.RpcError as error:
                self._progress.require_open()
                delay_s = self._progress.delay_s(error)
            except asyncio.CancelledError:
                task = asyncio.current_task()
                if task is None or not task.cancelling():  # nobody has cancelled it: its channel was closed
                    self._progress.require_open()
                raise
            with suppress(grpc.RpcError):
                self._stream.cancel()
            self._stream = None
            await asyncio.sleep(delay_s)
