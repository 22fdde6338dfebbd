"""The calls of Python's handlers that wait for a message, behind the native door.

The door bounds how long the pauses of a message may be and how much memory it takes. Here a call ends when the server
stops, its caller goes, or its only message takes too long.
"""

from __future__ import annotations

import asyncio
from typing import NamedTuple

from gpkvs.errors import GpkvsError
from gpkvs.server.access.caller import ANYONE, Caller, LoginError
from gpkvs.server.door.context import Context
from gpkvs.server.memory import Connection
from gpkvs.server.receiver import too_slow


class _Receive(NamedTuple):
    """One call that waits for a message."""

    caller: Caller
    message: asyncio.Future[object]
    outlives_stop: bool

    def end(self, error: GpkvsError) -> None:
        """Make the call raise an error."""
        if not self.message.done():
            self.message.set_exception(error)


class DoorReceives:
    """All calls of Python's handlers that wait for a message.

    Parameters
    ----------
    seconds_max
        How long the only message of a call may take to arrive.
    """

    def __init__(self, seconds_max: float) -> None:
        self._seconds_max = seconds_max
        self._loop = asyncio.get_running_loop()
        self._waiting: dict[asyncio.Future[object], _Receive] = {}
        self._stopped: GpkvsError | None = None

    async def read(
        self,
        context: Context,
        _connection: Connection,
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
        LoginError
            If the caller is gone.
        GpkvsError
            If the server stops.
        """
        if self._stopped is not None and not outlives_stop:
            raise self._stopped
        caller.require()
        message = context.ask()
        receive = self._waiting[message] = _Receive(caller, message, outlives_stop)
        late = None if is_stream else self._loop.call_later(self._seconds_max, receive.end, too_slow(self._seconds_max))
        try:
            return await message
        finally:
            del self._waiting[message]
            if late:
                late.cancel()

    def stop(self, error: GpkvsError) -> None:
        """Receive messages of calls that outlive a stop only; all other calls that wait raise an error."""
        self._stopped = error
        for receive in self._waiting.values():
            if not receive.outlives_stop:
                receive.end(error)

    def end_gone(self) -> None:
        """End the calls that wait and whose callers are gone."""
        for receive in self._waiting.values():
            try:
                receive.caller.require()
            except LoginError as error:
                receive.end(error)
