"""The word that says which of two copies counts, and its number: it changes at once.

    number << 17 | copy << 16 | the lower half of a CRC32C over both and the word's place

0 means that nothing was saved yet.

Invariants
----------
gpm-current   the word of each group is 0, or its checksum is right
"""

from __future__ import annotations

from typing import NamedTuple

from gpkvs.errors import CorruptStoreError
from gpkvs.gpm.file import STATE_BYTES, GpmFile
from gpkvs.native import crc32c

WORDS_MAX = STATE_BYTES // 8
_NUMBER_MAX = (1 << 47) - 1


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


def read_current(file: GpmFile, place: int) -> Current:
    """Read a word of the state page; raises `CorruptStoreError` if it is damaged."""
    word = file.state(place)
    current = Current(word >> 17, word >> 16 & 1)
    if word and (not current.number or word != _pack(current, place)):
        raise CorruptStoreError(
            "gpm-current",
            f"{word:#x} does not say which copy counts: restore the file from a backup",
            path=file.path,
            offset=file.state_at + 8 * place,
        )
    return current


def store_current(file: GpmFile, place: int, current: Current) -> None:
    """Make a copy the one that counts, durably; it is whole and durable already."""
    file.set_state(place, _pack(current, place))


def _pack(current: Current, place: int) -> int:
    assert 0 < current.number <= _NUMBER_MAX
    said = current.number << 1 | current.copy
    check = crc32c(said.to_bytes(8, "little") + place.to_bytes(8, "little")) & 0xFFFF
    return said << 16 | check
