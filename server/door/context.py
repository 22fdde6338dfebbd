"""A call that the native door hands to Python: gRPC's context, as far as our handlers use it."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from typing import Any, NamedTuple, NoReturn, Protocol

from gpkvs.server.calls import Metadata, StatusCode


class AbortError(Exception):
    """Ends the handler of a call that has its status."""


class Opened(NamedTuple):
    """What the door says of a call when it begins.

    Attributes
    ----------
    id
        Of the call; no other one ever has it.
    path
        ``/service/method``.
    connection, peer
        The id of its connection, and that one's name as gRPC writes it.
    metadata
        Its headers.
    deadline
        In seconds of the monotonic clock; None without one.
    certificate
        The names in its client's certificate.
    caller
        Whom the door takes its caller for; 0 if it does not know.
    is_counted
        Whether the door has counted the call as started.
    """

    id: int
    path: str
    connection: int
    peer: str
    metadata: Metadata
    deadline: float | None
    certificate: tuple[str, ...]
    caller: int = 0
    is_counted: bool = False


class Wire(Protocol):
    """What Python tells the door of a call, by the call's id."""

    def ask(self, call: int) -> None:
        """Let the next message of a call come."""

    def respond(self, call: int, message: bytes) -> None:
        """Send a message."""

    def finish(self, call: int, code: int, text: str, trailers: Metadata) -> None:
        """End a call."""

    def set_session(self, call: int, table_id: int | None, protocol: int, *, hands_all: bool, is_silent: bool) -> None:
        """Say how the door may answer for a connection of RESP."""

    def set_subscriptions(self, call: int, protocol: int, words: bytes) -> None:
        """Say to what a connection of RESP has subscribed."""


class Context:
    """One call.

    Parameters
    ----------
    wire
        Takes what the handler sends.
    opened
        What the door said of the call.
    """

    def __init__(self, wire: Wire, opened: Opened) -> None:
        self._wire = wire
        self._opened = opened
        self._loop = asyncio.get_running_loop()
        self._message: asyncio.Future[object] | None = None  # that the handler waits for
        self._sent: asyncio.Future[None] | None = None
        self._is_half_closed = self._is_cancelled = self._is_finished = False
        self._status: StatusCode | None = None
        self._text = ""
        self._trailers: Metadata = ()
        self._done_callbacks: list[Callable[[Any], object]] = []
        self.serialize: Callable[[Any], bytes] = bytes

    @property
    def id(self) -> int:
        """The call's id."""
        return self._opened.id

    @property
    def caller(self) -> int:
        """Whom the door takes the caller for; 0 if it does not know."""
        return self._opened.caller

    @property
    def certificate(self) -> tuple[str, ...]:
        """The names in its client's certificate."""
        return self._opened.certificate

    # What handlers call, named as in gRPC.

    async def read(self) -> object:
        """Return the next message, or None at the end."""
        return await self.ask()

    async def write(self, message: object) -> None:
        """Send a message; return when the connection takes more."""
        self._sent = self._loop.create_future()
        self._wire.respond(self._opened.id, self.serialize(message))
        await self._sent

    async def abort(self, code: StatusCode, details: str = "", trailing_metadata: Metadata = ()) -> NoReturn:
        """End the call with a status.

        Raises
        ------
        AbortError
            Always: the handler ends too.
        """
        self.finish(code, details, trailing_metadata)
        raise AbortError("Locally aborted.")

    def peer(self) -> str:
        """Return the name of the connection."""
        return self._opened.peer

    @property
    def connection(self) -> int:
        """The id of the connection."""
        return self._opened.connection

    @property
    def is_counted(self) -> bool:
        """Whether the door has counted the call's start."""
        return self._opened.is_counted

    def invocation_metadata(self) -> Metadata:
        """Return the headers."""
        return self._opened.metadata

    def time_remaining(self) -> float | None:
        """Return the seconds until the deadline, or None."""
        deadline = self._opened.deadline
        return None if deadline is None else max(deadline - time.monotonic(), 0.0)

    def add_done_callback(self, callback: Callable[[Any], object]) -> None:
        """Have a function called when the handler has ended."""
        self._done_callbacks.append(callback)

    def code(self) -> StatusCode | None:
        """Return the status that the handler ended the call with, if it has."""
        return self._status

    def details(self) -> str:
        """Return the text of that status."""
        return self._text

    def trailing_metadata(self) -> Metadata:
        """Return the trailers of that status."""
        return self._trailers

    def cancelled(self) -> bool:
        """Return whether the client, or the door, has given the call up."""
        return self._is_cancelled

    # What the server calls.

    def ask(self) -> asyncio.Future[object]:
        """Ask for the next message, or None at the end; one at a time."""
        self._message = self._loop.create_future()
        if self._is_half_closed:
            self._message.set_result(None)
        else:
            self._wire.ask(self._opened.id)
        return self._message

    def arrived(self, message: object) -> None:
        """Give the handler the message that it asked for."""
        if self._message is not None and not self._message.done():
            self._message.set_result(message)

    def half_closed(self) -> None:
        """Note that no message comes any more."""
        self._is_half_closed = True
        self.arrived(None)

    def sent(self) -> None:
        """Let the handler send more."""
        if self._sent is not None and not self._sent.done():
            self._sent.set_result(None)

    def cancel(self) -> None:
        """Note that nobody waits for the call any more."""
        self._is_cancelled = self._is_finished = True

    def respond(self, message: object) -> None:
        """Send the only response; nobody waits until it has left."""
        self._wire.respond(self._opened.id, self.serialize(message))

    def set_session(self, table_id: int | None, protocol: int, hands_all: bool, is_silent: bool) -> None:
        """Say how the door may answer for the connection."""
        self._wire.set_session(self._opened.id, table_id, protocol, hands_all=hands_all, is_silent=is_silent)

    def set_subscriptions(self, protocol: int, words: bytes) -> None:
        """Say to what the connection has subscribed."""
        self._wire.set_subscriptions(self._opened.id, protocol, words)

    def with_metadata(self, metadata: Metadata) -> Context:
        """Return a context of the same call that shows this."""
        return Context(self._wire, self._opened._replace(metadata=metadata))

    def finish(self, code: StatusCode, text: str = "", trailers: Metadata = ()) -> None:
        """End the call, unless it has ended."""
        if not self._is_finished:
            self._is_finished = True
            self._status, self._text, self._trailers = code, text, trailers
            self._wire.finish(self._opened.id, code.value[0], text, trailers)

    def end(self) -> None:
        """Call what waits for the handler's end."""
        for callback in self._done_callbacks:
            callback(self)
