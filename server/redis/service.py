"""What the connections of the Redis protocol share, and how one of them is served."""

from __future__ import annotations

import asyncio
import base64
import struct
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Protocol, TypeVar

from gpkvs.server.access.caller import Caller
from gpkvs.server.access.login import Logins
from gpkvs.server.access.users import parse_token
from gpkvs.server.gate import Gate
from gpkvs.server.memory import Account, Memory
from gpkvs.server.redis import connection, expiry, keys, scripts, server, strings, tables, transactions  # noqa: F401 - registers
from gpkvs.server.redis.executor import Executor
from gpkvs.server.redis.reply import encode
from gpkvs.server.redis.session import LogIn, Session

Made = TypeVar("Made")


class Connected(Protocol):
    """A connection, as the door hands it to Python (`gpkvs.server.door.context.Context`)."""

    def peer(self) -> str:
        """Return its name."""

    def ask(self) -> asyncio.Future[object]:
        """Ask for the next command."""

    def respond(self, message: object) -> None:
        """Send a reply."""

    def set_session(self, table_id: int | None, protocol: int, hands_all: bool) -> None:
        """Say how the door may answer."""

    def with_metadata(self, metadata: Sequence[tuple[str, str]]) -> Any:
        """Return a call of the connection that shows this."""


class Service:
    """The Redis protocol of one server.

    Parameters
    ----------
    gate
        Leads to the store.
    memory
        Counts what connections hold.
    logins
        Lets users in.
    """

    def __init__(self, gate: Gate, memory: Memory, logins: Logins) -> None:
        self.gate = gate
        self.asks_for_logins = not logins.is_open
        self._memory = memory
        self._logins = logins
        self.executor = Executor(gate)
        self.began = time.monotonic()
        self.sessions: dict[int, Session] = {}
        self._scan_thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix="redis-scan")

    async def scan(self, job: Callable[[], Made]) -> Made:
        """Return what a job makes that looks through a table, in a thread of its own."""
        return await asyncio.get_running_loop().run_in_executor(self._scan_thread, job)

    def shutdown(self) -> None:
        """End that thread."""
        self._scan_thread.shutdown()

    def open(self, peer: str, account: Account, log_in: LogIn) -> Session:
        """Begin a session (`Session`)."""
        session = Session(self, peer, account, log_in)
        self.sessions[session.id] = session
        return session

    def close(self, session: Session) -> None:
        """End a session."""
        self.sessions.pop(session.id, None)

    async def serve(self, context: Connected) -> None:
        """Answer the commands that the door hands on, until the connection ends."""
        peer = context.peer().partition(":")[2]  # without the kind of address
        session = self.open(peer, self._memory.open(context), lambda *shown: self._log_in(context, *shown))
        try:
            if self.asks_for_logins:
                session.caller = self._logins.known(context)  # by its certificate
            told = None
            while not session.is_over:
                message = await context.ask()
                if not isinstance(message, bytes):
                    break
                with self.gate:
                    reply = await session.execute(words_of(message))
                state = session.state()
                if state != told:
                    context.set_session(*state)
                    told = state
                context.respond(encode(reply, session.protocol))
        finally:
            self.close(session)

    async def _log_in(self, context: Connected, user: bytes | None, password: bytes) -> Caller:
        """Return who shows this."""
        text = password.decode("utf-8", "surrogateescape")
        if user is None or parse_token(text):
            header = f"Bearer {text}"
        else:
            header = "Basic " + base64.b64encode(user + b":" + password).decode()
        return await self._logins.log_in(context.with_metadata([("authorization", header)]))


def words_of(message: bytes) -> list[bytes]:
    """Return the words of a command as the door hands them on: their count, their lengths, and they themselves."""
    (words,) = struct.unpack_from("<I", message)
    lengths = struct.unpack_from(f"<{words}I", message, 4)
    found, at = [], 4 + 4 * words
    for length in lengths:
        found.append(message[at : at + length])
        at += length
    return found
