"""What a store tells those who follow it: the effects of its transactions by key, as columns."""

from __future__ import annotations

import re
from dataclasses import dataclass
from enum import IntEnum
from typing import Self

from gpkvs.batch import U8, U32, U64
from gpkvs.errors import ChangesLostError, InvalidArgumentError
from gpkvs.scan import cut_column
from gpkvs.text import quoted


class ChangeKind(IntEnum):
    """What became of a key."""

    SET = 1
    DELETED = 2
    EXPIRED = 3  # it was removed because its time was over


@dataclass(frozen=True)
class Position:
    """Where in the changes of a store somebody stands: behind the entry with this number.

    Parameters
    ----------
    timeline
        A number of the store's last opening. Positions of other stores mean nothing to it, and those of earlier
        openings only where the one before ended.
    number
        Of the entry: the version that the next SET may get. Each transaction that changes something takes one number
        for each of its operations, a table that is made or dropped takes one. Entries that are told together have the
        number of the last one.

    Examples
    --------
    >>> str(Position(0x5F, 17))
    '000000000000005f-17'
    """

    timeline: int
    number: int

    def __str__(self) -> str:
        return f"{self.timeline:016x}-{self.number}"

    def reaches(self, other: Self) -> bool:
        """Whether all that lies before another position lies before this one.

        Raises
        ------
        ChangesLostError
            If they are of different timelines, which tell nothing of each other.
        """
        if self.timeline != other.timeline:
            raise ChangesLostError(f"position {self} is of another opening of a store than {other}: begin anew")
        return self.number >= other.number

    @classmethod
    def parse(cls, text: str, field: str = "since") -> Self:
        """Read what `str` wrote; an error names the field of a request.

        Raises
        ------
        InvalidArgumentError
            If it is nothing of that kind.
        """
        found = re.fullmatch(r"([0-9a-f]{16})-([0-9]{1,19})", text)
        if not found:
            raise InvalidArgumentError(
                f"{quoted(text)} is no position of a watch, such as 00c0ffee00c0ffee-17", field=field
            )
        return cls(int(found[1], 16), int(found[2]))


@dataclass(frozen=True)
class MadeTable:
    """What a new table is like."""

    layout: str
    index_bytes: int
    index_bytes_max: int


@dataclass(frozen=True)
class Changes:
    """What one or several transactions of one millisecond changed in a table, or that a table was made or dropped.

    They come in order: of several effects on a key, the last one counts. Each is absolute: to apply it twice does no
    harm.

    Parameters
    ----------
    number
        The position behind it (`Position.number`).
    time_ms
        When it was executed, in milliseconds since 1970; at least that of the entry before.
    table, name
        Number and name of its table. A number is never given again, a name may be.
    kinds : (n,) uint8
        `ChangeKind` of each key; empty where `made` or `is_dropped` says what happened, or where all is as it was: a
        transaction may set a key and delete it again.
    keys, key_lengths : uint8, (n,) uint32
        The keys, one after the other, and how long each is.
    values, value_lengths : uint8, (n,) uint32
        The same of the values; those of keys that are gone are empty.
    versions : (n,) uint64
        That each key has now, 0 if it is gone; empty where the table has none (layout ``u64``).
    expiries : (n,) uint64
        When each key expires, in milliseconds since 1970, 0: never; empty where none of them does.
    made
        The table is new.
    is_dropped
        The table is gone, with all it held.
    is_whole
        False: the next entry has the same number, and both were one transaction.
    """

    number: int
    time_ms: int
    table: int
    name: str
    kinds: U8
    keys: U8
    key_lengths: U32
    values: U8
    value_lengths: U32
    versions: U64
    expiries: U64
    made: MadeTable | None = None
    is_dropped: bool = False
    is_whole: bool = True

    def __len__(self) -> int:
        return len(self.kinds)

    @property
    def nbytes(self) -> int:
        """What the columns take."""
        columns = (
            self.kinds,
            self.keys,
            self.key_lengths,
            self.values,
            self.value_lengths,
            self.versions,
            self.expiries,
        )
        return sum(column.nbytes for column in columns)

    def key_list(self) -> list[bytes]:
        """Return the keys as Python objects."""
        return cut_column(self.keys, self.key_lengths)

    def value_list(self) -> list[bytes]:
        """Return the values as Python objects; those of keys that are gone are empty."""
        return cut_column(self.values, self.value_lengths)
