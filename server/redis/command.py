"""The table of commands: how many words each has, which of them are keys, and what it does."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from gpkvs.server.redis.overlay import Overlay
from gpkvs.server.redis.reply import Error, Reply

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
        What it does with a session.
    in_transactions
        Whether it may be queued between MULTI and EXEC though it has no overlay.
    """

    name: str
    arity: int
    keys: Keys
    writes: bool
    run: OverKeys | None = None
    run_session: OfSession | None = None
    in_transactions: bool = False

    def reads(self, words: Words) -> bool:
        """Return whether it tells what keys hold."""
        if self.name == "set":
            return not {word.upper() for word in words[3:]}.isdisjoint((b"NX", b"XX", b"GET"))
        return self.name not in _ONLY_WRITING

    def require_arity(self, words: Words) -> None:
        """Refuse a wrong number of words.

        Raises
        ------
        Error
            Naming the command.
        """
        if len(words) != self.arity if self.arity > 0 else len(words) < -self.arity:
            raise wrong_number(self.name)


# They tell nothing of what was there; DEL tells whether it was.
_ONLY_WRITING = frozenset(("setex", "psetex", "mset"))

COMMANDS: dict[bytes, Command] = {}
"""All of them, by their names in small letters."""


def over_keys(name: str, arity: int, keys: Keys = ONE_KEY, *, writes: bool = False) -> Callable[[OverKeys], OverKeys]:
    """Register a function as a command that reads and writes the keys which it names."""

    def register(run: OverKeys) -> OverKeys:
        COMMANDS[name.encode()] = Command(name, arity, keys, writes, run=run)
        return run

    return register


def of_session(
    name: str, arity: int, *, writes: bool = False, in_transactions: bool = False
) -> Callable[[OfSession], OfSession]:
    """Register a coroutine as a command that does something else."""

    def register(run: OfSession) -> OfSession:
        COMMANDS[name.encode()] = Command(name, arity, NO_KEYS, writes, None, run, in_transactions)
        return run

    return register


def wrong_number(name: str) -> Error:
    """Return what a wrong number of words is answered with."""
    return Error(f"ERR wrong number of arguments for '{name}' command")


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
