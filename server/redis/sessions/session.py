"""One connection's session: what it has said of itself, its table, and its transaction."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import count
from typing import TYPE_CHECKING

from gpkvs.errors import GpkvsError, InvalidArgumentError, NoSpaceError, UnknownTableError
from gpkvs.media.layout import BYTES_LAYOUT
from gpkvs.server.access.caller import ANYONE, Caller, LoginError
from gpkvs.server.access.rights import (
    RightsError,
    require_all_tables,
    require_any,
    require_read,
    require_read_everywhere,
    require_write,
    require_write_everywhere,
)
from gpkvs.server.account.memory import Account, Room
from gpkvs.server.calls.status import log_failure
from gpkvs.server.gate import NotServingError
from gpkvs.server.redis.execution.command import COMMANDS, Command, Step, Words, unknown_command
from gpkvs.server.redis.execution.executor import WatchedError
from gpkvs.server.redis.execution.overlay import Record, require_key
from gpkvs.server.redis.protocol.own_error import own_error, request_id_now
from gpkvs.server.redis.protocol.reply import NULL_ARRAY, OK, QUEUED, Error, Reply, held_bytes
from gpkvs.server.redis.sessions.subscriptions import Subscriptions
from gpkvs.store import OpenTable

if TYPE_CHECKING:
    from gpkvs.server.redis.service import Service

DEFAULT_TABLE = "default"

_NUMBER_MAX = (1 << 63) - 1  # that SELECT takes


def name_of_table(number: int) -> str:
    """Return the name of the table that is a database.

    Raises
    ------
    Error
        If no database has that number.
    """
    if number < 0:
        raise Error("ERR DB index is out of range")
    return str(number) if number else DEFAULT_TABLE


def number_of_table(name: str) -> int | None:
    """Return which database a table is by its name; None: none."""
    number = 0 if name == DEFAULT_TABLE else int(name) if name.isdecimal() else -1
    return number if 0 <= number <= _NUMBER_MAX and name_of_table(number) == name else None


def databases_of(tables: Iterable[OpenTable]) -> dict[int, OpenTable]:
    """Return the tables that are databases, by number: those whose keys and values are bytes, with such a name."""
    found: dict[int, OpenTable] = {}
    for table in tables:
        number = number_of_table(table.name)
        if number is not None and is_database(table):
            found[number] = table
    return found


def is_database(table: OpenTable) -> bool:
    """Return whether a table can be one: its keys and values are bytes."""
    return table.layout == BYTES_LAYOUT.name


LogIn = Callable[[bytes | None, bytes], Awaitable[Caller]]
ByCertificate = Callable[[], Caller | None]

_numbers = count(1)

# What a word takes beside its bytes, about, and what a command does that is queued, with the error that it may reply.
_WORD_BYTES, _QUEUED_BYTES = 64, 1024

# These a client may call before it has logged in.
_OPEN = frozenset((b"auth", b"hello", b"quit", b"reset"))
# These are not queued.
_RULES = frozenset((b"exec", b"discard", b"multi", b"watch", b"quit", b"reset"))
# These alone a client of RESP2 may call that has subscribed: it would take a message for a reply.
_SUBSCRIBED = frozenset((b"subscribe", b"psubscribe", b"unsubscribe", b"punsubscribe", b"ping", b"quit", b"reset"))
# These would cut the reply of EXEC.
_NOT_INSIDE = frozenset(("client|reply",))


@dataclass
class Transaction:
    """The commands between MULTI and EXEC.

    Attributes
    ----------
    steps
        In their order.
    is_wrong
        Whether a command could not be queued: then nothing is executed.
    message_bytes
        Of the commands, as the door hands them on.
    """

    steps: list[Step] = field(default_factory=list)
    is_wrong: bool = False
    message_bytes: int = 0


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
    by_certificate
        Returns whom the client's certificate names, if that is a user.
    """

    def __init__(
        self, service: Service, peer: str, account: Account, log_in: LogIn, by_certificate: ByCertificate
    ) -> None:
        self.service = service
        self.peer = peer
        self.account = account
        self.room = Room(account)  # of the commands that it executes now
        self._service_log_in = log_in
        self._by_certificate = by_certificate
        self.caller: Caller | None
        self.log_out()
        self.id = next(_numbers)
        self.began = time.monotonic()
        self.last_command = ""
        self.library: dict[str, bytes] = {}
        self.is_over = False  # the connection ends behind the reply
        self.hang_up: Callable[[], None] = lambda: None  # no command comes any more
        self.subscriptions = Subscriptions()
        self._subscribed_bytes = 0
        self._held_bytes = 0  # of the transaction, and of what is watched
        self._skipped = 0  # replies that are not sent, that of this command among them
        self.clear()

    def clear(self) -> None:
        """Be as at the beginning; whoever has logged in stays so."""
        self.number = 0  # of the database
        self.protocol = 2
        self.name = b""
        self._is_off = False  # no replies are sent
        self.forget_transaction()
        if self.subscriptions:
            self.unsubscribe(self.subscriptions.without([*self.subscriptions.channels], [*self.subscriptions.patterns]))

    def forget_transaction(self) -> None:
        """Forget the transaction and what was watched."""
        self.transaction: Transaction | None = None
        self.watched: dict[bytes, int] = {}
        self.account.connection.change("calls", -self._held_bytes)
        self._held_bytes = 0

    def close(self) -> None:
        """Hold nothing any more: the connection has ended."""
        self.forget_transaction()
        self._keep_subscriptions(Subscriptions())
        self.service.leave_key_events(self)
        self.room.keep(0)

    def end(self) -> None:
        """End the connection, behind the reply to a command that is executed now."""
        self.is_over = True
        self.hang_up()

    @property
    def is_only_told(self) -> bool:
        """Whether the client may do nothing but subscribe: it speaks RESP2, and has subscribed."""
        return self.protocol == 2 and bool(self.subscriptions)

    async def subscribe(self, more: Subscriptions) -> None:
        """Have the client told of these from the reply on.

        Raises
        ------
        NoSpaceError
            If there is no room for them.
        GpkvsError
            If nobody can follow the store.
        """
        self.account.require_room(more.held_bytes - self._subscribed_bytes)
        await self.service.join_key_events(self)
        self._keep_subscriptions(more)

    def unsubscribe(self, fewer: Subscriptions) -> None:
        """Have the client told of no more than these from the reply on."""
        self._keep_subscriptions(fewer)
        if not fewer:
            self.service.leave_key_events(self)

    def _keep_subscriptions(self, subscriptions: Subscriptions) -> None:
        self.account.connection.change("calls", subscriptions.held_bytes - self._subscribed_bytes)
        self._subscribed_bytes = subscriptions.held_bytes
        self.subscriptions = subscriptions

    def require_told(self, database: int | None) -> None:
        """Refuse a caller who may not be told of the keys of a database; None: of all of them."""
        if database is not None:
            self.require_read(name_of_table(database))
        elif self.service.asks_for_logins and self.caller is not None:
            require_read_everywhere(self.caller)

    def may_be_told(self) -> bool:
        """Return whether the caller may still be told of all to which it has subscribed, and note that it may not."""
        try:
            if self.caller is None:
                raise self._why_out()
            for database in self.subscriptions.databases:
                self.require_told(database)
        except (LoginError, RightsError) as error:
            self._note(error)
            return False
        return True

    def _hold(self, size: int) -> None:
        """Count what is kept for EXEC.

        Raises
        ------
        NoSpaceError
            If there is no room for it.
        """
        self.account.require_room(size)
        self._count_held(size)

    def _count_held(self, size: int) -> None:
        self.account.connection.change("calls", size)
        self._held_bytes += size

    @property
    def table_name(self) -> str:
        """The table of the database."""
        return name_of_table(self.number)

    @property
    def table(self) -> OpenTable:
        """The table of the database; raises Error if there is none."""
        return self.table_named(self.table_name)

    def table_named(self, name: str) -> OpenTable:
        """Return the table of a database.

        Raises
        ------
        Error
            If there is none.
        """
        try:
            table = self.service.executor.table(name)
        except UnknownTableError:
            raise Error("ERR DB index is out of range") from None
        if not is_database(table):
            raise Error(f"ERR DB index is out of range: the table '{name}' has the layout {table.layout}")
        return table

    @property
    def is_logged_in(self) -> bool:
        """Whether the client has logged in, if it must, and its login still counts."""
        return self.caller is not None and not self.caller.is_gone

    def _why_out(self) -> LoginError:
        """Return why the client must log in."""
        caller = self.caller
        return LoginError("", "removed", caller.name, caller.method) if caller else LoginError("", "missing")

    @property
    def is_silent(self) -> bool:
        """Whether the reply to the command is not sent."""
        return self._is_off or self._skipped > 0

    def send_replies(self) -> None:
        """Send the replies from this one on."""
        self._is_off, self._skipped = False, 0

    def send_no_replies(self) -> None:
        """Send no replies from this one on."""
        self._is_off = True

    def skip_reply(self) -> None:
        """Send neither this reply nor the next one."""
        self._skipped = 0 if self._is_off else 2

    def pass_command(self) -> None:
        """Note that the next command comes."""
        self._skipped = max(self._skipped - 1, 0)

    @property
    def hands_all(self) -> bool:
        """Whether no command may be answered but here."""
        holds = self.transaction is not None or bool(self.watched) or self.is_only_told
        return not self.is_logged_in or holds or self._skipped > 0

    def state(self) -> tuple[int | None, int, bool, bool]:
        """Return the parameters of `Connected.set_session`; without a table there is no id."""
        try:
            table_id: int | None = self.table.id
        except (Error, GpkvsError):
            table_id = None
        return table_id, self.protocol, self.hands_all, self.is_silent

    def told_by(self) -> tuple[int, int]:
        """Return another value when the door must hear of the subscriptions again."""
        return self.subscriptions.version, self.protocol if self.subscriptions else 0

    async def execute_joint(self, commands: Sequence[Words]) -> list[Reply] | None:
        """Run commands on keys as one transaction; return their replies. None if each is to be run by itself."""
        steps = self._joint_steps(commands)
        if not steps:
            return None
        try:
            replies = await self.run(steps)
        except (Error, InvalidArgumentError, RightsError, NoSpaceError):
            return None  # nothing was stored; one of them may be wrong, or all of them too much
        except GpkvsError as error:
            replies = [_error_of(error)] * len(steps)
        self.last_command = steps[-1].command.name
        return replies

    def _joint_steps(self, commands: Sequence[Words]) -> list[Step]:
        """Return what to run as one; nothing, if a command is wrong, or may not run now, or is not on keys alone."""
        if not self.is_logged_in or self.transaction is not None or self.is_only_told:
            return []
        steps = []
        for words in commands:
            command = COMMANDS.get(words[0].lower())
            if command is None or command.run is None or command.run_session is not None:
                return []
            try:
                command.require_arity(words)
            except Error:
                return []
            steps.append(Step(command, words))
        return steps

    async def execute(self, words: Words) -> Reply:
        """Run a command; return its reply, or what is wrong."""
        try:
            return await self._execute(words)
        except Error as error:
            self._note(error.__cause__)
            return error
        except GpkvsError as error:
            self._note(error)
            return _error_of(error)

    def refuse(self, error: GpkvsError) -> Error:
        """Return the reply to a command that cannot be looked at; a transaction without it must not be executed."""
        if self.transaction is not None:
            self.transaction.is_wrong = True
        return _error_of(error)

    def _note(self, error: BaseException | None) -> None:
        """Note who was refused."""
        if isinstance(error, LoginError | RightsError):
            self.service.note_refusal(error, self.peer, self.last_command)

    async def _execute(self, words: Words) -> Reply:
        name = words[0].lower()
        command = COMMANDS.get(name)
        is_whole = False  # it is a command, with as many words as it takes
        try:
            if command is None:
                raise unknown_command(words)
            if name == b"exec" and len(words) > 1:
                self.discard()
                raise Error("EXECABORT Transaction discarded because of: wrong number of arguments for 'exec' command")
            command.require_arity(words)
            command.require_short(words)
            is_whole = True
            self.last_command = command.full_name(words)
            if not self.is_logged_in and name not in _OPEN:
                raise Error("NOAUTH Authentication required.") from self._why_out()
            if self.is_only_told and name not in _SUBSCRIBED:
                raise Error(
                    f"ERR Can't execute '{self.last_command}': only (P|S)SUBSCRIBE / (P|S)UNSUBSCRIBE / PING / QUIT / "
                    "RESET are allowed in this context"
                )
            if self.transaction is None or name in _RULES:
                return await self._run(Step(command, words))
            if command.run is None and (not command.in_transactions or self.last_command in _NOT_INSIDE):
                raise Error(f"ERR {self.last_command.upper().replace('|', ' ')} is not possible inside MULTI here")
            self._queue(self.transaction, Step(command, words))
        except (Error, GpkvsError):
            if self.transaction is not None and not (is_whole and name in _RULES):
                self.transaction.is_wrong = True
            raise
        return QUEUED

    def _queue(self, transaction: Transaction, step: Step) -> None:
        """Keep a command until EXEC, if there is room for it."""
        if transaction.is_wrong:
            return
        transaction.message_bytes += message_bytes(step.words)
        most = self.service.gate.serving().message_bytes_max
        if transaction.message_bytes > most:
            raise Error(f"ERR a transaction of more than {most:,} bytes (message_bytes_max): split it")
        self._hold(_QUEUED_BYTES + _held_bytes(step.words))
        transaction.steps.append(step)

    async def _run(self, step: Step) -> Reply:
        if step.command.run_session is not None:
            reply = step.command.help_for(step.words) or await step.command.run_session(self, step.words)
            if step.command.name != "exec":  # what is in its reply is counted
                self.room.take(held_bytes(reply))
            return reply
        self.require_rights(step.command, step.words)
        return await self.service.executor.run_lone(step, self.table, self.room)

    async def run(self, steps: Sequence[Step], watched: dict[bytes, int] | None = None) -> list[Reply]:
        """Run commands on keys as one transaction; return their replies.

        Raises
        ------
        WatchedError
            If a watched key has changed.
        """
        for step in steps:
            self.require_rights(step.command, step.words)
        return await self.service.executor.run(steps, watched or {}, self.table, self.room)

    def require_read(self, table: str = "") -> None:
        """Refuse a caller who may not read a table; by default, that of the session."""
        if self.service.asks_for_logins and self.caller is not None:
            require_read(self.caller, table or self.table_name)

    def require_any(self) -> None:
        """Refuse a caller who may neither read nor write the table, whether there is one or not."""
        if self.service.asks_for_logins and self.caller is not None:
            require_any(self.caller, self.table_name)

    def require_write(self, table: str) -> None:
        """Refuse a caller who may not write a table."""
        if self.service.asks_for_logins and self.caller is not None:
            require_write(self.caller, table)

    def require_write_everywhere(self) -> None:
        """Refuse a caller who may not write all tables, whichever there are."""
        if self.service.asks_for_logins and self.caller is not None:
            require_write_everywhere(self.caller)

    def require_administrator(self) -> None:
        """Refuse a caller who is no administrator of the server.

        Raises
        ------
        Error
            Which does not end a transaction in its middle.
        """
        if self.service.asks_for_logins and self.caller is not None:
            try:
                require_all_tables(self.caller)
            except GpkvsError as error:
                raise _error_of(error) from error

    async def log_in(self, user: bytes | None, password: bytes) -> None:
        """Let a user in; without a name the password is a token.

        Where nobody must log in, any password is right for the user ``default``, and there is no other.

        Raises
        ------
        Error, LoginError
            If it is wrong.
        """
        if not self.service.asks_for_logins:
            if user != b"default":
                raise _wrong_password()
            return
        caller = await self._service_log_in(user, password)
        if caller.method == "token" and user not in (None, b"default", caller.name.encode()):
            raise _wrong_password() from LoginError("", "wrong", caller.name, "token")  # it is another user's
        self.caller = caller

    def log_out(self) -> None:
        """Be whom the certificate names again, or nobody, where clients must log in."""
        self.caller = self._by_certificate() if self.service.asks_for_logins else ANYONE

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

    def may_see(self, other: Session) -> bool:
        """Return whether the caller is told of another session: of those of the same user, or as an administrator."""
        caller = self.caller
        return caller is not None and (caller.rights.admin_everywhere or other.user_name == self.user_name)

    def may_read(self, table: str) -> bool:
        """Return whether the caller may read a table."""
        return self.caller is not None and self.caller.rights.may_read(table)

    async def read(self, key: bytes) -> Record:
        """Return what a key holds."""
        require_key(key, self.table.limits)
        return (await self.service.executor.read([key], self.table, self.room))[key]

    async def watch(self, keys: Sequence[bytes]) -> None:
        """Remember the versions of keys."""
        self.require_read()
        for key in keys:
            require_key(key, self.table.limits)
        new = [key for key in dict.fromkeys(keys) if key not in self.watched]
        found = await self.service.executor.read(new, self.table, self.room)
        self._hold(_held_bytes(new))
        self.watched |= {key: record.version for key, record in found.items()}

    def take_watched(self, watched: Mapping[bytes, int]) -> None:
        """Watch keys with the versions that the door has seen: it counted them, and has given that back."""
        self._count_held(_held_bytes(list(watched)))
        self.watched |= {key: version for key, version in watched.items() if key not in self.watched}

    async def commit(self) -> Reply:
        """Execute the transaction; return the replies of its commands."""
        transaction, watched = self.transaction, self.watched
        if transaction is None:
            raise Error("ERR EXEC without MULTI")
        self.transaction, self.watched = None, {}
        try:
            return await self._commit(transaction, watched)
        finally:
            self.forget_transaction()

    async def _commit(self, transaction: Transaction, watched: dict[bytes, int]) -> Reply:
        if transaction.is_wrong:
            raise Error("EXECABORT Transaction discarded because of previous errors.")
        keyed = [step for step in transaction.steps if step.command.run is not None]
        try:
            if watched:  # whether one has changed tells something
                self.require_read()
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
        """Run a command that is on no keys; others have their turn before."""
        await asyncio.sleep(0)
        try:
            return await self._run(step)
        except Error as error:
            return error
        except GpkvsError as error:  # the transaction is stored
            return _error_of(error)

    def discard(self) -> Reply:
        """Forget the transaction and what was watched."""
        self.forget_transaction()
        return OK


def _wrong_password() -> Error:
    return Error("WRONGPASS invalid username-password pair or user is disabled.")


def _held_bytes(words: Words) -> int:
    return sum(map(len, words)) + _WORD_BYTES * len(words)


def message_bytes(words: Words) -> int:
    """Return how long a command is as the door hands it on."""
    return 4 + sum(4 + len(word) for word in words)


def _error_of(error: GpkvsError) -> Error:
    """Return how Redis would say it; the log names what is no refusal."""
    text = str(error)
    match error:
        case NotServingError():
            return own_error("LOADING" if "recovering" in text else "ERR", text)
        case NoSpaceError():
            return own_error("OOM", text)
        case LoginError(reason="wrong" | "malformed"):
            return _wrong_password()
        case LoginError():
            return own_error("WRONGPASS", text)
        case RightsError():
            return own_error("NOPERM", text)
    log_failure(error, request_id_now())
    return own_error("ERR", text)
