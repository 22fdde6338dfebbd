"""A trace: all changes of a store to its files, in order, and the events that make them durable.

A crash may keep or lose changes, which are of four kinds: a STORE to mapped memory, a WRITE to a file, the SIZE of a
file, and the file that a NAME in the directory leads to. WRITE_BACK and FENCE order stores. RETURN says that a kernel,
or a store of the host, has ended. SYNC, FILE_SYNC and NAMES_SYNC are the system calls that make changes durable. MARK
says that a batch is acknowledged.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from enum import Enum, auto
from random import Random

import numpy as np
from numpy.typing import NDArray

Words = NDArray[np.uint64]

WORD_BYTES = 8
SECTOR_BYTES = 512

_BLOCK_BITS = 20  # TRACE_BLOCK_BITS in kernels/base/trace.cuh

HOST_STORE = "host store"  # the sites of the host's stores to memory begin with it


class Kind(Enum):
    """What an event is."""

    STORE = auto()
    WRITE = auto()
    SIZE = auto()
    NAME = auto()
    WRITE_BACK = auto()
    FENCE = auto()
    RETURN = auto()
    SYNC = auto()  # fdatasync of a mapped file: what `Region.persist` does in the domain msync, and in no other
    FILE_SYNC = auto()  # fsync of a file that was written
    NAMES_SYNC = auto()  # fsync of the directory
    MARK = auto()


CHANGES = frozenset({Kind.STORE, Kind.WRITE, Kind.SIZE, Kind.NAME})
# The events that order changes: a mutation leaves some of them out.
ORDERING = frozenset({Kind.WRITE_BACK, Kind.FENCE, Kind.SYNC, Kind.FILE_SYNC, Kind.NAMES_SYNC})


@dataclass(frozen=True)
class Mutation:
    """A build that leaves out some ordering. No store depends on that, so the events are taken out of the trace.

    Parameters
    ----------
    site
        Where in the source; `HOST_STORE` alone means all sites of the host.
    kinds
        Which events; of a persist of a kernel, its fence, its write-backs, or both.
    """

    site: str
    kinds: frozenset[Kind]

    def __str__(self) -> str:
        return f"{'+'.join(sorted(kind.name for kind in self.kinds))} of {self.site}"

    @staticmethod
    def parse(text: str) -> Mutation:
        """Read what `str` gives; raises `ValueError` if it is none."""
        kinds, found, site = text.partition(" of ")
        if not found or not set(kinds.split("+")) <= {kind.name for kind in ORDERING}:
            raise ValueError(
                f"{text!r} is not a mutation of the form FENCE of SITE, as `gpkvs crash --mutate` prints it"
            )
        return Mutation(site, frozenset(Kind[kind] for kind in kinds.split("+")))

    def removes(self, event: Event) -> bool:
        """Whether the mutated build leaves out an event."""
        everywhere = self.site == HOST_STORE and event.site.startswith(HOST_STORE)
        return event.kind in self.kinds and (everywhere or event.site == self.site)


@dataclass(frozen=True, slots=True)
class Event:
    """One event.

    Parameters
    ----------
    kind
        It decides which of the other fields have a meaning.
    site
        Where in the source: a kernel's name, or module and function.
    thread
        0 is the host; each logical thread of each kernel has a number of its own.
    file
        The file's number, by order of appearance. Of a NAME: the file that it leads to, 0 for none.
    at
        The number of a word in the file. Of a SIZE: how many words the file has.
    words
        The words that were stored there.
    name
        Of a NAME: the name.
    """

    kind: Kind
    site: str
    thread: int = 0
    file: int = 0
    at: int = 0
    words: tuple[int, ...] = ()
    name: str = ""


@dataclass
class Image:
    """The contents of a directory: a crash leaves an image, and recovery starts from it.

    Parameters
    ----------
    names
        The file that each name leads to.
    files : dict of (words,) uint64
        By number.
    """

    names: dict[str, int] = field(default_factory=dict)
    files: dict[int, Words] = field(default_factory=dict)

    def items(self) -> Iterator[tuple[str, Words]]:
        """Return each name with the contents of its file."""
        return ((name, self.files[number]) for name, number in self.names.items())

    def copy(self) -> Image:
        """Return a copy, words included."""
        return Image(dict(self.names), {number: words.copy() for number, words in self.files.items()})

    def apply(self, event: Event) -> None:
        """Apply a change."""
        if event.kind is Kind.NAME:
            if event.file:
                self.names[event.name] = event.file
                self.files.setdefault(event.file, np.zeros(0, np.uint64))
            else:
                self.names.pop(event.name, None)
        elif event.kind is Kind.SIZE:
            self._resize(event.file, event.at)
        else:
            end = event.at + len(event.words)
            if end > len(self.files.get(event.file, ())):
                # The crash kept the sector and lost the size: nobody can read beyond the end of a file.
                return
            self.files[event.file][event.at : end] = event.words

    def _resize(self, file: int, size: int) -> None:
        old = self.files.get(file, np.zeros(0, np.uint64))
        grown = np.zeros(size, np.uint64)
        grown[: min(size, len(old))] = old[:size]
        self.files[file] = grown


@dataclass(frozen=True)
class Trace:
    """Events, and the directory before the first of them."""

    before: Image
    events: tuple[Event, ...]

    def mutated(self, mutation: Mutation | None) -> Trace:
        """Return the trace of a mutated build."""
        if mutation is None:
            return self
        return Trace(self.before, tuple(event for event in self.events if not mutation.removes(event)))

    def after(self) -> Image:
        """Return the directory after all events."""
        image = self.before.copy()
        for event in self.events:
            if event.kind in CHANGES:
                image.apply(event)
        return image

    def then(self, events: tuple[Event, ...]) -> Trace:
        """Return a trace that goes on with other events; their kernels have threads of their own."""
        highest = max((event.thread for event in self.events), default=0)
        shifted = (replace(event, thread=event.thread + highest) if event.thread else event for event in events)
        return Trace(self.before, (*self.events, *shifted))


def block_of(thread: int) -> int:
    """Return the number of a thread's block, which no other thread has; that of a thread without a block is its own."""
    return thread >> _BLOCK_BITS or thread


def interleaved(threads: list[list[Event]], random: Random) -> Iterator[Event]:
    """Merge the threads of a kernel at random, each in its own order, as late as possible at fences.

    Threads of a kernel do not wait for each other. The order with all stores before any fence has the most states: the
    states of every other order are among them.
    """
    rounds: list[list[list[Event]]] = []
    for events in threads:
        parts: list[list[Event]] = [[]]
        for event in events:
            parts[-1].append(event)
            if event.kind is Kind.FENCE:
                parts.append([])
        for number, part in enumerate(parts):
            if number == len(rounds):
                rounds.append([])
            rounds[number].append(part)
    for parts in rounds:
        fences = [event for part in parts for event in part if event.kind is Kind.FENCE]
        waiting = [[event for event in reversed(part) if event.kind is not Kind.FENCE] for part in parts]
        waiting = [part for part in waiting if part]
        while waiting:
            chosen = random.randrange(len(waiting))
            yield waiting[chosen].pop()
            if not waiting[chosen]:
                del waiting[chosen]
        yield from fences
