"""The slots in which a mirror lags behind its index: native code notes them (``kernels/space/late_slots.hpp``)."""

from __future__ import annotations

import ctypes
from typing import Final

import numpy as np

from gpkvs.batch import U64

ROOM_MAX: Final = 1 << 20
_COUNT, _ROOM, _SLOTS = range(3)
_WORDS: Final = 3


class LateSlots:
    """Notes of slots, by their numbers.

    Parameters
    ----------
    room
        For how many there is room, at most `ROOM_MAX`. When more are late, nobody knows which.

    Attributes
    ----------
    address
        Of the struct that native code takes notes in.
    """

    def __init__(self, room: int) -> None:
        self._slots: U64 = np.empty(ROOM_MAX, np.uint64)  # what nobody touches takes no memory
        self._words = (ctypes.c_uint64 * _WORDS)(0, room, self._slots.ctypes.data)
        self.address = ctypes.addressof(self._words)

    @property
    def is_any(self) -> bool:
        """Whether the mirror lags behind."""
        return self._words[_COUNT] > 0

    @property
    def count(self) -> int:
        """How many are noted; a slot that changed often counts often."""
        return min(self._words[_COUNT], self._words[_ROOM])

    @property
    def are_too_many(self) -> bool:
        """Whether there were more than there is room for: all slots may be late."""
        return self._words[_COUNT] > self._words[_ROOM]

    @property
    def room(self) -> int:
        """For how many there is room."""
        return self._words[_ROOM]

    @room.setter
    def room(self, room: int) -> None:
        if self.are_too_many:
            self._words[_COUNT] = room + 1
        self._words[_ROOM] = room

    def note(self, slots: U64) -> None:
        """Take note of slots."""
        first, last = self._words[_COUNT], self._words[_COUNT] + len(slots)
        if last > self._words[_ROOM]:
            last = self._words[_ROOM] + 1
        else:
            self._slots[first:last] = slots
        self._words[_COUNT] = last

    def noted(self) -> U64:
        """Return a copy of the notes."""
        # Without np.unique: it takes a hundred times as long as it saves.
        return self._slots[: self.count].copy()

    def forget(self) -> None:
        """Forget the notes: the mirror has what the index has."""
        self._words[_COUNT] = 0
