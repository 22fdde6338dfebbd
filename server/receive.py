"""Messages that grpcio is receiving: for how long, and how much memory they may take.

gRPC's core holds a message until it is whole and says nothing about it. The server knows which calls wait for their
message, and how much memory the process has allocated. While calls wait, it looks at both several times a second. If
some calls have waited for more than two looks, it subtracts all that is counted (`gpkvs.server.memory`) from the
allocated memory, and takes the rest for messages that are being received. If these take too much, the server ends some
of the calls that have waited, first those of the connection that has most of them.

A message larger than HTTP/2's window comes only when the server asks for it. It asks for some messages of a connection
at once. The next call has its turn when one of these messages is whole. It also has its turn when a call has waited for
more than two looks and memory allows it: slow calls hold up no others.
"""

from __future__ import annotations

import asyncio
import math
import time
from collections import Counter
from collections.abc import Callable
from concurrent.futures import Executor
from functools import partial

import grpc

from gpkvs.errors import GpkvsError, NoSpaceError
from gpkvs.server.access.caller import ANYONE, Caller, LoginError
from gpkvs.server.memory import Connection, Memory
from gpkvs.server.receiver import too_slow
from gpkvs.server.resident import FreeMemory, allocated_bytes

# Between two looks a fast network must not bring more than messages may take. More looks would only cost: each takes
# 0.6 ms of the event loop.
_NETWORK_BYTES_PER_SECOND = 8e9
_LOOK_SECONDS_MIN, _LOOK_SECONDS_MAX = 0.02, 0.1
_STALLED_LOOKS = 2
_IDLE_LOOK_SECONDS = 1.0
# How often the server gives back freed memory that the C library keeps, if it is much.
_TRIM_SECONDS = 0.5


class _Receive:
    """One call that waits for a message."""

    __slots__ = ("began", "caller", "connection", "has_turn", "is_timed", "looks", "message", "outlives_stop")

    def __init__(
        self,
        caller: Caller,
        connection: Connection,
        message: asyncio.Future[object],
        *,
        is_stream: bool,
        outlives_stop: bool,
    ) -> None:
        self.caller = caller
        self.connection = connection
        self.message = message
        self.outlives_stop = outlives_stop
        self.has_turn = self.is_timed = not is_stream
        self.began = time.monotonic()
        self.looks = 0

    def give_turn(self) -> None:
        """Let the next call of its connection ask for its message."""
        if self.has_turn:
            self.has_turn = False
            self.connection.turns.give()

    def end(self, error: GpkvsError) -> None:
        """Make the call that waits raise an error."""
        if not self.message.done():
            self.message.set_exception(error)


class Receives:
    """All calls of a server that wait for a message.

    Parameters
    ----------
    memory
        The memory that is counted.
    bytes_max
        How much messages that are being received may take.
    seconds_max
        How long the only message of a call may take to arrive.
    helpers
        Threads in which freed memory is given back; by default those of the loop.
    """

    def __init__(self, memory: Memory, bytes_max: int, seconds_max: float, helpers: Executor | None = None) -> None:
        self._memory = memory
        self._helpers = helpers
        self._bytes_max = bytes_max
        self._seconds_max = seconds_max
        self._look_seconds = min(_LOOK_SECONDS_MAX, max(_LOOK_SECONDS_MIN, bytes_max / _NETWORK_BYTES_PER_SECOND))
        self._loop = asyncio.get_running_loop()
        self._waiting: dict[_Receive, None] = {}  # the oldest first
        self._look_at = self._loop.call_later(_IDLE_LOOK_SECONDS, self._look)
        self._is_idle = True
        self._trim_at = 0.0
        self._stopped: GpkvsError | None = None
        self.begin()

    def begin(self, kept_bytes: Callable[[], int] = lambda: 0) -> None:
        """Take the memory that is allocated now for that of an idle server.

        Parameters
        ----------
        kept_bytes
            Returns what the store keeps between batches: it grows with them, and holds no message.
        """
        self._kept_bytes = kept_bytes
        self._idle_bytes = allocated_bytes() - kept_bytes()
        self._free = FreeMemory(self._bytes_max, self._helpers)

    async def read(
        self,
        context: grpc.aio.ServicerContext,
        connection: Connection,
        *,
        caller: Caller = ANYONE,
        is_stream: bool,
        outlives_stop: bool = False,
    ) -> object:
        """Return a call's next message, or None at its end (`gpkvs.server.receiver.Receiver.read`).

        Raises
        ------
        SlowRequestError
            If the message took too long to arrive.
        NoSpaceError
            If messages took too much memory, and most of them are those of this connection.
        LoginError
            If the caller is gone.
        GpkvsError
            If the server stops.
        """
        if not is_stream:
            await connection.turns.take()
        try:
            if self._stopped is not None and not outlives_stop:
                raise self._stopped
            caller.require()
        except GpkvsError:
            if not is_stream:
                connection.turns.give()
            raise
        # A task of its own, never cancelled: gRPC would lose a message that comes at that moment, and leak its memory.
        # The task ends with the call.
        reading = self._loop.create_task(context.read())
        message = self._loop.create_future()
        reading.add_done_callback(partial(_hand_over, message))
        receive = _Receive(caller, connection, message, is_stream=is_stream, outlives_stop=outlives_stop)
        self._waiting[receive] = None
        if self._is_idle:
            self._is_idle = False
            self._look_at.cancel()
            self._look_at = self._loop.call_later(self._look_seconds, self._look)
        try:
            return await message
        finally:
            del self._waiting[receive]
            receive.give_turn()

    def stop(self, error: GpkvsError) -> None:
        """Receive messages of calls that outlive a stop only; all other calls that wait raise an error."""
        self._stopped = error
        for receive in self._waiting:
            if not receive.outlives_stop:
                receive.end(error)

    def end_gone(self) -> None:
        """End the calls that wait and whose callers are gone."""
        for receive in self._waiting:
            try:
                receive.caller.require()
            except LoginError as error:
                receive.end(error)

    def close(self) -> None:
        """Look no more: the server has stopped, and its event loop is about to end."""
        self._look_at.cancel()

    def _look(self) -> None:
        """Look at the calls that wait, and again soon, also after a failure: without looks nothing is bounded."""
        try:
            self._look_once(time.monotonic())
        finally:
            self._is_idle = not self._waiting
            pause = _IDLE_LOOK_SECONDS if self._is_idle else self._look_seconds
            self._look_at = self._loop.call_later(pause, self._look)

    def _look_once(self, now: float) -> None:
        """End calls that have waited too long, and some of them if messages take too much memory."""
        stalled = []
        for receive in self._waiting:
            if receive.looks >= _STALLED_LOOKS:
                stalled.append(receive)
                if receive.is_timed and now - receive.began > self._seconds_max:
                    receive.end(too_slow(self._seconds_max))
            receive.looks += 1
        unseen_bytes = self._unseen_bytes() if stalled else 0
        self._memory.is_short = unseen_bytes > self._bytes_max
        if self._memory.is_short:
            self._end_some(stalled, unseen_bytes)
        elif unseen_bytes <= self._bytes_max // 2:
            for receive in stalled:
                receive.give_turn()
        if now >= self._trim_at:
            self._trim_at = now + _TRIM_SECONDS
            self._free.look()

    def _unseen_bytes(self) -> int:
        """Return what is allocated and not counted."""
        return allocated_bytes() - self._idle_bytes - self._kept_bytes() - self._memory.bytes

    def _end_some(self, stalled: list[_Receive], unseen_bytes: int) -> None:
        """End so many calls that messages hold half of what they may, if all hold the same.

        Calls of the connection that has most of them end first, the oldest of them first.
        """
        calls = Counter(receive.connection for receive in stalled)
        stalled.sort(key=lambda receive: -calls[receive.connection])
        error = NoSpaceError(
            "memory",
            f"messages that are being received hold more than {self._bytes_max:,} bytes (--memory-max); the server "
            "ends calls of the connections that have most of them: send fewer at once, or faster, or try again",
        )
        for receive in stalled[: math.ceil(len(stalled) * (1 - self._bytes_max / 2 / unseen_bytes))]:
            receive.end(error)


def _hand_over(message: asyncio.Future[object], reading: asyncio.Task[object]) -> None:
    """Give a message to the call that waits for it, if it still does."""
    if reading.cancelled():  # the event loop ends
        message.cancel()
        return
    error = reading.exception()  # asked for even if nobody waits: asyncio would log an error that nobody asks for
    if message.done():
        return
    if error is not None:
        message.set_exception(error)
    else:
        received = reading.result()
        message.set_result(None if received is grpc.aio.EOF else received)
