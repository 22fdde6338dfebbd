"""What the connections of the Redis protocol share, and how one of them is served."""

from __future__ import annotations

import asyncio
import base64
import struct
import time
from collections.abc import Callable, Iterator, Sequence
from io import BytesIO
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

from gpkvs.errors import NoSpaceError
from gpkvs.server.access.caller import Caller, LoginError
from gpkvs.server.access.connections import end_of
from gpkvs.server.access.login import Logins
from gpkvs.server.access.rights import RightsError
from gpkvs.server.access.users import parse_token
from gpkvs.server.account.memory import Account, Memory
from gpkvs.server.calls.running_call import RunningCall, running
from gpkvs.server.gate import Gate
from gpkvs.server.redis.commands import (  # noqa: F401 - registers
    connection,
    copying,
    expiry,
    keys,
    scripts,
    server,
    strings,
    subscribing,
    tables,
    transactions,
)
from gpkvs.server.redis.commands.slow_log import PROTOCOL, end_command
from gpkvs.server.redis.execution.command import Words
from gpkvs.server.redis.execution.executor import Executor
from gpkvs.server.redis.protocol.reply import Reply, encode, encode_head
from gpkvs.server.redis.sessions.session import ByCertificate, LogIn, Session
from gpkvs.server.redis.stats import Stats
from gpkvs.server.signs.slow_log import SlowLog
from gpkvs.server.threads import begun_threads

if TYPE_CHECKING:
    from gpkvs.server.redis.sessions.key_events import KeyEvents, Tell

Made = TypeVar("Made")

# What a word takes beside its bytes, about.
_WORD_BYTES = 64
_PARTS_AT_ONCE = 64
# In the place of a count of words, from the door alone.
_WATCHED = 1 << 31


class Connected(Protocol):
    """A connection, as the door hands it to Python (`gpkvs.server.calls.context.Context`)."""

    def peer(self) -> str:
        """Return its name."""

    def ask(self) -> asyncio.Future[object]:
        """Ask for the next command."""

    def respond(self, message: object) -> None:
        """Send a reply."""

    def set_session(self, table_id: int | None, protocol: int, hands_all: bool, is_silent: bool) -> None:
        """Say how the door may answer."""

    def set_subscriptions(self, protocol: int, words: bytes) -> None:
        """Say to what it has subscribed."""

    def half_closed(self) -> None:
        """Take note that no command comes any more."""

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
    stats
        Counts commands.
    slow_log
        Has those that took long.
    tell
        Tells all connections that have subscribed of keys of a database that changed.
    """

    def __init__(self, gate: Gate, memory: Memory, logins: Logins, stats: Stats, slow_log: SlowLog, tell: Tell) -> None:
        self.gate = gate
        self.stats: Stats = stats
        self.slow_log = slow_log
        self.asks_for_logins = not logins.is_open
        self._memory = memory
        self._logins = logins
        self.executor = Executor(gate)
        self.began = time.monotonic()
        self.sessions: dict[int, Session] = {}
        self._scan_thread = begun_threads("redis-scan")
        self._tell = tell
        self._key_events: KeyEvents | None = None

    async def join_key_events(self, session: Session) -> None:
        """Have a session told of keys that change (`KeyEvents.join`).

        The module comes with the first one: few servers have any.
        """
        serving = self.gate.serving()
        if self._key_events is None:
            from gpkvs.server.redis.sessions.key_events import KeyEvents  # noqa: PLC0415

            self._key_events = KeyEvents(self._tell, self.stats.note_lost)
        await self._key_events.join(session, serving)
        self.stats.subscribers.add(session.id)

    def leave_key_events(self, session: Session) -> None:
        """Tell a session no more."""
        self.stats.subscribers.discard(session.id)
        if self._key_events is not None:
            self._key_events.leave(session)

    async def scan(self, job: Callable[[], Made]) -> Made:
        """Return what a job makes that looks through a table, in a thread of its own."""
        return await asyncio.get_running_loop().run_in_executor(self._scan_thread, job)

    def shutdown(self) -> None:
        """End that thread."""
        self._scan_thread.shutdown()

    def open(self, peer: str, account: Account, log_in: LogIn, by_certificate: ByCertificate) -> Session:
        """Begin a session (`Session`)."""
        session = Session(self, peer, account, log_in, by_certificate)
        self.sessions[session.id] = session
        return session

    def close(self, session: Session) -> None:
        """End a session."""
        self.sessions.pop(session.id, None)
        session.close()

    def note_refusal(self, error: LoginError | RightsError, peer: str, command: str) -> None:
        """Note in the audit log who was refused a command."""
        self._logins.note_refusal(error, end_of(f"ip:{peer}").address, f"redis.{command}")

    async def serve(self, context: Connected) -> None:
        """Answer the commands that the door hands on, until the connection ends."""
        peer = context.peer().partition(":")[2]  # without the kind of address
        session = self.open(
            peer,
            self._memory.open(context),
            lambda *shown: self._log_in(context, *shown),
            lambda: self._logins.known(context),
        )
        session.hang_up = context.half_closed
        try:
            told, told_by = None, session.told_by()
            while not session.is_over:
                message = await context.ask()
                if not isinstance(message, bytes):
                    break
                with self.gate:
                    replies = await self._answer(session, message)
                state = session.state()
                if state != told:
                    context.set_session(*state)
                    told = state
                if session.told_by() != told_by:
                    context.set_subscriptions(session.protocol, session.subscriptions.message())
                    told_by = session.told_by()
                context.respond(replies)
                del message, replies  # the replies are the door's now
                session.account.forget_responses()
                session.room.keep(0)
        finally:
            self.close(session)

    async def _answer(self, session: Session, message: bytes) -> bytes:
        """Execute the commands of a message if there is room for their words; return what is sent."""
        if watched := watched_of(message):
            session.take_watched(watched)
            return b""
        words = [len(lengths) for _, lengths in _heads_of(message)]
        try:
            session.room.take(2 * len(message) + _WORD_BYTES * sum(words))
        except NoSpaceError as error:
            self._begin_call(session)
            return self._refused(session, len(words), session.refuse(error))
        return await self._replies(session, commands_of(message))

    def _refused(self, session: Session, commands: int, refusal: Reply) -> bytes:
        """Return what is sent for commands that there is no room for."""
        sent = BytesIO()
        for _ in range(commands):
            self.stats.note(b"", refusal)
            if not session.is_silent:
                encode(sent, refusal, session.protocol)
            session.pass_command()
        return sent.getvalue()

    async def _replies(self, session: Session, commands: Sequence[Words]) -> bytes:
        """Execute commands that came together, up to one that ends the connection; return what is sent."""
        call = self._begin_call(session)
        joint = await session.execute_joint(commands) if len(commands) > 1 else None
        sent = BytesIO()
        for number, words in enumerate(commands):
            if not joint:
                call = self._begin_call(session)
            reply = joint[number] if joint else await session.execute(words)
            end_command(call, words)
            self.stats.note(words[0], reply)
            if not session.is_silent:
                await _encode_in_turns(sent, reply, session.protocol)
            session.pass_command()
            if session.is_over:
                break
        return sent.getvalue()

    def _begin_call(self, session: Session) -> RunningCall:
        """Begin the time of a command, or of some together."""
        call = RunningCall(self.slow_log, f"ip:{session.peer}", PROTOCOL, "")
        call.user = session.caller.name if self.asks_for_logins and session.caller else ""
        call.begin()
        running.set(call)
        return call

    async def _log_in(self, context: Connected, user: bytes | None, password: bytes) -> Caller:
        """Return who shows this."""
        text = password.decode("utf-8", "surrogateescape")
        if user is None or parse_token(text):
            header = f"Bearer {text}"
        else:
            header = "Basic " + base64.b64encode(user + b":" + password).decode()
        return await self._logins.log_in(context.with_metadata([("authorization", header)]))


async def _encode_in_turns(to: BytesIO, reply: Reply, protocol: int) -> None:
    """Append a reply; others have their turn between the parts of a long one."""
    if not isinstance(reply, list):
        encode(to, reply, protocol)
        return
    encode_head(to, reply, protocol)
    for number, part in enumerate(reply, 1):
        encode(to, part, protocol)
        if number % _PARTS_AT_ONCE == 0:
            await asyncio.sleep(0)


def watched_of(message: bytes) -> dict[bytes, int]:
    """Return the keys and versions that the door hands on, as a client watches them; else nothing."""
    (count,) = struct.unpack_from("<I", message)
    if not count & _WATCHED:
        return {}
    [words] = commands_of(struct.pack("<I", count ^ _WATCHED) + message[4:])
    return {key: int.from_bytes(version, "little") for key, version in zip(words[::2], words[1::2], strict=True)}


def commands_of(message: bytes) -> list[list[bytes]]:
    """Return the words of commands as the door hands them on: their count, their lengths, and they themselves."""
    commands = []
    for first, lengths in _heads_of(message):
        found, at = [], first
        for length in lengths:
            found.append(message[at : at + length])
            at += length
        commands.append(found)
    return commands


def _heads_of(message: bytes) -> Iterator[tuple[int, Sequence[int]]]:
    """Yield where the words of each command begin, and their lengths."""
    at = 0
    while at < len(message):
        (words,) = struct.unpack_from("<I", message, at)
        lengths = memoryview(message)[at + 4 : at + 4 + 4 * words].cast("I")
        at += 4 + 4 * words
        yield at, lengths
        at += sum(lengths)
