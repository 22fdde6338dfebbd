"""What a watch tells of a store or a server: change by change, of one table and those keys that begin with a prefix."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import repeat
from types import TracebackType
from typing import Protocol, Self, TypeVar

import numpy as np
from numpy.typing import NDArray

from gpkvs.batch import U32
from gpkvs.changes import ChangeKind, Changes, Position
from gpkvs.errors import GpkvsError, UnknownTableError
from gpkvs.scan import cut_column
from gpkvs.text import quoted

Row = TypeVar("Row", bound=np.generic)

READ_BYTES = 1 << 18
"""About how much of what changed is taken at once."""

POSITION_SECONDS = 1.0
"""Who waits for a change looks so often how far it is: what it does not want moves the position, too."""

_BYTES_AT_ONCE = 16  # of a prefix: most keys differ early


@dataclass(frozen=True, slots=True)
class Change:
    """What became of a key.

    Parameters
    ----------
    kind
        What happened to it.
    key
        The key; of a table of numbers its 8 bytes, little-endian.
    value
        What it holds now, like the key; None if it is gone.
    version
        That it has now; None if it is gone, or its table has none (layout ``u64``).
    expiry_ms
        When it expires, in milliseconds since 1970; 0: never.
    time_ms
        When it was executed, in milliseconds since 1970.
    table
        The name of its table.
    position
        A later watch goes on here (`since`). It lies behind the last changes that were taken whole. If you stop amid
        those that are told together, they come again from the first on.
    """

    kind: ChangeKind
    key: bytes
    value: bytes | None
    version: int | None
    expiry_ms: int
    time_ms: int
    table: str
    position: Position


class Follows(Protocol):
    """What brings changes, in the order in which they were executed: `Store.follow` and `Client.follow` return one."""

    @property
    def position(self) -> Position:
        """Behind what was read."""

    def read(self, bytes_max: int = ..., timeout: float | None = ...) -> list[Changes]:
        """Return what comes next; wait for it so many seconds, None: for ever."""

    def close(self) -> None:
        """Follow no more."""


@dataclass(frozen=True)
class Selection:
    """Which changes somebody wants.

    Parameters
    ----------
    table
        The name of the table; None: all.
    prefix
        Only keys that begin with it.
    """

    table: str | None
    prefix: bytes = b""

    def of(self, entry: Changes) -> Changes | None:
        """Return what is wanted of an entry; None if that is nothing."""
        if self.table is not None and entry.name != self.table:
            return None
        is_of_keys = entry.made is None and not entry.is_dropped
        if is_of_keys and not len(entry) and self.table is not None:
            return None
        if not self.prefix or not is_of_keys:
            return entry
        if len(entry) == 1:  # the usual one
            return entry if entry.keys[: len(self.prefix)].tobytes() == self.prefix else None
        begins = _begins(entry, self.prefix)
        count = int(begins.sum())
        if count == len(begins):
            return entry
        return _part(entry, begins) if count else None


def _begins(entry: Changes, prefix: bytes) -> NDArray[np.bool_]:
    """Return which keys begin with a prefix."""
    ends = np.cumsum(entry.key_lengths, dtype=np.int64)
    starts = ends - entry.key_lengths
    begins = np.asarray(entry.key_lengths >= len(prefix))
    for place in range(0, len(prefix), _BYTES_AT_ONCE):
        left = np.flatnonzero(begins)
        if not len(left):
            break
        wanted = np.frombuffer(prefix, np.uint8, min(_BYTES_AT_ONCE, len(prefix) - place), place)
        found = entry.keys[starts[left, None] + place + np.arange(len(wanted))]
        begins[left] = (found == wanted).all(axis=1)
    return begins


def _part(entry: Changes, chosen: NDArray[np.bool_]) -> Changes:
    """Return some keys of an entry."""

    def rows(column: NDArray[Row]) -> NDArray[Row]:
        return column[chosen] if len(column) else column

    def bytes_of(column: NDArray[np.uint8], lengths: U32) -> NDArray[np.uint8]:
        return column[np.repeat(chosen, lengths)]

    return replace(
        entry,
        kinds=rows(entry.kinds),
        keys=bytes_of(entry.keys, entry.key_lengths),
        key_lengths=rows(entry.key_lengths),
        values=bytes_of(entry.values, entry.value_lengths),
        value_lengths=rows(entry.value_lengths),
        versions=rows(entry.versions),
        expiries=rows(entry.expiries),
    )


class Selected:
    """The changes that somebody wants of all those of a store; a `Follows`, used by one thread at a time.

    Parameters
    ----------
    following
        Brings all changes; it is closed with this one.
    selection
        Which are wanted.
    """

    def __init__(self, following: Follows, selection: Selection) -> None:
        self._following = following
        self._selection = selection
        self._is_dropped = False
        self.position = following.position
        """Behind all that was read, wanted or not."""
        self.has_caught_up = True
        """Whether the last read brought all there was: it did if more would have fit."""

    def read(self, bytes_max: int = READ_BYTES, timeout: float | None = 0.0) -> list[Changes]:
        """Return what comes next; without a timeout, wait until something does.

        Raises
        ------
        UnknownTableError
            Behind the entry that says that the watched table was dropped.
        ChangesLostError
            If the store no longer holds what comes next.
        StoreClosedError
            If the store was closed.
        """
        while not (found := self.step(bytes_max, timeout)) and timeout is None:
            continue
        return found or []

    def step(self, bytes_max: int = READ_BYTES, timeout: float | None = 0.0) -> list[Changes] | None:
        """Read once; return what was wanted of that, None if there was nothing to read. Errors as `read`."""
        if self._is_dropped:
            raise UnknownTableError(f"table {quoted(self._selection.table or '')} was dropped", field="table")
        entries = self._following.read(bytes_max, timeout)
        self.has_caught_up = sum(entry.nbytes for entry in entries) < bytes_max
        if not entries:
            return None
        found: list[Changes] = []
        for entry in entries:
            self.position = Position(self.position.timeline, entry.number)
            wanted = self._selection.of(entry)
            if wanted is None:
                continue
            found.append(wanted)
            if entry.is_dropped and self._selection.table is not None:
                self._is_dropped = True
                break
        return found

    def close(self) -> None:
        """Follow no more."""
        self._following.close()


def changes_of(entries: Sequence[Changes], since: Position) -> Iterator[Change]:
    """Return the changes of entries behind a position, one by one; that a table is made or dropped is none."""
    for entry in entries:
        behind = Position(since.timeline, entry.number) if entry.is_whole else since
        last = len(entry) - 1
        columns = zip(
            entry.kinds.tolist(),
            cut_column(entry.keys, entry.key_lengths),
            cut_column(entry.values, entry.value_lengths),
            entry.versions.tolist() if len(entry.versions) else repeat(0),
            entry.expiries.tolist() if len(entry.expiries) else repeat(0),
            strict=False,  # of what repeats for ever
        )
        for number, (kind, key, value, version, expiry_ms) in enumerate(columns):
            yield Change(
                kind=ChangeKind(kind),
                key=key,
                value=value if kind == ChangeKind.SET else None,
                version=version or None,
                expiry_ms=expiry_ms,
                time_ms=entry.time_ms,
                table=entry.name,
                position=behind if number == last else since,
            )
        since = behind


class WatchItems:
    """How far a watch has come that returns one change at a time; the base of `Watch` and of that of asyncio.

    Attributes
    ----------
    position
        Behind the last whole transaction whose changes were all returned: a later watch goes on here (`since`).
    """

    def __init__(self, position: Position) -> None:
        self.position = position
        self._changes: Iterator[Change] = iter(())
        self._read_position = position

    def _next(self) -> Change | None:
        """Return the next change of those that are here."""
        for change in self._changes:
            self.position = change.position
            return change
        self.position = self._read_position
        return None

    def _take(self, entries: list[Changes], position: Position) -> None:
        """Take what was read, and the position behind it: all that was here before was returned."""
        self.position = self._read_position
        self._changes = changes_of(entries, self.position)
        self._read_position = position


class Watch(WatchItems, Iterator[Change]):
    """What changes, as it changes; made by ``watch``. It waits for the next change, for as long as it takes.

    Use it in a ``with`` block, or `close` it: the store keeps what changes as long as somebody watches.

    Raises
    ------
    UnknownTableError
        Behind the last change of a table that was dropped.
    ChangesLostError
        If what comes next is not held any more: read all anew (`scan`), then watch again.
    """

    def __init__(self, following: Follows) -> None:
        super().__init__(following.position)
        self._following = following

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def __next__(self) -> Change:
        while True:
            change = self._next()
            if change is not None:
                return change
            try:
                self._take(self._following.read(READ_BYTES, POSITION_SECONDS), self._following.position)
            except GpkvsError:
                self.position = self._following.position  # also behind what is not wanted
                raise

    def close(self) -> None:
        """Watch no more."""
        self._following.close()
