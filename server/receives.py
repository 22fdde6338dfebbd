"""The calls of Python's handlers that wait for a message.

The door bounds how long the pauses of a message may be and how much memory it takes. Here a call ends when the server
stops, its caller goes, or its only message takes too long.
"""

from __future__ import annotations

import asyncio
from typing import NamedTuple

from gpkvs.errors import GpkvsError
from gpkvs.server.access.caller import ANYONE, Caller, LoginError
from gpkvs.server.calls import CallContext


class SlowRequestError(GpkvsError):
    """The message of a call was not whole in time; the call was not executed."""


class _Receive(NamedTuple):
    """One call that waits for a message."""

    caller: Caller
    message: asyncio.Future[object]
    outlives_stop: bool

    def end(self, error: GpkvsError) -> None:
        """Make the call raise an error."""
        if not self.message.done():
            self.message.set_exception(error)


class Receives:
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
        context: CallContext,
        *,
        caller: Caller = ANYONE,
        is_stream: bool,
        outlives_stop: bool = False,
    ) -> object:
        """Return a call's next message, or None at its end.

        Parameters
        ----------
        context
            The call.
        caller
            Who makes it.
        is_stream
            A stream may take as long as it likes.
        outlives_stop
            Whether the call is served while the server stops, as a health check is.

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
        late = None if is_stream else self._loop.call_later(self._seconds_max, receive.end, self._too_slow())
        try:
            return await message
        finally:
            del self._waiting[message]
            if late:
                late.cancel()

    def _too_slow(self) -> SlowRequestError:
        return SlowRequestError(f"the message was not whole after {self._seconds_max:g} s (--receive-seconds-max)")

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
