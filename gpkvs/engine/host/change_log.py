"""The log of changes that followers read (``kernels/commit/changes.hpp``): on while somebody follows."""

from __future__ import annotations

import ctypes
import itertools
import math
import secrets
import time
import weakref
from collections.abc import Mapping
from enum import IntEnum
from typing import Any, Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from gpkvs.backends.fields import fields_of
from gpkvs.changes import Changes, MadeTable, Position
from gpkvs.engine.seam.committer import Committer
from gpkvs.errors import ChangesLostError, NoMemoryError
from gpkvs.media.catalog import TableEntry
from gpkvs.media.layout import BLOCK_BYTES, Opened
from gpkvs.native import library

_FIELDS: Final = fields_of(library.gpkvs_changes_fields())
_AT: Final = {field.name: at for at, field in enumerate(_FIELDS)}


class _Event(IntEnum):
    """`ChangeEvent`."""

    EFFECTS = 0
    TABLE_MADE = 1
    TABLE_DROPPED = 2


class _Read(IntEnum):
    """`ChangesRead`."""

    SOME = 0
    NONE = 1
    LOST = 2


class _Told(NamedTuple):
    """What was told of a table: its name, and how it was made, if that was told."""

    name: str
    made: MadeTable | None


class _Memory:
    """Columns that native code holds for whoever has an array of them."""

    def __init__(self, held: int) -> None:
        weakref.finalize(self, library.gpkvs_changes_delete, held).atexit = False


class _Column:
    """One of them, for `numpy.asarray`."""

    __slots__ = ("__array_interface__", "_memory")

    def __init__(self, memory: _Memory, address: int, count: int, dtype: str) -> None:
        self._memory = memory
        self.__array_interface__ = {"version": 3, "typestr": dtype, "shape": (count,), "data": (address, True)}


class ChangeLog:
    """The effects of the newest transactions, in memory.

    `turn_on`, `turn_off_if_over` and what tells are called with the store's mutex, between two batches; the others from
    any thread.

    Parameters
    ----------
    committer
        Says what is durable.
    bytes_max
        Of all entries. Older ones are forgotten.
    opened
        What the root says of this opening.

    Attributes
    ----------
    address
        Of the log, for native code.
    timeline
        Of the positions.
    is_on
        Whether changes are told.
    is_closed
        Whether the store was closed.

    Raises
    ------
    NoMemoryError
        If there is no memory for it.
    """

    def __init__(self, committer: Committer, bytes_max: int, opened: Opened) -> None:
        self._committer = committer
        self.bytes_max = bytes_max
        self.address: int = library.gpkvs_change_log_new(bytes_max) or 0
        if not self.address:
            raise NoMemoryError
        # A thread that the end of the process does not wait for may be in there, or come.
        weakref.finalize(self, library.gpkvs_change_log_delete, self.address).atexit = False
        self._opened = opened
        self.timeline = secrets.randbits(64) or 1
        self._tables: dict[int, _Told] = {}
        self._followers: set[int] = set()  # a collector of garbage may take one away at any time, in any thread
        self._numbers = itertools.count()
        self._kept_until = -math.inf
        self.is_on = False
        self.is_closed = False

    def turn_on(self, tables: Mapping[int, str]) -> int:
        """Have changes told from now on to one follower more; return its number.

        Parameters
        ----------
        tables
            The names of all tables, by their numbers.
        """
        if not self.is_on:
            self._tables = {number: _Told(name, None) for number, name in tables.items()}
            library.gpkvs_change_log_turn_on(self.address, self._committer.next_sequence)
            self.is_on = True
        follower = next(self._numbers)
        self._followers.add(follower)
        return follower

    def keep(self, tables: Mapping[int, str], seconds: float) -> None:
        """Have changes told for so long, if somebody may come back who followed before the store was opened."""
        if self._opened.ended:
            self.leave(self.turn_on(tables), seconds)

    def leave(self, follower: int, keep_seconds: float) -> None:
        """Take note that a follower has left, and that changes are told for so long still; from any thread."""
        self._kept_until = max(self._kept_until, time.monotonic() + keep_seconds)
        self._followers.discard(follower)

    def turn_off_if_over(self) -> None:
        """Have no changes told any more, if nobody follows, and nobody may come back."""
        if self.is_on and not self._followers and time.monotonic() >= self._kept_until:
            self.is_on = False
            library.gpkvs_change_log_turn_off(self.address)

    def made(self, entry: TableEntry) -> None:
        """Tell of a new table."""
        if not self.is_on:
            return
        table = MadeTable(entry.layout, entry.blocks * BLOCK_BYTES, entry.index_bytes_max)
        self._tables[entry.id] = _Told(entry.name, table)
        self._tell(_Event.TABLE_MADE, entry)

    def dropped(self, entry: TableEntry) -> None:
        """Tell that a table is gone."""
        if self.is_on:
            self._tell(_Event.TABLE_DROPPED, entry)

    def _tell(self, event: _Event, entry: TableEntry) -> None:
        committer = self._committer
        number, gate = committer.next_sequence, committer.read_gate()
        library.gpkvs_change_log_tell_table(self.address, event, entry.id, number, gate)

    @property
    def newest(self) -> Position:
        """Behind the newest entry, which need not be durable yet; while nothing is told, behind what was executed."""
        number = library.gpkvs_change_log_newest(self.address) if self.is_on else self._committer.next_sequence
        return Position(self.timeline, number)

    @property
    def oldest(self) -> Position:
        """Where the entries begin that the log still has."""
        return Position(self.timeline, library.gpkvs_change_log_oldest(self.address))

    @property
    def held_bytes(self) -> int:
        """What the entries take."""
        return int(library.gpkvs_change_log_bytes(self.address))

    def here(self, position: Position) -> Position:
        """Return a position as one of this opening; it may be of one that ended where this one began.

        Raises
        ------
        ChangesLostError
            If nobody can go on from there: saying from where one can.
        """
        opened = self._opened
        if position.timeline in opened.ended and position.number == opened.number:
            position = Position(self.timeline, position.number)
        if position.timeline != self.timeline:
            raise ChangesLostError(
                f"position {position} is not of this opening of the store, whose newest is {self.newest}, nor where "
                "the one before ended: begin anew, read all, then follow"
            )
        if not self.is_on and position != self.newest:
            raise ChangesLostError(
                f"the changes behind {position} are no longer held, because nobody followed meanwhile: begin anew, "
                "read all, then follow"
            )
        if self.is_on and not (position.reaches(self.oldest) and self.newest.reaches(position)):
            raise self._lost(position)
        return position

    def _lost(self, position: Position) -> ChangesLostError:
        return ChangesLostError(
            f"the changes behind {position} are no longer held, only those behind {self.oldest} "
            f"(the newest {self.bytes_max:,} bytes; changes_bytes is how many): begin anew, read all, then follow"
        )

    def read(self, position: Position, bytes_max: int) -> Changes | None:
        """Return the next changes behind a position that are durable: of one table, of one millisecond.

        Parameters
        ----------
        bytes_max
            Of several entries; a single one may be longer.

        Returns
        -------
        Changes
            Its columns cannot be written.
        None
            There are none that are durable, or there are none.

        Raises
        ------
        ChangesLostError
            If they are no longer held.
        """
        found = self._read(position.number, bytes_max)
        if isinstance(found, int):
            return None
        if found is None:
            raise self._lost(position)
        return found

    def wait(self, position: Position, seconds: float) -> None:
        """Return when there is something to read behind a position, or the time is over, or the store was closed."""
        milliseconds = int(max(seconds, 0.0) * 1000)
        library.gpkvs_change_log_wait(self.address, position.number, milliseconds)
        gate = self._read(position.number, 0)
        if isinstance(gate, int) and gate:
            self._committer.wait(gate)

    def _read(self, behind: int, bytes_max: int) -> Changes | int | None:
        """Return changes; or the gate that the next ones wait for, 0 if there are none; None: they are lost."""
        held, words, gate = ctypes.c_void_p(), ctypes.c_void_p(), ctypes.c_uint64()
        durable = self._committer.durable_gate
        read = library.gpkvs_change_log_read(
            self.address, behind, durable, bytes_max, ctypes.byref(held), ctypes.byref(words), ctypes.byref(gate)
        )
        if read == _Read.NONE:
            return gate.value
        if read == _Read.LOST:
            return None
        assert held.value
        assert words.value
        return self._changes(_Memory(held.value), (ctypes.c_uint64 * len(_FIELDS)).from_address(words.value))

    def _changes(self, memory: _Memory, words: ctypes.Array[ctypes.c_uint64]) -> Changes:
        number, time_ms, event, table, n, key_bytes, value_bytes = (
            words[_AT[name]] for name in ("number", "time_ms", "event", "table_id", "n", "key_bytes", "value_bytes")
        )

        def column(name: str, count: int, dtype: str) -> NDArray[Any]:
            address = words[_AT[name]]
            if not address or not count:
                return np.empty(0, dtype)
            return np.asarray(_Column(memory, address, count, dtype))

        told = self._tables[table]
        return Changes(
            number,
            time_ms,
            table,
            told.name,
            column("kinds", n, "|u1"),
            column("keys", key_bytes, "|u1"),
            column("key_lengths", n, "<u4"),
            column("values", value_bytes, "|u1"),
            column("value_lengths", n, "<u4"),
            column("versions", n, "<u8"),
            column("expiries", n, "<u8"),
            told.made if event == _Event.TABLE_MADE else None,
            event == _Event.TABLE_DROPPED,
        )

    def close(self) -> None:
        """Tell those who wait that nothing comes any more, and everything is durable."""
        self.is_closed = True
        library.gpkvs_change_log_close(self.address)
