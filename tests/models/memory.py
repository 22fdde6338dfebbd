"""Persistent memory of words, as the models of the persist order see it, and actors that a crash ends at any store."""

from __future__ import annotations

import zlib
from collections.abc import Callable, Generator, Iterator
from random import Random
from typing import Any, TypeAlias

Until: TypeAlias = Callable[[], bool]
# What an actor does: at each `yield` others may run; it gives another actor, what it waits for, or nothing.
Steps: TypeAlias = Generator[Any, None, None]
Address: TypeAlias = tuple[Any, ...]


_PACES = (1.0, 0.02)  # how often an actor takes its turn


class CrashError(Exception):
    """The machine is off."""


class RefusedError(Exception):
    """Recovery refuses the store."""


class WrongError(Exception):
    """A promise is broken."""


def digest(*words: object) -> int:
    """Return a checksum."""
    return zlib.crc32(repr(words).encode())


class Memory:
    """Words. A store is durable when its actor has fenced after it; a crash keeps any part of the others."""

    def __init__(self, random: Random) -> None:
        self.random = random
        self.media: dict[Address, Any] = {}  # what is durable
        self.view: dict[Address, Any] = {}  # what programs see
        self.pending: list[tuple[str, Address, Any]] = []
        self.fuel = -1  # stores and fences until the crash; below 0: none comes

    def _step(self) -> None:
        if self.fuel == 0:
            raise CrashError
        self.fuel -= 1

    def store(self, actor: str, at: Address, word: object) -> None:
        """Store a word; it is not durable yet."""
        self._step()
        self.pending.append((actor, at, word))
        self.view[at] = word

    def fence(self, actor: str) -> None:
        """Make what an actor has stored durable."""
        self._step()
        last = {at: number for number, (who, at, _) in enumerate(self.pending) if who == actor}
        for at, number in last.items():
            self.media[at] = self.pending[number][2]
        # What was stored before to the same words cannot come later.
        self.pending = [
            store for number, store in enumerate(self.pending) if store[0] != actor and number > last.get(store[1], -1)
        ]

    def load(self, at: Address) -> Any:
        """Return a word as programs see it; None: never stored."""
        return self.view.get(at)

    def crash(self) -> None:
        """Lose some of what is not durable, word by word."""
        kept = self.random.choice((0.0, 0.5, 0.5, 1.0))
        for _, at, word in self.pending:
            if self.random.random() < kept:
                self.media[at] = word
        self.pending = []
        self.view = dict(self.media)

    def store_structure(self, actor: str, at: Address, words: tuple[Any, ...]) -> Iterator[None]:
        """Store words and their checksum, in any order."""
        numbered = [*enumerate(words), (len(words), digest(at, *words))]
        self.random.shuffle(numbered)
        for number, word in numbered:
            self.store(actor, (*at, number), word)
            yield

    def load_structure(self, at: Address, count: int) -> tuple[Any, ...] | None:
        """Return the words of a structure, or None if it is damaged."""
        words = tuple(self.view.get((*at, number)) for number in range(count))
        return words if self.view.get((*at, count)) == digest(at, *words) else None


def run_actors(random: Random, first: Steps, between: Callable[[], None] | None = None) -> None:
    """Run actors, one step of any of them at a time, until all have ended. Some are slow."""
    actors: list[tuple[Steps, Until | None]] = [(first, None)]
    paces = [1.0]
    while actors:
        at = random.randrange(len(actors))
        if random.random() > paces[at]:
            at = random.randrange(len(actors))
        if (until := actors[at][1]) and not until():
            ready = [n for n, (_, until) in enumerate(actors) if until is None or until()]
            if not ready:
                raise WrongError("stuck: everybody waits")
            at = random.choice(ready)
        if between:
            between()
        steps = actors[at][0]
        try:
            given = next(steps)
        except StopIteration:
            actors.pop(at)
            paces.pop(at)
            continue
        is_actor = isinstance(given, Generator)
        actors[at] = steps, None if is_actor else given
        if is_actor:
            actors.append((given, None))
            paces.append(random.choice(_PACES))


def finish(steps: Steps) -> None:
    """Do all steps of an actor that nobody runs beside."""
    for _ in steps:
        pass
