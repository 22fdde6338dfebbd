"""A client of the Redis protocol with keys of its own: commands, pipelines, transactions."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import grpc

from tests.served.grpc_client import EndedError, GrpcClient
from tests.served.grpc_request import I64_MAX, number_in
from tests.served.model import Held, Key, Model, Moment, State, Within, WrongAnswerError, is_within, now_ms, until
from tests.server.redis.two_servers import Connection, encoded

REPLY_SECONDS_MAX = 240
KEYS_OF_A_CLIENT = 100
VALUE_BYTES_MAX = 50_000
OK, QUEUED = b"+OK\r\n", b"+QUEUED\r\n"


def bulk(value: bytes | None) -> Any:
    """Return a reply as `Connection.reply` does."""
    return None if value is None else ("bulk", value)


def number(value: int) -> bytes:
    """Return the line of a number."""
    return b":%d\r\n" % value


class Refused:
    """Any error."""


@dataclass(frozen=True)
class Command:
    """A command on keys of one table."""

    table: str
    words: tuple[bytes, ...]

    @property
    def keys(self) -> list[Key]:
        """Return the keys that it looks at."""
        match self.words[0]:
            case b"MGET" | b"DEL" | b"EXISTS":
                names = self.words[1:]
            case b"MSET" | b"MSETNX":
                names = self.words[1::2]
            case b"RENAME":
                names = self.words[1:3]
            case _:
                names = self.words[1:2]
        return [(self.table, name) for name in dict.fromkeys(names)]

    def run(self, state: State, at: Moment) -> Any:
        """Change a state as the server does; return the reply."""
        name, *rest = self.words
        where = self.table, rest[0]
        held = state.get(where)
        value = held.value if held else None
        match name, *rest[1:]:
            case (b"GET",):
                return bulk(value)
            case (b"STRLEN",):
                return number(len(value or b""))
            case b"GETRANGE", first, last:
                return bulk((value or b"")[int(first) : int(last) + 1])
            case (b"GETDEL",):
                state.pop(where, None)
                return bulk(value)
            case b"SET", new, *options:
                return self._set(state, at, new, options)
            case b"GETSET", new:
                state[where] = Held(new)
                return bulk(value)
            case b"APPEND", more:
                state[where] = Held((value or b"") + more, held.expiry if held else None)
                return number(len(state[where].value))
            case b"SETRANGE", offset, more:
                if not more:
                    return number(len(value or b""))
                old = (value or b"").ljust(int(offset), b"\0")
                state[where] = Held(
                    old[: int(offset)] + more + old[int(offset) + len(more) :], held.expiry if held else None
                )
                return number(len(state[where].value))
            case b"INCRBY", by:
                old_number = number_in(value, binary=False) if held else 0
                if old_number is None or not -I64_MAX - 1 <= old_number + int(by) <= I64_MAX:
                    return Refused()
                state[where] = Held(b"%d" % (old_number + int(by)), held.expiry if held else None)
                return number(old_number + int(by))
            case b"PEXPIRE", ttl:
                if held:
                    state[where] = Held(held.value, until(at, int(ttl)))
                return number(int(bool(held)))
            case (b"PERSIST",):
                if held:
                    state[where] = Held(held.value)
                return number(int(bool(held and held.expiry)))
            case (b"PEXPIRETIME",):
                if not held or not held.expiry:
                    return number(-1 if held else -2)
                return Within(*held.expiry)
        return self._several(state, name, rest)

    def _set(self, state: State, at: Moment, new: bytes, options: list[bytes]) -> Any:
        [where] = self.keys
        held = state.get(where)
        if (held and b"NX" in options) or (not held and b"XX" in options):
            return bulk(held.value if held else None) if b"GET" in options else None
        expiry = until(at, int(options[options.index(b"PX") + 1])) if b"PX" in options else None
        if b"KEEPTTL" in options and held:
            expiry = held.expiry
        state[where] = Held(new, expiry)
        return bulk(held.value if held else None) if b"GET" in options else OK

    def _several(self, state: State, name: bytes, rest: Sequence[bytes]) -> Any:
        keys = [(self.table, word) for word in rest]
        match name:
            case b"MGET":
                return [bulk(state[key].value if key in state else None) for key in keys]
            case b"EXISTS":
                return number(sum(key in state for key in keys))
            case b"DEL":
                return number(sum(state.pop(key, None) is not None for key in keys))
            case b"MSETNX" if any(key in state for key in keys[::2]):
                return number(0)
            case b"MSET" | b"MSETNX":
                state.update({key: Held(value) for key, value in zip(keys[::2], rest[1::2], strict=True)})
                return OK if name == b"MSET" else number(1)
            case b"RENAME":
                if keys[0] not in state:
                    return Refused()
                state[keys[1]] = replace(state.pop(keys[0]), version=None)
                return OK
        raise AssertionError(name)


@dataclass(frozen=True)
class Transaction:
    """Commands between MULTI and EXEC."""

    commands: tuple[Command, ...]
    watched: tuple[bytes, ...] = ()

    @property
    def keys(self) -> list[Key]:
        """Return the keys that it looks at."""
        return list(dict.fromkeys(key for command in self.commands for key in command.keys))

    def run(self, state: State, at: Moment) -> Any:
        """Change a state as the server does; return the replies to the commands."""
        return [command.run(state, at) for command in self.commands]


def fits(expected: Any, got: Any) -> bool:
    """Whether a reply is the one that was expected, but for what nobody could know."""
    if isinstance(expected, list) and isinstance(got, list):
        return len(expected) == len(got) and all(map(fits, expected, got))
    if isinstance(expected, Refused):
        return isinstance(got, bytes) and got.startswith(b"-ERR")
    if isinstance(expected, Within):
        return isinstance(got, bytes) and got[:1] == b":" and is_within(expected, int(got[1:]))
    return bool(expected == got)


class RespClient:
    """A client that knows what must come."""

    def __init__(self, number: int, seed: int, counts: Counter[str]) -> None:
        self.random = random.Random(seed)
        self.counts = counts
        self.prefix = b"\xc3red%d:" % number
        self.table = "default" if number % 2 else "9"
        self.model = Model()
        self.waiting: list[Command | Transaction] = []
        self._since = self._ended = 0

    def connect(self, target: str, address: str) -> None:
        """Begin to speak with a server."""
        self._grpc = GrpcClient(0, 0, self.counts)  # to see all that is there
        self._grpc.connect(target)
        protocol = self.random.choice((b"2", b"3"))
        try:
            self._connection = Connection(int(address.rpartition(":")[2]), seconds=REPLY_SECONDS_MAX)
            self._connection.call(b"HELLO", protocol)
            if self.table != "default":
                self._connection.call(b"SELECT", self.table.encode())
        except (OSError, EOFError) as error:
            raise EndedError from error

    def close(self) -> None:
        """End the connection."""
        self._grpc.close()
        self._connection.__exit__()

    def step(self) -> None:
        """Send some commands at once, and compare what comes of them.

        Raises
        ------
        EndedError
            If the server went away.
        WrongAnswerError
            If what came is wrong.
        """
        count = self.random.choice((1, 1, 3, 20))
        units = [self._transaction() if self.random.random() < 0.2 else self._command() for _ in range(count)]
        self.waiting, self._since = [*units], now_ms()
        try:
            self._connection.send_bytes(b"".join(map(_sent, units)))
            for unit in units:
                self._take(unit)
        except (OSError, EOFError, ValueError) as error:
            if isinstance(error, TimeoutError):
                raise WrongAnswerError(f"no reply to {self.waiting[0]}") from error
            self._ended = now_ms()
            raise EndedError from error

    def settle(self) -> None:
        """Compare all that the server holds after a start with what may be there.

        Raises
        ------
        EndedError
            If the server went away before that was done; what may be there is still known.
        WrongAnswerError
            If something else is there.
        """
        self.model.states = self.model.after(self.waiting, Moment(self._since, self._ended))
        self.waiting.clear()
        begun = now_ms()
        try:
            found = {(self.table, key): held for key, held in self._grpc.held(self.table, self.prefix)}
        except grpc.RpcError as error:
            raise EndedError from error
        self.model.settle(self.model.states, found, Moment(begun, now_ms()))
        self.counts["contents compared"] += 1

    def _take(self, unit: Command | Transaction) -> None:
        if isinstance(unit, Command):
            self.counts[f"RESP {unit.words[0].decode()}"] += 1
            got = self._reply()
        else:
            self.counts["RESP transactions"] += 1
            begins = [self._reply() for _ in range(1 + bool(unit.watched) + len(unit.commands))]
            got = self._reply()
            expected = [*([OK] if unit.watched else []), OK, *[QUEUED] * len(unit.commands)]
            if begins != expected and not _is_full(begins):
                raise WrongAnswerError(f"{unit}: {begins}")
        if _is_full(got):
            self.counts["refused: OOM"] += 1
        elif got == "null array" or (got is None and isinstance(unit, Transaction)):
            self._was_changed(unit)
        else:
            self.model.take(unit, Moment(self._since, now_ms()), got, fits)
        del self.waiting[0]

    def _was_changed(self, unit: Command | Transaction) -> None:
        """Only its own expiries change its keys."""
        held = (
            [self.model.state.get((self.table, key)) for key in unit.watched] if isinstance(unit, Transaction) else []
        )
        if not any(one and one.may_be_gone(Moment(self._since, now_ms())) for one in held):
            raise WrongAnswerError(f"{unit} was not executed: {held}")
        self.counts["RESP watched and expired"] += 1

    def _reply(self) -> Any:
        reply = self._connection.reply()
        if isinstance(reply, bytes) and reply.startswith(b"-ERR the server is stopping"):
            raise EOFError
        return reply

    def _key(self) -> bytes:
        return self.prefix + b"%d" % min(
            self.random.randrange(KEYS_OF_A_CLIENT), self.random.randrange(KEYS_OF_A_CLIENT)
        )

    def _value(self) -> bytes:
        size = self.random.choice((0, 0, 1, 8, 30, 100, 300, 2000, 20_000 if self.random.random() < 0.1 else 5))
        return self.random.choice((b"%d" % self.random.randrange(-99, 99), self.random.randbytes(size)))

    def _transaction(self) -> Transaction:
        commands = tuple(self._command() for _ in range(self.random.randrange(1, 6)))
        return Transaction(commands, (self._key(),) if self.random.random() < 0.3 else ())

    def _command(self) -> Command:
        choice, key = self.random.choice, self._key()
        held = self.model.state.get((self.table, key))
        ttl = b"%d" % choice((self.random.randrange(1, 3000), 10**9))
        options = choice(
            ([], [], [b"NX"], [b"XX"], [b"GET"], [b"KEEPTTL"], [b"PX", ttl], [b"NX", b"PX", ttl], [b"XX", b"GET"])
        )
        more = [self._key() for _ in range(self.random.randrange(3))]
        pairs = [word for one in dict.fromkeys((key, *more)) for word in (one, self._value())]
        words: list[list[bytes]] = [
            *([[b"SET", key, self._value(), *options]] * 5),
            *([[b"GET", key]] * 3),
            [b"STRLEN", key],
            [b"GETRANGE", key, b"0", b"5"],
            [b"GETDEL", key],
            [b"GETSET", key, self._value()],
            [b"SETRANGE", key, b"%d" % self.random.randrange(200), self._value()],
            *([[b"INCRBY", key, b"%d" % choice((1, -1, 7, I64_MAX))]] * 3),
            [b"PEXPIRE", key, ttl],
            [b"PERSIST", key],
            [b"PEXPIRETIME", key],
            [b"MGET", key, *more],
            [b"EXISTS", key, *more],
            [b"DEL", *dict.fromkeys((key, *more))],
            [b"MSET", *pairs],
            [b"MSETNX", *pairs],
        ]
        if not held or len(held.value) < VALUE_BYTES_MAX:
            words += [[b"APPEND", key, choice((b"", self._value()))]] * 3
        if more and more[0] != key:
            words.append([b"RENAME", key, more[0]])
        return Command(self.table, tuple(choice(words)))


def _sent(unit: Command | Transaction) -> bytes:
    if isinstance(unit, Command):
        return encoded(unit.words)
    begin = encoded([b"WATCH", *unit.watched]) if unit.watched else b""
    return (
        begin + encoded([b"MULTI"]) + b"".join(encoded(command.words) for command in unit.commands) + encoded([b"EXEC"])
    )


def _is_full(reply: Any) -> bool:
    replies = reply if isinstance(reply, list) else [reply]
    return any(isinstance(one, bytes) and one.startswith((b"-OOM", b"-EXECABORT")) for one in replies)
