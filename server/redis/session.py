"""One connection's session: what it has said of itself, its table, and its transaction."""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from itertools import count
from typing import TYPE_CHECKING

from gpkvs.errors import GpkvsError, InvalidArgumentError, NoSpaceError, UnknownTableError
from gpkvs.server.access.caller import ANYONE, Caller, LoginError
from gpkvs.server.access.rights import RightsError, require_read, require_write
from gpkvs.server.gate import NotServingError
from gpkvs.server.memory import Account
from gpkvs.server.redis.command import COMMANDS, Command, Words, unknown_command
from gpkvs.server.redis.executor import Step, WatchedError
from gpkvs.server.redis.overlay import Record, require_key
from gpkvs.server.redis.reply import NULL_ARRAY, OK, QUEUED, Error, Reply
from gpkvs.store import OpenTable

if TYPE_CHECKING:
    from gpkvs.server.redis.service import Service

DEFAULT_TABLE = "default"
LogIn = Callable[[bytes | None, bytes], Awaitable[Caller]]

_numbers = count(1)

# These a client may call before it has logged in.
_OPEN = frozenset((b"auth", b"hello", b"quit", b"reset"))
# These are not queued.
_RULES = frozenset((b"exec", b"discard", b"multi", b"watch", b"quit", b"reset"))


@dataclass
class Transaction:
    """The commands between MULTI and EXEC.

    Attributes
    ----------
    steps
        In their order.
    is_wrong
        Whether a command could not be queued: then nothing is executed.
    """

    steps: list[Step] = field(default_factory=list)
    is_wrong: bool = False


class Session:
    """One connection.

    Parameters
    ----------
    service
        What all of them share.
    peer
        Where its client is, as host:port.
    account
        Counts what it holds.
    log_in
        Returns who shows a name and a password, or a token without a name; raises LoginError.
    """

    def __init__(self, service: Service, peer: str, account: Account, log_in: LogIn) -> None:
        self.service = service
        self.peer = peer
        self.account = account
        self._service_log_in = log_in
        self.caller: Caller | None
        self.log_out()
        self.id = next(_numbers)
        self.began = time.monotonic()
        self.last_command = ""
        self.library: dict[str, bytes] = {}
        self.is_over = False  # the connection ends behind the reply
        self.clear()

    def clear(self) -> None:
        """Be as at the beginning; whoever has logged in stays so."""
        self.number = 0  # of the database
        self.protocol = 2
        self.name = b""
        self.transaction: Transaction | None = None
        self.watched: dict[bytes, int] = {}

    @property
    def table_name(self) -> str:
        """The table of the database."""
        return str(self.number) if self.number else DEFAULT_TABLE

    @property
    def table(self) -> OpenTable:
        """The table of the database.

        Raises
        ------
        Error
            If there is none.
        """
        try:
            return self.service.executor.table(self.table_name)
        except UnknownTableError:
            raise Error("ERR DB index is out of range") from None

    @property
    def hands_all(self) -> bool:
        """Whether no command may be answered but here."""
        return self.caller is None or self.transaction is not None or bool(self.watched)

    def state(self) -> tuple[int | None, int, bool]:
        """Return how the door may answer: on which table (none, if there is none), in which protocol, or not at all."""
        try:
            table_id: int | None = self.table.id
        except (Error, GpkvsError):
            table_id = None
        return table_id, self.protocol, self.hands_all

    async def execute(self, words: Words) -> Reply:
        """Run a command; return its reply, or what is wrong."""
        try:
            return await self._execute(words)
        except Error as error:
            return error
        except GpkvsError as error:
            return _error_of(error)

    async def _execute(self, words: Words) -> Reply:
        name = words[0].lower()
        command = COMMANDS.get(name)
        try:
            if command is None:
                raise unknown_command(words)
            command.require_arity(words)
            if self.caller is None and name not in _OPEN:
                raise Error("NOAUTH Authentication required.")
            self.last_command = command.name
            if self.transaction is None or name in _RULES:
                return await self._run(Step(command, words))
            if command.run is None and not command.in_transactions:
                raise Error(f"ERR {command.name.upper()} is not possible inside MULTI here")
        except Error:
            if self.transaction is not None and name not in _RULES:
                self.transaction.is_wrong = True
            raise
        self.transaction.steps.append(Step(command, words))
        return QUEUED

    async def _run(self, step: Step) -> Reply:
        if step.command.run_session is not None:
            return await step.command.run_session(self, step.words)
        return (await self.run([step]))[0]

    async def run(self, steps: Sequence[Step], watched: dict[bytes, int] | None = None) -> list[Reply]:
        """Run commands on keys as one transaction; return their replies.

        Raises
        ------
        WatchedError
            If a watched key has changed.
        """
        for step in steps:
            self.require_rights(step.command, step.words)
        return await self.service.executor.run(steps, watched or {}, self.table, self.account)

    def require_read(self) -> None:
        """Refuse a caller who may not read the table."""
        if self.service.asks_for_logins and self.caller is not None:
            require_read(self.caller, self.table_name)

    def require_write(self, table: str) -> None:
        """Refuse a caller who may not write a table."""
        if self.service.asks_for_logins and self.caller is not None:
            require_write(self.caller, table)

    async def log_in(self, user: bytes | None, password: bytes) -> None:
        """Let a user in; without a name the password is a token.

        Raises
        ------
        Error
            If it is wrong.
        """
        self.caller = await self._service_log_in(user, password)

    def log_out(self) -> None:
        """Be nobody again, where clients must log in."""
        self.caller = None if self.service.asks_for_logins else ANYONE

    def require_rights(self, command: Command, words: Words) -> None:
        """Refuse what the caller may not do with the table."""
        if command.writes:
            self.require_write(self.table_name)
        if command.reads(words):
            self.require_read()

    @property
    def user_name(self) -> str:
        """Who has logged in."""
        return self.caller.name if self.service.asks_for_logins and self.caller is not None else "default"

    async def read(self, key: bytes) -> Record:
        """Return what a key holds."""
        require_key(key, self.table.limits)
        return (await self.service.executor.read([key], self.table, self.account))[key]

    async def watch(self, keys: Sequence[bytes]) -> None:
        """Remember the versions of keys."""
        for key in keys:
            require_key(key, self.table.limits)
        new = [key for key in keys if key not in self.watched]
        found = await self.service.executor.read(new, self.table, self.account)
        self.watched |= {key: record.version for key, record in found.items()}

    async def commit(self) -> Reply:
        """Execute the transaction; return the replies of its commands."""
        transaction, self.transaction = self.transaction, None
        watched, self.watched = self.watched, {}
        if transaction is None:
            raise Error("ERR EXEC without MULTI")
        if transaction.is_wrong:
            raise Error("EXECABORT Transaction discarded because of previous errors.")
        keyed = [step for step in transaction.steps if step.command.run is not None]
        try:
            replies = iter(await self.run(keyed, watched) if keyed or watched else ())
        except WatchedError:
            return NULL_ARRAY
        except (Error, GpkvsError) as error:
            text = str(error if isinstance(error, Error) else _error_of(error))
            raise Error("EXECABORT Transaction discarded because of: " + text) from error
        return [
            next(replies) if step.command.run is not None else await self._other(step) for step in transaction.steps
        ]

    async def _other(self, step: Step) -> Reply:
        try:
            return await self._run(step)
        except Error as error:
            return error

    def discard(self) -> Reply:
        """Forget the transaction and what was watched."""
        self.transaction = None
        self.watched = {}
        return OK


def _error_of(error: GpkvsError) -> Error:
    """Return how Redis would say it."""
    text = " ".join(str(error).splitlines())
    match error:
        case NotServingError():
            return Error(f"LOADING {text}" if "recovering" in text else f"ERR {text}")
        case NoSpaceError():
            return Error(f"OOM {text}")
        case LoginError():
            return Error("WRONGPASS invalid username-password pair or user is disabled.")
        case RightsError():
            return Error(f"NOPERM {text}")
        case InvalidArgumentError():
            return Error(f"ERR {text}")
    return Error(f"ERR {text}")
