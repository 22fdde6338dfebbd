"""What moves the same bytes and does nothing else: the limit of a store in memory, and of a store on a disk."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

MEMCPY, FLUSHED = "memcpy", "pwrite, fdatasync"


class _Slots:
    """Places of the same size, one for each key."""

    version = ""

    def __init__(self, size: int) -> None:
        self.size = size
        self._places: dict[bytes, int] = {}

    def offset(self, key: bytes) -> int:
        """Return where the value of a key lies."""
        return self.size * self._places.setdefault(key, len(self._places))

    def settle(self) -> None:
        """Return at once."""


class Memcpy(_Slots):
    """Memory that is there already: a SET copies a value to its place, a GET copies it into one and the same buffer.

    Parameters
    ----------
    size, count
        Of the values.
    """

    name = MEMCPY
    settings = "one thread, between pages that were touched before"

    def __init__(self, size: int, count: int) -> None:
        super().__init__(size)
        self._memory = np.zeros(size * count, np.uint8)
        self._buffer = bytearray(size)
        self._into = np.frombuffer(self._buffer, np.uint8)

    def set_one(self, key: bytes, value: bytes) -> None:
        """Copy a value to its place."""
        self._place(key)[:] = np.frombuffer(value, np.uint8)

    def get_one(self, key: bytes) -> bytearray:
        """Copy a value into the buffer."""
        self._into[:] = self._place(key)
        return self._buffer

    def _place(self, key: bytes) -> NDArray[np.uint8]:
        offset = self.offset(key)
        return self._memory[offset : offset + self.size]

    def close(self) -> None:
        """Let the memory go."""
        del self._memory


class FlushedWrites(_Slots):
    """A file whose space is written already: a SET is one `pwrite` and one `fdatasync`.

    Parameters
    ----------
    directory
        On the disk.
    size, count
        Of the values.
    """

    name = FLUSHED
    settings = "into a file whose space is written already"

    def __init__(self, directory: Path, size: int, count: int) -> None:
        super().__init__(size)
        self._file = os.open(directory / "values", os.O_RDWR | os.O_CREAT)
        for number in range(count):
            os.pwrite(self._file, bytes(size), number * size)
        os.fsync(self._file)

    def set_one(self, key: bytes, value: bytes) -> None:
        """Write a value to its place, durably."""
        os.pwrite(self._file, value, self.offset(key))
        os.fdatasync(self._file)

    def get_one(self, key: bytes) -> bytes:
        """Read a value."""
        return os.pread(self._file, self.size, self.offset(key))

    def close(self) -> None:
        """Close the file."""
        os.close(self._file)
