"""The table of commands: how many words each has, which of them are keys, and what it does."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, NamedTuple

from gpkvs.server.redis.overlay import Overlay
from gpkvs.server.redis.reply import Error, Reply, Simple

if TYPE_CHECKING:
    from gpkvs.server.redis.session import Session

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
    """

    name: str
    arity: int
    keys: Keys
    writes: bool
    run: OverKeys | None = None
    run_session: OfSession | None = None
    in_transactions: bool = False
    subcommands: Mapping[str, int] = field(default_factory=dict)

    def reads(self, words: Words) -> bool:
        """Return whether it tells what keys hold."""
        if self.name == "set":
            return not {word.upper() for word in words[3:]}.isdisjoint((b"NX", b"XX", b"GET"))
        return self.name not in _ONLY_WRITING

    def full_name(self, words: Words) -> str:
        """Return its name with that of its subcommand, if it has any: `client|list`."""
        name = _text(words[1]).lower() if len(words) > 1 else ""
        return f"{self.name}|{name}" if name in self.subcommands else self.name

    def names(self) -> list[bytes]:
        """Return its name, and those of its subcommands behind it."""
        return [self.name.encode(), *(f"{self.name}|{name}".encode() for name in self.subcommands)]

    def help_for(self, words: Words) -> Reply:
        """Return what HELP of a command with subcommands replies; None if these words do not ask for it."""
        if _HELP not in self.subcommands or _text(words[-1]).lower() != _HELP or len(words) != _HELP_WORDS:
            return None
        head = f"{self.name.upper()} <subcommand> [<arg> [value] [opt] ...]. Subcommands are:"
        return [Simple(line) for line in (head, *(name.upper() for name in self.subcommands))]

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
            arity = self.subcommands.get(_text(words[1]).lower())
            if arity is None:
                shown = _text(words[1])[:_SHOWN_BYTES_MAX]
                raise Error(f"ERR unknown subcommand '{shown}'. Try {self.name.upper()} HELP.")
            if not _fits(words, arity):
                raise wrong_number(self.full_name(words))


class Step(NamedTuple):
    """A command with its words; their number is right."""

    command: Command
    words: Words


# They tell nothing of what was there; DEL tells whether it was.
_ONLY_WRITING = frozenset(("setex", "psetex", "mset"))

_HELP, _HELP_WORDS = "help", 2

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
) -> Callable[[OfSession], OfSession]:
    """Register a coroutine as a command that does something else; one with subcommands has HELP, too."""

    def register(run: OfSession) -> OfSession:
        named = {**subcommands, _HELP: _HELP_WORDS} if subcommands else {}
        COMMANDS[name.encode()] = Command(name, arity, NO_KEYS, writes, None, run, in_transactions, named)
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


_SHOWN_BYTES_MAX = 128


def unknown_command(words: Words) -> Error:
    """Return what a command is answered with that there is not."""
    shown = ""
    for word in words[1:]:
        if len(shown) >= _SHOWN_BYTES_MAX:
            break
        shown += f"'{_text(word)[: _SHOWN_BYTES_MAX - len(shown)]}' "
    return Error(f"ERR unknown command '{_text(words[0])[:_SHOWN_BYTES_MAX]}', with args beginning with: {shown}")


def _text(word: bytes) -> str:
    """Return a word as a string of C, which ends at a zero byte."""
    return word.partition(b"\0")[0].decode("utf-8", "surrogateescape")
