"""The table of commands: how many words each has, which of them are keys, and what it does."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, NamedTuple

from gpkvs.server.redis.execution.overlay import Overlay
from gpkvs.server.redis.protocol.reply import SHOWN_BYTES_MAX, Error, Reply, Simple, shown

if TYPE_CHECKING:
    from gpkvs.server.redis.sessions.session import Session

Words = Sequence[bytes]
OverKeys = Callable[[Overlay, Words], Reply]
OfSession = Callable[["Session", Words], Awaitable[Reply]]


@dataclass(frozen=True)
class Keys:
    """Which words are keys, as COMMAND tells it.

    Attributes
    ----------
    first, last, step
        Words: the first key, the last one (negative: from the end), and from one to the next.
    """

    first: int = 0
    last: int = 0
    step: int = 0

    @property
    def exist(self) -> bool:
        """Whether the command has any."""
        return self.first > 0

    def of(self, words: Words) -> list[bytes]:
        """Return the keys of a command with the right number of words."""
        if not self.first:
            return []
        last = self.last if self.last > 0 else len(words) + self.last
        return list(words[self.first : last + 1 : self.step])


NO_KEYS, ONE_KEY, TWO_KEYS, ALL_KEYS, PAIRS = Keys(), Keys(1, 1, 1), Keys(1, 2, 1), Keys(1, -1, 1), Keys(1, -1, 2)


@dataclass(frozen=True)
class Command:
    """One command.

    Attributes
    ----------
    name
        In small letters.
    arity
        How many words it has, its name among them; negative: at least so many.
    keys
        Which of them are keys.
    writes
        Whether it may change keys.
    run
        What it does with the overlay of its keys; None: it does something else.
    run_session
        What it does with a session. If it has `run`, too, that is what it does between MULTI and EXEC.
    in_transactions
        Whether it may be queued between MULTI and EXEC though it has no overlay.
    subcommands
        How many words those have that its second word may name, counted like `arity`; empty: it has none.
    may_be_long
        Whether it may have many words, or long ones; those over keys always may.
    """

    name: str
    arity: int
    keys: Keys
    writes: bool
    run: OverKeys | None = None
    run_session: OfSession | None = None
    in_transactions: bool = False
    subcommands: Mapping[str, int] = field(default_factory=dict)
    may_be_long: bool = False

    def reads(self, words: Words) -> bool:
        """Return whether it tells what keys hold."""
        if self.name == "set":
            return not {word.upper() for word in words[3:]}.isdisjoint((b"NX", b"XX", b"GET"))
        return self.name not in _ONLY_WRITING

    def full_name(self, words: Words) -> str:
        """Return its name with that of its subcommand, if it has any: `client|list`."""
        name = _shown(words[1]).lower() if len(words) > 1 else ""
        return f"{self.name}|{name}" if name in self.subcommands else self.name

    def names(self) -> list[bytes]:
        """Return its name, and those of its subcommands behind it."""
        return [self.name.encode(), *(f"{self.name}|{name}".encode() for name in self.subcommands)]

    def help_for(self, words: Words) -> Reply:
        """Return what HELP of a command with subcommands replies; None if these words do not ask for it."""
        if _HELP not in self.subcommands or len(words) != _HELP_WORDS or _shown(words[-1]).lower() != _HELP:
            return None
        head = f"{self.name.upper()} <subcommand> [<arg> [value] [opt] ...]. Subcommands are:"
        return [Simple(line) for line in (head, *(name.upper() for name in self.subcommands))]

    def fits(self, words: Words) -> bool:
        """Return whether it has so many words, and such a subcommand."""
        try:
            self.require_arity(words)
        except Error:
            return False
        return True

    def require_arity(self, words: Words) -> None:
        """Refuse a wrong number of words, or a subcommand that there is not.

        Raises
        ------
        Error
            Naming the command.
        """
        if not _fits(words, self.arity):
            raise wrong_number(self.name)
        if self.subcommands and len(words) > 1:
            arity = self.subcommands.get(_shown(words[1]).lower())
            if arity is None:
                raise Error(f"ERR unknown subcommand '{_shown(words[1])}'. Try {self.name.upper()} HELP.")
            if not _fits(words, arity):
                raise wrong_number(self.full_name(words))

    def require_short(self, words: Words) -> None:
        """Refuse more words, or longer ones, than a command looks at that is on no keys.

        Raises
        ------
        Error
            Naming the command and the limit.
        """
        if self.run is not None or self.may_be_long:
            return
        if len(words) > _WORDS_MAX:
            raise Error(f"ERR {self.name.upper()} with {len(words):,} words, allowed are {_WORDS_MAX:,}")
        size = sum(map(len, words))
        if size > _WORDS_BYTES_MAX:
            raise Error(f"ERR {self.name.upper()} with words of {size:,} bytes, allowed are {_WORDS_BYTES_MAX:,}")


class Step(NamedTuple):
    """A command with its words; their number is right."""

    command: Command
    words: Words


# They tell nothing of what was there; DEL tells whether it was.
_ONLY_WRITING = frozenset(("setex", "psetex", "mset"))

_HELP, _HELP_WORDS = "help", 2

# Of commands that are on no keys: the loop looks at all their words at once, and nobody else is served meanwhile.
_WORDS_MAX, _WORDS_BYTES_MAX = 1024, 64 << 10

COMMANDS: dict[bytes, Command] = {}
"""All of them, by their names in small letters."""


def over_keys(name: str, arity: int, keys: Keys = ONE_KEY, *, writes: bool = False) -> Callable[[OverKeys], OverKeys]:
    """Register a function as a command that reads and writes the keys which it names."""

    def register(run: OverKeys) -> OverKeys:
        COMMANDS[name.encode()] = Command(name, arity, keys, writes, run=run)
        return run

    return register


def of_session(
    name: str,
    arity: int,
    *,
    writes: bool = False,
    in_transactions: bool = False,
    subcommands: Mapping[str, int] | None = None,
    may_be_long: bool = False,
) -> Callable[[OfSession], OfSession]:
    """Register a coroutine as a command that does something else; one with subcommands has HELP, too."""

    def register(run: OfSession) -> OfSession:
        named = {**subcommands, _HELP: _HELP_WORDS} if subcommands else {}
        COMMANDS[name.encode()] = Command(name, arity, NO_KEYS, writes, None, run, in_transactions, named, may_be_long)
        return run

    return register


def outside_transactions(name: str) -> Callable[[OfSession], OfSession]:
    """Register a coroutine as what a command over keys does outside of MULTI."""

    def register(run: OfSession) -> OfSession:
        COMMANDS[name.encode()] = replace(COMMANDS[name.encode()], run_session=run)
        return run

    return register


def wrong_number(name: str) -> Error:
    """Return what a wrong number of words is answered with."""
    return Error(f"ERR wrong number of arguments for '{name}' command")


def _fits(words: Words, arity: int) -> bool:
    return len(words) == arity if arity > 0 else len(words) >= -arity


def unknown_command(words: Words) -> Error:
    """Return what a command is answered with that there is not."""
    if words[0].lower() == b"publish":
        return Error(
            f"ERR unknown command '{_shown(words[0])}': clients send each other nothing; SUBSCRIBE tells of keys that "
            "change"
        )
    arguments = ""
    for word in words[1:]:
        if len(arguments) >= SHOWN_BYTES_MAX:
            break
        arguments += f"'{_shown(word)[: SHOWN_BYTES_MAX - len(arguments)]}' "
    return Error(f"ERR unknown command '{_shown(words[0])}', with args beginning with: {arguments}")


def _shown(word: bytes) -> str:
    """Return the beginning of a word as that of a string of C, which ends at a zero byte."""
    return shown(word.partition(b"\0")[0])
