"""A word of a state page: a number and a bit with their checksum, changed at once.

    number << 17 | bit << 16 | the lower half of a CRC32C over both and the word's place in the page

0 is no such word, at any place: a page that was lost does not pass for one of a new file.
"""

from __future__ import annotations

from typing import NamedTuple

from gpkvs.errors import CorruptStoreError
from gpkvs.gpm.file import GpmFile
from gpkvs.native import crc32c

NUMBER_MAX = (1 << 47) - 1


class StateWord(NamedTuple):
    """What a word says."""

    number: int
    bit: int

    def pack(self, place: int) -> int:
        """Return the word for a place."""
        assert 0 <= self.number <= NUMBER_MAX
        said = self.number << 1 | self.bit
        check = crc32c(said.to_bytes(8, "little") + place.to_bytes(8, "little")) & 0xFFFF
        return said << 16 | check


def read_word(file: GpmFile, place: int, invariant: str) -> StateWord:
    """Read a word; raises `CorruptStoreError`, with the name of an invariant, if it is damaged."""
    word = file.state(place)
    found = StateWord(word >> 17, word >> 16 & 1)
    if word != found.pack(place):
        raise CorruptStoreError(
            invariant,
            f"the word {word:#x} fails its checksum, and nobody knows what counts: restore the file from a backup",
            path=file.path,
            offset=file.state_at + 8 * place,
        )
    return found


def store_word(file: GpmFile, place: int, said: StateWord) -> None:
    """Store a word, and make it and all earlier stores of the host to the file durable."""
    file.set_state(place, said.pack(place))
