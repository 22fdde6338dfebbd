"""The word that says which of two copies counts, and its number: a `gpkvs.gpm.state_word`, whose bit is the copy.

The number 0 means that nothing was saved yet.

Invariants
----------
gpm-current   the checksum of each group's word is right
"""

from __future__ import annotations

from typing import NamedTuple

from gpkvs.gpm.file import GpmFile
from gpkvs.gpm.header import STATE_BYTES
from gpkvs.gpm.state_word import StateWord, read_word, store_word

WORDS_MAX = STATE_BYTES // 8


class Current(NamedTuple):
    """Which copy counts.

    Attributes
    ----------
    number
        How many were saved; 0: none, and no copy counts.
    copy
        0 or 1.
    """

    number: int
    copy: int

    @property
    def next(self) -> Current:
        """What the next save makes current: it writes the copy that does not count."""
        return Current(self.number + 1, 1 - self.copy if self.number else 0)


def none_saved(words: int) -> list[int]:
    """Return the words of a new file, of which so many are used."""
    return [StateWord(0, 0).pack(place) for place in range(words)]


def read_current(file: GpmFile, place: int) -> Current:
    """Read a word of the state page; raises `CorruptStoreError` if it is damaged."""
    return Current(*read_word(file, place, "gpm-current"))


def store_current(file: GpmFile, place: int, current: Current) -> None:
    """Make a copy the one that counts, durably; it is whole and durable already."""
    store_word(file, place, StateWord(*current))
