"""What a watcher was told, as it keeps it: one line of a file for each thing that it heard.

A line is written by one call, behind which the watcher has it: what a kill cuts was never there. So each line has the
changes of a read and the position behind them, together.
"""

from __future__ import annotations

import json
from base64 import b64decode, b64encode
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gpkvs.changes import ChangeKind, Changes, Position

Row = tuple[bytes, int]  # value, version


@dataclass(frozen=True)
class Began:
    """It began anew: it followed from a position on, then read all there was.

    Parameters
    ----------
    asked_s, answered_s
        When it asked to follow, and when it followed.
    """

    position: Position
    asked_s: float
    answered_s: float
    rows: dict[bytes, Row]


@dataclass(frozen=True)
class WentOn:
    """A new process went on behind the position that was kept."""

    position: Position


@dataclass(frozen=True)
class Lost:
    """It heard that changes are no longer held."""

    text: str


@dataclass(frozen=True)
class Change:
    """What became of a key."""

    kind: ChangeKind
    key: bytes
    value: bytes
    version: int


@dataclass(frozen=True)
class Entry:
    """Changes with one number."""

    number: int
    is_whole: bool
    changes: tuple[Change, ...]

    @staticmethod
    def of(entry: Changes) -> Entry:
        """Return an entry as single changes."""
        columns = zip(entry.kinds.tolist(), entry.key_list(), entry.value_list(), entry.versions.tolist(), strict=True)
        changes = tuple(Change(ChangeKind(kind), *rest) for kind, *rest in columns)
        return Entry(entry.number, entry.is_whole, changes)


@dataclass(frozen=True)
class Told:
    """What one read brought, and the position behind it."""

    position: Position
    entries: tuple[Entry, ...]


Heard = Began | WentOn | Lost | Told


def line_of(heard: Heard) -> bytes:
    """Return the line of a file."""
    match heard:
        case Began(position, asked_s, answered_s, rows):
            words: list[Any] = [str(position), asked_s, answered_s]
            words.append([[_text(key), _text(value), version] for key, (value, version) in rows.items()])
        case WentOn(position):
            words = [str(position)]
        case Lost(text):
            words = [text]
        case Told(position, entries):
            words = [str(position), [[e.number, e.is_whole, [_of_change(c) for c in e.changes]] for e in entries]]
    return json.dumps([type(heard).__name__, *words]).encode() + b"\n"


def heard_of(line: bytes) -> Heard:
    """Read what `line_of` wrote."""
    match json.loads(line):
        case ["Began", position, asked_s, answered_s, rows]:
            held = {_bytes(key): (_bytes(value), version) for key, value, version in rows}
            return Began(Position.parse(position), asked_s, answered_s, held)
        case ["WentOn", position]:
            return WentOn(Position.parse(position))
        case ["Lost", text]:
            return Lost(text)
        case ["Told", position, entries]:
            found = [
                Entry(number, whole, tuple(_change(*words) for words in changes)) for number, whole, changes in entries
            ]
            return Told(Position.parse(position), tuple(found))
    raise ValueError(line)


def _of_change(change: Change) -> list[Any]:
    return [int(change.kind), _text(change.key), _text(change.value), change.version]


def _change(kind: int, key: str, value: str, version: int) -> Change:
    return Change(ChangeKind(kind), _bytes(key), _bytes(value), version)


def _text(data: bytes) -> str:
    return b64encode(data).decode()


def _bytes(text: str) -> bytes:
    return b64decode(text)


class Keeper:
    """The file of a watcher, for the watcher itself.

    Attributes
    ----------
    position
        Behind what it has; None: it has nothing, or lost what came next.
    """

    def __init__(self, path: Path) -> None:
        self.position: Position | None = None
        whole = 0
        for heard, end in _lines(path.read_bytes() if path.exists() else b""):
            self._take(heard)
            whole = end
        self._file = path.open("ab")
        self._file.truncate(whole)  # a kill has cut the rest

    def keep(self, heard: Heard) -> None:
        """Keep what was heard."""
        self._file.write(line_of(heard))
        self._file.flush()
        self._take(heard)

    def _take(self, heard: Heard) -> None:
        self.position = position_behind(heard)


class Reader:
    """The same file, for whoever judges."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._at = 0

    def news(self) -> Iterable[Heard]:
        """Return what was kept since the last call."""
        if not self._path.exists():
            return
        with self._path.open("rb") as file:
            file.seek(self._at)
            data = file.read()
        begin = self._at
        for heard, end in _lines(data):
            self._at = begin + end
            yield heard


def _lines(data: bytes) -> Iterator[tuple[Heard, int]]:
    """Yield each whole line, and where it ends."""
    at = 0
    while end := data.find(b"\n", at) + 1:
        yield heard_of(data[at:end]), end
        at = end


def position_behind(heard: Heard) -> Position | None:
    """Return behind what a watcher is that has heard this last; None: behind nothing."""
    return None if isinstance(heard, Lost) else heard.position
