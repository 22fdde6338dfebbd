"""Where calls wait for their messages: behind grpcio (`gpkvs.server.receive`) and the native door."""

from __future__ import annotations

from typing import Any, Protocol

from gpkvs.errors import GpkvsError
from gpkvs.server.access.caller import ANYONE, Caller
from gpkvs.server.memory import Connection


class SlowRequestError(GpkvsError):
    """The message of a call was not whole in time; the call was not executed."""


def too_slow(seconds_max: float) -> SlowRequestError:
    """Return what a call is told whose message took longer than this."""
    return SlowRequestError(f"the message was not whole after {seconds_max:g} s (--receive-seconds-max)")


class Receiver(Protocol):
    """Where calls wait for their messages."""

    async def read(
        self,
        context: Any,
        connection: Connection,
        /,
        *,
        caller: Caller = ANYONE,
        is_stream: bool,
        outlives_stop: bool = False,
    ) -> object:
        """Return a call's next message, or None at its end.

        Parameters
        ----------
        context, connection
            The call, and the connection that it came over.
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
            If the server stops, or has no room for the message.
        """
